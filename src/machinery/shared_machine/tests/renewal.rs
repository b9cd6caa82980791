//! Tests of renewals without the lock.

use crate::machinery::clock::Timestamp;
use crate::machinery::observers::Observers;
use crate::machinery::test_machine::{machine, transition};

#[tokio::test(start_paused = true)]
async fn a_deadline_is_renewed_without_a_step_and_taken_over_by_the_next() {
    let machine = machine(Observers::default());
    machine.step(|inner, (), _| inner.deadline = Timestamp::from_nanos(5));
    let packed = machine.packed();
    machine.renew(|seen, deadline, now| {
        assert_eq!(
            (seen, deadline, now),
            (packed, Timestamp::from_nanos(5), Timestamp::START)
        );
        Some(Timestamp::from_nanos(9))
    });
    assert_eq!(machine.deadline(packed), Some(Timestamp::from_nanos(9)));
    assert_eq!(
        machine.read(|inner, _, ()| inner.deadline),
        Timestamp::from_nanos(9)
    );
    // A step that does not move the deadline leaves it as it is.
    machine.step(|inner, (), _| inner.streak = 1);
    assert_eq!(machine.any_deadline(), Timestamp::from_nanos(9));
    machine.renew(|_, _, _| None);
    assert_eq!(machine.any_deadline(), Timestamp::from_nanos(9));
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_never_moves_the_deadline_of_another_generation() {
    for next in [
        Timestamp::from_nanos(9),
        Timestamp::from_nanos(4),
        Timestamp::NEVER,
    ] {
        let machine = machine(Observers::default());
        machine.step(|inner, (), _| inner.deadline = Timestamp::from_nanos(5));
        machine.renew(|_, _, _| {
            // The machine moves after the deadline was read and before it is renewed.
            machine.step(|inner, (), events| {
                inner.deadline = next;
                inner.transition(events);
            });
            Some(Timestamp::from_nanos(100))
        });
        assert_eq!(machine.deadline(machine.packed()), Some(next));
        assert_eq!(machine.read(|inner, _, ()| inner.deadline), next);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_beside_a_step_that_does_not_move_the_deadline_is_kept() {
    let machine = machine(Observers::default());
    machine.step(|inner, (), _| inner.deadline = Timestamp::from_nanos(5));
    machine.renew(|_, _, _| {
        machine.step(|inner, (), _| inner.streak += 1);
        Some(Timestamp::from_nanos(9))
    });
    assert_eq!(
        machine.deadline(machine.packed()),
        Some(Timestamp::from_nanos(9))
    );
    machine.step(|inner, (), _| assert_eq!(inner.deadline, Timestamp::from_nanos(9)));
}

#[test]
fn a_deadline_that_two_generations_have_in_common_is_read_in_both() {
    let machine = machine(Observers::default());
    machine.step(|inner, (), _| inner.deadline = Timestamp::from_nanos(5));
    for _ in 0..2 {
        transition(&machine);
        assert_eq!(
            machine.deadline(machine.packed()),
            Some(Timestamp::from_nanos(5))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_retired_machine_has_no_deadline_to_renew() {
    let machine = machine(Observers::default());
    machine.retire_now();
    machine.renew(|_, _, _| unreachable!("nobody is admitted there"));
}
