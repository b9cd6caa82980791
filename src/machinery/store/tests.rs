//! Tests of the store.

use std::collections::HashSet;
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::*;
use crate::machinery::machine::Retention;
use crate::machinery::observers::Observers;
use crate::machinery::test_machine::{TestMachine, examined, machine};

type TestRef = Arc<MachineRef<TestMachine>>;

const NOW: Timestamp = Timestamp::START;

fn timestamp(at: u64) -> Timestamp {
    Timestamp::from_nanos(at)
}

fn insert<K: Hash + Eq>(
    store: &Store<K, TestMachine>,
    key: K,
    now: Timestamp,
) -> Inserted<TestMachine> {
    store.get_or_insert(key, now, |_| machine(Observers::default()))
}

/// Makes a call with `key` that leaves its machine with this retention and deadline.
fn call(store: &Store<u32, TestMachine>, key: u32, retention: Retention, deadline: Timestamp) {
    let found = store
        .get(&key)
        .map_or_else(|| insert(store, key, NOW).found, Ok);
    set(
        &found.unwrap_or_else(|_| panic!("no room for {key}")),
        retention,
        deadline,
    );
}

fn set(machine_ref: &TestRef, retention: Retention, deadline: Timestamp) {
    machine_ref.machine().step(|inner, (), _| {
        inner.retention = retention;
        inner.deadline = deadline;
    });
}

fn sorted(store: &Store<u32, TestMachine>) -> Vec<u32> {
    let mut keys = store.keys();
    keys.sort_unstable();
    keys
}

#[test]
fn a_store_finds_what_was_inserted_and_nothing_else() {
    let store = Store::<String, TestMachine>::new(2);
    assert_eq!(store.capacity(), 2);
    assert!(store.get("a").is_none());
    assert!(store.peek("a").is_none());
    let made = insert(&store, "a".to_owned(), NOW).found.ok().unwrap();
    let again = insert(&store, "a".to_owned(), NOW).found.ok().unwrap();
    for found in [store.get("a").unwrap(), store.peek("a").unwrap(), again] {
        assert!(Arc::ptr_eq(&made, &found));
    }
    assert!(store.get("b").is_none());
    assert_eq!(store.keys(), ["a"]);
    assert_eq!(format!("{store:?}"), "Store { len: 1, capacity: 2, .. }");
}

#[test]
fn clean_machines_go_first_least_recently_used_first() {
    let store = Store::new(3);
    for key in [1, 2, 3] {
        call(&store, key, Retention::Clean, NOW);
    }
    store.get(&1);
    store.peek(&2);
    call(&store, 4, Retention::Clean, NOW);
    assert_eq!(sorted(&store), [1, 3, 4], "`peek` moves nothing");
    call(&store, 3, Retention::Unclean, NOW);
    store.get(&1);
    store.get(&4);
    call(&store, 5, Retention::Clean, NOW);
    assert_eq!(
        sorted(&store),
        [3, 4, 5],
        "the unclean one stays, though it is older"
    );
}

#[test]
fn the_last_insertion_goes_after_a_look_up_before_it() {
    let store = Store::new(2);
    call(&store, 1, Retention::Clean, NOW);
    store.get(&1);
    call(&store, 2, Retention::Clean, NOW);
    call(&store, 3, Retention::Clean, NOW);
    assert_eq!(sorted(&store), [2, 3]);
}

#[test]
fn only_evictions_of_unclean_machines_are_reported() {
    let store = Store::new(1);
    call(&store, 1, Retention::Clean, NOW);
    assert!(insert(&store, 2, NOW).evicted.is_none());
    call(&store, 2, Retention::Unclean, NOW);
    let two = store.peek(&2).map(|machine_ref| Arc::as_ptr(&machine_ref));
    let inserted = insert(&store, 3, NOW);
    assert!(inserted.found.is_ok());
    assert_eq!(
        inserted
            .evicted
            .map(|machine_ref| Arc::as_ptr(&machine_ref)),
        two
    );
    assert_eq!(sorted(&store), [3]);
}

#[test]
fn live_machines_stay_and_a_new_key_finds_no_room() {
    let store = Store::new(2);
    call(&store, 1, Retention::Live, timestamp(10));
    call(&store, 2, Retention::Clean, NOW);
    let in_flight = store.get(&2).unwrap();
    let full = insert(&store, 3, NOW);
    assert!(full.found.is_err() && full.evicted.is_none());
    drop(full);
    assert!(insert(&store, 3, timestamp(9)).found.is_err());
    assert_eq!(sorted(&store), [1, 2]);
    assert!(
        insert(&store, 1, NOW).found.is_ok(),
        "a key that is there needs no room"
    );

    assert!(
        insert(&store, 3, timestamp(10)).evicted.is_some(),
        "its deadline has passed"
    );
    assert_eq!(sorted(&store), [2, 3]);
    drop(in_flight);
    insert(&store, 4, timestamp(10));
    assert_eq!(sorted(&store), [3, 4], "and the call has ended");
}

#[test]
fn a_machine_that_a_call_made_clean_is_clean_again_for_the_store() {
    for (retention, deadline) in [
        (Retention::Unclean, NOW),
        (Retention::Live, Timestamp::NEVER),
    ] {
        let store = Store::new(2);
        call(&store, 1, retention, deadline);
        call(&store, 2, Retention::Live, Timestamp::NEVER);
        assert!(insert(&store, 3, NOW).found.is_ok() == (retention == Retention::Unclean));
        let store = Store::new(3);
        call(&store, 1, retention, deadline);
        call(&store, 2, Retention::Unclean, NOW);
        call(&store, 3, Retention::Live, Timestamp::NEVER);
        // This parks all three, and evicts the first or the second.
        let gone = if retention == Retention::Unclean {
            1
        } else {
            2
        };
        insert(&store, 4, NOW);
        assert!(store.peek(&gone).is_none());
        call(&store, 3, Retention::Clean, NOW);
        call(&store, 4, Retention::Unclean, NOW);
        insert(&store, 5, NOW);
        assert!(
            store.peek(&3).is_none(),
            "the clean one goes, though it is newer"
        );
    }
}

#[test]
fn only_the_first_look_up_of_a_parked_machine_sets_the_flag() {
    let store = Store::new(3);
    call(&store, 1, Retention::Unclean, NOW);
    call(&store, 2, Retention::Live, Timestamp::NEVER);
    call(&store, 3, Retention::Clean, NOW);
    let in_flight = store.get(&3).unwrap();
    insert(&store, 4, NOW);
    let touches = |key| {
        store.touched.store(0, Ordering::Relaxed);
        store.get(&key);
        store.touched.load(Ordering::Relaxed) != 0
    };
    assert!(!touches(3), "a machine in use is examined again anyway");
    assert!(!touches(4), "it was never parked");
    assert!(touches(2));
    assert!(!touches(3) && !touches(2));
    drop(in_flight);
}

/// A naive model of the store: a list, least recently used first.
#[derive(Default)]
struct Model {
    machines: Vec<ModelMachine>,
}

struct ModelMachine {
    key: u32,
    retention: Retention,
    deadline: u64,
    refs: Vec<TestRef>,
}

impl Model {
    fn evict(&mut self, now: u64) -> Option<(u32, Retention)> {
        let retention = |machine: &ModelMachine| match machine.retention {
            _ if !machine.refs.is_empty() => Retention::Live,
            Retention::Live if machine.deadline <= now => Retention::Unclean,
            retention => retention,
        };
        let find = |wanted| {
            self.machines
                .iter()
                .position(|machine| retention(machine) == wanted)
        };
        let at = find(Retention::Clean).or_else(|| find(Retention::Unclean))?;
        let machine = self.machines.remove(at);
        Some((machine.key, retention(&machine)))
    }
}

#[test]
fn any_serial_history_evicts_as_the_model_does() {
    for seed in 0..40_u64 {
        let mut state = seed;
        let mut random = move |below: u64| {
            // Knuth's multiplier. The upper bits are random enough.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let capacity = 1 + usize::try_from(seed % 7).unwrap();
        let store = Store::<u32, TestMachine>::new(capacity);
        let mut model = Model::default();
        let mut now = 0;
        for step in 0..2000 {
            now += random(3);
            let key = u32::try_from(random(12)).unwrap();
            let known = model.machines.iter().position(|machine| machine.key == key);
            match (random(8), known) {
                (0, _) => {
                    assert_eq!(store.peek(&key).is_some(), known.is_some());
                }
                (1, Some(at)) => {
                    // A call begins.
                    let mut machine = model.machines.remove(at);
                    machine.refs.push(store.get(&key).unwrap());
                    model.machines.push(machine);
                }
                (2, Some(at)) => {
                    // Calls end, and their results change the machine.
                    let machine = &mut model.machines[at];
                    machine.deadline = now + random(9);
                    machine.retention = [Retention::Clean, Retention::Unclean, Retention::Live]
                        [usize::try_from(random(3)).unwrap()];
                    if let Some(machine_ref) = machine.refs.first() {
                        set(machine_ref, machine.retention, timestamp(machine.deadline));
                    } else {
                        set(
                            &store.get(&key).unwrap(),
                            machine.retention,
                            timestamp(machine.deadline),
                        );
                        let machine = model.machines.remove(at);
                        model.machines.push(machine);
                    }
                }
                (3, Some(at)) => model.machines[at].refs.clear(),
                (4, _) if random(20) == 0 => {
                    assert_eq!(store.forget(&key), known.is_some());
                    model.machines.retain(|machine| machine.key != key);
                }
                _ => {
                    let inserted = insert(&store, key, timestamp(now));
                    if let Some(at) = known {
                        let machine = model.machines.remove(at);
                        model.machines.push(machine);
                        assert!(inserted.found.is_ok() && inserted.evicted.is_none());
                    } else {
                        let full = model.machines.len() == capacity;
                        let gone = full.then(|| model.evict(now)).flatten();
                        assert_eq!(
                            inserted.found.is_err(),
                            full && gone.is_none(),
                            "seed {seed} step {step}"
                        );
                        let unclean = matches!(gone, Some((_, Retention::Unclean)));
                        assert_eq!(
                            inserted.evicted.is_some(),
                            unclean,
                            "seed {seed} step {step}"
                        );
                        if inserted.found.is_ok() {
                            model.machines.push(ModelMachine {
                                key,
                                retention: Retention::Clean,
                                deadline: 0,
                                refs: Vec::new(),
                            });
                        }
                    }
                }
            }
            let mut keys: Vec<_> = model.machines.iter().map(|machine| machine.key).collect();
            keys.sort_unstable();
            assert_eq!(sorted(&store), keys, "seed {seed} step {step}");
            assert_eq!(lock(&store.order).len(), keys.len());
        }
    }
}

#[test]
fn forget_removes_a_machine_whatever_its_state() {
    let store = Store::new(4);
    call(&store, 1, Retention::Clean, NOW);
    call(&store, 2, Retention::Unclean, NOW);
    call(&store, 3, Retention::Live, Timestamp::NEVER);
    call(&store, 4, Retention::Unclean, NOW);
    let four = store.get(&4).unwrap();
    insert(&store, 5, NOW);
    insert(&store, 6, NOW);
    // Now one is unclean, one is live, one is in use, and one is a candidate.
    assert_eq!(sorted(&store), [2, 3, 4, 6]);
    for key in [2, 3, 4, 6] {
        let machine_ref = store.get(&key).unwrap();
        assert!(store.forget(&key));
        assert!(!store.forget(&key));
        assert!(
            machine_ref.machine().packed().is_busy(),
            "it admits nobody any more"
        );
        assert!(
            machine_ref
                .machine()
                .step_unless_retired(|_, (), _| ())
                .is_err()
        );
    }
    assert!(store.keys().is_empty());
    assert_eq!(lock(&store.order).len(), 0);
    call(&store, 4, Retention::Clean, NOW);
    assert!(!Arc::ptr_eq(&four, &store.get(&4).unwrap()));
}

#[test]
fn a_store_with_room_for_one_holds_one() {
    let store = Store::new(1);
    for key in 0..100 {
        call(&store, key, Retention::Clean, NOW);
        assert_eq!(sorted(&store), [key]);
    }
}

#[test]
fn a_machine_inserted_after_very_many_look_ups_is_the_newest() {
    let store = Store::new(2);
    for key in [1, 2] {
        assert!(insert(&store, key, NOW).found.is_ok());
    }
    for _ in 0..LOOKUPS {
        store.get(&1);
        store.get(&2);
    }
    for key in [3, 4, 5] {
        assert!(insert(&store, key, NOW).found.is_ok());
    }
    assert_eq!(sorted(&store), [4, 5]);
}

#[test]
fn look_ups_past_the_limit_of_the_tick_write_nothing_shared() {
    let store = Store::new(3);
    for key in [1, 2, 3] {
        call(&store, key, Retention::Clean, NOW);
    }
    for _ in 0..40_000 {
        store.get(&1);
        store.get(&3);
    }
    let tick = store.tick.load(Ordering::Relaxed);
    assert_eq!(tick & LOOKUPS, LOOKUPS);
    store.get(&1);
    store.get(&3);
    assert_eq!(store.tick.load(Ordering::Relaxed), tick);
    call(&store, 4, Retention::Clean, NOW);
    assert_eq!(
        sorted(&store),
        [1, 3, 4],
        "the one that was not looked up goes first"
    );
    store.get(&1);
    call(&store, 5, Retention::Clean, NOW);
    assert_eq!(sorted(&store), [1, 4, 5], "and the order is exact again");
}

#[test]
fn many_unclean_or_live_machines_are_not_examined_again_for_each_new_key() {
    const MANY: u32 = 1000;
    for (retention, deadline) in [
        (Retention::Unclean, NOW),
        (Retention::Live, timestamp(1000)),
    ] {
        let store = Store::new(MANY as usize);
        for key in 0..MANY {
            call(&store, key, retention, deadline);
        }
        let before = examined();
        for key in MANY..3 * MANY {
            let found = insert(&store, key, NOW).found;
            assert_eq!(found.is_ok(), retention == Retention::Unclean);
            if let Ok(machine_ref) = found {
                set(&machine_ref, retention, deadline);
            }
        }
        let count = examined() - before;
        assert!(count <= 3 * 2 * u64::from(MANY), "{count} were examined");
        assert!(
            insert(&store, 0, timestamp(1000)).found.is_ok(),
            "they are unclean now, and make room"
        );
    }
}

#[test]
fn many_keys_pass_through_a_small_store_and_live_machines_stay() {
    let store = Store::new(1000);
    for key in 0..10 {
        call(&store, key, Retention::Live, Timestamp::NEVER);
    }
    for key in 10..50_000 {
        call(&store, key, Retention::Clean, NOW);
    }
    let keys = sorted(&store);
    assert_eq!(keys.len(), 1000);
    assert_eq!(keys[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(keys[10..], *(49_010..50_000).collect::<Vec<_>>());
}

thread_local!(static FUSE: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) });

/// Stands for the user's code in a key. It panics when the fuse has burnt down.
fn burn() {
    let left = FUSE.get();
    FUSE.set(left.map(|left| left.saturating_sub(1)));
    assert_ne!(left, Some(0), "a key's");
}

#[derive(Debug)]
struct Hostile(u32);

impl Hash for Hostile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        burn();
        // There are few hashes, so `Eq` has work.
        state.write_u32(self.0 % 2);
    }
}

impl PartialEq for Hostile {
    fn eq(&self, other: &Self) -> bool {
        burn();
        self.0 == other.0
    }
}

impl Eq for Hostile {}

impl Clone for Hostile {
    fn clone(&self) -> Self {
        burn();
        Self(self.0)
    }
}

#[test]
fn a_key_that_panics_anywhere_breaks_nothing() {
    let ops: [fn(&Store<Hostile, TestMachine>); 5] = [
        |store| drop(store.get(&Hostile(1))),
        |store| drop(insert(store, Hostile(9), NOW)),
        |store| drop(insert(store, Hostile(2), NOW)),
        |store| assert!(store.forget(&Hostile(3))),
        |store| drop(store.keys()),
    ];
    let mut panics = 0;
    for op in ops {
        for fuse in 0.. {
            let store = Store::new(4);
            for key in 0..4 {
                insert(&store, Hostile(key), NOW);
            }
            FUSE.set(Some(fuse));
            let result = catch_unwind(AssertUnwindSafe(|| op(&store)));
            FUSE.set(None);

            let keys: HashSet<_> = store.keys().into_iter().map(|key| key.0).collect();
            assert_eq!(keys.len(), lock(&store.order).len(), "{keys:?}");
            for key in &keys {
                let machine_ref = store.get(&Hostile(*key)).unwrap();
                assert!(
                    !machine_ref.machine().packed().is_busy(),
                    "no retired machine is left"
                );
            }
            for key in 10..20 {
                insert(&store, Hostile(key), NOW);
                assert!(store.peek(&Hostile(key)).is_some());
                assert!(store.keys().len() <= 4);
            }
            if result.is_ok() {
                break;
            }
            panics += 1;
        }
    }
    assert!(panics >= 10, "{panics} places were tried");
}

#[test]
fn a_panic_while_a_machine_is_made_changes_nothing() {
    let store = Store::<u32, TestMachine>::new(1);
    call(&store, 1, Retention::Clean, NOW);
    let make = |_: &u32| -> SharedMachine<TestMachine> { panic!("a key's `Display`") };
    assert!(catch_unwind(AssertUnwindSafe(|| store.get_or_insert(2, NOW, make))).is_err());
    assert_eq!(store.keys(), [1]);
    call(&store, 2, Retention::Clean, NOW);
    assert_eq!(store.keys(), [2]);
}

#[test]
fn a_key_may_come_back_to_the_store_when_it_is_dropped() {
    struct Back(u32, std::rc::Weak<Store<Back, TestMachine>>);
    impl Hash for Back {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }
    impl PartialEq for Back {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }
    impl Eq for Back {}
    impl Drop for Back {
        fn drop(&mut self) {
            if let Some(store) = self.1.upgrade() {
                assert!(!format!("{store:?}").is_empty());
            }
        }
    }
    let store = Rc::new(Store::new(2));
    for key in 0..5000 {
        insert(&store, Back(key, Rc::downgrade(&store)), NOW);
        insert(&store, Back(key, Rc::downgrade(&store)), NOW);
    }
}
