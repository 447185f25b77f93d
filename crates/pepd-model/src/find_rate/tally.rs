//! What was sent, and how much of it arrived.

use super::{Epoch, PACKET};

/// Bytes that were sent, and those of them that arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    sent: f64,
    delivered: f64,
}

impl Tally {
    pub(super) fn add(&mut self, epoch: &Epoch) {
        self.sent += epoch.near;
        self.delivered += epoch.delivered;
    }

    pub(super) fn packets(&self) -> f64 {
        self.sent / PACKET
    }

    pub(super) fn bytes(&self) -> f64 {
        self.sent
    }

    /// Returns the share that arrived; all of nothing.
    pub(super) fn share(&self) -> f64 {
        if self.sent > 0.0 {
            self.delivered / self.sent
        } else {
            1.0
        }
    }
}

/// The share of packets that the path lets through where nothing is dropped for want of room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yield {
    tally: Tally,
    /// By how much shares vary more than if each packet were lost by itself: bursts.
    dispersion: f64,
}

impl Yield {
    /// The packets over which it is a mean: a share of nine tenths is known to eight thousandths by them.
    const MEMORY: f64 = 1500.0 * PACKET;
    /// The packets without which nothing is known.
    const FEW: f64 = 100.0;

    pub(super) fn new() -> Self {
        Self {
            tally: Tally::default(),
            dispersion: 1.0,
        }
    }

    /// Begins anew from what was counted, since the path lets through another share now.
    pub(super) fn begin_from(&mut self, tally: Tally) {
        self.tally = tally;
    }

    pub(super) fn add(&mut self, epoch: &Epoch) {
        if self.is_known() {
            let excess = (epoch.share() - self.share()) / self.of_one(epoch.near);
            let weight = (epoch.near / Self::MEMORY).min(0.2);
            // One that is far off says that something has changed, not by how much shares vary.
            self.dispersion += (excess.powi(2).min(100.0) - self.dispersion) * weight;
        }
        let keep = (1.0 - epoch.near / Self::MEMORY).max(0.0);
        self.tally.sent *= keep;
        self.tally.delivered *= keep;
        self.tally.add(epoch);
    }

    pub(super) fn packets(&self) -> f64 {
        self.tally.packets()
    }

    pub(super) fn is_known(&self) -> bool {
        self.packets() > Self::FEW
    }

    /// Returns the share: 1 before anything was sent.
    pub(super) fn share(&self) -> f64 {
        self.tally.share().clamp(0.05, 1.0)
    }

    /// Returns the standard deviation of the share of so many bytes.
    pub(super) fn deviation(&self, bytes: f64) -> f64 {
        self.of_one(bytes) * self.dispersion.max(1.0).sqrt()
    }

    /// The same if each packet is lost by itself.
    fn of_one(&self, bytes: f64) -> f64 {
        let share = self.share().min(0.99);
        // Nor is the share itself known for sure.
        let packets = 1.0 / (bytes / PACKET).max(1.0) + 1.0 / self.packets().max(1.0);
        (share * (1.0 - share) * packets).sqrt()
    }
}
