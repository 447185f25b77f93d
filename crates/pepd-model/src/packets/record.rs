//! What a run comes to.

use crate::fluid::Shares;

/// What a run comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// How long it lasted, seconds.
    pub time: f64,
    /// What each leg has delivered in order, packets.
    pub delivered: Vec<u64>,
    /// What each leg has sent, also again, packets.
    pub sent: Vec<u64>,
    /// The phases of each box, seconds: backpressured while the leg before it is held back by its buffer.
    pub shares: Vec<Shares>,
    /// How long each box has held so many packets that have arrived and were not sent on, seconds.
    pub(super) held: Vec<Vec<f64>>,
}

impl Record {
    /// What the last leg delivers, packets a second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.delivered
            .last()
            .map_or(0.0, |count| real(*count) / self.time)
    }

    /// What a box, counted from 0, holds on average, packets.
    #[must_use]
    pub fn mean_queue(&self, gap: usize) -> f64 {
        let levels = self.held.get(gap).map_or(&[][..], Vec::as_slice);
        let area = (0_u64..)
            .zip(levels)
            .map(|(level, time)| real(level) * time);
        area.sum::<f64>() / self.time
    }

    /// The number of packets that a box holds at most for a share of the time.
    #[must_use]
    pub fn quantile(&self, gap: usize, share: f64) -> u64 {
        let levels = self.held.get(gap).map_or(&[][..], Vec::as_slice);
        let wanted = share * self.time * (1.0 - 1e-12);
        let mut below = 0.0;
        let found = levels.iter().position(|time| {
            below += time;
            below >= wanted
        });
        found.unwrap_or(levels.len().saturating_sub(1)) as u64
    }
}

/// A count.
#[allow(
    clippy::cast_precision_loss,
    reason = "counts of packets are far below 2^53"
)]
fn real(count: u64) -> f64 {
    count as f64
}
