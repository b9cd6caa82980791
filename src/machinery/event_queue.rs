//! Events of a machine that wait to be delivered.

use std::collections::VecDeque;

/// The events of one machine, in the order in which they happened.
///
/// The queue keeps at most [`EventQueue::CAPACITY`] events. If listeners are slower than the
/// transitions, then further events are only counted.
#[derive(Debug)]
pub(crate) struct EventQueue<N> {
    queue: Option<Box<Queue<N>>>,
}

#[derive(Debug)]
struct Queue<N> {
    events: VecDeque<Queued<N>>,
    missed: u64,
    /// Somebody delivers the events, one after the other.
    delivering: bool,
}

/// The next item for the observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued<N> {
    Event(N),
    /// This many events were counted, but not kept.
    Missed(u64),
}

impl<N> Default for EventQueue<N> {
    fn default() -> Self {
        Self { queue: None }
    }
}

impl<N: Copy> EventQueue<N> {
    /// How many events the queue keeps.
    pub(crate) const CAPACITY: usize = 1024;

    pub(crate) fn push(&mut self, pending: N) {
        let queue = self.queue.get_or_insert_with(|| {
            Box::new(Queue {
                events: VecDeque::new(),
                missed: 0,
                delivering: false,
            })
        });
        if queue.events.len() >= Self::CAPACITY {
            queue.missed += 1;
            return;
        }
        if queue.missed > 0 {
            queue.events.push_back(Queued::Missed(queue.missed));
            queue.missed = 0;
        }
        queue.events.push_back(Queued::Event(pending));
    }

    /// Drops all events. It is for a machine without observers.
    pub(crate) fn discard(&mut self) {
        self.queue = None;
    }

    /// Makes the caller the one who delivers. Returns `false` if the queue is empty, or if
    /// somebody delivers already.
    pub(crate) fn begin(&mut self) -> bool {
        match &mut self.queue {
            Some(queue) if !queue.delivering && !queue.events.is_empty() => {
                queue.delivering = true;
                true
            }
            _ => false,
        }
    }

    /// Returns what is to be delivered next. With `None`, the caller no longer delivers.
    pub(crate) fn next(&mut self) -> Option<Queued<N>> {
        let queue = self.queue.as_mut()?;
        let next = queue.events.pop_front().or_else(|| {
            let missed = std::mem::take(&mut queue.missed);
            (missed > 0).then_some(Queued::Missed(missed))
        });
        queue.delivering = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_delivered_in_order_by_one_caller_at_a_time() {
        let mut events = EventQueue::default();
        assert!(!events.begin());
        assert_eq!(events.next(), None);
        events.push(1);
        events.push(2);
        assert!(events.begin());
        assert!(!events.begin(), "somebody delivers already");
        assert_eq!(events.next(), Some(Queued::Event(1)));
        events.push(3);
        assert!(!events.begin());
        assert_eq!(events.next(), Some(Queued::Event(2)));
        assert_eq!(events.next(), Some(Queued::Event(3)));
        assert_eq!(events.next(), None);
        events.push(4);
        assert!(
            events.begin(),
            "the last caller stopped when the queue was empty"
        );
        events.discard();
        assert!(!events.begin());
    }

    #[test]
    fn events_past_the_capacity_are_counted() {
        let mut events = EventQueue::default();
        for n in 0..EventQueue::<usize>::CAPACITY + 10 {
            events.push(n);
        }
        assert!(events.begin());
        for n in 0..EventQueue::<usize>::CAPACITY {
            assert_eq!(events.next(), Some(Queued::Event(n)));
        }
        events.push(5000);
        assert_eq!(events.next(), Some(Queued::Missed(10)));
        assert_eq!(events.next(), Some(Queued::Event(5000)));
        assert_eq!(events.next(), None);

        for n in 0..=EventQueue::<usize>::CAPACITY {
            events.push(n);
        }
        for n in 0..EventQueue::<usize>::CAPACITY {
            assert_eq!(events.next(), Some(Queued::Event(n)));
        }
        assert_eq!(
            events.next(),
            Some(Queued::Missed(1)),
            "delivered even if nothing follows"
        );
        assert_eq!(events.next(), None);
    }
}
