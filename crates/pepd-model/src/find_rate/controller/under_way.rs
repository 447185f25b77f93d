//! What is under way.

use super::super::{Epoch, PACKET};
use super::Controller;

/// The packets of a connection that are sent together at most.
const TOGETHER: f64 = 2.0;

impl Controller {
    /// Returns by how much the queue becomes longer by what is under way, in seconds.
    pub(super) fn under_way(&self, now: f64, waiting: &[Epoch]) -> f64 {
        // What a connection has sent is booked when it sends again, or something of it is acknowledged: of many that is late.
        let each = TOGETHER * self.flows * PACKET / self.capacity;
        let booked = now - each.min(self.rtt() + self.queue);
        let part = self
            .last
            .map_or(1.0, |(last, _)| last.sent / (last.rate * last.length()));
        let added = waiting.iter().map(|epoch| {
            let length = epoch.ended.min(now) - epoch.began;
            let sent = match epoch.ended > booked {
                true => epoch.sent.max(part.min(1.0) * epoch.rate * length),
                false => epoch.sent,
            };
            sent / self.capacity - length
        });
        added.sum()
    }
}
