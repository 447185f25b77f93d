//! When a transmission starts and ends, at a rate that may change or stop.

use std::time::Duration;

use super::{
    shape::{Capacity, Outage, OutageEffect, Shape},
    units::{Time, whole_nanos},
};

/// Bits are counted in units of 10⁻⁹ bit, so that a rate in bits per second times a time in
/// nanoseconds is a whole number of them and nothing is ever rounded away.
const UNITS_PER_BIT: u128 = 1_000_000_000;

/// Sends one packet after the other, exactly at the given rate over any length of time.
#[derive(Debug)]
pub(super) struct Transmitter {
    capacity: Capacity,
    holds: Vec<Outage>,
    /// Time 0 of trace and outages.
    epoch: Time,
    /// The end of the last transmission.
    free_at: Time,
    /// What the transmitter could have sent between the exact end of the last transmission and
    /// `free_at`, which is that end rounded up: less than a nanosecond's worth.
    credit: u128,
}

/// The time of a packet's transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transmission {
    /// The first bit leaves.
    pub(super) start: Time,
    /// The last bit has left. [`Time::NEVER`] if the rate stays at zero.
    pub(super) end: Time,
}

/// Returns how fast bits leave, until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// The rate in bits per second; `None` is without limit.
    rate: Option<u64>,
    until: Time,
}

impl Transmitter {
    pub(super) fn new(shape: &Shape, epoch: Time) -> Self {
        let holds = |outage: &&Outage| outage.effect == OutageEffect::Holds;
        Self {
            capacity: shape.rate.clone(),
            holds: shape.outages.iter().filter(holds).copied().collect(),
            epoch,
            free_at: Time::ZERO,
            credit: 0,
        }
    }

    /// Lets trace and outages begin again at `now`. What is already under way stays as it is.
    pub(super) fn restart(&mut self, now: Time) {
        self.epoch = now;
    }

    /// Returns when a packet that comes at `now` would begin to leave.
    pub(super) fn start(&self, now: Time) -> Time {
        let mut start = now.max(self.free_at);
        loop {
            match self.step(start) {
                Step {
                    rate: Some(0),
                    until: Time::NEVER,
                } => return Time::NEVER,
                Step {
                    rate: Some(0),
                    until,
                } => start = until,
                _ => return start,
            }
        }
    }

    /// Takes a packet of `bytes` for transmission at `start`, which [`Transmitter::start`] gave.
    pub(super) fn transmit(&mut self, start: Time, bytes: usize) -> Transmission {
        let credit = if start == self.free_at {
            self.credit
        } else {
            0
        };
        let work = bytes as u128 * 8 * UNITS_PER_BIT;
        if let Some(left) = credit.checked_sub(work) {
            // So short that it fits before `free_at`; what is left is the next one's.
            self.credit = left;
            return Transmission { start, end: start };
        }
        let mut work = work - credit;
        let mut at = start;
        self.credit = 0;
        let end = loop {
            if at == Time::NEVER {
                break at;
            }
            let step = self.step(at);
            let Some(rate) = step.rate.map(u128::from) else {
                break at;
            };
            let span = u128::from(step.until.as_nanos() - at.as_nanos());
            if work <= rate * span && rate > 0 {
                let nanos = work.div_ceil(rate);
                self.credit = rate * nanos - work;
                break at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            }
            work -= rate * span;
            at = step.until;
        };
        self.free_at = end;
        Transmission { start, end }
    }

    /// Returns how fast bits leave at `at`, and until when that holds.
    fn step(&self, at: Time) -> Step {
        let hold = self.holds.partition_point(|hold| self.end(hold) <= at);
        let until = match self.holds.get(hold) {
            Some(hold) if self.epoch + hold.start <= at => {
                return Step {
                    rate: Some(0),
                    until: self.end(hold),
                };
            }
            Some(hold) => self.epoch + hold.start,
            None => Time::NEVER,
        };
        let step = self.capacity_step(at);
        Step {
            until: step.until.min(until),
            ..step
        }
    }

    fn end(&self, outage: &Outage) -> Time {
        self.epoch + outage.start + outage.length
    }

    fn capacity_step(&self, at: Time) -> Step {
        let trace = match &self.capacity {
            Capacity::Unlimited => {
                return Step {
                    rate: None,
                    until: Time::NEVER,
                };
            }
            Capacity::Fixed(rate) => {
                return Step {
                    rate: Some(rate.as_bits_per_second()),
                    until: Time::NEVER,
                };
            }
            Capacity::Trace(trace) => trace,
        };
        let (round, within) = match trace.period() {
            None => (self.epoch, at.since(self.epoch)),
            Some(period) => {
                let period = whole_nanos(period);
                let within = whole_nanos(at.since(self.epoch)) % period;
                (
                    at - Duration::from_nanos(within),
                    Duration::from_nanos(within),
                )
            }
        };
        let next = trace.steps().partition_point(|(from, _)| *from <= within);
        let current = trace.steps().get(next.saturating_sub(1));
        let until = trace
            .steps()
            .get(next)
            .map(|(from, _)| *from)
            .or(trace.period());
        Step {
            rate: Some(current.map_or(0, |(_, rate)| rate.as_bits_per_second())),
            until: until.map_or(Time::NEVER, |until| round + until),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::units::Rate;

    const MS: u64 = 1_000_000;

    fn transmitter(rate: impl Into<Capacity>, outages: Vec<Outage>) -> Transmitter {
        let shape = Shape {
            rate: rate.into(),
            outages,
            ..Shape::default()
        };
        Transmitter::new(&shape, Time::ZERO)
    }

    fn trace(text: &str) -> Capacity {
        Capacity::Trace(text.parse().unwrap())
    }

    fn hold(start_ms: u64, length_ms: u64) -> Outage {
        Outage {
            start: Duration::from_millis(start_ms),
            length: Duration::from_millis(length_ms),
            effect: OutageEffect::Holds,
        }
    }

    /// Returns the start and end of a packet's transmission, in nanoseconds.
    fn send(transmitter: &mut Transmitter, now: u64, bytes: usize) -> (u64, u64) {
        let start = transmitter.start(Time::from_nanos(now));
        let sent = transmitter.transmit(start, bytes);
        (sent.start.as_nanos(), sent.end.as_nanos())
    }

    #[test]
    fn back_to_back_packets_share_no_rounding_error() {
        // 3 bit/s: a byte takes 2.66… s, so that three of them take 8 s to the nanosecond.
        let mut transmitter = transmitter(Rate::bits_per_second(3), vec![]);
        let ends: Vec<u64> = (0..3).map(|_| send(&mut transmitter, 0, 1).1).collect();
        assert_eq!(ends, [2_666_666_667, 5_333_333_334, 8_000_000_000]);
    }

    #[test]
    fn an_idle_transmitter_saves_nothing_up() {
        let mut transmitter = transmitter(Rate::bits_per_second(3), vec![]);
        send(&mut transmitter, 0, 1);
        let (start, end) = send(&mut transmitter, 10_000_000_000, 1);
        assert_eq!(end - start, 2_666_666_667);
    }

    #[test]
    fn a_packet_crosses_steps_of_the_trace() {
        // 1000 bytes: 4000 bits in 4 ms at 1 Mbit/s, nothing for 6 ms, 4000 bits in 2 ms.
        let mut transmitter = transmitter(trace("0 1Mbit\n0.004 0bit\n0.010 2Mbit"), vec![]);
        assert_eq!(send(&mut transmitter, 0, 1000), (0, 12 * MS));
        assert_eq!(send(&mut transmitter, 0, 250), (12 * MS, 13 * MS));
    }

    #[test]
    fn a_trace_repeats() {
        let mut transmitter = transmitter(trace("0 1Mbit\n0.001 0bit\nrepeat 0.010"), vec![]);
        let ends: Vec<u64> = (0..3).map(|_| send(&mut transmitter, 0, 125).1).collect();
        assert_eq!(ends, [MS, 11 * MS, 21 * MS]);
        assert_eq!(send(&mut transmitter, 35 * MS, 125), (40 * MS, 41 * MS));
    }

    #[test]
    fn a_trace_that_ends_at_zero_never_sends_again() {
        let mut transmitter = transmitter(trace("0 1Mbit\n0.001 0bit"), vec![]);
        assert_eq!(send(&mut transmitter, 0, 126), (0, u64::MAX));
        assert_eq!(transmitter.start(Time::from_nanos(5 * MS)), Time::NEVER);
    }

    #[test]
    fn a_hold_stops_a_packet_half_way() {
        let mut transmitter = transmitter(Rate::mbit(1), vec![hold(1, 10), hold(11, 5)]);
        assert_eq!(send(&mut transmitter, 0, 250), (0, 17 * MS));
    }

    #[test]
    fn a_hold_stops_a_link_without_a_rate() {
        let mut transmitter = transmitter(Capacity::Unlimited, vec![hold(1, 10)]);
        assert_eq!(send(&mut transmitter, MS - 1, 1500), (MS - 1, MS - 1));
        assert_eq!(send(&mut transmitter, MS, 1500), (11 * MS, 11 * MS));
    }

    #[test]
    fn a_restart_moves_the_schedule() {
        let mut transmitter = transmitter(Rate::mbit(1), vec![hold(1, 10)]);
        transmitter.restart(Time::from_nanos(100 * MS));
        assert_eq!(send(&mut transmitter, 0, 250), (0, 2 * MS));
        assert_eq!(send(&mut transmitter, 101 * MS, 125), (111 * MS, 112 * MS));
    }
}
