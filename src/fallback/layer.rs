//! The layer, which is also the builder.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc as StdArc;
use std::time::Duration;

use tower_layer::Layer;

use super::Exhausted;
use super::backends::{Models, NoBackups, Services};
use super::chain::Rules;
use super::gate::Gate;
use super::handle::FallbackHandle;
use super::same_turn::{Once, SameTurn};
use super::served_by::ServedBy;
use super::service::Fallback;
use crate::machinery::clock::Clock;
use crate::machinery::judge::Head;
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::Environment;
use crate::vocabulary::{
    AsBoxError, Cancelled, Event, FallbackState, Observe, RefusalsAsFailures, RefuseWith,
};

/// Puts a chain of backups behind a model.
///
/// The layer is the builder: [`new`](Self::new) and [`rewriting`](Self::rewriting) have good
/// defaults, and setters change them.
///
/// **The state lives in the layer.** Every service that it makes and every clone of it share one
/// chain, as frameworks need that layer per route or per request. A setter gives the layer state
/// of its own. So call the setters first, and take services and the [`handle`](Self::handle)
/// last.
///
/// See the [module documentation](super) for what the chain does.
#[must_use = "a layer does nothing until it is given a service"]
pub struct FallbackLayer<
    K = NoBackups,
    C = RefusalsAsFailures,
    R = AsBoxError,
    V = (),
    Q = Once,
    J = Head,
> {
    environment: Environment<Rules>,
    gate: Gate,
    backends: K,
    classify: C,
    refuse: R,
    served: V,
    replay: Q,
    judge: J,
}

impl FallbackLayer {
    /// Makes a layer with the default settings and an empty chain.
    ///
    /// 3 failures in a row trip the primary. Its cooldown is 60 s, a probe's lease is 120 s, and 2
    /// successful probes in a row bring the primary back. 2 failed turns spend a backup's budget.
    ///
    /// Without a backup the layer trips for the record, and the primary still serves.
    ///
    /// # Panics
    ///
    /// If `primary`, the name of the primary, is empty.
    pub fn new(primary: impl Into<Cow<'static, str>>) -> Self {
        FallbackLayer::of(&primary.into(), NoBackups)
    }
}

impl<W> FallbackLayer<Models<W>> {
    /// Makes a layer for a chain of models behind one service. [`model`](Self::model) adds them.
    ///
    /// Before each turn, also one of the primary, `rewrite` puts the name of the model that serves
    /// into the request. It is a `Fn(&mut Request, &str)`.
    ///
    /// The defaults are those of [`new`](FallbackLayer::new).
    ///
    /// # Panics
    ///
    /// If `primary`, the name of the primary, is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::FallbackLayer;
    /// struct ChatRequest { model: String }
    ///
    /// let rewrite = |req: &mut ChatRequest, model: &str| req.model = model.into();
    /// let layer = FallbackLayer::rewriting("gpt-5", rewrite)
    ///     .model("gpt-5-mini")
    ///     .model("gpt-4");
    /// # let _ = layer;
    /// ```
    pub fn rewriting(primary: impl Into<Cow<'static, str>>, rewrite: W) -> Self {
        FallbackLayer::of(&primary.into(), Models::new(rewrite))
    }
}

impl<K> FallbackLayer<K> {
    fn of(primary: &str, backends: K) -> Self {
        assert!(
            !primary.is_empty(),
            "a fallback needs a primary whose name is not empty, not ``"
        );
        let environment = Environment {
            rules: Rules::new(primary.into()),
            clock: Clock::start(),
            observers: Observers::default(),
        };
        Self {
            gate: Gate::made(environment.clone()),
            environment,
            backends,
            classify: RefusalsAsFailures,
            refuse: AsBoxError,
            served: (),
            replay: Once,
            judge: Head,
        }
    }
}

impl<C, R, V, Q, J> FallbackLayer<NoBackups, C, R, V, Q, J> {
    /// Adds the first backup to the chain.
    ///
    /// It may be of another type than the primary, with the same response and error, and must be
    /// `Clone`. Further backups must be of its type: box them if they differ.
    ///
    /// # Panics
    ///
    /// If `name` is empty, or the primary's.
    pub fn backup<B>(
        self,
        name: impl Into<Cow<'static, str>>,
        backup: B,
    ) -> FallbackLayer<Services<B>, C, R, V, Q, J> {
        let layer = self.with_entry(&name.into());
        layer.rebuilt(|parts| Parts {
            backends: Services::first(backup),
            classify: parts.classify,
            refuse: parts.refuse,
            served: parts.served,
            replay: parts.replay,
            judge: parts.judge,
        })
    }
}

impl<B, C, R, V, Q, J> FallbackLayer<Services<B>, C, R, V, Q, J> {
    /// Adds a backup to the end of the chain.
    ///
    /// # Panics
    ///
    /// If `name` is empty, or used already, by the primary or a backup.
    pub fn backup(self, name: impl Into<Cow<'static, str>>, backup: B) -> Self {
        let mut layer = self.with_entry(&name.into());
        layer.backends.push(backup);
        layer
    }
}

impl<W, C, R, V, Q, J> FallbackLayer<Models<W>, C, R, V, Q, J> {
    /// Adds a model to the end of the chain.
    ///
    /// # Panics
    ///
    /// If `name` is empty, or used already, by the primary or another model.
    pub fn model(self, name: impl Into<Cow<'static, str>>) -> Self {
        self.with_entry(&name.into())
    }
}

/// The parts of a layer besides its state. A setter may change the type of one of these parts.
struct Parts<K, C, R, V, Q, J> {
    backends: K,
    classify: C,
    refuse: R,
    served: V,
    replay: Q,
    judge: J,
}

impl<K, C, R, V, Q, J> FallbackLayer<K, C, R, V, Q, J> {
    /// Sets how many turns of the primary must fail in a row to trip it.
    ///
    /// Default: 3.
    ///
    /// # Panics
    ///
    /// If `failures` is 0.
    pub fn trip_threshold(self, failures: u32) -> Self {
        assert!(failures > 0, "`trip_threshold` must be at least 1, not 0");
        self.set_rules(|rules| rules.trip_threshold = failures)
    }

    /// Sets the cooldown: how long the chain serves before the primary is probed.
    ///
    /// With [`Duration::ZERO`] the very next turn is a probe. With [`Duration::MAX`] the chain
    /// serves until a reset.
    ///
    /// Default: 60 s.
    pub fn recovery_timeout(self, cooldown: Duration) -> Self {
        self.set_rules(|rules| rules.recovery_timeout = cooldown)
    }

    /// Sets how many probes must succeed in a row to bring the primary back.
    ///
    /// Default: 2.
    ///
    /// # Panics
    ///
    /// If `probes` is 0.
    pub fn recovery_successes_needed(self, probes: u32) -> Self {
        assert!(
            probes > 0,
            "`recovery_successes_needed` must be at least 1, not 0"
        );
        self.set_rules(|rules| rules.recovery_successes_needed = probes)
    }

    /// Sets a backup's budget: that many failed turns spend it.
    ///
    /// A spent backup serves no turn. The count is kept until the primary is back.
    ///
    /// Default: 2.
    ///
    /// # Panics
    ///
    /// If `failures` is 0.
    pub fn max_fail_count(self, failures: u32) -> Self {
        assert!(failures > 0, "`max_fail_count` must be at least 1, not 0");
        self.set_rules(|rules| rules.max_fail_count = failures)
    }

    /// Sets the lease: how long a probe may take before it counts as a transient failure.
    ///
    /// Keep it longer than the longest call of the model that may succeed, retries included. Such
    /// a call could otherwise never bring the primary back. With [`Duration::MAX`] a probe that
    /// never ends holds its slot until a reset.
    ///
    /// Default: 120 s.
    ///
    /// # Panics
    ///
    /// If `lease` is zero: no probe could ever succeed.
    pub fn probe_timeout(self, lease: Duration) -> Self {
        assert!(!lease.is_zero(), "`probe_timeout` must be longer than 0 s");
        self.set_rules(|rules| rules.probe_timeout = lease)
    }

    /// Sets how many probes may fail transiently in a row before the chain serves for one more
    /// cooldown.
    ///
    /// Set it. Without it the state stays `Recovering` as long as the primary fails. A lone
    /// caller, whose turns come one after the other, then spends every turn on a dead primary.
    ///
    /// Default: no limit.
    ///
    /// # Panics
    ///
    /// If `probes` is 0.
    pub fn probation_limit(self, probes: u32) -> Self {
        assert!(probes > 0, "`probation_limit` must be at least 1, not 0");
        self.set_rules(|rules| rules.probation_limit = Some(probes))
    }

    /// Gives a backup a fresh budget this long after its budget was spent. With [`Duration::MAX`]
    /// none gets one.
    ///
    /// Default: off. A spent budget stays spent until the primary is back.
    ///
    /// # Panics
    ///
    /// If `time` is zero: no budget could ever be spent.
    pub fn bench(self, time: Duration) -> Self {
        assert!(!time.is_zero(), "`bench` must be longer than 0 s");
        self.set_rules(|rules| rules.bench = Some(time))
    }

    /// Lets a backup's success clear its strikes, so that only failures in a row spend its budget.
    ///
    /// A spent budget stays spent.
    ///
    /// Default: off. A success changes nothing.
    pub fn strikes_reset_on_success(self) -> Self {
        self.set_rules(|rules| rules.strikes_reset_on_success = true)
    }

    /// Sets the longest `retry_after` that a failure of the primary may ask for. A longer one
    /// counts as this long, and with [`Duration::ZERO`] none counts.
    ///
    /// A backup's `retry_after` never moves the cooldown.
    ///
    /// Default: 5 min.
    pub fn retry_after_cap(self, cap: Duration) -> Self {
        self.set_rules(|rules| rules.retry_after_cap = cap)
    }

    /// Sets what a turn that was dropped before its verdict says of the model that was serving it.
    ///
    /// Default: [`Cancelled::Ignore`].
    pub fn on_cancel(self, rule: Cancelled) -> Self {
        self.set_rules(|rules| rules.on_cancel = rule)
    }

    /// Sets what becomes of a turn while the primary is down and no entry of its chain is live.
    ///
    /// Default: [`Exhausted::Refuse`].
    pub fn when_exhausted(self, exhausted: Exhausted) -> Self {
        self.set_rules(|rules| rules.when_exhausted = exhausted)
    }

    /// Adds an observer: a closure over `&Event<'_>`, or a type that implements [`Observe`].
    /// Several may be added.
    pub fn observe(mut self, observer: impl Observe + Send + Sync + 'static) -> Self {
        self.environment.observers.add(StdArc::new(observer));
        self.renewed()
    }

    /// Calls `f` each time the state becomes `Fallback`, with the name of the primary and that of
    /// the first live entry, if there is one. It runs as observers do.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::FallbackLayer;
    /// let layer = FallbackLayer::new("gpt-5").on_fallback(|from: &str, to: Option<&str>| {
    ///     eprintln!("{from} is down; {} serves", to.unwrap_or("nobody"));
    /// });
    /// # let _ = layer;
    /// ```
    pub fn on_fallback(self, f: impl Fn(&str, Option<&str>) + Send + Sync + 'static) -> Self {
        self.observe(move |event: &Event<'_>| {
            if let Event::FallbackTransition {
                name: Some(from),
                to: FallbackState::Fallback,
                first,
                ..
            } = *event
            {
                f(from, first);
            }
        })
    }

    /// Sets the classifier, which decides what a result says of the model that served.
    ///
    /// It is a closure over `Result<&Response, &Error>`, or a type that implements
    /// [`Classify`](crate::Classify). A fallback clones it into every call.
    ///
    /// Default: [`RefusalsAsFailures`].
    pub fn classify<D>(self, classify: D) -> FallbackLayer<K, D, R, V, Q, J> {
        self.rebuilt(|parts| Parts {
            backends: parts.backends,
            classify,
            refuse: parts.refuse,
            served: parts.served,
            replay: parts.replay,
            judge: parts.judge,
        })
    }

    /// Sets the refusal policy, which decides what becomes of a refused call.
    ///
    /// It is [`AsBoxError`], [`IntoError`](crate::IntoError), or a type of your own that
    /// implements [`Refuse`](crate::Refuse).
    ///
    /// Default: [`AsBoxError`].
    pub fn refuse<P>(self, refuse: P) -> FallbackLayer<K, C, P, V, Q, J> {
        self.rebuilt(|parts| Parts {
            backends: parts.backends,
            classify: parts.classify,
            refuse,
            served: parts.served,
            replay: parts.replay,
            judge: parts.judge,
        })
    }

    /// Answers a refused call with what `f` makes of it.
    ///
    /// `f` is a `Fn(Request, Refusal) -> Result<Response, Error>`. The service's error type stays
    /// as it is, also `Infallible`.
    ///
    /// Every layer outside takes such a response for a success. So use it for a layer that stands
    /// alone or outermost. Inside a stack, refuse with errors.
    pub fn refuse_with<F>(self, f: F) -> FallbackLayer<K, C, RefuseWith<F>, V, Q, J> {
        self.refuse(RefuseWith::new(f))
    }

    /// Calls `f`, a `Fn(&mut Response, &str)`, with every response that a model gave, and the
    /// name of that model.
    ///
    /// It runs after the verdict. A fallback clones it into every call.
    ///
    /// Default: responses are left as they are.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::FallbackLayer;
    /// struct Answer { text: String, model: Option<String> }
    ///
    /// let layer = FallbackLayer::new("gpt-5")
    ///     .served_by(|answer: &mut Answer, name: &str| answer.model = Some(name.to_owned()));
    /// # let _ = layer;
    /// ```
    pub fn served_by<F>(self, f: F) -> FallbackLayer<K, C, R, ServedBy<F>, Q, J> {
        self.rebuilt(|parts| Parts {
            backends: parts.backends,
            classify: parts.classify,
            refuse: parts.refuse,
            served: ServedBy::new(f),
            replay: parts.replay,
            judge: parts.judge,
        })
    }

    /// Lets a failed attempt go on down the live chain within the turn, each entry at most once.
    ///
    /// `clone`, a `Fn(&Request) -> Option<Request>`, makes the spare request. If it makes none,
    /// the result of the failed attempt is the result of the turn.
    ///
    /// An attempt has failed if the classifier calls its result a failure. A neutral result is
    /// the result of the turn, and so is the error of a service that failed in the fallback's own
    /// `poll_ready`. Once an answer has begun to stream, the turn goes on to nothing else: its
    /// head was the result.
    ///
    /// Every call clones the services of the chain into its future. With
    /// [`rewriting`](FallbackLayer::rewriting) that is the primary, which must be `Clone`.
    ///
    /// Default: a request is not replayed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::FallbackLayer;
    /// let layer = FallbackLayer::new("gpt-5")
    ///     .same_turn(|request: &String| Some(request.clone()));
    /// # let _ = layer;
    /// ```
    pub fn same_turn<F>(self, clone: F) -> FallbackLayer<K, C, R, V, SameTurn<F>, J> {
        self.rebuilt(|parts| Parts {
            backends: parts.backends,
            classify: parts.classify,
            refuse: parts.refuse,
            served: parts.served,
            replay: SameTurn::new(clone),
            judge: parts.judge,
        })
    }

    /// Sets when a turn is judged: at the head of its response, or at the end of its body.
    ///
    /// - [`Head`] judges when the response is there.
    /// - `http::EndOfBody` and `http::EndOfBody.inspect(..)`, of the feature `http`, judge at the
    ///   end of the body. They need a service of `http::Response`s, and change the type of the
    ///   response, as they move the permit into its body.
    ///
    /// A turn goes on to another entry only after a head that failed. Once an answer has begun to
    /// stream, a failure surfaces, counts, and sends the next turn elsewhere.
    ///
    /// Default: [`Head`].
    pub fn judge<H>(self, judge: H) -> FallbackLayer<K, C, R, V, Q, H> {
        self.rebuilt(|parts| Parts {
            backends: parts.backends,
            classify: parts.classify,
            refuse: parts.refuse,
            served: parts.served,
            replay: parts.replay,
            judge,
        })
    }

    /// Returns a handle on the chain of the services that this layer makes.
    ///
    /// Take it last: a setter gives the layer state of its own.
    #[must_use]
    pub fn handle(&self) -> FallbackHandle {
        FallbackHandle::new(self.gate.machine_ref())
    }

    fn with_entry(mut self, name: &str) -> Self {
        let rules = &mut self.environment.rules;
        assert!(
            !name.is_empty(),
            "an entry of a chain needs a name that is not empty, not ``"
        );
        assert!(
            *name != *rules.primary,
            "`{name}` is the primary, and cannot be in its own chain"
        );
        assert!(
            rules.entry(name).is_none(),
            "`{name}` is in the chain already"
        );
        rules.entries.push(name.into());
        self.renewed()
    }

    fn set_rules(mut self, f: impl FnOnce(&mut Rules)) -> Self {
        f(&mut self.environment.rules);
        self.renewed()
    }

    /// The layer with state of its own.
    fn renewed(mut self) -> Self {
        self.gate = Gate::made(self.environment.clone());
        self
    }

    /// The layer with other parts, and with state of its own.
    fn rebuilt<K2, C2, R2, V2, Q2, J2>(
        self,
        f: impl FnOnce(Parts<K, C, R, V, Q, J>) -> Parts<K2, C2, R2, V2, Q2, J2>,
    ) -> FallbackLayer<K2, C2, R2, V2, Q2, J2> {
        let parts = f(Parts {
            backends: self.backends,
            classify: self.classify,
            refuse: self.refuse,
            served: self.served,
            replay: self.replay,
            judge: self.judge,
        });
        FallbackLayer {
            gate: Gate::made(self.environment.clone()),
            environment: self.environment,
            backends: parts.backends,
            classify: parts.classify,
            refuse: parts.refuse,
            served: parts.served,
            replay: parts.replay,
            judge: parts.judge,
        }
    }
}

impl<S, K, C, R, V, Q, J> Layer<S> for FallbackLayer<K, C, R, V, Q, J>
where
    K: Clone,
    C: Clone,
    R: Clone,
    V: Clone,
    Q: Clone,
    J: Clone,
{
    type Service = Fallback<S, K, C, R, V, Q, J>;

    fn layer(&self, primary: S) -> Self::Service {
        Fallback::new(
            primary,
            self.backends.clone(),
            self.gate.clone(),
            (
                self.classify.clone(),
                self.refuse.clone(),
                self.served.clone(),
                self.replay.clone(),
                self.judge.clone(),
            ),
        )
    }
}

/// Clones share the chain, until a setter gives one of them state of its own.
impl<K, C, R, V, Q, J> Clone for FallbackLayer<K, C, R, V, Q, J>
where
    K: Clone,
    C: Clone,
    R: Clone,
    V: Clone,
    Q: Clone,
    J: Clone,
{
    fn clone(&self) -> Self {
        Self {
            environment: self.environment.clone(),
            gate: self.gate.clone(),
            backends: self.backends.clone(),
            classify: self.classify.clone(),
            refuse: self.refuse.clone(),
            served: self.served.clone(),
            replay: self.replay.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<K: fmt::Debug, C, R, V, Q, J> fmt::Debug for FallbackLayer<K, C, R, V, Q, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackLayer")
            .field("rules", &self.environment.rules)
            .field("backends", &self.backends)
            .field("chain", &self.gate)
            .finish_non_exhaustive()
    }
}
