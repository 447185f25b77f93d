//! What theory says of a leg that pepd sends on (`pepd-model`, docs/model.md), where it is to be trusted: of
//! controls that it has laws for, at losses that are known, and where what it says of now is what is measured.

use std::ops::RangeInclusive;

use pepd_model::law::{Bound, Confidence, Control, Leg, Loss, PAYLOAD, WIRE};
use pepd_model::predict::{self, Windowed};

use super::LegFacts;
use crate::wire::LegState;

/// Fewer bytes under way are few packets, of which the laws say up to a quarter too much: fifty packets.
const FEWEST: f64 = 50.0 * PAYLOAD;

/// What a buffer is to leave of what the leg could carry.
const ENOUGH: f64 = 0.95;

/// The largest buffer that is looked at, in bytes: that of pepd-config.
const MOST: f64 = 1_073_741_824.0;

/// The measured goodput, as a part of what the model says of now, with which the model is said to hold: its
/// worst was off by a quarter beside pepd, and ten seconds are a short time.
const AGREES: RangeInclusive<f64> = 0.7..=1.3;

/// Losses without which their share is not known.
const FEW: f64 = 50.0;

/// The share of losses lately, as a part of that since the start, with which it is the same still.
const SAME: RangeInclusive<f64> = 0.5..=2.0;

/// A leg as it is measured for one pair of campuses, towards one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured<'a> {
    pub(super) control: Option<&'a str>,
    pub(super) facts: &'a LegFacts,
    pub(super) state: &'a LegState,
    /// The round trip, in seconds.
    pub(super) rtt: f64,
    /// The goodput of the connection that has most, in bits a second.
    pub(super) most: f64,
    /// The connections that have about as much.
    pub(super) busy: usize,
}

/// A buffer that would be enough.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Enough {
    /// Bytes, a power of two times what there is.
    pub(super) buffer: u64,
    /// What it would give, and what there is now, in words.
    pub(super) gives: String,
}

impl Measured<'_> {
    /// Gives a buffer that would be enough, instead of the one that there is; none where the model is not to be
    /// trusted, or it is not the buffer.
    pub(super) fn enough(self) -> Option<Enough> {
        let buffer = self.facts.buffer?;
        let (leg, control) = self.leg()?;
        let packets = self.window(buffer);
        let now = self.trusted(predict::windowed(&leg, packets)?)?;
        if float(buffer) < FEWEST || now.share() >= ENOUGH {
            return None;
        }
        let then = predict::enough(&leg, 2.0 * packets, ENOUGH, MOST / PAYLOAD)?;
        let lost = match leg.loss.per_packet {
            0.0 => String::new(),
            loss => format!(" and {} of loss", percent(loss)),
        };
        let gives = format!(
            "which would give {} of the {} that {control} can have at its RTT of {:.0} ms{lost}; now it is {}",
            percent(then.share()),
            rate(now.limit),
            self.rtt * 1e3,
            percent(now.share()),
        );
        let times = whole(then.window / packets);
        Some(Enough {
            buffer: buffer.saturating_mul(times),
            gives,
        })
    }

    /// Says what the law of the leg's control leaves a connection at its losses, if they are what binds.
    pub(super) fn law(self) -> Option<String> {
        let (leg, control) = self.leg()?;
        let window = self.facts.buffer.map(|buffer| self.window(buffer));
        let alone = Leg { window, ..leg }.alone();
        if alone.bound != Bound::Loss || alone.confidence < Confidence::Fair {
            return None;
        }
        self.agrees(alone.throughput).then(|| {
            let (rate, ms) = (rate(alone.throughput), self.rtt * 1e3);
            format!("the law of {control} leaves a connection {rate} at its RTT of {ms:.0} ms")
        })
    }

    /// Returns what a buffer lets be under way, packets. The kernel doubles it for its bookkeeping, and what that does
    /// not take holds data: as much as is seen to be under way.
    fn window(self, buffer: u64) -> f64 {
        let (least, flight) = (float(buffer), self.most / 8.0 * self.rtt);
        flight.clamp(least, 2.0 * least) / PAYLOAD
    }

    fn trusted(self, found: Windowed) -> Option<Windowed> {
        let holds = found.confidence >= Confidence::Fair && self.agrees(found.throughput);
        holds.then_some(found)
    }

    /// Returns whether so many packets a second are what is measured.
    fn agrees(self, packets: f64) -> bool {
        AGREES.contains(&(self.most / bits(packets)))
    }

    /// Gives the leg in the model's terms, without a window, and its control's name; none where it has a control
    /// without a law, or its losses are not known well enough.
    fn leg(self) -> Option<(Leg, &'static str)> {
        let named = |(_, name): &&(Control, &str)| Some(*name) == self.control;
        let (control, name) = *Control::ALL.iter().find(named)?;
        if control == Control::Bbr || self.rtt <= 0.0 {
            return None;
        }
        // With the kernel's controls a rate is each connection's.
        let sharers = match control {
            Control::FixedRate => self.busy.max(1),
            Control::Reno | Control::Cubic | Control::Bbr => 1,
        };
        let rate = self.facts.rate.map(|rate| {
            let packets = float(rate) / 8.0 / WIRE;
            packets / float(sharers as u64)
        });
        let leg = Leg {
            rate,
            control,
            ..Leg::new(self.rtt)
        };
        let loss = self.loss(&leg)?;
        Some((
            Leg {
                loss: Loss::per_packet(loss),
                ..leg
            },
            name,
        ))
    }

    /// Returns the share of packets that is lost; none where that is not known. Few losses are no figure, but
    /// where even more of them would not bind the leg, it makes no difference.
    fn loss(self, leg: &Leg) -> Option<f64> {
        let sent = float(self.state.sent_bytes) / PAYLOAD;
        let lost = float(self.state.resent_bytes) / PAYLOAD;
        if sent < 1.0 {
            return None;
        }
        if lost < FEW {
            let most = (lost + 3.0 * lost.sqrt() + 3.0) / sent;
            let at_most = Leg {
                loss: Loss::per_packet(most.min(1.0)),
                ..*leg
            };
            let is_rate = at_most.alone().bound == Bound::Rate;
            return is_rate.then_some(0.0);
        }
        let share = lost / sent;
        let lately = self.state.resent?;
        SAME.contains(&(lately / share)).then_some(share)
    }
}

fn bits(packets: f64) -> f64 {
    8.0 * PAYLOAD * packets
}

fn rate(packets: f64) -> String {
    super::load::rate(bits(packets))
}

/// Writes a share: whole per cent, and of less than one the first digit.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let places = match percent {
        1.0.. => 0,
        0.1.. => 1,
        0.01.. => 2,
        _ => 3,
    };
    format!("{percent:.places$} %")
}

#[allow(
    clippy::cast_precision_loss,
    reason = "bytes and rates, exact up to 2^53"
)]
fn float(value: u64) -> f64 {
    value as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a power of two, of which the cast saturates"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}
