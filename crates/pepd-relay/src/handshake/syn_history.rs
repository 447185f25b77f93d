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

/// The longest that a client waits before it sends a SYN again and has not given up (the sixth
/// time, by RFC 6298 and net.ipv4.tcp_syn_retries).
const PERIOD: Duration = Duration::from_secs(64);

/// What became of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was routed.
    Routed,
    /// It went to the listener.
    Split,
}

/// The SYNs of this period and of the one before, which is shorter if there are many.
#[derive(Debug)]
pub(super) struct Past {
    young: HashMap<FourTuple, (SequenceNumber, Fate)>,
    old: HashMap<FourTuple, (SequenceNumber, Fate)>,
    since: Instant,
    room: usize,
}

impl Past {
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
        fate: Fate,
        now: Instant,
    ) {
        if self.young.len() >= self.room || now.saturating_duration_since(self.since) >= PERIOD {
            self.old.clear();
            std::mem::swap(&mut self.young, &mut self.old);
            self.since = now;
        }
        self.young.insert(flow, (number, fate));
    }

    /// What became of this very SYN, which has come once more.
    pub(super) fn repeated(
        &mut self,
        flow: FourTuple,
        number: SequenceNumber,
        now: Instant,
    ) -> Option<Fate> {
        let known = self.young.get(&flow).or_else(|| self.old.get(&flow));
        let (_, fate) = known.filter(|(before, _)| *before == number).copied()?;
        self.note(flow, number, fate, now);
        Some(fate)
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
        let mut past = Past::new(8, now);
        past.note(port(1), ONE, Fate::Routed, now);
        assert_eq!(past.repeated(port(1), ONE, now), Some(Fate::Routed));
        assert_eq!(past.repeated(port(2), ONE, now), None);
        let another = SequenceNumber(2);
        assert_eq!(past.repeated(port(1), another, now), None);
        past.note(port(1), another, Fate::Split, now);
        assert_eq!(past.repeated(port(1), another, now), Some(Fate::Split));
    }

    #[test]
    fn a_client_that_goes_on_is_remembered() {
        let start = Instant::now();
        let mut past = Past::new(8, start);
        past.note(port(1), ONE, Fate::Routed, start);
        for seconds in [1, 3, 7, 15, 31, 63, 127] {
            let now = start + Duration::from_secs(seconds);
            past.note(port(9), ONE, Fate::Split, now);
            assert_eq!(past.repeated(port(1), ONE, now), Some(Fate::Routed));
        }
        for periods in 3..6 {
            past.note(port(9), ONE, Fate::Split, start + periods * PERIOD);
        }
        assert_eq!(past.repeated(port(1), ONE, start + 6 * PERIOD), None);
    }

    #[test]
    fn many_take_no_more_than_their_room() {
        let now = Instant::now();
        let mut past = Past::new(8, now);
        for number in 0..1000 {
            past.note(port(number), ONE, Fate::Routed, now);
            assert!(past.young.len() + past.old.len() <= 16);
        }
        let known = (0..1000).filter(|number| past.repeated(port(*number), ONE, now).is_some());
        assert!(known.count() >= 8);
    }
}
