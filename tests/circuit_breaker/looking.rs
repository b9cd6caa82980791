//! Proves that looking changes nothing: questions leave the gate's answers as they were.

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof};
use proptest::test_runner::TestCaseError;
use tower_breaker::{
    Cancelled, CircuitBreakerHandle, CircuitBreakerLayer, Failure, Outcome, Permit, Window,
};

use crate::CANCELLED;
use crate::support::events::Recorder;
use crate::support::{NS, pass, paused, secs};

#[derive(Clone, Debug)]
enum Step {
    Acquire,
    /// Settles one of the permits in flight: the number chooses which.
    Record(usize, Outcome),
    Drop(usize),
    /// Goes to the end of the running cooldown or lease, or one nanosecond before or after it.
    ToTheEdge(i8),
    Pass(u64),
    ForceOpen,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        3 => Just(Outcome::Success),
        6 => Just(Outcome::from(Failure::transient())),
        1 => Just(Outcome::from(Failure::fatal())),
        1 => (0..100_u64).prop_map(|hint| Failure::rate_limited().with_retry_after(secs(hint)).into()),
        2 => Just(Outcome::Neutral),
    ];
    let step = prop_oneof![
        8 => Just(Step::Acquire),
        8 => (any::<usize>(), outcome).prop_map(|(at, outcome)| Step::Record(at, outcome)),
        2 => any::<usize>().prop_map(Step::Drop),
        6 => (-1..=1_i8).prop_map(Step::ToTheEdge),
        2 => (0..40_u64).prop_map(Step::Pass),
        1 => Just(Step::ForceOpen),
        1 => Just(Step::Reset),
    ];
    vec(step, 1..40)
}

/// A circuit, its permits in flight, and what its observers were told.
struct Side {
    handle: CircuitBreakerHandle,
    permits: Vec<Permit>,
    told: Recorder,
}

impl Side {
    fn new(rule: Cancelled, rate: bool) -> Self {
        let told = Recorder::new();
        let mut layer = CircuitBreakerLayer::new()
            .failure_threshold(2)
            .success_threshold(2)
            .probe_timeout(secs(20))
            .backoff(2, secs(100))
            .jitter(0.5)
            .jitter_seed(7)
            .on_cancel(rule)
            .observe(told.clone());
        if rate {
            layer = layer
                .failure_rate(0.5, Window::Time(secs(60)))
                .minimum_calls(4);
        }
        let handle = layer.handle();
        let permits = Vec::new();
        Self {
            handle,
            permits,
            told,
        }
    }

    /// Takes the step and returns its result as text.
    fn take(&mut self, step: &Step) -> String {
        match step {
            Step::Acquire => match self.handle.try_acquire() {
                Ok(permit) => {
                    let probe = permit.is_probe();
                    self.permits.push(permit);
                    format!("admitted, probe: {probe}")
                }
                Err(refusal) => format!("{refusal:?}"),
            },
            Step::Record(at, outcome) if !self.permits.is_empty() => {
                let at = at % self.permits.len();
                format!("{:?}", self.permits.swap_remove(at).record(*outcome))
            }
            Step::Drop(at) if !self.permits.is_empty() => {
                let at = at % self.permits.len();
                drop(self.permits.swap_remove(at));
                "dropped".to_owned()
            }
            Step::ForceOpen => {
                self.handle.force_open();
                "pinned".to_owned()
            }
            Step::Reset => {
                self.handle.reset();
                "reset".to_owned()
            }
            _ => String::new(),
        }
    }
}

fn asked_a_thousand_times(handle: &CircuitBreakerHandle) -> Result<(), TestCaseError> {
    let first = (handle.would_allow(), handle.state(), handle.snapshot());
    for _ in 0..1_000 {
        prop_assert_eq!(
            &first,
            &(handle.would_allow(), handle.state(), handle.snapshot())
        );
    }
    prop_assert_eq!(first.1, first.2.state);
    Ok(())
}

async fn looking_changes_nothing(
    steps: &[Step],
    rule: Cancelled,
    rate: bool,
) -> Result<(), TestCaseError> {
    let mut left_alone = Side::new(rule, rate);
    let mut looked_at = Side::new(rule, rate);
    for step in steps {
        match *step {
            Step::ToTheEdge(nanos) => {
                if let Some(left) = looked_at.handle.snapshot().time_left {
                    let edge = if nanos < 0 {
                        left.saturating_sub(NS)
                    } else {
                        left
                    };
                    pass(edge + NS * u32::from(nanos > 0)).await;
                }
            }
            Step::Pass(time) => pass(secs(time)).await,
            _ => {}
        }
        asked_a_thousand_times(&looked_at.handle)?;
        let allowed = looked_at.handle.would_allow();
        let came_of_it = looked_at.take(step);
        prop_assert_eq!(&left_alone.take(step), &came_of_it);
        if matches!(step, Step::Acquire) {
            prop_assert_eq!(
                allowed,
                came_of_it.starts_with("admitted"),
                "the oracle is the gate"
            );
        }
    }
    asked_a_thousand_times(&looked_at.handle)?;
    prop_assert_eq!(
        left_alone.take(&Step::Acquire),
        looked_at.take(&Step::Acquire)
    );
    prop_assert_eq!(left_alone.told.take(), looked_at.told.take());
    Ok(())
}

proptest::proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Case 7.
    #[test]
    fn questions_leave_the_gates_answers_as_they_were(
        steps in steps(),
        rule in 0..CANCELLED.len(),
        rate in any::<bool>(),
    ) {
        paused(looking_changes_nothing(&steps, CANCELLED[rule], rate))?;
    }
}
