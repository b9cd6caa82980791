//! Events of a machine that wait to be delivered.

use std::collections::VecDeque;

/// What a machine did, waiting to be told in order.
///
/// It keeps at most [`EventQueue::MOST`]; past that, with listeners slower than the transitions, further ones are only counted.
#[derive(Debug)]
pub(crate) struct EventQueue<N> {
    queue: Option<Box<Queue<N>>>,
}

#[derive(Debug)]
struct Queue<N> {
    events: VecDeque<Queued<N>>,
    missed: u64,
    /// Somebody is telling them, one after the other.
    delivering: bool,
}

/// What comes next for the observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued<N> {
    Event(N),
    Missed(u64),
}

impl<N> Default for EventQueue<N> {
    fn default() -> Self {
        Self { queue: None }
    }
}

impl<N: Copy> EventQueue<N> {
    pub(crate) const MOST: usize = 1024;

    pub(crate) fn push(&mut self, pending: N) {
        let queue = self.queue.get_or_insert_with(|| {
            Box::new(Queue {
                events: VecDeque::new(),
                missed: 0,
                delivering: false,
            })
        });
        if queue.events.len() >= Self::MOST {
            queue.missed += 1;
            return;
        }
        if queue.missed > 0 {
            queue.events.push_back(Queued::Missed(queue.missed));
            queue.missed = 0;
        }
        queue.events.push_back(Queued::Event(pending));
    }

    /// Throws away what nobody will be told.
    pub(crate) fn discard(&mut self) {
        self.queue = None;
    }

    /// Makes the caller the one who delivers, unless there is nothing to tell or somebody does it already.
    pub(crate) fn begin(&mut self) -> bool {
        match &mut self.queue {
            Some(queue) if !queue.delivering && !queue.events.is_empty() => {
                queue.delivering = true;
                true
            }
            _ => false,
        }
    }

    /// The next thing to tell. With `None` the caller no longer delivers.
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
    fn notes_are_told_in_order_by_one_at_a_time() {
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
            "the last one stopped when there was no more"
        );
        events.discard();
        assert!(!events.begin());
    }

    #[test]
    fn notes_that_nobody_takes_are_bounded_and_counted() {
        let mut events = EventQueue::default();
        for n in 0..EventQueue::<usize>::MOST + 10 {
            events.push(n);
        }
        assert!(events.begin());
        for n in 0..EventQueue::<usize>::MOST {
            assert_eq!(events.next(), Some(Queued::Event(n)));
        }
        events.push(5000);
        assert_eq!(events.next(), Some(Queued::Missed(10)));
        assert_eq!(events.next(), Some(Queued::Event(5000)));
        assert_eq!(events.next(), None);

        for n in 0..=EventQueue::<usize>::MOST {
            events.push(n);
        }
        for n in 0..EventQueue::<usize>::MOST {
            assert_eq!(events.next(), Some(Queued::Event(n)));
        }
        assert_eq!(
            events.next(),
            Some(Queued::Missed(1)),
            "told even when nothing follows"
        );
        assert_eq!(events.next(), None);
    }
}
