//! What a leg's path was like in a second, from its epochs.

use pepd_admin::wire::{PathPoint, RateLimit};

use super::found::Found;

/// The epochs of the second that goes on, added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Second {
    /// Seconds.
    length: f64,
    rate: f64,
    capacity: f64,
    loss: f64,
    queue: f64,
    /// The time that each thing has limited the rate for, in the order of [`RateLimit::ALL`].
    limits: [f64; RateLimit::ALL.len()],
}

impl Second {
    /// Adds an epoch that takes `length` seconds.
    pub fn add(&mut self, found: &Found, length: f64) {
        self.length += length;
        self.rate += found.rate * length;
        self.capacity += found.capacity * length;
        self.loss += found.loss * length;
        self.queue += found.queue * length;
        let times = RateLimit::ALL.iter().zip(&mut self.limits);
        for (_, time) in times.filter(|(limit, _)| **limit == found.limit) {
            *time += length;
        }
    }

    /// Returns what the second was like; none without an epoch.
    pub fn point(&self) -> Option<PathPoint> {
        if self.length <= 0.0 {
            return None;
        }
        let bits = |sum: f64| (8.0 * sum / self.length).round();
        let fine = |sum: f64| (sum / self.length * 1e6).round() / 1e6;
        let limits = RateLimit::ALL.into_iter().zip(self.limits);
        let limit = limits.max_by(|a, b| a.1.total_cmp(&b.1))?.0;
        Some(PathPoint {
            rate: bits(self.rate),
            capacity: bits(self.capacity),
            loss: fine(self.loss),
            queue: fine(self.queue),
            limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_mean_over_time_and_what_limited_longest() {
        assert_eq!(Second::default().point(), None);
        let mut second = Second::default();
        let found = |rate, queue, limit| Found {
            rate,
            capacity: 1e6,
            queue,
            limit,
            ..Found::default()
        };
        second.add(&found(1e6, 0.01, RateLimit::Link), 0.6);
        second.add(&found(2e6, 0.0, RateLimit::Drops), 0.2);
        let point = second.point().unwrap();
        assert_eq!((point.rate, point.capacity), (1e7, 8e6));
        assert_eq!((point.queue, point.limit), (0.0075, RateLimit::Link));
    }
}
