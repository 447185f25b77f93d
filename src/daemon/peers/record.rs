//! What is known of one peer: probes go in, answers or their absence, and out comes its state.
//! No I/O, and no clock: the time is passed in.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use pepd_admin::wire::{Liveness, PeerState};

/// The number of probes in a row that must be lost: one or two are what a lossy path loses every
/// day.
const LOST_IN_A_ROW: u32 = 3;

/// A change that an operator should be told of.
#[derive(Debug)]
pub enum Change {
    /// Nothing has been heard for several probes.
    Silent {
        /// The time at which the first of them was sent.
        since: SystemTime,
        /// The number of these probes.
        probes: u32,
        /// The reason why the last one could not even be sent, if it could not.
        failure: Option<io::Error>,
    },
    /// The peer answers: for the first time, or again.
    Answers {
        /// The round trip through the tunnel.
        rtt: Duration,
        /// The time for which it was silent, if it was.
        silent: Option<Duration>,
    },
}

/// A probe without an answer yet.
#[derive(Debug, Clone, Copy)]
struct Pending {
    sequence: u16,
    at: Instant,
    date: SystemTime,
}

/// The record of one peer.
#[derive(Debug)]
pub struct Record {
    name: String,
    liveness: Liveness,
    since: Option<SystemTime>,
    rtt: Option<Duration>,
    probes: u64,
    lost: u64,
    /// The oldest first. Bounded, since each waits only so long.
    pending: VecDeque<Pending>,
    /// When the last one of those that were answered was sent: what was sent before it and is lost says nothing any more.
    answered: Option<Instant>,
    lost_in_a_row: u32,
    first_lost: Option<SystemTime>,
    /// The reason why the last probe could not be sent, if it could not.
    failure: Option<io::Error>,
    /// Whether the tunnel's own address is not on this host: another box has it.
    elsewhere: bool,
}

impl Record {
    /// Makes the record of a peer of which nothing is known yet.
    pub fn new(name: &str, liveness: Liveness) -> Self {
        Self {
            name: name.to_owned(),
            liveness,
            since: None,
            rtt: None,
            probes: 0,
            lost: 0,
            pending: VecDeque::new(),
            answered: None,
            lost_in_a_row: 0,
            first_lost: None,
            failure: None,
            elsewhere: false,
        }
    }

    /// Takes down that a probe has been sent, or should have been. Where it could not be because the
    /// tunnel's own address is not on this host, nothing is known of the peer, and nothing is lost.
    pub fn sent(
        &mut self,
        sequence: u16,
        at: Instant,
        date: SystemTime,
        failure: Option<io::Error>,
    ) {
        let absent = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
        self.elsewhere = failure.as_ref().is_some_and(absent);
        if self.elsewhere {
            self.forget();
            return;
        }
        self.probes += 1;
        self.failure = failure;
        self.pending.push_back(Pending { sequence, at, date });
    }

    /// Takes down that an answer has come. One to a probe that was given up, or to none, changes
    /// nothing.
    pub fn answered(&mut self, sequence: u16, at: Instant, date: SystemTime) -> Option<Change> {
        let index = self.pending.iter().position(|it| it.sequence == sequence)?;
        let probe = self.pending.remove(index)?;
        let rtt = at.saturating_duration_since(probe.at);
        self.rtt = Some(rtt);
        self.answered = self.answered.max(Some(probe.at));
        self.lost_in_a_row = 0;
        self.first_lost = None;
        if self.liveness == Liveness::Answering {
            return None;
        }
        let silent_since = self.since.filter(|_| self.liveness == Liveness::Silent);
        self.liveness = Liveness::Answering;
        self.since = Some(date);
        Some(Change::Answers {
            rtt,
            silent: silent_since.map(|since| date.duration_since(since).unwrap_or_default()),
        })
    }

    /// Gives up the probes that have waited for as long as `timeout`.
    pub fn expire(&mut self, now: Instant, timeout: Duration) -> Option<Change> {
        let mut change = None;
        while let Some(probe) = self.pending.front().copied() {
            if now.saturating_duration_since(probe.at) < timeout {
                break;
            }
            self.pending.pop_front();
            self.lost += 1;
            if self.answered > Some(probe.at) {
                continue;
            }
            self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
            let since = *self.first_lost.get_or_insert(probe.date);
            if self.lost_in_a_row == LOST_IN_A_ROW && self.liveness != Liveness::Silent {
                self.liveness = Liveness::Silent;
                self.since = Some(since);
                self.rtt = None;
                change = Some(Change::Silent {
                    since,
                    probes: LOST_IN_A_ROW,
                    failure: self.failure.take(),
                });
            }
        }
        change
    }

    /// Forgets whether it answers.
    fn forget(&mut self) {
        self.pending.clear();
        self.lost_in_a_row = 0;
        self.first_lost = None;
        self.rtt = None;
        if self.liveness != Liveness::Unknown {
            self.liveness = Liveness::Unknown;
            self.since = None;
        }
    }

    /// Returns whether it answers, as far as is known.
    pub fn is_answering(&self) -> bool {
        self.liveness == Liveness::Answering
    }

    /// Gives what is known in the terms of the admin API.
    pub fn state(&self) -> PeerState {
        let seconds = |date: SystemTime| {
            let since_epoch = date.duration_since(SystemTime::UNIX_EPOCH);
            since_epoch.unwrap_or_default().as_secs_f64()
        };
        PeerState {
            name: self.name.clone(),
            liveness: self.liveness,
            since: self.since.map(seconds),
            rtt: self.rtt.map(|rtt| rtt.as_secs_f64()),
            probes: self.probes,
            lost: self.lost,
            elsewhere: self.elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    /// A record and a clock that ticks with the probes.
    struct Peer {
        record: Record,
        start: (Instant, SystemTime),
        ticks: u16,
    }

    impl Peer {
        fn new() -> Self {
            Self {
                record: Record::new("hb-i", Liveness::Unknown),
                start: (Instant::now(), SystemTime::UNIX_EPOCH),
                ticks: 0,
            }
        }

        fn now(&self, more: Duration) -> (Instant, SystemTime) {
            let passed = EVERY * u32::from(self.ticks) + more;
            (self.start.0 + passed, self.start.1 + passed)
        }

        /// Lets one interval pass, and returns what is said at its beginning.
        fn tick(&mut self) -> Option<Change> {
            self.ticks += 1;
            let (at, date) = self.now(Duration::ZERO);
            let change = self.record.expire(at, EVERY);
            self.record.sent(self.ticks, at, date, None);
            change
        }

        fn answer(&mut self, sequence: u16) -> Option<Change> {
            let (at, date) = self.now(Duration::from_millis(600));
            self.record.answered(sequence, at, date)
        }
    }

    #[test]
    fn the_first_answer_and_no_other_is_told() {
        let mut peer = Peer::new();
        assert!(peer.tick().is_none());
        let first = peer.answer(1);
        assert!(
            matches!(first, Some(Change::Answers { rtt, silent: None }) if rtt == Duration::from_millis(600)),
            "{first:?}"
        );
        for sequence in 2..10 {
            assert!(peer.tick().is_none());
            assert!(peer.answer(sequence).is_none());
        }
        let state = peer.record.state();
        assert_eq!(state.liveness, Liveness::Answering);
        assert_eq!((state.probes, state.lost, state.rtt), (9, 0, Some(0.6)));
        assert_eq!(state.since, Some(5.6));
    }

    #[test]
    fn three_lost_in_a_row_are_silence_from_the_first_of_them_on() {
        let mut peer = Peer::new();
        peer.tick();
        peer.answer(1);
        let said: Vec<_> = (0..10).filter_map(|_| peer.tick()).collect();
        let [Change::Silent { since, probes, .. }] = said.as_slice() else {
            panic!("told once: {said:?}");
        };
        // The second probe was sent at 10 s.
        assert_eq!(*since, SystemTime::UNIX_EPOCH + Duration::from_secs(10));
        assert_eq!(*probes, 3);
        let state = peer.record.state();
        assert_eq!(
            (state.liveness, state.since),
            (Liveness::Silent, Some(10.0))
        );
        assert_eq!(state.rtt, None);
        let again = peer.answer(11);
        let Some(Change::Answers {
            silent: Some(silent),
            ..
        }) = again
        else {
            panic!("{again:?}");
        };
        // From 10 s to 55.6 s.
        assert_eq!(silent, Duration::from_millis(45_600));
        assert_eq!(peer.record.state().lost, 9);
    }

    #[test]
    fn losses_between_answers_are_counted_and_not_told() {
        let mut peer = Peer::new();
        peer.tick();
        peer.answer(1);
        for sequence in 2..60 {
            assert!(peer.tick().is_none());
            // Two of three are lost.
            if sequence % 3 == 0 {
                assert!(peer.answer(sequence).is_none());
            }
        }
        assert_eq!(peer.record.state().liveness, Liveness::Answering);
        assert_eq!(peer.record.state().lost, 38);
    }

    #[test]
    fn an_answer_that_comes_twice_or_much_too_late_is_none() {
        let mut peer = Peer::new();
        for _ in 0..4 {
            peer.tick();
        }
        assert_eq!(peer.record.state().liveness, Liveness::Silent);
        assert!(peer.answer(1).is_none(), "given up");
        assert_eq!(peer.record.state().liveness, Liveness::Silent);
        assert!(peer.answer(4).is_some());
        assert!(peer.answer(4).is_none(), "twice");
    }

    /// While a peer is silent it may be asked ten times a second. Those that were sent just before it was there again are
    /// given up after its answer, and are no new silence.
    #[test]
    fn what_was_sent_before_an_answer_is_no_silence_after_it() {
        let start = Instant::now();
        let at = |ms: u64| (start + Duration::from_millis(ms), SystemTime::UNIX_EPOCH);
        let timeout = Duration::from_secs(2);
        let mut record = Record::new("hb-i", Liveness::Unknown);
        for sequence in 0..100_u16 {
            let (now, date) = at(u64::from(sequence) * 100);
            record.expire(now, timeout);
            record.sent(sequence, now, date, None);
        }
        assert_eq!(record.state().liveness, Liveness::Silent);
        let (now, date) = at(9950);
        assert!(record.answered(99, now, date).is_some());
        // The next one is due five seconds later.
        for ms in (10_000..=12_000).step_by(100) {
            assert!(record.expire(at(ms).0, timeout).is_none(), "at {ms} ms");
        }
        let state = record.state();
        assert_eq!((state.liveness, state.lost), (Liveness::Answering, 99));
        // Those after it count.
        for sequence in 100..103_u16 {
            let (now, date) = at(u64::from(sequence) * 150);
            record.sent(sequence, now, date, None);
        }
        assert!(record.expire(at(30_000).0, timeout).is_some());
    }

    /// On a box that stands by for another one, which has the tunnel's address.
    #[test]
    fn of_a_tunnel_whose_address_is_elsewhere_nothing_is_known() {
        let mut peer = Peer::new();
        peer.tick();
        peer.answer(1);
        for _ in 0..10 {
            peer.ticks += 1;
            let (at, date) = peer.now(Duration::ZERO);
            assert!(peer.record.expire(at, EVERY).is_none());
            let absent = io::Error::from(io::ErrorKind::AddrNotAvailable);
            peer.record.sent(peer.ticks, at, date, Some(absent));
        }
        let state = peer.record.state();
        assert!(state.elsewhere);
        assert_eq!((state.liveness, state.lost), (Liveness::Unknown, 0));
        // It comes here.
        peer.tick();
        assert!(!peer.record.state().elsewhere);
        let answers = peer.answer(12);
        assert!(matches!(
            answers,
            Some(Change::Answers { silent: None, .. })
        ));
    }

    /// Probes sent faster than answers come are not lost for that.
    #[test]
    fn a_long_round_trip_is_no_loss() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut record = Record::new("hb-i", Liveness::Unknown);
        let timeout = Duration::from_secs(2);
        for sequence in 0..50_u16 {
            let sent = u64::from(sequence) * 100;
            assert!(record.expire(at(sent), timeout).is_none());
            record.sent(sequence, at(sent), SystemTime::UNIX_EPOCH, None);
            if let Some(answered) = sequence.checked_sub(10) {
                record.answered(answered, at(sent + 5), SystemTime::UNIX_EPOCH);
            }
        }
        assert_eq!(record.state().lost, 0);
        assert_eq!(record.state().rtt, Some(1.005));
    }
}
