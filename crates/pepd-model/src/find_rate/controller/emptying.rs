//! Seeing to it that the queue is empty now and then.
//!
//! A queueing delay is what a round trip is longer than the least of its connection. Of a connection that began when there was
//! a queue that is not known: the leg's own queue, as far as it is known, is taken off its first round trip. What was wrong with that
//! makes the queue seem shorter than it is, that of the next connection is more wrong by as much, and with
//! connections that come and go the queue would grow without bounds. So delays count that are of connections whose least
//! round trip is *sure*: it was confirmed when there was no queue. Where there is no such connection, the queue is emptied,
//! until no round trip is shorter than the least of its connection any more; who has a round trip then that is hardly longer
//! is sure.

use super::super::PACKET;
use super::super::elasticity::Elasticity;
use super::Controller;
use super::seen::Seen;

/// What is sent while the queue is emptied, and while it is empty, as a part of what the link carries: enough below that a
/// packet hardly ever waits for those of other connections, and not so little that much is lost by it.
const LESS: f64 = 0.75;

/// And thereafter, until that is seen, where it was emptied without need: a queue that comes back at once looks as if the link carried
/// more.
const AFTER: f64 = 1.02;

/// For how long nobody may be sure while there is enough to send, in seconds and in round trips: emptying the queue takes some, and
/// costs a quarter of what could have been sent meanwhile.
const UNSURE: [f64; 2] = [2.0, 10.0];

/// Where it could not be emptied, as beside somebody else who fills it, it is tried again after twice the time, up to so many
/// times that.
const MOST_PATIENCE: f64 = 16.0;

/// Where others send, too, the least round trip of whoever came later has their queue in it, and nobody would know: so it is
/// emptied after so many seconds and round trips in any case, whatever is known.
const CHECKED: [f64; 2] = [30.0, 50.0];

/// So many epochs in a row must have shown no shorter round trips: some are longer for other reasons.
const STILL: u8 = 2;

/// In so many round trips and epochs what was sent while the queue was emptied is seen.
const SEEN: f64 = 3.0;

/// After a time without anything to send there is no queue, in seconds.
const IDLE: f64 = 1.0;

/// The packets of each connection that are sent while the queue is empty.
const PACKETS: f64 = 2.0;

/// Whether the queue is emptied, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emptying {
    stage: Stage,
    /// For how long there was enough to send, and nobody whose least round trip is sure, in seconds.
    unsure: f64,
    /// For how many times as long that may be.
    patience: f64,
    /// When the epoch ended that was finished last, in seconds.
    busy: f64,
    /// When it is emptied in any case, in seconds; none before the first epoch after the start; and whether it is for that.
    check: Option<f64>,
    is_check: bool,
    /// Until when it comes back after that, in seconds.
    until: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    None,
    /// It is emptied since a time, at most until another one; since then the least round trip was that long, all in seconds,
    /// and so many epochs in a row have shown no shorter one.
    Goes {
        since: f64,
        until: f64,
        least: f64,
        still: u8,
    },
    /// It is empty, until such a time.
    Empty {
        until: f64,
    },
}

impl Default for Emptying {
    fn default() -> Self {
        Self {
            stage: Stage::None,
            unsure: 0.0,
            patience: 1.0,
            busy: 0.0,
            check: None,
            is_check: false,
            until: 0.0,
        }
    }
}

impl Emptying {
    /// Takes whether an epoch speaks for sure, or its connections had less to send than they were let.
    fn watch(&mut self, seen: &Seen<'_>) {
        let epoch = seen.epoch;
        let was_idle = epoch.began > self.busy + IDLE;
        self.busy = epoch.ended;
        if epoch.is_sure || was_idle {
            self.unsure = 0.0;
        } else if seen.is_limited {
            // Where connections end and begin some epochs have less to send, and the queue is not empty for that.
            self.unsure = (self.unsure - epoch.length()).max(0.0);
        } else {
            self.unsure += epoch.length();
        }
    }
}

impl Controller {
    /// Returns by how much a round trip may be longer than the least where there is no queue, in seconds: packets of several
    /// connections wait for each other.
    pub fn slack(&self) -> f64 {
        self.target() / 2.0
    }

    /// Returns whether there should be no queue now.
    pub(super) fn is_empty(&self) -> bool {
        let has_heard = self.path.packets() > 0.0 || self.beyond.packets() > 0.0;
        let is_new = self.starting && !has_heard;
        is_new || matches!(self.emptying.stage, Stage::Empty { .. })
    }

    /// Takes what a finished epoch says of a queue that is emptied, and of who is sure.
    pub(super) fn watch_emptying(&mut self, seen: &Seen<'_>) {
        let Seen { epoch, now, .. } = *seen;
        self.emptying.watch(seen);
        let slack = self.slack();
        let seen_after = self.seen_after();
        let is_check = self.emptying.is_check;
        let floor = self.floor.get().filter(|_| !is_check);
        let Stage::Goes {
            since,
            until,
            least,
            still,
        } = &mut self.emptying.stage
        else {
            return;
        };
        if epoch.began < *since {
            return;
        }
        if floor.is_some_and(|floor| epoch.least_rtt <= floor + slack) {
            self.is_emptied(now);
        } else if *least - epoch.least_rtt > slack || epoch.revealed > slack {
            // What looks like a queue may be none, as when paths have become longer: without need it is not gone on with for that.
            if !is_check {
                *until = until.max(now + seen_after);
            }
            *least = least.min(epoch.least_rtt);
            *still = 0;
        } else if *still < STILL {
            *still += 1;
        } else if self.queue <= slack {
            self.is_emptied(now);
        }
    }

    /// Takes that the queue is empty, at a time in seconds.
    fn is_emptied(&mut self, now: f64) {
        let until = now + self.longest_empty();
        self.emptying.stage = Stage::Empty { until };
        // Nobody else fills it.
        self.elasticity = Elasticity::default();
    }

    /// Returns the time in which it is seen what was sent at a time, in seconds: the queue that is not known of is in it.
    fn seen_after(&self) -> f64 {
        let rtt = self.last.map_or(0.0, |(last, _)| last.longest_rtt);
        SEEN * (rtt.max(self.rtt()) + self.length())
    }

    /// Returns for how long the queue is kept empty, in seconds: each connection sends something then.
    fn longest_empty(&self) -> f64 {
        let packets = PACKETS * self.flows * PACKET / (LESS * self.capacity);
        packets.max(2.0 * self.length())
    }

    /// Begins or ends to empty the queue where it is time; returns the most to send, as a part of what the link carries, where it is
    /// to be empty.
    pub(super) fn empty(&mut self, now: f64, queue: f64) -> Option<f64> {
        let [seconds, trips] = UNSURE;
        let long = seconds.max(trips * self.rtt()) * self.emptying.patience;
        let is_unsure = self.emptying.unsure > long;
        let check = *self.emptying.check.get_or_insert(now + long);
        let is_check = now >= check;
        let is_possible = self.trial.is_none() && !self.shallow.is_one && queue > 0.0;
        match self.emptying.stage {
            Stage::None if (is_unsure || is_check) && is_possible => {
                let drained = queue / (1.0 - LESS);
                let times = if is_check { 2.0 } else { 1.0 };
                self.emptying.stage = Stage::Goes {
                    since: now,
                    until: now + times * (drained + self.seen_after()),
                    least: f64::INFINITY,
                    still: 0,
                };
                self.emptying.is_check = is_check;
                if is_check {
                    let [seconds, trips] = CHECKED;
                    self.emptying.check = Some(now + seconds.max(trips * self.rtt()));
                }
            }
            Stage::Goes { until, .. } | Stage::Empty { until } if now >= until => {
                let is_shared = !self.is_empty() && self.is_filled_by_others(now);
                let patience = match is_shared {
                    true => (2.0 * self.emptying.patience).min(MOST_PATIENCE),
                    false => 1.0,
                };
                let until = match self.emptying.is_check {
                    true => now + 2.0 * self.rtt() + 4.0 * self.length(),
                    false => 0.0,
                };
                self.emptying = Emptying {
                    patience,
                    busy: self.emptying.busy,
                    check: self.emptying.check,
                    until,
                    ..Emptying::default()
                };
            }
            _ => {}
        }
        match self.emptying.stage {
            Stage::None => (now < self.emptying.until).then_some(AFTER),
            Stage::Goes { .. } | Stage::Empty { .. } => Some(LESS),
        }
    }
}
