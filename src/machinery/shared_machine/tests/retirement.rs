//! Tests of taking a machine out of use.

use super::*;
use crate::machinery::machine::Retention;
use crate::machinery::test_machine::{machine, machine_ref, transition};

#[test]
fn a_machine_retires_when_it_is_idle_not_live_and_clean_enough() {
    let done = |clean| Retirement::Done { clean };
    let timestamp = Timestamp::from_nanos(9);
    for (retention, unclean, expected) in [
        (Retention::Clean, false, done(true)),
        (Retention::Clean, true, done(true)),
        (Retention::Unclean, false, Retirement::Unclean),
        (Retention::Unclean, true, done(false)),
        (Retention::Live, false, Retirement::Live(timestamp)),
        (Retention::Live, true, Retirement::Live(timestamp)),
    ] {
        let machine_ref = machine_ref();
        machine_ref.machine().step(|inner, (), _| {
            inner.retention = retention;
            inner.deadline = timestamp;
        });
        machine_ref.machine().update(count_one);
        let caller = Arc::clone(&machine_ref);
        assert_eq!(
            SharedMachine::retire(&machine_ref, 1, unclean, Timestamp::START),
            Retirement::InUse
        );
        assert_eq!(
            machine_ref.machine().packed().streak(),
            1,
            "the count is kept"
        );
        drop(caller);
        assert_eq!(
            SharedMachine::retire(&machine_ref, 1, unclean, Timestamp::START),
            expected
        );
        let gone = matches!(expected, Retirement::Done { .. });
        assert_eq!(machine_ref.machine().packed().is_busy(), gone);
        assert_eq!(
            machine_ref
                .machine()
                .step_unless_retired(|_, (), _| ())
                .is_err(),
            gone
        );
    }
}

#[test]
fn a_retired_machine_admits_nobody() {
    let machine = machine(Observers::default());
    transition(&machine);
    machine.retire_now();
    assert_eq!(machine.step_unless_retired(|_, (), _| ()), Err(Retired));
    assert!(machine.packed().is_busy());
    assert!(!machine.update(|packed| (!packed.is_busy()).then_some(packed)));
    transition(&machine);
    assert!(machine.packed().is_busy(), "for good");
    assert_eq!(
        machine.read(|inner, packed, ()| (inner.generation, packed.generation())),
        (2, 2)
    );
}
