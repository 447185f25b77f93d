//! SYNs that have been dealt with, so that the client's repetitions of them go the same way.
//!
//! A client repeats a SYN whose answer is lost or slow. If the first one was routed, its
//! destination may have answered it: an upstream leg that is opened for the second one sends that
//! destination a SYN with another sequence number, and resets what it answers (RFC 9293, section
//! 3.10.7.3): the client's connection comes to nothing. If the first one was split and the
//! connection is over, it would be opened once more, for nobody.
//!
//! A repetition has the sequence number of the first one, and a new connection from the same port
//! has another (RFC 9293, section 3.4.1). So nothing here need be forgotten in time, and what is
//! forgotten too early costs little; the room for it is bounded.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, SequenceNumber};

use super::verdict::SynVerdict;

/// The longest that a client waits before it sends a SYN again and has not given up (the sixth
/// time, by RFC 6298 and net.ipv4.tcp_syn_retries).
const PERIOD: Duration = Duration::from_secs(64);

/// The verdict that a SYN was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PastVerdict {
    /// It was routed.
    Routed,
    /// It went to the listener.
    Split,
}

impl PastVerdict {
    /// Returns the verdict of those that repeat it.
    pub(super) fn of_retransmits(self) -> SynVerdict {
        match self {
            Self::Routed => SynVerdict::Pass,
            Self::Split => SynVerdict::Split,
        }
    }
}

/// The SYNs of this period and of the one before, which is shorter if there are many.
#[derive(Debug)]
pub(super) struct SynHistory {
    young: HashMap<FourTuple, (SequenceNumber, PastVerdict)>,
    old: HashMap<FourTuple, (SequenceNumber, PastVerdict)>,
    since: Instant,
    room: usize,
}

impl SynHistory {
    /// Remembers `room` SYNs at least and twice as many at most.
    pub(super) fn new(room: usize, now: Instant) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            since: now,
            room,
        }
    }

    pub(super) fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    pub(super) fn note(
        &mut self,
        flow: FourTuple,
        number: SequenceNumber,
        verdict: PastVerdict,
        now: Instant,
    ) {
        if self.young.len() >= self.room || now.saturating_duration_since(self.since) >= PERIOD {
            self.old.clear();
            std::mem::swap(&mut self.young, &mut self.old);
            self.since = now;
        }
        self.young.insert(flow, (number, verdict));
    }

    /// Returns the last SYN of this flow, and what became of it.
    pub(super) fn last(&self, flow: FourTuple) -> Option<(SequenceNumber, PastVerdict)> {
        let known = self.young.get(&flow).or_else(|| self.old.get(&flow));
        known.copied()
    }

    /// Returns what became of this very SYN, which has come once more.
    pub(super) fn retransmitted(
        &mut self,
        flow: FourTuple,
        number: SequenceNumber,
        now: Instant,
    ) -> Option<PastVerdict> {
        let (_, verdict) = self.last(flow).filter(|(before, _)| *before == number)?;
        self.note(flow, number, verdict, now);
        Some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16) -> FourTuple {
        FourTuple {
            client: ([10, 1, 0, 2], port).into(),
            server: ([10, 2, 0, 2], 80).into(),
        }
    }

    const ONE: SequenceNumber = SequenceNumber(1);

    #[test]
    fn a_repetition_is_known_by_its_sequence_number() {
        let now = Instant::now();
        let mut history = SynHistory::new(8, now);
        history.note(port(1), ONE, PastVerdict::Routed, now);
        assert_eq!(
            history.retransmitted(port(1), ONE, now),
            Some(PastVerdict::Routed)
        );
        assert_eq!(history.retransmitted(port(2), ONE, now), None);
        let another = SequenceNumber(2);
        assert_eq!(history.retransmitted(port(1), another, now), None);
        history.note(port(1), another, PastVerdict::Split, now);
        assert_eq!(
            history.retransmitted(port(1), another, now),
            Some(PastVerdict::Split)
        );
    }

    #[test]
    fn a_client_that_goes_on_is_remembered() {
        let start = Instant::now();
        let mut history = SynHistory::new(8, start);
        history.note(port(1), ONE, PastVerdict::Routed, start);
        for seconds in [1, 3, 7, 15, 31, 63, 127] {
            let now = start + Duration::from_secs(seconds);
            history.note(port(9), ONE, PastVerdict::Split, now);
            assert_eq!(
                history.retransmitted(port(1), ONE, now),
                Some(PastVerdict::Routed)
            );
        }
        for periods in 3..6 {
            history.note(port(9), ONE, PastVerdict::Split, start + periods * PERIOD);
        }
        assert_eq!(
            history.retransmitted(port(1), ONE, start + 6 * PERIOD),
            None
        );
    }

    #[test]
    fn many_take_no_more_than_their_room() {
        let now = Instant::now();
        let mut history = SynHistory::new(8, now);
        for number in 0..1000 {
            history.note(port(number), ONE, PastVerdict::Routed, now);
            assert!(history.young.len() + history.old.len() <= 16);
        }
        let known =
            (0..1000).filter(|number| history.retransmitted(port(*number), ONE, now).is_some());
        assert!(known.count() >= 8);
    }
}
