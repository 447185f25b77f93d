//! One direction of a link as a pure function of what arrives when.

use std::collections::VecDeque;

use super::{
    loss::LossProcess,
    report::{Amount, Delays},
    shape::{Outage, OutageEffect, QueueLimit, Shape, ShapeError},
    transmitter::{Transmission, Transmitter},
    units::{Seed, Time},
};

/// Decides what happens to each packet at the moment when it arrives at the link.
///
/// The queue is first in, first out, and the future of the rate is known; so everything about a
/// packet is settled on arrival and nothing else has to happen at any later time. There is no
/// clock and no I/O here: the caller says what time it is, and keeps the packet until the time
/// that it is told.
///
/// ```
/// use std::time::Duration;
/// use pepd_testbed::link::{Direction, Fate, Rate, Seed, Shape, Time};
///
/// let shape = Shape::new(Duration::from_millis(100), Rate::mbit(10));
/// let mut direction = Direction::new(&shape, Seed(1), Time::ZERO)?;
/// // 1250 bytes take 1 ms at 10 Mbit/s.
/// let arrival = Time::ZERO + Duration::from_millis(101);
/// assert_eq!(direction.offer(Time::ZERO, 1250), Fate::Arrives(arrival));
/// # Ok::<(), pepd_testbed::link::ShapeError>(())
/// ```
#[derive(Debug)]
pub struct Direction {
    shape: Shape,
    seed: Seed,
    epoch: Time,
    transmitter: Transmitter,
    loss: LossProcess,
    queue: Queue,
    counters: Counters,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The queue is full: it is dropped before the wire.
    Dropped,
    /// It is transmitted and lost by the loss model.
    Lost,
    /// It is transmitted and lost in an outage.
    Cut,
    /// It reaches the other end at this time, never before the packet that was offered before.
    Arrives(Time),
    /// It waits for ever: the rate has become zero for good.
    Stranded,
}

/// The counts of a direction since it began or was restarted.
///
/// `offered = dropped + sent`, and `sent = lost + cut + stranded +` what arrives. A packet counts
/// when it is offered, that is as soon as its fate is known.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The packets that came to the link.
    pub offered: Amount,
    /// The packets that the full queue dropped.
    pub dropped: Amount,
    /// The packets that went, or are to go, on the wire.
    pub sent: Amount,
    /// The packets that the loss model took on the wire.
    pub lost: Amount,
    /// The packets that outages took on the wire.
    pub cut: Amount,
    /// The packets that will wait for ever.
    pub stranded: Amount,
    /// The largest packet that came, in bytes.
    pub largest: usize,
    /// The time that the packets that were not dropped waited before their transmission.
    pub queue_delay: Delays,
}

impl Direction {
    /// Creates a direction of this shape, idle, whose schedules (trace, outages, Poisson losses)
    /// begin at `now`.
    ///
    /// # Errors
    /// [`ShapeError`] if there can be no such link.
    pub fn new(shape: &Shape, seed: Seed, now: Time) -> Result<Self, ShapeError> {
        shape.check()?;
        Ok(Self {
            shape: shape.clone(),
            seed,
            epoch: now,
            transmitter: Transmitter::new(shape, now),
            loss: LossProcess::new(shape.loss, seed, now),
            queue: Queue::default(),
            counters: Counters::default(),
        })
    }

    /// Takes a packet of `bytes` (of IP) that arrives at `now`, which never goes backwards.
    pub fn offer(&mut self, now: Time, bytes: usize) -> Fate {
        self.counters.offered.add(bytes);
        self.counters.largest = self.counters.largest.max(bytes);
        self.queue.leave(now);
        let start = self.transmitter.start(now);
        if start > now && !self.queue.has_room(bytes, self.shape.queue) {
            self.counters.dropped.add(bytes);
            return Fate::Dropped;
        }
        let transmission = self.transmitter.transmit(start, bytes);
        if start > now {
            self.queue.join(start, bytes);
        }
        self.counters.sent.add(bytes);
        if start != Time::NEVER {
            self.counters.queue_delay.record(start.since(now));
        }
        self.on_the_wire(transmission, bytes)
    }

    /// Begins again at `now`: counters at zero, losses from the seed, schedules from their start.
    /// The packets that it still holds keep their times; they no longer count.
    pub fn restart(&mut self, now: Time) {
        self.epoch = now;
        self.transmitter.restart(now);
        self.loss = LossProcess::new(self.shape.loss, self.seed, now);
        self.counters = Counters::default();
    }

    /// Returns what it has done so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn on_the_wire(&mut self, transmission: Transmission, bytes: usize) -> Fate {
        // The loss model sees every packet, even one that an outage takes anyway: so its decisions
        // depend on the packet's number only.
        let lost = self.loss.takes(transmission);
        if transmission.end == Time::NEVER {
            self.counters.stranded.add(bytes);
            Fate::Stranded
        } else if self.is_cut(transmission) {
            self.counters.cut.add(bytes);
            Fate::Cut
        } else if lost {
            self.counters.lost.add(bytes);
            Fate::Lost
        } else {
            Fate::Arrives(transmission.end + self.shape.delay)
        }
    }

    fn is_cut(&self, transmission: Transmission) -> bool {
        let Transmission { start, end } = transmission;
        let touches = |outage: &Outage| {
            let (down, up) = self.span(outage);
            start < up && (end > down || start >= down)
        };
        // The first outage that is not over when the packet starts is the only one that can be
        // under way then; a long transmission may also run into those after it.
        let first = self
            .shape
            .outages
            .partition_point(|outage| self.span(outage).1 <= start);
        self.shape.outages[first..]
            .iter()
            .take_while(|outage| self.span(outage).0 <= end)
            .any(|outage| outage.effect == OutageEffect::Drops && touches(outage))
    }

    fn span(&self, outage: &Outage) -> (Time, Time) {
        let down = self.epoch + outage.start;
        (down, down + outage.length)
    }
}

/// The packets that wait for transmission.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Time, usize)>,
    bytes: u64,
}

impl Queue {
    /// Lets go of everything whose transmission has begun by `now`.
    fn leave(&mut self, now: Time) {
        while let Some((_, bytes)) = self.waiting.pop_front_if(|(start, _)| *start <= now) {
            self.bytes -= bytes as u64;
        }
    }

    fn join(&mut self, start: Time, bytes: usize) {
        self.waiting.push_back((start, bytes));
        self.bytes += bytes as u64;
    }

    fn has_room(&self, bytes: usize, limit: QueueLimit) -> bool {
        match limit {
            QueueLimit::Bytes(most) => self.bytes + bytes as u64 <= most,
            QueueLimit::Packets(most) => (self.waiting.len() as u64) < most,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::link::{shape::Loss, trace::Trace, units::Rate};

    const MS: Duration = Duration::from_millis(1);

    /// Returns a shape in which 1250 bytes take 1 ms.
    fn ten_mbit() -> Shape {
        Shape::new(Duration::ZERO, Rate::mbit(10))
    }

    fn direction(shape: &Shape) -> Direction {
        Direction::new(shape, Seed(1), Time::ZERO).unwrap()
    }

    fn at(ms: u32) -> Time {
        Time::ZERO + MS * ms
    }

    fn outage(start: u32, length: u32, effect: OutageEffect) -> Outage {
        Outage {
            start: MS * start,
            length: MS * length,
            effect,
        }
    }

    #[test]
    fn a_wire_delays_and_does_nothing_else() {
        let mut wire = direction(&Shape {
            delay: MS * 7,
            ..Shape::default()
        });
        for ms in [0, 0, 3, 500] {
            assert_eq!(wire.offer(at(ms), 1500), Fate::Arrives(at(ms + 7)));
        }
        assert_eq!(wire.counters().queue_delay.quantiles().max, Duration::ZERO);
    }

    #[test]
    fn the_queue_counts_what_waits_and_not_what_is_sent() {
        let mut link = direction(&Shape {
            queue: QueueLimit::Packets(2),
            ..ten_mbit()
        });
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(1)));
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(2)));
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(3)));
        assert_eq!(link.offer(at(0), 1250), Fate::Dropped);
        assert_eq!(link.offer(at(1), 1250), Fate::Arrives(at(4)));
        assert_eq!(link.offer(at(1), 1), Fate::Dropped);
    }

    #[test]
    fn a_limit_in_bytes_lets_a_small_packet_in_where_a_large_one_is_dropped() {
        let mut link = direction(&Shape {
            queue: QueueLimit::Bytes(1500),
            ..ten_mbit()
        });
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(1)));
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(2)));
        assert_eq!(link.offer(at(0), 251), Fate::Dropped);
        assert!(matches!(link.offer(at(0), 250), Fate::Arrives(_)));
    }

    #[test]
    fn without_a_buffer_only_an_idle_link_takes_a_packet() {
        let mut link = direction(&Shape {
            queue: QueueLimit::Packets(0),
            ..ten_mbit()
        });
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(1)));
        assert_eq!(link.offer(at(0), 1250), Fate::Dropped);
        assert_eq!(link.offer(at(1), 1250), Fate::Arrives(at(2)));
    }

    #[test]
    fn a_lost_packet_has_used_its_share_of_the_rate() {
        let mut link = direction(&Shape {
            loss: Loss::independent(1.0),
            ..ten_mbit()
        });
        assert_eq!(link.offer(at(0), 1250), Fate::Lost);
        assert_eq!(link.offer(at(0), 1250), Fate::Lost);
        assert_eq!(link.counters().queue_delay.quantiles().max.as_millis(), 1);
    }

    #[test]
    fn an_outage_drops_what_its_time_touches() {
        let outages = vec![outage(2, 3, OutageEffect::Drops)];
        let mut link = direction(&Shape {
            outages,
            ..ten_mbit()
        });
        let fates: Vec<Fate> = (0..6).map(|_| link.offer(at(0), 1250)).collect();
        let cut = Fate::Cut;
        assert_eq!(
            fates,
            [
                Fate::Arrives(at(1)),
                Fate::Arrives(at(2)),
                cut,
                cut,
                cut,
                Fate::Arrives(at(6))
            ]
        );
        assert_eq!(link.counters().cut.packets, 3);
    }

    #[test]
    fn an_outage_also_drops_where_transmission_takes_no_time() {
        let outages = vec![outage(2, 3, OutageEffect::Drops)];
        let mut link = direction(&Shape {
            outages,
            ..Shape::default()
        });
        let fates: Vec<Fate> = [0, 2, 4, 5].map(|ms| link.offer(at(ms), 1)).to_vec();
        assert_eq!(
            fates,
            [
                Fate::Arrives(at(0)),
                Fate::Cut,
                Fate::Cut,
                Fate::Arrives(at(5))
            ]
        );
    }

    #[test]
    fn an_outage_that_holds_fills_the_queue() {
        let outages = vec![outage(2, 10, OutageEffect::Holds)];
        let mut link = direction(&Shape {
            outages,
            queue: QueueLimit::Packets(2),
            ..ten_mbit()
        });
        assert_eq!(link.offer(at(3), 1250), Fate::Arrives(at(13)));
        assert_eq!(link.offer(at(4), 1250), Fate::Arrives(at(14)));
        assert_eq!(link.offer(at(5), 1250), Fate::Dropped);
        assert_eq!(link.offer(at(12), 1250), Fate::Arrives(at(15)));
        assert_eq!(link.counters().cut.packets, 0);
    }

    #[test]
    fn a_rate_of_zero_for_good_strands_the_packets() {
        let trace: Trace = "0 10Mbit\n0.002 0bit".parse().unwrap();
        let shape = Shape {
            rate: trace.into(),
            queue: QueueLimit::Packets(1),
            ..Shape::default()
        };
        let mut link = direction(&shape);
        assert_eq!(link.offer(at(0), 1250), Fate::Arrives(at(1)));
        assert_eq!(link.offer(at(3), 1250), Fate::Stranded);
        assert_eq!(link.offer(at(3), 1250), Fate::Dropped);
    }

    #[test]
    fn a_restart_repeats_the_losses() {
        let mut link = direction(&Shape {
            loss: Loss::independent(0.5),
            ..Shape::default()
        });
        let first: Vec<bool> = (0..100)
            .map(|_| link.offer(at(0), 1) == Fate::Lost)
            .collect();
        link.restart(at(50));
        assert_eq!(link.counters().offered, Amount::default());
        let again: Vec<bool> = (0..100)
            .map(|_| link.offer(at(50), 1) == Fate::Lost)
            .collect();
        assert_eq!(first, again);
    }
}
