//! The layer, which is also the builder.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc as StdArc;
use std::time::Duration;

use tower_layer::Layer;

use super::circuit::{Backoff, Rate, Rules};
use super::gate::{Circuits, One, PerKey, Renew, Routed};
use super::handle::{CircuitBreakerHandle, KeyedCircuitBreakerHandle};
use super::health_router::HealthRouter;
use super::service::CircuitBreaker;
use super::{Cancelled, WhenOpen, Window};
use crate::machinery::clock::Clock;
use crate::machinery::judge::Head;
use crate::machinery::keyed::{Borrowed, KeyedMachines, Owned};
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::Environment;
use crate::machinery::sync::Arc;
use crate::vocabulary::{AsBoxError, ErrorsAsFailures, Name, Observe, RefuseWith};

/// Puts a circuit in front of a service, or one circuit for each key.
///
/// The layer is the builder: [`new`](Self::new) has good defaults, and setters change them.
///
/// **The state lives in the layer.** All services that it makes and all its clones share the
/// circuit, since some frameworks call `layer` for each route or each request. A setter gives the
/// layer state of its own. So set first, and take services and the [`handle`](Self::handle) last.
///
/// See the [module documentation](super) for what the circuit does.
#[must_use = "a layer does nothing until it is given a service"]
pub struct CircuitBreakerLayer<C = ErrorsAsFailures, R = AsBoxError, G = One, J = Head> {
    settings: Settings,
    gate: G,
    classify: C,
    refuse: R,
    judge: J,
}

#[derive(Clone)]
struct Settings {
    environment: Environment<Rules>,
    name: Option<Name>,
    /// The seed of the jitter, if it was set. Otherwise each layer draws one of its own, and so
    /// does each clone that is configured further.
    seed: Option<u64>,
}

impl CircuitBreakerLayer {
    /// One circuit with the default settings: 3 failures in a row trip it, the cooldown and a
    /// probe's lease are 30 s, and one successful probe closes it.
    pub fn new() -> Self {
        let settings = Settings {
            environment: Environment {
                rules: Rules::default(),
                clock: Clock::start(),
                observers: Observers::default(),
            },
            name: None,
            seed: None,
        };
        Self {
            gate: settings.one(),
            settings,
            classify: ErrorsAsFailures,
            refuse: AsBoxError,
            judge: Head,
        }
    }
}

impl Settings {
    fn one(&self) -> One {
        One::made(
            &Arc::new(self.environment.clone()),
            self.name.as_ref(),
            self.seed(),
        )
    }

    fn seed(&self) -> u64 {
        self.seed
            .unwrap_or_else(|| RandomState::new().build_hasher().finish())
    }

    fn circuits<K: Hash + Eq + Clone>(
        &self,
        capacity: usize,
        name_of: Option<fn(&K) -> Name>,
    ) -> Circuits<K> {
        assert!(capacity > 0, "`capacity` must be at least 1, not 0");
        let environment = Arc::new(self.environment.clone());
        let name = self.name.clone();
        Circuits::new(KeyedMachines::new(
            capacity,
            name_of,
            environment,
            name,
            self.seed(),
        ))
    }
}

impl Default for CircuitBreakerLayer {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(private_bounds)] // Users write no gates of their own.
impl<C, R, G: Renew, J> CircuitBreakerLayer<C, R, G, J> {
    /// Names the guarded thing. The name is part of refusals and of events. With
    /// [`per_key`](CircuitBreakerLayer::per_key), the key names its circuit instead.
    ///
    /// Default: no name.
    pub fn name(self, name: impl Into<Cow<'static, str>>) -> Self {
        let name = Name::from(name.into());
        self.set(|settings| settings.name = Some(name))
    }

    /// Sets how many calls must fail in a row to trip the circuit.
    ///
    /// Default: 3. It forgives one failure and its retry, and still spares the fourth call.
    ///
    /// # Panics
    ///
    /// If `failures` is 0.
    pub fn failure_threshold(self, failures: u32) -> Self {
        assert!(
            failures > 0,
            "`failure_threshold` must be at least 1, not 0"
        );
        self.set_rules(|rules| rules.failure_threshold = failures)
    }

    /// Sets the cooldown: how long an open circuit refuses before one call may probe.
    ///
    /// With [`Duration::ZERO`] the very next call is the probe. With [`Duration::MAX`] the circuit
    /// stays open until a reset.
    ///
    /// Default: 30 s.
    pub fn recovery_duration(self, cooldown: Duration) -> Self {
        self.set_rules(|rules| rules.recovery_duration = cooldown)
    }

    /// Sets the lease: how long a probe may take before it counts as failed.
    ///
    /// Keep it longer than the longest call that may succeed, or such a call can never close the
    /// circuit. With [`Duration::MAX`] a probe that never ends holds its slot until a reset.
    ///
    /// Default: 30 s.
    ///
    /// # Panics
    ///
    /// If `lease` is zero: no probe could ever succeed.
    pub fn probe_timeout(self, lease: Duration) -> Self {
        assert!(!lease.is_zero(), "`probe_timeout` must be longer than 0 s");
        self.set_rules(|rules| rules.probe_timeout = lease)
    }

    /// Sets how many probes must succeed, one after the other, to close the circuit.
    ///
    /// Default: 1.
    ///
    /// # Panics
    ///
    /// If `probes` is 0.
    pub fn success_threshold(self, probes: u32) -> Self {
        assert!(probes > 0, "`success_threshold` must be at least 1, not 0");
        self.set_rules(|rules| rules.success_threshold = probes)
    }

    /// Sets what a call says that is dropped before its verdict.
    ///
    /// Default: [`Cancelled::Ignore`].
    pub fn on_cancel(self, rule: Cancelled) -> Self {
        self.set_rules(|rules| rules.on_cancel = rule)
    }

    /// Multiplies the cooldown by `factor` after every failed probe, up to `max`.
    ///
    /// A probe whose lease ends counts as failed. When the circuit closes, the growth starts anew.
    /// If `max` is less than the recovery duration, the cooldown does not grow.
    ///
    /// Default: the cooldown does not grow.
    ///
    /// # Panics
    ///
    /// If `factor` is not a finite number of at least 1.
    pub fn backoff(self, factor: impl Into<f64>, max: Duration) -> Self {
        let factor = factor.into();
        assert!(
            factor.is_finite() && factor >= 1.0,
            "`backoff` needs a finite factor of at least 1, not {factor}"
        );
        self.set_rules(|rules| rules.backoff = Some(Backoff { factor, max }))
    }

    /// Lengthens each cooldown by a random part of it, up to `fraction`. So circuits that tripped
    /// together do not probe together.
    ///
    /// The jitter comes on top of the `max` of [`backoff`](Self::backoff). It never shortens a
    /// cooldown.
    ///
    /// Default: 0.
    ///
    /// # Panics
    ///
    /// If `fraction` is not a finite number of at least 0.
    pub fn jitter(self, fraction: impl Into<f64>) -> Self {
        let fraction = fraction.into();
        assert!(
            fraction.is_finite() && fraction >= 0.0,
            "`jitter` needs a finite fraction of at least 0, not {fraction}"
        );
        self.set_rules(|rules| rules.jitter = fraction)
    }

    /// Makes the jitter repeatable: the same seed gives the same cooldowns. Each key has its own.
    ///
    /// Default: a random seed for each layer, and for each clone that is configured further.
    pub fn jitter_seed(self, seed: u64) -> Self {
        self.set(|settings| settings.seed = Some(seed))
    }

    /// Trips the circuit also when at least `fraction` of the calls in `window` failed, once the
    /// window holds [`minimum_calls`](Self::minimum_calls).
    ///
    /// Neutral results do not count. The window is emptied when the circuit closes.
    ///
    /// Default: off. With it on, every result takes the circuit's lock.
    ///
    /// # Panics
    ///
    /// If `fraction` is not above 0 and at most 1, or if `window` is empty.
    pub fn failure_rate(self, fraction: impl Into<f64>, window: Window) -> Self {
        let fraction = fraction.into();
        assert!(
            fraction > 0.0 && fraction <= 1.0,
            "`failure_rate` needs a fraction above 0 and at most 1, not {fraction}"
        );
        let empty = matches!(window, Window::Calls(0) | Window::Time(Duration::ZERO));
        assert!(
            !empty,
            "`failure_rate` needs a window that is not empty, not {window:?}"
        );
        self.set_rules(|rules| rules.rate = Some(Rate { fraction, window }))
    }

    /// Sets how many calls the window of [`failure_rate`](Self::failure_rate) must hold before the
    /// rate counts. A window of fewer calls must be full.
    ///
    /// Default: 10.
    ///
    /// # Panics
    ///
    /// If `calls` is 0.
    pub fn minimum_calls(self, calls: u32) -> Self {
        assert!(calls > 0, "`minimum_calls` must be at least 1, not 0");
        self.set_rules(|rules| rules.minimum_calls = calls)
    }

    /// Counts a success that took at least `limit` as a transient failure. With [`Duration::MAX`]
    /// no success is too slow.
    ///
    /// A slow success from an older generation is a stale failure: while the circuit is open, it
    /// restarts the cooldown.
    ///
    /// If calls are judged at the end of the body, a call lasts until then. So the time that the
    /// reader of the body takes counts too.
    ///
    /// Default: off. With it on, every call reads the clock when it is admitted, and every success
    /// once more.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: no call could ever succeed.
    pub fn slow_call(self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "`slow_call` must be longer than 0 s");
        self.set_rules(|rules| rules.slow_call = Some(limit))
    }

    /// Sets the longest `retry_after` of a failure that is respected: a longer one counts as this
    /// long. With [`Duration::ZERO`] every `retry_after` is ignored.
    ///
    /// Default: 5 min.
    pub fn retry_after_cap(self, cap: Duration) -> Self {
        self.set_rules(|rules| rules.retry_after_cap = cap)
    }

    /// Refuses nothing, and reports in events the calls that would have been refused.
    ///
    /// The circuit moves as if it refused. A call that it would have refused runs without a
    /// permit, and its result is not recorded. The oracle allows every call. A call whose inner
    /// service was not polled ready is refused all the same.
    ///
    /// Default: off.
    pub fn observe_only(self) -> Self {
        self.set_rules(|rules| rules.observe_only = true)
    }

    /// Adds an observer: a closure over `&Event<'_>`, or a type that implements [`Observe`]. A
    /// layer may have several.
    pub fn observe(self, observer: impl Observe + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.environment.observers.add(StdArc::new(observer)))
    }

    /// Sets the classifier, which decides what a result says of the guarded thing: a closure over
    /// `Result<&Response, &Error>`, or a type that implements [`Classify`](crate::Classify).
    ///
    /// It is cloned into every call.
    ///
    /// Default: [`ErrorsAsFailures`].
    pub fn classify<D>(self, classify: D) -> CircuitBreakerLayer<D, R, G, J> {
        CircuitBreakerLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            classify,
            refuse: self.refuse,
            judge: self.judge,
        }
    }

    /// Sets the refusal policy, which decides how a refused call is answered: [`AsBoxError`],
    /// [`IntoError`](crate::IntoError), or a type of your own that implements
    /// [`Refuse`](crate::Refuse).
    ///
    /// Default: [`AsBoxError`].
    pub fn refuse<P>(self, refuse: P) -> CircuitBreakerLayer<C, P, G, J> {
        CircuitBreakerLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            classify: self.classify,
            refuse,
            judge: self.judge,
        }
    }

    /// Answers a refused call with the result of a closure, `Fn(Request, Refusal) ->
    /// Result<Response, Error>`. The error type of the service stays as it is, `Infallible`
    /// included.
    ///
    /// Every layer outside takes such a response for a success. So use it for a layer that stands
    /// alone or outermost. Inside a stack, refuse with errors.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use tower_breaker::{CircuitBreakerLayer, Refusal};
    /// let layer = CircuitBreakerLayer::new().name("search").refuse_with(
    ///     |_query: String, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()),
    /// );
    /// # let _ = layer;
    /// ```
    pub fn refuse_with<F>(self, f: F) -> CircuitBreakerLayer<C, RefuseWith<F>, G, J> {
        self.refuse(RefuseWith::new(f))
    }

    /// Sets when a call is judged.
    ///
    /// [`Head`] judges as soon as the response is there. With the feature `http`, and around a
    /// service that answers with an `http::Response`, there are `http::EndOfBody` and
    /// `http::EndOfBody.inspect(..)`. They move the permit into the body of the response, and so
    /// change the type of the response.
    ///
    /// Default: [`Head`].
    pub fn judge<K>(self, judge: K) -> CircuitBreakerLayer<C, R, G, K> {
        CircuitBreakerLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            classify: self.classify,
            refuse: self.refuse,
            judge,
        }
    }

    fn set_rules(self, f: impl FnOnce(&mut Rules)) -> Self {
        self.set(|settings| f(&mut settings.environment.rules))
    }

    fn set(mut self, f: impl FnOnce(&mut Settings)) -> Self {
        f(&mut self.settings);
        self.gate = self.settings.renew(self.gate);
        self
    }
}

impl Settings {
    fn renew<G: Renew>(&self, gate: G) -> G {
        gate.renew(
            &Arc::new(self.environment.clone()),
            self.name.as_ref(),
            self.seed(),
        )
    }
}

impl<C, R, J> CircuitBreakerLayer<C, R, One, J> {
    /// Sets what `poll_ready` does while the circuit would refuse.
    ///
    /// Default: [`WhenOpen::Refuse`].
    ///
    /// # Panics
    ///
    /// This setter does not panic. With [`WhenOpen::NotReady`], `poll_ready` panics while the
    /// circuit is open, if there is no tokio runtime with time.
    pub fn when_open(self, when_open: WhenOpen) -> Self {
        self.set_rules(|rules| rules.when_open = when_open)
    }

    /// Guards each key with a circuit of its own, at most `capacity` of them. The request holds
    /// the key. The key names its circuit, by its `Display`.
    ///
    /// A call clones its key only if the key has no circuit yet.
    ///
    /// When the store is full, a new key evicts a circuit:
    ///
    /// 1. circuits that are closed, clean and idle go first, the least recently used one first;
    /// 2. then those that remember something, but whose cooldown and lease are over.
    ///
    /// A circuit is live, and never evicted, while a call is in flight, while its cooldown or its
    /// lease runs, and while it is pinned open. If all circuits are live, a call with a new key
    /// runs unguarded, and an event says so.
    ///
    /// Keys are kept whole, so bound their length where strangers choose them. Their `Eq` and
    /// `Borrow` may run while the store is locked, and must not call back into the layer.
    ///
    /// [`when_open`](Self::when_open) has no effect: the key is not known when readiness is
    /// polled.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::CircuitBreakerLayer;
    /// struct ToolCall { name: String }
    ///
    /// let layer = CircuitBreakerLayer::new().per_key(|call: &ToolCall| call.name.as_str(), 1_000);
    /// let handle = layer.handle();
    /// assert!(handle.would_allow("search"));
    /// ```
    #[allow(clippy::type_complexity)] // The type says what the setter changes.
    pub fn per_key<Req, Q, F>(
        self,
        key: F,
        capacity: usize,
    ) -> CircuitBreakerLayer<C, R, PerKey<Q::Owned, Borrowed<F, Q>>, J>
    where
        F: Fn(&Req) -> &Q,
        Q: Hash + Eq + ToOwned + fmt::Display + ?Sized,
        Q::Owned: Hash + Eq + Clone,
    {
        let name_of: fn(&Q::Owned) -> Name = |key| {
            let key: &Q = key.borrow();
            Name::of_key(&key)
        };
        self.keyed(Borrowed::new(key), capacity, Some(name_of))
    }

    /// Guards each key with a circuit of its own, where the request does not hold the key: a pair,
    /// for instance. The closure makes the key from the request.
    ///
    /// All else is as in [`per_key`](Self::per_key), but each circuit has the
    /// [`name`](Self::name) of the layer.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::CircuitBreakerLayer;
    /// struct Ask { provider: String, model: String }
    ///
    /// let layer = CircuitBreakerLayer::new()
    ///     .per_owned_key(|ask: &Ask| (ask.provider.clone(), ask.model.clone()), 100);
    /// # let _ = layer;
    /// ```
    pub fn per_owned_key<Req, K, F>(
        self,
        key: F,
        capacity: usize,
    ) -> CircuitBreakerLayer<C, R, PerKey<K, Owned<F>>, J>
    where
        F: Fn(&Req) -> K,
        K: Hash + Eq + Clone,
    {
        self.keyed(Owned::new(key), capacity, None)
    }

    fn keyed<K: Hash + Eq + Clone, S>(
        self,
        extract: S,
        capacity: usize,
        name_of: Option<fn(&K) -> Name>,
    ) -> CircuitBreakerLayer<C, R, PerKey<K, S>, J> {
        let circuits = self.settings.circuits(capacity, name_of);
        CircuitBreakerLayer {
            settings: self.settings,
            gate: PerKey::new(circuits, extract),
            classify: self.classify,
            refuse: self.refuse,
            judge: self.judge,
        }
    }

    /// Returns a handle on the circuit. Take it last: a setter gives the layer state of its own.
    #[must_use]
    pub fn handle(&self) -> CircuitBreakerHandle {
        CircuitBreakerHandle::new(self.gate.machine_ref())
    }
}

impl<C, R, K, S, J> CircuitBreakerLayer<C, R, PerKey<K, S>, J> {
    /// Returns a handle on the circuits. Take it last: a setter gives the layer state of its own.
    #[must_use]
    pub fn handle(&self) -> KeyedCircuitBreakerHandle<K> {
        KeyedCircuitBreakerHandle::new(self.gate.circuits())
    }
}

impl<C, R, F, J> CircuitBreakerLayer<C, R, PerKey<String, Borrowed<F, str>>, J> {
    /// Sends a call that the key's circuit refuses to the first substitute whose circuit admits
    /// it.
    ///
    /// `rewrite` puts the name of the substitute into the request. If it panics, the call is a
    /// dropped call of the substitute. If all circuits refuse, the refusal names the key of the
    /// request, and carries the shortest of the waits.
    ///
    /// See [`HealthRouter`] for an example.
    pub fn substitute<Req, W>(
        self,
        router: HealthRouter,
        rewrite: W,
    ) -> CircuitBreakerLayer<C, R, PerKey<String, Routed<F, W>>, J>
    where
        F: Fn(&Req) -> &str,
        W: Fn(&mut Req, &str),
    {
        let circuits = self.gate.circuits().with_router(router);
        let key = self.gate.into_extract();
        CircuitBreakerLayer {
            settings: self.settings,
            gate: PerKey::new(circuits, Routed { key, rewrite }),
            classify: self.classify,
            refuse: self.refuse,
            judge: self.judge,
        }
    }
}

impl<S, C: Clone, R: Clone, G: Clone, J: Clone> Layer<S> for CircuitBreakerLayer<C, R, G, J> {
    type Service = CircuitBreaker<S, C, R, G, J>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker::new(
            inner,
            self.gate.clone(),
            self.classify.clone(),
            self.refuse.clone(),
            self.judge.clone(),
        )
    }
}

/// Clones share the circuit until a setter gives one of them state of its own.
impl<C: Clone, R: Clone, G: Clone, J: Clone> Clone for CircuitBreakerLayer<C, R, G, J> {
    fn clone(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            gate: self.gate.clone(),
            classify: self.classify.clone(),
            refuse: self.refuse.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<C, R, G: fmt::Debug, J> fmt::Debug for CircuitBreakerLayer<C, R, G, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerLayer")
            .field("name", &self.settings.name)
            .field("rules", &self.settings.environment.rules)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
