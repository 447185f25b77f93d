//! A congestion window: Reno's (RFC 5681), CUBIC's (RFC 9438), and one that only leaves room for a rate.

use crate::law::{Control, Leg, cubic, reno};

/// The window that a sender begins with, packets (RFC 6928).
const FIRST: f64 = 10.0;

/// What it does not fall below with a loss, packets.
const LEAST: f64 = 2.0;

/// A congestion window, packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: f64,
    threshold: f64,
    per_ack: f64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Reno,
    Cubic(Curve),
    Fixed,
}

/// CUBIC's curve since its last loss.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    /// When it began; none until something is acknowledged in congestion avoidance.
    since: Option<f64>,
    /// Where it is flat, and after how long.
    most: f64,
    flat: f64,
    /// What Reno would have by now.
    friendly: f64,
}

impl Window {
    /// The window of a leg that has been in congestion avoidance for a while.
    pub(super) fn new(leg: &Leg) -> Self {
        let alone = leg.alone().throughput * leg.rtt;
        let usual = if alone.is_finite() { alone } else { 1e6 };
        let kind = match leg.control {
            Control::Cubic => Kind::Cubic(Curve {
                most: usual.max(LEAST),
                ..Curve::default()
            }),
            Control::FixedRate | Control::Bbr => Kind::Fixed,
            Control::Reno => Kind::Reno,
        };
        let size = match kind {
            Kind::Fixed => 2.0 * leg.rate.unwrap_or(usual / leg.rtt) * leg.rtt + FIRST,
            _ => FIRST.min(usual.max(LEAST)),
        };
        Self {
            size,
            threshold: usual.max(LEAST),
            per_ack: leg.per_ack,
            kind,
        }
    }

    /// How many packets may be under way.
    pub(super) fn size(&self) -> f64 {
        self.size.floor()
    }

    pub(super) fn is_starting(&self) -> bool {
        self.size < self.threshold
    }

    /// Grows by what was acknowledged.
    pub(super) fn grow(&mut self, now: f64, acked: f64, rtt: f64) {
        if matches!(self.kind, Kind::Fixed) {
            return;
        }
        let mut left = acked;
        if self.is_starting() {
            let room = self.threshold - self.size;
            self.size += left.min(room);
            left -= left.min(room);
        }
        if left <= 0.0 {
            return;
        }
        match &mut self.kind {
            Kind::Reno => self.size += left / (self.per_ack * self.size.floor()),
            Kind::Cubic(curve) => self.size += curve.step(now, left / self.per_ack, rtt, self.size),
            Kind::Fixed => {}
        }
    }

    /// Falls with a loss.
    pub(super) fn lose(&mut self) {
        let share = match &mut self.kind {
            Kind::Fixed => return,
            Kind::Reno => reno::BETA,
            Kind::Cubic(curve) => {
                curve.end(self.size);
                cubic::BETA
            }
        };
        self.threshold = (self.size.floor() * share).floor().max(LEAST);
        self.size = self.threshold;
    }

    /// Begins anew with a timeout.
    pub(super) fn time_out(&mut self) {
        if !matches!(self.kind, Kind::Fixed) {
            self.lose();
            self.size = 1.0;
        }
    }
}

impl Curve {
    /// Gives what the window grows by (RFC 9438, sections 4.2 to 4.5).
    fn step(&mut self, now: f64, acked: f64, rtt: f64, size: f64) -> f64 {
        let since = *self.since.get_or_insert_with(|| {
            self.flat = ((self.most - size).max(0.0) / cubic::GROWTH).cbrt();
            self.most = self.most.max(size);
            self.friendly = size;
            now
        });
        let time = now - since + rtt;
        let target = cubic::GROWTH * (time - self.flat).powi(3) + self.most;
        let target = target.clamp(size, 1.5 * size);
        let slope = if self.friendly < self.most {
            3.0 * (1.0 - cubic::BETA) / (1.0 + cubic::BETA)
        } else {
            1.0
        };
        self.friendly += slope * acked / size;
        let by_curve = (target - size) / size * acked;
        by_curve.max(self.friendly - size)
    }

    /// Ends with a loss at a size, and gives up room if it is smaller than the last time (section 4.7).
    fn end(&mut self, size: f64) {
        self.most = if size < self.most {
            size * (1.0 + cubic::BETA) / 2.0
        } else {
            size
        };
        self.since = None;
    }
}
