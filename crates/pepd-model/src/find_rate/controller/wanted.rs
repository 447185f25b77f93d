//! The queue that is wanted.

use super::super::PACKET;
use super::Controller;

/// What is aimed at of the queue that is wanted: the least, that of a leg that carries the usual, in bytes a second, and the most;
/// and by how much less with twice of that. So the less of a link a leg has the longer a queue it asks for, and of several those that
/// have less come to have more (as with Vegas: Brakmo and Peterson, 1995), also where they do not know of each other.
const AIMED_AT: [f64; 3] = [0.6, 0.8, 1.0];
const USUAL: f64 = 5e6;
const LEAN: f64 = 0.2;

impl Controller {
    /// The queue that is wanted, in seconds: so much that the link never waits, for all that the feedback is
    /// late and packets are whole.
    pub(super) fn target(&self) -> f64 {
        self.target_at(self.capacity)
    }

    /// The same of a link that carries so much, in bytes a second.
    pub(super) fn target_at(&self, capacity: f64) -> f64 {
        (0.1 * self.rtt()).max(0.005).max(5.0 * PACKET / capacity)
    }

    /// The queue that is aimed at, in seconds.
    pub(super) fn wanted(&self) -> f64 {
        let [least, usual, most] = AIMED_AT;
        let part = usual - LEAN * (self.capacity / USUAL).log2();
        part.clamp(least, most) * self.target()
    }
}
