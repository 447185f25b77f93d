//! A queue that does not become shorter.

/// A queue that is as long as before, though less was sent than the link carries for long enough to empty
/// it, is none: the path has become longer, as that of a satellite of another orbit does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// By how much the path has become longer, in seconds.
    shift: f64,
    queue: Option<Queue>,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    /// How long it was at first, in seconds.
    length: f64,
    /// What the link carried then, in bytes a second.
    capacity: f64,
    /// The seconds by which it should have become shorter.
    drained: f64,
}

impl Standing {
    /// Takes the delay beyond the least round trip, and gives what of it is a queue.
    pub(super) fn queue(&mut self, delay: f64) -> f64 {
        self.shift = self.shift.min(delay);
        delay - self.shift
    }

    /// Takes such a queue with what was sent in `length` seconds and what the link is taken to carry, both
    /// in bytes a second, of which `own` is the part that what is sent has; gives what it carried before, if it is none.
    /// `least` is how long a queue is that is worth a doubt, and a round trip takes `rtt`.
    pub(super) fn watch(
        &mut self,
        queue: f64,
        (own, (sent, length)): (f64, (f64, f64)),
        capacity: f64,
        (least, rtt): (f64, f64),
    ) -> Option<f64> {
        if queue < least {
            self.queue = None;
            return None;
        }
        let mut known = self.queue.unwrap_or(Queue {
            length: queue,
            capacity,
            drained: 0.0,
        });
        known.drained += own * (1.0 - sent / known.capacity).max(0.0) * length;
        if !(0.7 * known.length..=1.5 * known.length).contains(&queue) {
            self.queue = None;
            return None;
        }
        // Half a round trip for what was under way.
        if known.drained <= known.length + rtt / 2.0 {
            self.queue = Some(known);
            return None;
        }
        self.shift += queue;
        self.queue = None;
        Some(known.capacity)
    }
}
