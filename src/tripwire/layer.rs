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
use crate::vocabulary::ErrorsAsFailures;
use crate::vocabulary::Observe;
use crate::vocabulary::{AsBoxError, Name, RefuseWith};

/// Puts a fence around an agent's loop: one for one run, or one per session.
///
/// The layer is the builder: [`new`](Self::new) has good defaults, setters change them. **The state lives in the layer.** Every service that it makes
/// and every clone of it share one fence, so that the calls of all an agent's tools are counted together; a setter gives the
/// layer state of its own. So set first, and take services and the [`handle`](Self::handle) last.
///
/// See the [module documentation](super) for what the fence does.
#[must_use = "a layer does nothing deadline it is given a service"]
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
    /// One fence with the default settings: 8 turns, 3 identical calls in a row, 3 errors in a row, and a cooldown of 4 refused calls.
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

#[allow(private_bounds)] // Which gates there are is ours.
impl<C, R, G: Renew, Q, A, J> TripwireLayer<C, R, G, Q, A, J> {
    /// Names what is guarded. The name is part of events, and of refusals where [`name_of`](Self::name_of) does not name the
    /// request's own tool. With a fence per session, a session that names its fence goes before in events.
    ///
    /// Default: no name.
    pub fn name(self, name: impl Into<Cow<'static, str>>) -> Self {
        let name = Name::from(name.into());
        self.set(|settings| settings.name = Some(name))
    }

    /// How many turns a run may spend. Every admitted call spends one, whatever becomes of it, and none is given back. With 0 every call is
    /// refused, until [`extend`](TripwireHandle::extend).
    ///
    /// Default: 8.
    pub fn max_turns(self, turns: u32) -> Self {
        self.set_rules(|rules| rules.max_turns = turns)
    }

    /// The identical call that comes so often in a row trips the fence, and is refused before it runs: with 3, two run. [`u32::MAX`] turns the
    /// rule off.
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

    /// How many calls must fail in a row to trip the fence.
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

    /// The cooldown, counted in refused calls: the last of them arms one probe. Beside a probe that is out, as many refused calls declare
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

    /// The time of one run, counted from its first admitted call. When it is over every call is refused, until a
    /// [`reset`](TripwireHandle::reset). It is looked at when a call comes, and interrupts none that runs or waits. It may stand still while the
    /// machine sleeps. With [`Duration::MAX`] it is never over.
    ///
    /// Default: none. With one, every call reads the clock.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: only the call that begins the run could be made.
    pub fn deadline(self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "`deadline` must be longer than 0 s");
        self.set_rules(|rules| rules.deadline = (limit != Duration::MAX).then_some(limit))
    }

    /// Trips also when the same round of 2 to `max_period` calls comes `repeats` times in a row: with `(2, 3)`, A B A B A and then B is
    /// refused. One call again and again is no round; for that there is [`identical_limit`](Self::identical_limit).
    ///
    /// Default: off. A fence remembers `max_period` × `repeats` calls for it.
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

    /// Tells the observers with [`Event::Warned`](crate::Event::Warned) when a run has spent so many turns.
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

    /// Refuses nothing. The fence moves as if it did, and events tell what it would have refused; such a call runs without a permit, and its
    /// result is not recorded.
    ///
    /// Default: off.
    pub fn observe_only(self) -> Self {
        self.set_rules(|rules| rules.observe_only = true)
    }

    /// Adds an observer: a closure over `&Event<'_>`, or a type of the trait. Several may be added.
    pub fn observe(self, observer: impl Observe + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.environment.observers.add(StdArc::new(observer)))
    }

    /// Decides which results are errors: a closure over `Result<&Response, &Error>`, or a type of [`Classify`](crate::Classify). It is
    /// cloned into every call. Of a failure's kind nothing depends here: a fatal one is one error.
    ///
    /// Default: [`ErrorsAsFailures`], for which the refusals of layers further inside are neutral.
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

    /// Decides what becomes of a refused call: [`AsBoxError`], [`IntoError`](crate::IntoError), or a type of
    /// [`Refuse`](crate::Refuse) of your own.
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

    /// Answers a refused call with what a closure makes of it, `Fn(Request, Refusal) -> Result<Response, Error>`. The service's error
    /// type stays as it is, `Infallible` included.
    ///
    /// Every layer outside takes such a response for a success. So use it for a layer that stands alone or outermost; inside a
    /// stack, refuse with errors.
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

    /// Counts a repeat only if its result repeated too, so that honest polling passes: `digest` makes a digest of a response, as a
    /// [`Digester`](crate::Digester) does of a request. A success that differs from the one before it to the same call is progress, and is then
    /// number 1 of its streak. A failure never is, nor a response without a digest.
    ///
    /// What a call will answer is not known before it runs, so with a limit of 3 the third call after two equal answers is refused; a limit of 2
    /// lets nobody poll.
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

    /// Decides when a call is judged: [`Head`], or, with the feature `http` and around a service of `http::Response`s only, `http::EndOfBody` or
    /// `http::EndOfBody.inspect(..)`, which move the permit into the response's body and so change the type of the response. What [`same_result`](Self::same_result) compares is the response as it comes.
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

#[allow(private_bounds)] // Which gates there are is ours.
impl<C, R, G: Renew, A, D, T, L, N, J> TripwireLayer<C, R, G, Reader<D, T, L, N>, A, J> {
    /// How a request becomes a digest: a closure that answers with a [`Digest`](crate::Digest) or an `Option` of one, or a type of
    /// [`Digester`](crate::Digester).
    ///
    /// Default: [`HashDigest`](crate::HashDigest), over the whole request. Leave out what differs in every call and says nothing, such as
    /// the call's id.
    pub fn digest<P>(self, digest: P) -> TripwireLayer<C, R, G, Reader<P, T, L, N>, A, J> {
        self.read_by(|reader| Reader {
            digest,
            turn: reader.turn,
            limit: reader.limit,
            name: reader.name,
        })
    }

    /// Which turn of its planner a call belongs to: any value that can be hashed, a number for instance. The calls of one such turn spend one turn
    /// of the run, and the same call several times within it is no repetition. 64 turns are remembered: a call from one before that
    /// spends another. How many calls one turn makes is then bounded by nobody here but the error streak.
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

    /// A tool's own [`Limit`], or `None` for the layer's.
    ///
    /// Default: the layer's `identical_limit` for all.
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

    /// The name of the tool that a request calls, for the refusal's text. It is asked for refused calls alone.
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
    /// One fence for each session, that is, for each run of an agent, at most `capacity` of them. The request holds the session's id, which
    /// names its fence in events, by its `Display`.
    ///
    /// An id is cloned only when its fence is made. Fences that are closed, without streaks and idle are evicted first, the least recently
    /// used one first; then those that are not, also the tripped ones, each with an event. One with a call in flight is never evicted;
    /// while all are such, a new session is served unguarded, and an event says so. An evicted session that comes back begins a new
    /// run: so give room for more runs than go on at once.
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
    #[allow(clippy::type_complexity)] // It is what the setter changes, spelt out.
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

    /// One fence for each session whose id is made from the request, a number or a pair for instance. Everything else is as in
    /// [`per_session`](Self::per_session), but fences are called as the layer is.
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

    /// A handle on the fence. Take it last: a setter gives the layer state of its own.
    #[must_use]
    pub fn handle(&self) -> TripwireHandle<Q>
    where
        Q: Clone,
    {
        TripwireHandle::new(self.gate.machine_ref(), self.reader.clone())
    }
}

impl<C, R, K, S, Q, A, J> TripwireLayer<C, R, PerSession<K, S>, Q, A, J> {
    /// A handle on the fences. Take it last: a setter gives the layer state of its own.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoxError;
    use crate::machinery::clock::reads;
    use std::future::{Ready, ready};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use tower_service::Service;

    #[derive(Clone)]
    struct Tool;

    impl Service<u64> for Tool {
        type Response = u64;
        type Error = BoxError;
        type Future = Ready<Result<u64, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, n: u64) -> Self::Future {
            ready(if n > 900 { Err("down".into()) } else { Ok(n) })
        }
    }

    fn drive(tool: &mut impl Service<u64>, n: u64) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(tool.poll_ready(&mut cx).is_ready());
        assert!(pin!(tool.call(n)).poll(&mut cx).is_ready());
    }

    /// Closed, tripped, refused, armed, and probed.
    fn a_whole_life(tool: &mut impl Service<u64>) {
        for n in [
            1, 2, 901, 902, 903, 1, 2, 3, 4, 904, 1, 2, 3, 4, 5, 6, 6, 6, 6,
        ] {
            drive(tool, n);
        }
    }

    #[test]
    fn without_a_deadline_the_clock_is_never_read() {
        let layer = TripwireLayer::new().cycles(3, 3).turn_of(|n: &u64| *n);
        let handle = layer.handle();
        let mut tool = layer.layer(Tool);
        let mut sessions = layer.per_owned_session(|n: &u64| n % 3, 2).layer(Tool);
        let read = reads::during(|| {
            a_whole_life(&mut tool);
            a_whole_life(&mut sessions);
            assert!(handle.snapshot().trips > 1);
            assert!(!handle.would_allow(&7));
            handle.extend(1);
            handle.reset();
        });
        assert_eq!(read, 0);
    }

    #[test]
    fn with_a_deadline_a_call_reads_the_clock_at_most_twice() {
        let layer = TripwireLayer::new().deadline(Duration::from_secs(3600));
        let mut tool = layer.layer(Tool);
        drive(&mut tool, 1);
        for n in [2, 3, 901, 902, 903, 4, 5] {
            assert!(reads::during(|| drive(&mut tool, n)) <= 2);
        }
    }
}
