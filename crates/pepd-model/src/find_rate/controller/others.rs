//! What is done beside others on the link.
//!
//! That somebody else's packets are there shows in the [elasticity](super::super::elasticity::Elasticity), but not what they do with
//! the queue. Beside those who fill it, as cubic does, a share is held whatever the queue is, or they have all of the link soon. If two
//! legs that find their rates did so, both would fill it: beside those who keep it short it is kept short, too. They are told
//! apart as Copa does it (Arun and Balakrishnan, NSDI 2018, section 2.2): where nobody fills the queue it is short now and then.

use super::Controller;

/// A queue that is no longer than so many times the one that is wanted is a short one.
const SHORT: f64 = 1.6;

/// Such a part of the link is a small one.
const SMALL: f64 = 0.15;

/// In so many seconds and round trips it is short at least once, where nobody fills it.
const ONCE_IN: [f64; 2] = [1.0, 5.0];

/// For how long who has filled it is taken for somebody who does, in seconds: cubic comes back from a loss in some seconds, and
/// it is short meanwhile.
const REMEMBERED: f64 = 10.0;

/// Where nobody fills it, who has less than half of the link makes the queue so much longer than the one that is wanted, and the
/// others give way to that.
const ROOM: f64 = 1.3;

/// When the queue was short, and when somebody has filled it, last, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    short: f64,
    filled: Option<f64>,
}

impl Controller {
    /// Takes the queue that is known, at a time in seconds.
    pub(super) fn watch_others(&mut self, now: f64) {
        let [seconds, trips] = ONCE_IN;
        let within = seconds.max(trips * self.rtt());
        // With a small part of the link a few packets are long, but not by what the link carries.
        let others = self.elasticity.of_others();
        let part = others.map_or(1.0, |it| 1.0 - it);
        let small = (SMALL / part.max(0.01)).max(1.0);
        if self.queue <= SHORT * self.target_at(small * self.capacity) {
            self.others.short = now;
        } else if now - self.others.short > within && others.is_some() {
            self.others.filled = Some(now);
        }
    }

    /// Returns whether there are others who fill the queue.
    pub(super) fn is_filled_by_others(&self, now: f64) -> bool {
        let lately = |filled: f64| now - filled < REMEMBERED;
        self.elasticity.of_others().is_some() && self.others.filled.is_some_and(lately)
    }

    /// Returns the rate as a part of what the link carries, where without others it would be such a part.
    pub(super) fn beside_others(&self, now: f64, alone: f64) -> f64 {
        let Some(elasticity) = self.elasticity.of_others() else {
            return alone;
        };
        let target = self.target();
        // Half of the link is wanted.
        let half = 1.0 + 0.8 * (elasticity - 0.5);
        if self.is_filled_by_others(now) {
            // But not with a queue that nobody else bounds either.
            let most = (10.0 * target).max(0.1);
            return half.min(1.0 + 0.4 * (1.0 - self.queue / most).clamp(-0.5, 1.0));
        }
        let room = (1.0 - self.queue / (ROOM * target)).clamp(-0.5, 1.0);
        alone.max(half.min(1.0 + room))
    }
}
