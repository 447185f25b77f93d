//! The path that is asked about.

use crate::fluid;
use crate::law::{Control, Leg, Loss};

/// Where losses leave so many times what a leg's window and link allow, they take no more than 1 in 2,000 of that: p rate T/4,
/// with the time T in which half of it is won back, is 3/16 (cap / mean)².
const NO_MATTER: f64 = 20.0;

/// A path of legs, with a box between each two.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The legs, from the sender to the receiver: one at least.
    pub legs: Vec<Leg>,
    /// What each box may hold, packets; infinite if nothing is known.
    pub buffer: f64,
    /// What counts as held.
    pub counted: Counted,
    /// How what it would be without a box is sent: the sender's control.
    pub unsplit: Control,
}

/// What counts against a box's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counted {
    /// What is unread and what is under way to it: a kernel's receive window. So the leg before the box
    /// has no more under way than the buffer.
    #[default]
    UnderWay,
    /// What has arrived: Baccelli et al.
    Arrived,
}

impl Path {
    /// A path without limits of its buffers; without a box the sender's control is the first leg's.
    #[must_use]
    pub fn new(legs: &[Leg]) -> Self {
        Self {
            legs: legs.to_vec(),
            buffer: f64::INFINITY,
            counted: Counted::default(),
            unsplit: legs.first().map(|leg| leg.control).unwrap_or_default(),
        }
    }

    /// The legs as they are with the box's buffer: it limits what is under way to it, if that counts.
    #[must_use]
    pub fn windowed(&self) -> Vec<Leg> {
        let last = self.legs.len().saturating_sub(1);
        let window = |(index, leg): (usize, &Leg)| {
            let held = self.counted == Counted::UnderWay && index < last && self.buffer.is_finite();
            let window = if held {
                Some(leg.window.unwrap_or(f64::INFINITY).min(self.buffer))
            } else {
                leg.window
            };
            Leg { window, ..*leg }
        };
        self.legs.iter().enumerate().map(window).collect()
    }

    /// The one leg that it is without any box; none without legs.
    #[must_use]
    pub fn joined(&self) -> Option<Leg> {
        let whole = self.legs.iter().copied().reduce(Leg::joined)?;
        Some(Leg {
            control: self.unsplit,
            ..whole
        })
    }

    /// What stands for the legs in the fluid.
    pub(super) fn fluid(&self) -> Vec<fluid::Leg> {
        let legs = self.windowed();
        let leg = |(stream, leg): (u64, &Leg)| {
            let alone = leg.alone();
            let left = leg.aimd().map_or(0.0, |aimd| aimd.mean(leg.loss));
            fluid::Leg {
                aimd: leg.aimd(),
                // One that is not moved by losses sends what it carries, always.
                cap: match leg.aimd() {
                    Some(_) => alone.cap,
                    None => alone.throughput,
                },
                // What has hardly an effect would take ever longer to be met often enough; and what moves nothing has
                // none.
                loss: match left < NO_MATTER * alone.cap && leg.aimd().is_some() {
                    true => leg.loss,
                    false => Loss::default(),
                },
                stream,
            }
        };
        (0_u64..).zip(&legs).map(leg).collect()
    }
}
