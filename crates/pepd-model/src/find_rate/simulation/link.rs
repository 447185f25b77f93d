//! The link itself.

use std::collections::VecDeque;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use super::super::PACKET;
use super::{Scenario, Steps};

/// The value that holds at a time.
pub(super) fn at(steps: &Steps, time: f64) -> f64 {
    let after = steps.partition_point(|step| step.0 <= time);
    steps
        .get(after.saturating_sub(1))
        .map_or(0.0, |step| step.1)
}

/// The link itself.
#[derive(Debug)]
pub(super) struct Link<'s> {
    scenario: &'s Scenario,
    pub(super) random: Xoshiro256PlusPlus,
    free_at: f64,
    waiting: VecDeque<(f64, f64)>,
    queued: f64,
    tokens: f64,
    filled: f64,
    /// Whether all is lost just now, of packets and of acknowledgements.
    in_burst: [bool; 2],
    /// Until when acknowledgements are taken late, in seconds.
    late_until: f64,
}

/// A link of a connection's own behind the leg.
#[derive(Clone, Debug)]
pub(super) struct OwnLink {
    rate: f64,
    buffer: f64,
    free_at: f64,
}

impl OwnLink {
    /// Makes one of so many bytes a second, with room for so many bytes.
    pub(super) fn new((rate, buffer): (f64, f64)) -> Self {
        Self {
            rate,
            buffer,
            free_at: 0.0,
        }
    }

    /// Carries a packet that comes at a time, later than those before it; gives when it is through, unless it
    /// is dropped.
    pub(super) fn carry(&mut self, now: f64) -> Option<f64> {
        let waiting = (self.free_at - now).max(0.0) * self.rate;
        if waiting + PACKET > self.buffer.max(2.0 * PACKET) {
            return None;
        }
        self.free_at = self.free_at.max(now) + PACKET / self.rate;
        Some(self.free_at)
    }
}

/// What becomes of a packet: when it leaves the link, unless it is dropped, and whether it is lost then.
pub(super) type Fate = Option<(f64, bool)>;

impl<'s> Link<'s> {
    pub(super) fn new(scenario: &'s Scenario) -> Self {
        Self {
            scenario,
            random: Xoshiro256PlusPlus::seed_from_u64(scenario.seed),
            free_at: 0.0,
            waiting: VecDeque::new(),
            queued: 0.0,
            tokens: scenario.policer.unwrap_or_default(),
            filled: 0.0,
            in_burst: [false; 2],
            late_until: 0.0,
        }
    }

    pub(super) fn carry(&mut self, now: f64) -> Fate {
        if let Some(burst) = self.scenario.policer {
            let rate = at(&self.scenario.rate, now);
            self.tokens = (self.tokens + (now - self.filled) * rate).min(burst.max(PACKET));
            self.filled = now;
            if self.tokens < PACKET {
                return None;
            }
            self.tokens -= PACKET;
            return Some((now, self.is_lost(now)));
        }
        while let Some(first) = self.waiting.front().filter(|first| first.0 <= now) {
            self.queued -= first.1;
            self.waiting.pop_front();
        }
        if self.queued + PACKET > self.scenario.buffer.max(2.0 * PACKET) {
            return None;
        }
        self.free_at = self.finish(self.free_at.max(now), PACKET);
        self.waiting.push_back((self.free_at, PACKET));
        self.queued += PACKET;
        Some((self.free_at, self.is_lost(self.free_at)))
    }

    /// For how long a packet waits that comes at a time, in seconds.
    pub(super) fn queue(&self, now: f64) -> f64 {
        (self.free_at - now).max(0.0)
    }

    /// When so many bytes are through that begin at a time.
    fn finish(&self, mut from: f64, mut bytes: f64) -> f64 {
        let steps = &self.scenario.rate;
        loop {
            let next = steps.partition_point(|step| step.0 <= from);
            let rate = at(steps, from);
            let until = steps.get(next).map_or(f64::INFINITY, |step| step.0);
            if rate > 0.0 && bytes <= rate * (until - from) {
                return from + bytes / rate;
            }
            if until.is_infinite() {
                return f64::INFINITY;
            }
            bytes -= rate * (until - from);
            from = until;
        }
    }

    fn is_lost(&mut self, now: f64) -> bool {
        self.loses(now, 0)
    }

    /// Whether an acknowledgement is lost that is sent at a time.
    pub(super) fn loses_acknowledgement(&mut self, now: f64) -> bool {
        self.loses(now, 1)
    }

    /// When an acknowledgement is taken that comes at a time.
    pub(super) fn takes_late(&mut self, now: f64) -> f64 {
        let (share, most) = self.scenario.late;
        if share > 0.0 && self.random.random::<f64>() < share {
            let until = now + most * self.random.random::<f64>();
            self.late_until = self.late_until.max(until);
        }
        self.late_until.max(now)
    }

    fn loses(&mut self, now: f64, way: usize) -> bool {
        let gone = &self.scenario.gone;
        if gone.iter().any(|span| (span.0..span.1).contains(&now)) {
            return true;
        }
        let share = self.scenario.loss[way];
        let burst = self.scenario.burst;
        if burst <= 1.0 {
            return self.random.random::<f64>() < share;
        }
        // Gilbert: everything is lost in a burst.
        let leave = 1.0 / burst;
        let enter = leave * share / (1.0 - share);
        let change = if self.in_burst[way] { leave } else { enter };
        self.in_burst[way] ^= self.random.random::<f64>() < change;
        self.in_burst[way]
    }
}
