//! The start: more and more until there is a queue.

use super::super::tally::Tally;
use super::super::{Epoch, PACKET};
use super::room::{PATIENCE, SAFE, Shallow};
use super::seen::Seen;
use super::{Controller, LEAST};

/// What is sent meanwhile where an answer is overdue at the start, of what was sent before.
const HELD_BACK: f64 = 0.1;

/// For how long a connection waits at the start, at most, in seconds, unless an answer is overdue for as long. That is decided when
/// it sends: many that are held back would wait on for long after it is known what is carried.
const LONGEST_WAIT: f64 = 0.5;

/// What is sent at the start, until it is sure, once a queue was seen: of the rate at which it was. Whatever is
/// under way then was sent at more, and makes it longer yet.
const BEYOND: f64 = 0.5;

/// The packets of an epoch that show it: one or two may only have been told of late, since acknowledgements
/// were lost.
const FEW_SEEN: f64 = 4.0;

/// So many packets tell at the start that less is let through than usual; half of them, that it may be so.
const ENOUGH: f64 = 60.0;

impl Controller {
    /// By how much less than usual may be let through of so many bytes at the start, when nothing much is
    /// known of the path yet: as if one in five were lost at least.
    fn doubt_at_start(&self, bytes: f64) -> f64 {
        let packets = PACKET / bytes + 1.0 / self.path.packets().max(1.0);
        (4.0 * self.deviation(bytes))
            .max(4.0 * (0.16 * packets).sqrt())
            .max(0.25 * self.path.share())
    }

    /// Takes how many connections are kept to what their own path carries. What was dropped before the link of one that is
    /// now, and made the leg's look full, is no longer: what was being found out from that goes on from before, and a start
    /// that ended without a queue does, too.
    pub fn keeps(&mut self, now: f64, connections: u64) {
        let before = std::mem::replace(&mut self.kept, connections);
        if connections <= before || self.was_queued(now) {
            return;
        }
        if let Some(trial) = self.trial {
            self.restore(&trial, now);
        } else {
            self.judged = now;
        }
        self.beyond = Tally::default();
        self.shallow = Shallow::default();
        self.starting |= self.told.queued().is_none();
    }

    /// Goes on until there is a queue, or less is let through than usual.
    pub(super) fn start(&mut self, seen: Seen<'_>) {
        let Seen { epoch, now, .. } = seen;
        if epoch.began < self.judged {
            return;
        }
        let usual = self.path.share();
        let before = self.beyond;
        self.beyond.add(epoch);
        let all = self.beyond;
        // What was lost of acknowledgements is told late: only what is short twice in a row is.
        let is_short = self.path.packets() > 30.0
            && before.packets() > 0.0
            && all.packets() > ENOUGH
            && usual - all.share() > self.doubt_at_start(all.bytes());
        if self.path.packets() <= 30.0 || seen.short < self.doubt_at_start(epoch.near) / 2.0 {
            self.beyond = Tally::default();
        }
        if is_short && !seen.is_queued && !seen.is_rising {
            self.notice(seen, all.share());
            return;
        }
        if seen.is_queued || seen.is_rising {
            self.capacity = seen.carried.unwrap_or(self.capacity);
            self.shallow = Shallow {
                is_one: false,
                safe: SAFE * self.capacity,
                patience: PATIENCE[0],
                until: now + self.rtt(),
            };
            self.starting = false;
            self.beyond = Tally::default();
            // First what is under way is seen, and less was sent for as long as a pulse takes.
            self.next_pulse = now + 2.0 * self.rtt() + 4.0 * self.length();
            return;
        }
        if self.beyond.packets() == 0.0 {
            self.path.add(epoch);
        }
        if !seen.is_limited && self.beyond.packets() < ENOUGH / 2.0 {
            // Twice as much in each round trip, and in the time until that is seen.
            let length = epoch.length();
            let factor = 2_f64.powf(length / (0.9 * self.rtt() + length));
            self.capacity = (self.capacity * factor).min(4.0 * epoch.rate);
        }
    }

    /// What to send at while nothing has been found yet.
    pub(super) fn plan_start(&self, now: f64, waiting: &[Epoch]) -> f64 {
        // What was sent is acknowledged when a round trip has passed, or there is a queue.
        let is_silent = |it: &&Epoch| it.near > 8.0 * PACKET && it.share() < 0.3;
        let silent = || waiting.iter().filter(is_silent);
        let overdue = |it: &Epoch, rtt: f64| now - it.ended - 1.5 * rtt - self.length();
        let mut rate = self.capacity;
        if silent().any(|it| overdue(it, self.rtt().max(it.farthest)) > 0.0) {
            rate *= HELD_BACK;
        } else if let Some(beyond) = self.first_queued(waiting) {
            rate = rate.min(BEYOND * beyond);
        }
        // Who began in a queue only seems far.
        let floor = self.floor.get().unwrap_or_default();
        if !silent().any(|it| overdue(it, floor) > LONGEST_WAIT) {
            let flows = waiting.iter().map(|it| it.flows).fold(0.0, f64::max);
            rate = rate.max((flows * PACKET / LONGEST_WAIT).min(self.capacity));
        }
        rate.max(LEAST.min(self.ceiling))
    }

    /// Returns the rate of the first epoch under way of which it is already seen, though not for sure, that a
    /// queue was there when it was sent.
    fn first_queued(&self, waiting: &[Epoch]) -> Option<f64> {
        let target = self.target();
        let is_queued =
            |it: &&Epoch| it.delivered > FEW_SEEN * PACKET && it.least_queue > target / 2.0;
        waiting.iter().find(is_queued).map(|it| it.rate)
    }
}
