//! A leg of the path.

use std::time::Duration;

use pepd_testbed::link::{Capacity, Loss, Outage, QueueLimit, Rate, Shape};
use serde::Deserialize;

use super::units::duration;
use super::varying::{Varying, mean_rate};
use crate::stats::real64;

/// One leg of the path, the same in both directions.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Leg {
    /// Round-trip time without queues: half of it each way.
    #[serde(deserialize_with = "duration")]
    pub rtt: Duration,
    /// Rate of either direction, in IP packets' bits.
    pub rate: Rate,
    /// How the rate changes, if it does.
    pub varying: Option<Varying>,
    /// Queue in front of either direction.
    #[serde(default)]
    pub queue: QueueLimit,
    /// Losses on the wire, of either direction.
    #[serde(default)]
    pub loss: Loss,
    /// Whether only the direction to the receiver loses: acknowledgements arrive.
    #[serde(default)]
    pub loss_forward_only: bool,
    /// The outages, both ways, from the start of the transfer on.
    #[serde(default)]
    pub outages: Vec<Outage>,
}

impl Leg {
    /// Returns what the link does to packets towards the receiver.
    #[must_use]
    pub fn forward(&self) -> Shape {
        Shape {
            queue: self.queue,
            loss: self.loss,
            outages: self.outages.clone(),
            ..Shape::new(self.rtt / 2, self.capacity())
        }
    }

    fn capacity(&self) -> Capacity {
        self.varying
            .as_ref()
            .map_or(Capacity::Fixed(self.rate), |it| it.trace().into())
    }

    /// Returns the mean of the rate over the time from a start on, in bit/s.
    #[must_use]
    pub fn mean_rate(&self, window: Duration) -> f64 {
        match &self.varying {
            None => real64(self.rate.as_bits_per_second()),
            Some(varying) => mean_rate(&varying.trace(), window),
        }
    }

    /// Returns what the link does to packets towards the sender.
    #[must_use]
    pub fn backward(&self) -> Shape {
        let loss = if self.loss_forward_only {
            Loss::None
        } else {
            self.loss
        };
        Shape {
            loss,
            ..self.forward()
        }
    }
}
