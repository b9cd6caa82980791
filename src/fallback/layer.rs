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
use crate::vocabulary::{AsBoxError, RefuseWith};
use crate::vocabulary::{Cancelled, RefusalsAsFailures};
use crate::vocabulary::{Event, FallbackState, Observe};

/// Puts a chain of backups behind a model.
///
/// The layer is the builder: [`new`](Self::new) and [`rewriting`](Self::rewriting) have good defaults, setters change them. **The state lives in the layer.** Every
/// service that it makes and every clone of it share one chain, as frameworks that layer per route or per request need; a
/// setter gives the layer state of its own. So set first, and take services and the [`handle`](Self::handle) last.
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
    /// A chain with the default settings, without any backup yet: 3 failures in a row trip the primary, its cooldown is 60 s, and 2 successful probes in a row bring it
    /// back; a probe's lease is 120 s; 2 failed turns spend a backup's budget.
    ///
    /// Without a backup it trips for the record, and keeps serving the primary.
    ///
    /// # Panics
    ///
    /// If `primary`, its name, is empty.
    pub fn new(primary: impl Into<Cow<'static, str>>) -> Self {
        FallbackLayer::of(&primary.into(), NoBackups)
    }
}

impl<W> FallbackLayer<Models<W>> {
    /// A chain of models behind one service: [`model`](Self::model) adds them. Before a turn is served, the primary's too, `rewrite`,
    /// `Fn(&mut Request, &str)`, puts the name of the model that serves it into the request.
    ///
    /// The defaults are those of [`new`](FallbackLayer::new).
    ///
    /// # Panics
    ///
    /// If `primary`, its name, is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::FallbackLayer;
    /// struct ChatRequest { model: String }
    ///
    /// let layer = FallbackLayer::rewriting("gpt-5", |req: &mut ChatRequest, model: &str| req.model = model.into())
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
    /// Adds the first backup to the chain. It may be of another type than the primary, with the same response and error, and is `Clone`; further
    /// backups are of its type. Box them if they differ.
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

/// What a layer is made of besides its state; a setter may change one of their types.
struct Parts<K, C, R, V, Q, J> {
    backends: K,
    classify: C,
    refuse: R,
    served: V,
    replay: Q,
    judge: J,
}

impl<K, C, R, V, Q, J> FallbackLayer<K, C, R, V, Q, J> {
    /// How many turns of the primary must fail in a row to trip it.
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

    /// The cooldown: how long the chain serves before the primary is probed. With [`Duration::ZERO`] the very next turn is a probe; with [`Duration::MAX`] the chain serves
    /// until a reset.
    ///
    /// Default: 60 s.
    pub fn recovery_timeout(self, cooldown: Duration) -> Self {
        self.set_rules(|rules| rules.recovery_timeout = cooldown)
    }

    /// How many probes must succeed, one after the other, to bring the primary back.
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

    /// A backup's budget: how many of its turns may fail before it is failed. The count is kept until the primary is back.
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

    /// The lease: how long a probe may take before it counts as a transient failure. KeyedMachine it longer than the longest call of the model that may succeed, retries included,
    /// or such a call can never bring the primary back. With [`Duration::MAX`] a probe that never ends holds its slot until a reset.
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

    /// How many probes may fail transiently, one after the other, before the chain serves for one more cooldown.
    ///
    /// Set it. Without it the state stays `Recovering` as long as the primary fails, and a lone caller, whose turns come one after the
    /// other, spends every one of them on a primary that is dead.
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

    /// Gives a backup a fresh budget this long after its budget was spent. With [`Duration::MAX`] none gets one.
    ///
    /// Default: off; a spent budget stays so until the primary is back.
    ///
    /// # Panics
    ///
    /// If `time` is zero: no budget could ever be spent.
    pub fn bench(self, time: Duration) -> Self {
        assert!(!time.is_zero(), "`bench` must be longer than 0 s");
        self.set_rules(|rules| rules.bench = Some(time))
    }

    /// Lets a backup's success clear its strikes, so that its budget is for failures in a row. A budget that is spent stays so.
    ///
    /// Default: off; a success changes nothing.
    pub fn strikes_reset_on_success(self) -> Self {
        self.set_rules(|rules| rules.strikes_reset_on_success = true)
    }

    /// The longest that a failure's `retry_after` is heeded. [`Duration::ZERO`] heeds none. Only the primary's is.
    ///
    /// Default: 5 min.
    pub fn retry_after_cap(self, cap: Duration) -> Self {
        self.set_rules(|rules| rules.retry_after_cap = cap)
    }

    /// What a turn says that was dropped before its verdict: of the primary, or of the entry that was serving it.
    ///
    /// Default: [`Cancelled::Ignore`].
    pub fn on_cancel(self, rule: Cancelled) -> Self {
        self.set_rules(|rules| rules.on_cancel = rule)
    }

    /// What becomes of a turn while the primary is down and no entry of its chain is live.
    ///
    /// Default: [`Exhausted::Refuse`].
    pub fn when_exhausted(self, exhausted: Exhausted) -> Self {
        self.set_rules(|rules| rules.when_exhausted = exhausted)
    }

    /// Adds an observer: a closure over `&Event<'_>`, or a type of the trait. Several may be added.
    pub fn observe(mut self, observer: impl Observe + Send + Sync + 'static) -> Self {
        self.environment.observers.add(StdArc::new(observer));
        self.renewed()
    }

    /// Calls `f` with the primary's name and that of the first live entry, if there is one, each time the chain comes to serve. It runs as
    /// observers do.
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

    /// Decides what a result says of the model that served: a closure over `Result<&Response, &Error>`, or a type of
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

    /// Decides what becomes of a refused call: [`AsBoxError`], [`IntoError`](crate::IntoError), or a type of
    /// [`Refuse`](crate::Refuse) of your own.
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

    /// Answers a refused call with what a closure makes of it, `Fn(Request, Refusal) -> Result<Response, Error>`. The service's error
    /// type stays as it is, `Infallible` included.
    ///
    /// Every layer outside takes such a response for a success. So use it for a layer that stands alone or outermost; inside a
    /// stack, refuse with errors.
    pub fn refuse_with<F>(self, f: F) -> FallbackLayer<K, C, RefuseWith<F>, V, Q, J> {
        self.refuse(RefuseWith::new(f))
    }

    /// Tells a response who served it: `f`, `Fn(&mut Response, &str)`, gets every response that a model gave, and the model's name.
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

    /// Lets a failed attempt go on down the live chain within the turn, each entry at most once. `clone`, `Fn(&Request) -> Option<Request>`, makes the spare request; with
    /// `None` the failed attempt's own result is the turn's.
    ///
    /// A failed attempt is one that the classifier calls a failure; a neutral result is the turn's, and so is the error of a service that `poll_ready` found
    /// to have failed. Every call clones the chain's services into its future (those of a rewriting layer: the primary, which must be `Clone`). Where an
    /// answer has begun to stream, there is nothing to go on from: its head was the result.
    ///
    /// Default: a request is not replayed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::FallbackLayer;
    /// let layer = FallbackLayer::new("gpt-5").same_turn(|request: &String| Some(request.clone()));
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

    /// Decides when a turn is judged: [`Head`], or, with the feature `http` and around a service of `http::Response`s only, `http::EndOfBody` or
    /// `http::EndOfBody.inspect(..)`, which move the permit into the response's body and so change the type of the response. A turn goes on to another entry only from a head that failed; once an answer has begun to stream, what
    /// fails surfaces, counts, and sends the next turn elsewhere.
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

    /// A handle on the chain of the services that this layer makes. Take it last: a setter gives the layer state of its own.
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

    /// With state of its own.
    fn renewed(mut self) -> Self {
        self.gate = Gate::made(self.environment.clone());
        self
    }

    /// With other parts, and with state of its own.
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
