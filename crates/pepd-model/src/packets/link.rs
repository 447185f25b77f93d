//! A link: delay, rate, queue and losses.

use std::collections::VecDeque;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use crate::law::Leg;
use crate::random::{exponential, mixed};

/// The direction of a leg that data take.
#[derive(Clone, Debug)]
pub(super) struct Link {
    delay: f64,
    /// How long a packet takes to be sent.
    spacing: f64,
    queue: usize,
    /// When the packets that wait have been sent.
    waiting: VecDeque<f64>,
    per_packet: f64,
    per_second: f64,
    packets: Xoshiro256PlusPlus,
    clock: Xoshiro256PlusPlus,
    /// When the next loss over time is.
    rings: f64,
}

impl Link {
    /// The link of a leg; legs with the same stream and losses over time lose at the same times.
    pub(super) fn new(leg: &Leg, queue: u32, seed: u64, stream: u64) -> Self {
        let seed = mixed(seed, stream);
        let mut clock = Xoshiro256PlusPlus::seed_from_u64(mixed(seed, 0));
        let rings = if leg.loss.per_second > 0.0 {
            exponential(&mut clock) / leg.loss.per_second
        } else {
            f64::INFINITY
        };
        Self {
            delay: leg.rtt / 2.0,
            spacing: leg.rate.map_or(0.0, |rate| 1.0 / rate),
            queue: usize::try_from(queue).unwrap_or(usize::MAX),
            waiting: VecDeque::new(),
            per_packet: leg.loss.per_packet,
            per_second: leg.loss.per_second,
            packets: Xoshiro256PlusPlus::seed_from_u64(mixed(seed, 1)),
            clock,
            rings,
        }
    }

    /// How long a packet is under way, seconds.
    pub(super) fn delay(&self) -> f64 {
        self.delay
    }

    /// Takes a packet, and gives when it arrives, if it does.
    pub(super) fn send(&mut self, now: f64) -> Option<f64> {
        while self.waiting.front().is_some_and(|sent| *sent <= now) {
            self.waiting.pop_front();
        }
        if self.waiting.len() > self.queue {
            return None;
        }
        let begins = self.waiting.back().copied().unwrap_or(now);
        let sent = begins + self.spacing;
        if self.spacing > 0.0 {
            self.waiting.push_back(sent);
        }
        // What is lost has cost the link's rate.
        let faded = self.fades(sent);
        let lost = self.per_packet > 0.0 && self.packets.random::<f64>() < self.per_packet;
        (!faded && !lost).then_some(sent + self.delay)
    }

    /// A loss over time takes the first packet that comes within a round trip after it. One that comes later
    /// than that was not there to be lost: else hardly anything of a sender that waits for its timer would
    /// ever arrive.
    fn fades(&mut self, at: f64) -> bool {
        let mut faded = false;
        while self.rings <= at {
            faded = at - self.rings <= 2.0 * self.delay;
            self.rings += exponential(&mut self.clock) / self.per_second;
        }
        faded
    }
}
