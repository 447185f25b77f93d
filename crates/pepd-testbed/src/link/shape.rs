//! What one direction of a link does to packets, as its user describes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    trace::Trace,
    units::{Rate, span},
};

/// One direction of a link.
///
/// A packet waits in the queue, is transmitted at the link's rate, may be lost on the wire (it
/// has used its share of the rate by then), and arrives a propagation delay later. Packets are
/// never reordered, duplicated or changed.
///
/// The default is a wire: no delay, no limit, no loss.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Propagation delay, one way.
    #[serde(with = "span")]
    pub delay: Duration,
    /// The rate at which packets are transmitted.
    pub rate: Capacity,
    /// The amount that may wait for transmission.
    pub queue: QueueLimit,
    /// The packets that are lost on the wire.
    pub loss: Loss,
    /// The outages of the link, in order, without overlap.
    pub outages: Vec<Outage>,
}

impl Shape {
    /// Returns a direction with this delay and rate, and nothing else.
    #[must_use]
    pub fn new(delay: Duration, rate: impl Into<Capacity>) -> Self {
        Self {
            delay,
            rate: rate.into(),
            ..Self::default()
        }
    }

    /// Returns whether a link can have this shape.
    ///
    /// # Errors
    /// [`ShapeError`] says what it cannot have, and why.
    pub fn check(&self) -> Result<(), ShapeError> {
        self.loss.check()?;
        if self.rate == Capacity::Fixed(Rate::bits_per_second(0)) {
            return Err(ShapeError::Rate);
        }
        let mut up_since = Duration::ZERO;
        for outage in &self.outages {
            if outage.start < up_since || outage.length.is_zero() {
                return Err(ShapeError::Outage {
                    start: outage.start,
                });
            }
            up_since = outage.start.saturating_add(outage.length);
        }
        Ok(())
    }
}

/// The rate at which a direction transmits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// Transmission takes no time; nothing ever waits.
    #[default]
    Unlimited,
    /// The same rate always.
    Fixed(Rate),
    /// A rate that changes with time.
    Trace(Trace),
}

impl From<Rate> for Capacity {
    fn from(rate: Rate) -> Self {
        Self::Fixed(rate)
    }
}

impl From<Trace> for Capacity {
    fn from(trace: Trace) -> Self {
        Self::Trace(trace)
    }
}

/// The amount that may wait for transmission; what arrives beyond it is dropped (drop-tail).
///
/// The packet in transmission does not count. So a limit of zero is a link without a buffer:
/// it takes a packet only when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueLimit {
    /// The limit is so many bytes of IP packets.
    Bytes(u64),
    /// The limit is so many packets, whatever their size.
    Packets(u64),
}

impl Default for QueueLimit {
    /// Returns 1000 packets, as an Ethernet device of Linux has (`DEFAULT_TX_QUEUE_LEN` in
    /// `include/net/pkt_sched.h` and `netem`'s default limit).
    fn default() -> Self {
        Self::Packets(1000)
    }
}

/// The packets that are lost on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Loss {
    /// No packet is lost.
    #[default]
    None,
    /// Each packet with the same probability, whatever happened to the others.
    Independent {
        /// The probability of loss, 0 to 1.
        probability: f64,
    },
    /// Bursts: a Markov chain with a good and a bad state, which may change before each packet
    /// (Gilbert 1960; Elliott 1963). It starts in its stationary distribution.
    GilbertElliott {
        /// The probability of going from good to bad, per packet.
        good_to_bad: f64,
        /// The probability of going from bad to good, per packet.
        bad_to_good: f64,
        /// The probability of loss in the good state.
        loss_in_good: f64,
        /// The probability of loss in the bad state.
        loss_in_bad: f64,
    },
    /// A Poisson process in time, so that the losses per second do not depend on how much is
    /// sent: the rate-independent case of Baccelli et al., section 19.2.2. Each event takes the
    /// packet in transmission, or else the next one if it comes within [`REACH`].
    Poisson {
        /// λ, events per second, at most 1000.
        per_second: f64,
    },
}

/// The time that an event of [`Loss::Poisson`] that met an idle link waits for a packet to take.
///
/// Without such a reach a slow flow, whose packets are on the wire for a fraction of the time,
/// would see fewer losses per second; without an end to it the first packet after a pause would
/// nearly always be lost. 100 ms covers the gaps between the bursts of a flow in progress.
pub const REACH: Duration = Duration::from_millis(100);

/// The largest λ: beyond it losses come with every few packets, which is what the other models
/// are for.
const MOST_PER_SECOND: f64 = 1000.0;

impl Loss {
    /// Returns independent losses with probability `probability`.
    #[must_use]
    pub const fn independent(probability: f64) -> Self {
        Self::Independent { probability }
    }

    /// Bursts of mean length `burst` packets (at least 1) in which everything is lost, so that
    /// a share `mean` of all packets is: Gilbert's model by its two observables.
    #[must_use]
    pub fn bursts(mean: f64, burst: f64) -> Self {
        let bad_to_good = 1.0 / burst;
        Self::GilbertElliott {
            good_to_bad: bad_to_good * mean / (1.0 - mean),
            bad_to_good,
            loss_in_good: 0.0,
            loss_in_bad: 1.0,
        }
    }

    /// Returns λ = `per_second` losses per second, whatever the traffic.
    #[must_use]
    pub const fn poisson(per_second: f64) -> Self {
        Self::Poisson { per_second }
    }

    fn check(&self) -> Result<(), ShapeError> {
        let probability = |value: f64, name| {
            let valid = (0.0..=1.0).contains(&value);
            if valid {
                Ok(())
            } else {
                Err(ShapeError::Probability { name, value })
            }
        };
        match *self {
            Self::None => Ok(()),
            Self::Independent { probability: p } => probability(p, "probability"),
            Self::GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_in_good,
                loss_in_bad,
            } => {
                probability(good_to_bad, "good_to_bad")?;
                probability(bad_to_good, "bad_to_good")?;
                probability(loss_in_good, "loss_in_good")?;
                probability(loss_in_bad, "loss_in_bad")
            }
            Self::Poisson { per_second } if (0.0..=MOST_PER_SECOND).contains(&per_second) => Ok(()),
            Self::Poisson { per_second } => Err(ShapeError::Poisson { per_second }),
        }
    }
}

/// A time during which the link is down. Packets that have passed it and are in propagation arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// The time at which it begins, after the link was connected or restarted.
    #[serde(with = "span")]
    pub start: Duration,
    /// The length of it.
    #[serde(with = "span")]
    pub length: Duration,
    /// The effect on the packets.
    pub effect: OutageEffect,
}

/// The effect of an outage on the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutageEffect {
    /// They are transmitted and lost: the sender does not notice (a satellite behind a
    /// building). Any packet whose transmission touches the outage is lost.
    Drops,
    /// Transmission stops and goes on afterwards; the queue holds what it can (a modem that
    /// knows that it has no carrier).
    Holds,
}

/// A shape that no link can have.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ShapeError {
    /// Not a probability.
    #[error("`{name}` is {value}: a probability lies between 0 and 1")]
    Probability {
        /// The parameter of the loss model.
        name: &'static str,
        /// The value that it had.
        value: f64,
    },
    /// Not a usable λ.
    #[error("{per_second} losses per second: give 0 to 1000, or a model that loses per packet")]
    Poisson {
        /// The value that it had.
        per_second: f64,
    },
    /// A rate of zero.
    #[error("a rate of zero carries nothing: leave the rate out for none, or use an outage")]
    Rate,
    /// Outages out of order.
    #[error(
        "the outage at {start:?} lasts no time or begins before the one before it has ended: sort them, merge overlapping ones"
    )]
    Outage {
        /// The time at which the outage begins.
        start: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_reads_back_from_toml() {
        let text = r#"
            delay = "100ms"
            rate = { fixed = "100Mbit" }
            queue = { packets = 300 }
            loss = { independent = { probability = 0.05 } }
            outages = [{ start = "10s", length = "2s 500ms", effect = "holds" }]
        "#;
        let shape: Shape = toml::from_str(text).unwrap();
        assert_eq!(shape.rate, Capacity::Fixed(Rate::mbit(100)));
        assert_eq!(shape.outages[0].length, Duration::from_millis(2500));
        let again: Shape = toml::from_str(&toml::to_string(&shape).unwrap()).unwrap();
        assert_eq!(again, shape);
        assert_eq!(toml::from_str::<Shape>("").unwrap(), Shape::default());
        assert!(toml::from_str::<Shape>("dealy = \"1s\"").is_err());
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let with = |loss| {
            Shape {
                loss,
                ..Shape::default()
            }
            .check()
        };
        assert!(with(Loss::independent(1.1)).is_err());
        assert!(with(Loss::independent(f64::NAN)).is_err());
        assert!(
            with(Loss::bursts(0.01, 0.5)).is_err(),
            "a burst has at least one packet"
        );
        assert!(with(Loss::poisson(-1.0)).is_err());
        assert!(with(Loss::poisson(f64::INFINITY)).is_err());
        assert!(with(Loss::bursts(0.01, 4.0)).is_ok());
        assert_eq!(
            Shape::new(Duration::ZERO, Rate::mbit(0)).check(),
            Err(ShapeError::Rate)
        );
    }

    #[test]
    fn outages_are_in_order() {
        let outage = |start, length| Outage {
            start: Duration::from_secs(start),
            length: Duration::from_secs(length),
            effect: OutageEffect::Drops,
        };
        let with = |outages| {
            Shape {
                outages,
                ..Shape::default()
            }
            .check()
        };
        assert!(with(vec![outage(1, 2), outage(3, 1)]).is_ok());
        assert!(with(vec![outage(1, 2), outage(2, 2)]).is_err());
        assert!(with(vec![outage(1, 0)]).is_err());
    }
}
