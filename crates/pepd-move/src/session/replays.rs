//! What sessions have begun with.

use std::collections::{HashSet, VecDeque};

/// The ephemeral key that a session begins with.
pub(super) type Beginning = [u8; 32];

/// The beginnings that are remembered.
const MOST: usize = 4096;

/// What the latest sessions have begun with: whoever begins with that again says what somebody else has
/// said. Only whoever has the key has it remember something.
///
/// A replay that is older than all of these gets no further either: it has no answer to the answer
/// ([`SessionError::Replay`](super::SessionError::Replay)).
#[derive(Debug, Default)]
pub struct Replays {
    seen: HashSet<Beginning>,
    order: VecDeque<Beginning>,
}

impl Replays {
    /// Remembers a beginning; false where it is one already.
    pub(super) fn admit(&mut self, beginning: Beginning) -> bool {
        if !self.seen.insert(beginning) {
            return false;
        }
        self.order.push_back(beginning);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_remembered() {
        let mut replays = Replays::default();
        let beginning = |number: usize| {
            let mut beginning = [0; 32];
            beginning[..8].copy_from_slice(&number.to_be_bytes());
            beginning
        };
        for number in 0..MOST + 10 {
            assert!(replays.admit(beginning(number)));
            assert!(!replays.admit(beginning(number)));
        }
        assert_eq!((replays.seen.len(), replays.order.len()), (MOST, MOST));
        assert!(!replays.admit(beginning(10)));
        assert!(replays.admit(beginning(9)), "the oldest are forgotten");
    }
}
