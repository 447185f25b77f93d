//! What is under way.

use super::super::{Epoch, PACKET};
use super::Controller;

/// The packets of a connection that are sent together at most.
const TOGETHER: f64 = 2.0;

/// Who is let such a part of what the link carries is meant to send less.
const MEANT: f64 = 0.85;

impl Controller {
    /// Returns how long the queue is once what is under way has come to it, in seconds.
    pub(super) fn queue_then(&self, now: f64, waiting: &[Epoch]) -> f64 {
        // What a connection has sent is booked when it sends again, or something of it is acknowledged: of many that is late.
        let each = TOGETHER * self.flows * PACKET / self.capacity;
        let booked = now - each.min(self.rtt() + self.queue);
        let part = self
            .last
            .map_or(1.0, |(last, _)| last.sent / (last.rate * last.length()));
        waiting.iter().fold(self.queue, |queue, epoch| {
            let length = epoch.ended.min(now) - epoch.began;
            let sent = match epoch.ended > booked {
                true => epoch.sent.max(part.min(1.0) * epoch.rate * length),
                false => epoch.sent,
            };
            let then = queue + sent / self.capacity - length;
            // One that is empty becomes no shorter by what is sent less. (What is booked late is too little in one and too much in
            // the next.)
            let is_less = epoch.rate < MEANT * self.capacity;
            if is_less { then.max(0.0) } else { then }
        })
    }
}
