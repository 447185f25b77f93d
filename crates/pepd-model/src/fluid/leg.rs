//! A leg of the chain.

use crate::law::Loss;
use crate::law::aimd::Aimd;

/// A leg of the chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leg {
    /// How its rate grows, and what a loss leaves of it; none for one that has its cap always.
    pub aimd: Option<Aimd>,
    /// The most that its window and link allow, packets a second; may be infinite, with losses.
    pub cap: f64,
    /// What it loses.
    pub loss: Loss,
    /// Which random numbers its losses come from: legs that have the same and the same losses lose at
    /// the same times.
    pub stream: u64,
}

impl Leg {
    /// A leg of Reno's that has no cap: α is what its rate grows by.
    #[must_use]
    pub fn reno(alpha: f64, loss: Loss, stream: u64) -> Self {
        Self {
            aimd: Some(Aimd { alpha, beta: 0.5 }),
            cap: f64::INFINITY,
            loss,
            stream,
        }
    }

    /// The rate that it has on average if alone and without a cap, or that cap if it is less: where a run starts.
    #[must_use]
    pub fn usual(&self) -> f64 {
        let mean = self.aimd.map_or(f64::INFINITY, |aimd| aimd.mean(self.loss));
        mean.min(self.cap)
    }
}
