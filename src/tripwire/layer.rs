//! The layer, which is also the builder.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc as StdArc;
use std::time::Duration;

use tower_layer::Layer;

use super::digest::SameResult;
use super::fence::{Cycles, Rules};
use super::gate::{One, PerSession, Renew, Sessions};
use super::handle::{KeyedTripwireHandle, TripwireHandle};
use super::reader::{Limit, Reader};
use super::service::Tripwire;
use crate::machinery::clock::Clock;
use crate::machinery::judge::Head;
use crate::machinery::keyed::{Borrowed, Owned};
use crate::machinery::observers::Observers;
use crate::machinery::shared_machine::Environment;
use crate::machinery::sync::Arc;
use crate::vocabulary::{AsBoxError, ErrorsAsFailures, Name, Observe, RefuseWith};

/// Puts a fence around an agent's loop: one for one run, or one per session.
///
/// The layer is the builder: [`new`](Self::new) has good defaults, and setters change them.
///
/// **The state lives in the layer.** All its services and all its clones share one fence, so the
/// calls of all an agent's tools are counted together. A setter gives the layer state of its own.
/// So set first, and take services and the [`handle`](Self::handle) last.
///
/// See the [module documentation](super) for what the fence does.
#[must_use = "a layer does nothing until it is given a service"]
pub struct TripwireLayer<
    C = ErrorsAsFailures,
    R = AsBoxError,
    G = One,
    Q = Reader,
    A = (),
    J = Head,
> {
    settings: Settings,
    gate: G,
    reader: Q,
    classify: C,
    refuse: R,
    answers: A,
    judge: J,
}

#[derive(Clone)]
struct Settings {
    environment: Environment<Rules>,
    name: Option<Name>,
}

impl TripwireLayer {
    /// Creates a layer with one fence and the default settings.
    ///
    /// These are 8 turns, 3 identical calls in a row, 3 errors in a row, and a cooldown of 4
    /// refused calls.
    pub fn new() -> Self {
        let settings = Settings {
            environment: Environment {
                rules: Rules::default(),
                clock: Clock::start(),
                observers: Observers::default(),
            },
            name: None,
        };
        Self {
            gate: One::create(&Arc::new(settings.environment.clone()), None),
            settings,
            reader: Reader::default(),
            classify: ErrorsAsFailures,
            refuse: AsBoxError,
            answers: (),
            judge: Head,
        }
    }
}

impl Default for TripwireLayer {
    fn default() -> Self {
        Self::new()
    }
}

#[allow(private_bounds)] // The set of gates is closed.
impl<C, R, G: Renew, Q, A, J> TripwireLayer<C, R, G, Q, A, J> {
    /// Names what is guarded.
    ///
    /// The name is part of events. It is also part of a refusal, unless
    /// [`name_of`](Self::name_of) names the request's own tool. With
    /// [`per_session`](Self::per_session), events show the session instead.
    ///
    /// Default: no name.
    pub fn name(self, name: impl Into<Cow<'static, str>>) -> Self {
        let name = Name::from(name.into());
        self.set(|settings| settings.name = Some(name))
    }

    /// Sets how many turns a run may spend.
    ///
    /// Every admitted call spends one, whatever its result, and none is given back. With 0 every
    /// call is refused, until [`extend`](TripwireHandle::extend).
    ///
    /// Default: 8.
    pub fn max_turns(self, turns: u32) -> Self {
        self.set_rules(|rules| rules.max_turns = turns)
    }

    /// Sets how many identical calls in a row trip the fence.
    ///
    /// The last of them is refused before it runs: with 3, two run. [`u32::MAX`] turns the rule
    /// off.
    ///
    /// Default: 3.
    ///
    /// # Panics
    ///
    /// If `calls` is less than 2: with 1 every call would be refused.
    pub fn identical_limit(self, calls: u32) -> Self {
        assert!(
            calls >= 2,
            "`identical_limit` must be at least 2, not {calls}"
        );
        self.set_rules(|rules| rules.identical_limit = calls)
    }

    /// Sets how many errors in a row trip the fence.
    ///
    /// Default: 3.
    ///
    /// # Panics
    ///
    /// If `errors` is 0.
    pub fn error_limit(self, errors: u32) -> Self {
        assert!(errors > 0, "`error_limit` must be at least 1, not 0");
        self.set_rules(|rules| rules.error_limit = errors)
    }

    /// Sets the cooldown, counted in refused calls.
    ///
    /// The last of them arms one probe. Beside a probe that is out, as many refused calls declare
    /// it lost.
    ///
    /// Default: 4.
    ///
    /// # Panics
    ///
    /// If `rejects` is 0.
    pub fn open_cooldown_rejects(self, rejects: u32) -> Self {
        assert!(
            rejects > 0,
            "`open_cooldown_rejects` must be at least 1, not 0"
        );
        self.set_rules(|rules| rules.open_cooldown_rejects = rejects)
    }

    /// Bounds the time of one run, counted from its first admitted call.
    ///
    /// When the time is over, every call is refused until a [`reset`](TripwireHandle::reset). The
    /// deadline is looked at when a call comes. It interrupts no call that runs or waits. The
    /// time may stand still while the computer sleeps. With [`Duration::MAX`] it is never over.
    ///
    /// Default: no deadline. With one, every call reads the clock.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: only the call that begins the run could be made.
    pub fn deadline(self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "`deadline` must be longer than 0 s");
        self.set_rules(|rules| rules.deadline = (limit != Duration::MAX).then_some(limit))
    }

    /// Trips also when the same cycle of 2 to `max_period` calls comes `repeats` times in a row.
    ///
    /// With `(2, 3)`, after A B A B A the next B is refused. One call again and again is no
    /// cycle: that is for [`identical_limit`](Self::identical_limit).
    ///
    /// Default: off. With it, a fence remembers `max_period` × `repeats` calls.
    ///
    /// # Panics
    ///
    /// If `max_period` or `repeats` is less than 2, or their product more than 4,096.
    pub fn cycles(self, max_period: u32, repeats: u32) -> Self {
        assert!(
            max_period >= 2,
            "`cycles` needs a `max_period` of at least 2, not {max_period}"
        );
        assert!(
            repeats >= 2,
            "`cycles` needs `repeats` of at least 2, not {repeats}"
        );
        assert!(
            u64::from(max_period) * u64::from(repeats) <= 4096,
            "`cycles` can remember 4,096 calls, not {max_period} times {repeats}"
        );
        let cycles = Cycles {
            max_period: max_period as usize,
            repeats: repeats as usize,
        };
        self.set_rules(|rules| rules.cycles = Some(cycles))
    }

    /// Sends [`Event::Warned`](crate::Event::Warned) when a run has spent so many turns.
    ///
    /// Default: off.
    ///
    /// # Panics
    ///
    /// If `turns` is 0.
    pub fn warn_at(self, turns: u32) -> Self {
        assert!(turns > 0, "`warn_at` must be at least 1, not 0");
        self.set_rules(|rules| rules.warn_at = Some(turns))
    }

    /// Refuses nothing, and only observes.
    ///
    /// The fence moves as if it refused, and events tell which calls it would have refused. Such
    /// a call runs without a permit, and its result is not recorded.
    ///
    /// Default: off.
    pub fn observe_only(self) -> Self {
        self.set_rules(|rules| rules.observe_only = true)
    }

    /// Adds an observer: a closure over `&Event<'_>`, or a type that implements [`Observe`].
    ///
    /// Several may be added.
    pub fn observe(self, observer: impl Observe + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.environment.observers.add(StdArc::new(observer)))
    }

    /// Sets which results are errors.
    ///
    /// The classifier is a closure over `Result<&Response, &Error>`, or a type that implements
    /// [`Classify`](crate::Classify). It is cloned into every call. The kind of a failure does
    /// not matter here: a fatal one is one error.
    ///
    /// Default: [`ErrorsAsFailures`], for which the refusals of layers further inside are
    /// neutral.
    pub fn classify<D>(self, classify: D) -> TripwireLayer<D, R, G, Q, A, J> {
        TripwireLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            reader: self.reader,
            classify,
            refuse: self.refuse,
            answers: self.answers,
            judge: self.judge,
        }
    }

    /// Sets what becomes of a refused call.
    ///
    /// The policy is [`AsBoxError`], [`IntoError`](crate::IntoError), or a type of your own that
    /// implements [`Refuse`](crate::Refuse).
    ///
    /// Default: [`AsBoxError`].
    pub fn refuse<P>(self, refuse: P) -> TripwireLayer<C, P, G, Q, A, J> {
        TripwireLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            reader: self.reader,
            classify: self.classify,
            refuse,
            answers: self.answers,
            judge: self.judge,
        }
    }

    /// Answers a refused call with what a closure makes of it.
    ///
    /// The closure is `Fn(Request, Refusal) -> Result<Response, Error>`. The service's error type
    /// stays as it is, `Infallible` included.
    ///
    /// Every layer outside takes such a response for a success. So use this for a layer that
    /// stands alone or outermost. Inside a stack, refuse with errors.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # use tower_breaker::{Refusal, TripwireLayer};
    /// let layer = TripwireLayer::new().refuse_with(
    ///     |_query: String, refusal: Refusal| Ok::<_, Infallible>(refusal.to_string()),
    /// );
    /// # let _ = layer;
    /// ```
    pub fn refuse_with<F>(self, f: F) -> TripwireLayer<C, RefuseWith<F>, G, Q, A, J> {
        self.refuse(RefuseWith::new(f))
    }

    /// Counts a repeat only if its answer was the same too, so that honest polling passes.
    ///
    /// `digest` makes a digest of a response, as a [`Digester`](crate::Digester) does of a
    /// request. A success that differs from the last one to the same call is progress: the call
    /// is then number 1 of its streak. A failure is never progress, and neither is a response
    /// without a digest.
    ///
    /// The answer is not known before the call runs. So with a limit of 3, the third call after
    /// two equal answers is refused, and with a limit of 2 nobody can poll.
    ///
    /// Default: off. With it on, every success takes the fence's lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::{HashDigest, TripwireLayer};
    /// let layer = TripwireLayer::new().max_turns(100).same_result(HashDigest);
    /// # let _ = layer;
    /// ```
    pub fn same_result<D>(self, digest: D) -> TripwireLayer<C, R, G, Q, SameResult<D>, J> {
        TripwireLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            reader: self.reader,
            classify: self.classify,
            refuse: self.refuse,
            answers: SameResult { digest },
            judge: self.judge,
        }
    }

    /// Sets when a call is judged.
    ///
    /// With [`Head`] it is judged when the response comes. With the feature `http`, and around a
    /// service of `http::Response`s, it can also be `http::EndOfBody` or
    /// `http::EndOfBody.inspect(..)`. These move the permit into the response's body, and so
    /// change the type of the response. [`same_result`](Self::same_result) compares the response
    /// as it comes.
    ///
    /// Default: [`Head`].
    pub fn judge<K>(self, judge: K) -> TripwireLayer<C, R, G, Q, A, K> {
        TripwireLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            reader: self.reader,
            classify: self.classify,
            refuse: self.refuse,
            answers: self.answers,
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

    fn read_by<P>(self, f: impl FnOnce(Q) -> P) -> TripwireLayer<C, R, G, P, A, J> {
        TripwireLayer {
            gate: self.settings.renew(self.gate),
            settings: self.settings,
            reader: f(self.reader),
            classify: self.classify,
            refuse: self.refuse,
            answers: self.answers,
            judge: self.judge,
        }
    }
}

#[allow(private_bounds)] // The set of gates is closed.
impl<C, R, G: Renew, A, D, T, L, N, J> TripwireLayer<C, R, G, Reader<D, T, L, N>, A, J> {
    /// Sets how a request becomes a digest.
    ///
    /// The digester is a closure that returns a [`Digest`](crate::Digest) or an `Option` of one,
    /// or a type that implements [`Digester`](crate::Digester). Leave out what differs in every
    /// call and says nothing, such as the call's id.
    ///
    /// Default: [`HashDigest`](crate::HashDigest), over the whole request.
    pub fn digest<P>(self, digest: P) -> TripwireLayer<C, R, G, Reader<P, T, L, N>, A, J> {
        self.read_by(|reader| Reader {
            digest,
            turn: reader.turn,
            limit: reader.limit,
            name: reader.name,
        })
    }

    /// Sets to which turn of its planner a call belongs.
    ///
    /// The closure returns any value that can be hashed, a number for instance. The calls of one
    /// planner's turn spend one turn of the run, and the same call several times within it is no
    /// repetition. The fence remembers 64 turns: a call from an earlier one spends another turn.
    /// Only the error streak then bounds how many calls one turn makes.
    ///
    /// Default: every call is a turn of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::TripwireLayer;
    /// #[derive(Hash)]
    /// struct ToolCall { turn: u32, query: String }
    ///
    /// let layer = TripwireLayer::new()
    ///     .digest(|call: &ToolCall| tower_breaker::Digest::of(&call.query))
    ///     .turn_of(|call: &ToolCall| call.turn);
    /// # let _ = layer;
    /// ```
    pub fn turn_of<Req, V, F>(mut self, turn: F) -> TripwireLayer<C, R, G, Reader<D, F, L, N>, A, J>
    where
        F: Fn(&Req) -> V,
        V: Hash,
    {
        self.settings.environment.rules.by_turn = true;
        self.read_by(|reader| Reader {
            digest: reader.digest,
            turn,
            limit: reader.limit,
            name: reader.name,
        })
    }

    /// Sets a [`Limit`] of its own for a tool; `None` stands for the layer's.
    ///
    /// Default: the layer's `identical_limit` for all tools.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::{Limit, TripwireLayer};
    /// #[derive(Hash)]
    /// struct ToolCall { name: String }
    ///
    /// let layer = TripwireLayer::new().limit_of(|call: &ToolCall| match call.name.as_str() {
    ///     "job_status" => Some(Limit::exempt()),
    ///     "search" => Some(Limit::identical(2)),
    ///     _ => None,
    /// });
    /// # let _ = layer;
    /// ```
    pub fn limit_of<Req, F>(self, limit: F) -> TripwireLayer<C, R, G, Reader<D, T, F, N>, A, J>
    where
        F: Fn(&Req) -> Option<Limit>,
    {
        self.read_by(|reader| Reader {
            digest: reader.digest,
            turn: reader.turn,
            limit,
            name: reader.name,
        })
    }

    /// Sets the name of the tool that a request calls, for the refusal's text.
    ///
    /// The closure runs for refused calls alone.
    ///
    /// Default: the layer's [`name`](Self::name).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::TripwireLayer;
    /// #[derive(Hash)]
    /// struct ToolCall { name: String }
    ///
    /// let layer = TripwireLayer::new().name_of(|call: &ToolCall| call.name.as_str());
    /// # let _ = layer;
    /// ```
    pub fn name_of<Req, F>(self, name: F) -> TripwireLayer<C, R, G, Reader<D, T, L, F>, A, J>
    where
        F: Fn(&Req) -> &str,
    {
        self.read_by(|reader| Reader {
            digest: reader.digest,
            turn: reader.turn,
            limit: reader.limit,
            name,
        })
    }
}

impl Settings {
    fn renew<G: Renew>(&self, gate: G) -> G {
        gate.renew(&Arc::new(self.environment.clone()), self.name.as_ref())
    }
}

impl<C, R, Q, A, J> TripwireLayer<C, R, One, Q, A, J> {
    /// Gives each session, that is each run of an agent, a fence of its own.
    ///
    /// The request holds the session's id. The id's `Display` names the fence in events. An id is
    /// cloned only when its fence is made.
    ///
    /// There are at most `capacity` fences. For a new session the store evicts an idle one, the
    /// least recently used one first:
    ///
    /// 1. of those that are closed and without streaks,
    /// 2. then of the rest, tripped fences included, and with an event.
    ///
    /// A fence with a call in flight is never evicted. While all fences have one, a new session
    /// is served unguarded, and an event says so. An evicted session that comes back begins a new
    /// run: choose a capacity above the number of runs that go on at once.
    ///
    /// # Panics
    ///
    /// If `capacity` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::TripwireLayer;
    /// #[derive(Hash)]
    /// struct ToolCall { session: String, name: String }
    ///
    /// let layer = TripwireLayer::new().per_session(|call: &ToolCall| call.session.as_str(), 10_000);
    /// let handle = layer.handle();
    /// assert_eq!(handle.turns("session-1"), 0);
    /// ```
    #[allow(clippy::type_complexity)] // The type says what the setter changes.
    pub fn per_session<Req, B, F>(
        self,
        session: F,
        capacity: usize,
    ) -> TripwireLayer<C, R, PerSession<B::Owned, Borrowed<F, B>>, Q, A, J>
    where
        F: Fn(&Req) -> &B,
        B: Hash + Eq + ToOwned + fmt::Display + ?Sized,
        B::Owned: Hash + Eq + Clone,
    {
        let name_of: fn(&B::Owned) -> Name = |key| {
            let key: &B = key.borrow();
            Name::of_key(&key)
        };
        self.with_sessions(Borrowed::new(session), capacity, Some(name_of))
    }

    /// Gives each session a fence of its own, with an id that is made from the request.
    ///
    /// The id is a number or a pair, for instance. Events name the fence as the layer is named.
    /// Everything else is as in [`per_session`](Self::per_session).
    ///
    /// # Panics
    ///
    /// If `capacity` is 0.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tower_breaker::TripwireLayer;
    /// #[derive(Hash)]
    /// struct ToolCall { tenant: u64, run: u64 }
    ///
    /// let layer = TripwireLayer::new().per_owned_session(|call: &ToolCall| (call.tenant, call.run), 10_000);
    /// assert_eq!(layer.handle().turns(&(1, 7)), 0);
    /// ```
    pub fn per_owned_session<Req, K, F>(
        self,
        session: F,
        capacity: usize,
    ) -> TripwireLayer<C, R, PerSession<K, Owned<F>>, Q, A, J>
    where
        F: Fn(&Req) -> K,
        K: Hash + Eq + Clone,
    {
        self.with_sessions(Owned::new(session), capacity, None)
    }

    fn with_sessions<K: Hash + Eq + Clone, S>(
        self,
        extract: S,
        capacity: usize,
        name_of: Option<fn(&K) -> Name>,
    ) -> TripwireLayer<C, R, PerSession<K, S>, Q, A, J> {
        assert!(capacity > 0, "`capacity` must be at least 1, not 0");
        let environment = Arc::new(self.settings.environment.clone());
        let name = self.settings.name.clone();
        let sessions = Sessions::new(capacity, name_of, environment, name, ());
        TripwireLayer {
            settings: self.settings,
            gate: PerSession::new(sessions, extract),
            reader: self.reader,
            classify: self.classify,
            refuse: self.refuse,
            answers: self.answers,
            judge: self.judge,
        }
    }

    /// Returns a handle on the fence.
    ///
    /// Take it last: a setter gives the layer state of its own.
    #[must_use]
    pub fn handle(&self) -> TripwireHandle<Q>
    where
        Q: Clone,
    {
        TripwireHandle::new(self.gate.machine_ref(), self.reader.clone())
    }
}

impl<C, R, K, S, Q, A, J> TripwireLayer<C, R, PerSession<K, S>, Q, A, J> {
    /// Returns a handle on the fences of all sessions.
    ///
    /// Take it last: a setter gives the layer state of its own.
    #[must_use]
    pub fn handle(&self) -> KeyedTripwireHandle<K, S, Q>
    where
        S: Clone,
        Q: Clone,
    {
        KeyedTripwireHandle::new(
            self.gate.sessions(),
            self.gate.extract().clone(),
            self.reader.clone(),
        )
    }
}

impl<S, C, R, G, Q, A, J> Layer<S> for TripwireLayer<C, R, G, Q, A, J>
where
    C: Clone,
    R: Clone,
    G: Clone,
    Q: Clone,
    A: Clone,
    J: Clone,
{
    type Service = Tripwire<S, C, R, G, Q, A, J>;

    fn layer(&self, inner: S) -> Self::Service {
        Tripwire::new(
            inner,
            self.gate.clone(),
            self.reader.clone(),
            (
                self.classify.clone(),
                self.refuse.clone(),
                self.answers.clone(),
                self.judge.clone(),
            ),
        )
    }
}

/// Clones share the fence, until a setter gives one of them state of its own.
impl<C, R, G, Q, A, J> Clone for TripwireLayer<C, R, G, Q, A, J>
where
    C: Clone,
    R: Clone,
    G: Clone,
    Q: Clone,
    A: Clone,
    J: Clone,
{
    fn clone(&self) -> Self {
        Self {
            settings: self.settings.clone(),
            gate: self.gate.clone(),
            reader: self.reader.clone(),
            classify: self.classify.clone(),
            refuse: self.refuse.clone(),
            answers: self.answers.clone(),
            judge: self.judge.clone(),
        }
    }
}

impl<C, R, G: fmt::Debug, Q, A, J> fmt::Debug for TripwireLayer<C, R, G, Q, A, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TripwireLayer")
            .field("name", &self.settings.name)
            .field("rules", &self.settings.environment.rules)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
