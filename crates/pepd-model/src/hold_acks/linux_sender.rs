//! A Linux sender in the kernel's own units, against which the schedules are run.

use std::time::Duration;

/// From when on the sender counts its timeout.
#[derive(Clone, Copy, Debug)]
pub enum Timer {
    /// From the ACK (RFC 6298, 5.3): no tail loss probe, nothing sent.
    Restarted,
    /// From when the oldest segment was sent: each ACK lets the sender send, or probe.
    OldestSent,
    /// A tail loss probe comes first. The timer is restarted by it, but only one is ever under way.
    Probe {
        /// Whether the one has been sent.
        is_spent: bool,
    },
}

/// The sender; microseconds inside.
#[derive(Debug)]
pub struct Sender {
    /// `srtt_us`: eight times the round trip.
    srtt: i64,
    mdev: i64,
    mdev_max: i64,
    rttvar: i64,
    timer: Timer,
    deadline: i64,
}

const RTO_MIN: i64 = 200_000;
const RTO_MAX: i64 = 120_000_000;

#[expect(
    clippy::cast_possible_truncation,
    reason = "minutes fit, and a fraction of a microsecond does not matter"
)]
fn micros(seconds: f64) -> i64 {
    (seconds * 1e6) as i64
}

impl Sender {
    /// Makes one whose last ACK came when the link went, with a variance so many microseconds above
    /// the least that goes with `deviation`.
    pub fn new(
        rtt: Duration,
        deviation: Duration,
        more_variance: u64,
        timer: Timer,
        oldest_sent: f64,
    ) -> Self {
        let mdev = 4 * micros(deviation.as_secs_f64());
        let rttvar = mdev.max(RTO_MIN) + more_variance.cast_signed();
        let mut sender = Self {
            srtt: 8 * micros(rtt.as_secs_f64()),
            mdev,
            mdev_max: RTO_MIN,
            rttvar,
            timer,
            deadline: 0,
        };
        sender.set_timer(0, micros(oldest_sent));
        sender
    }

    /// Whether nothing is retransmitted before `now`.
    pub fn waits_until(&self, now: f64) -> bool {
        micros(now) < self.deadline
    }

    /// Takes an ACK for what was sent at `sent`, after which what was sent at `oldest_sent` is the
    /// oldest without one.
    pub fn ack(&mut self, now: f64, sent: f64, oldest_sent: f64, ends_round_trip: bool) {
        self.estimate(micros(now) - micros(sent), ends_round_trip);
        self.set_timer(micros(now), micros(oldest_sent));
    }

    /// `tcp_rtt_estimator`, net/ipv4/tcp_input.c.
    fn estimate(&mut self, sample: i64, ends_round_trip: bool) {
        let error = sample - (self.srtt >> 3);
        self.srtt += error;
        let mut change = error.abs() - (self.mdev >> 2);
        if error < 0 && change > 0 {
            change >>= 3;
        }
        self.mdev += change;
        if self.mdev > self.mdev_max {
            self.mdev_max = self.mdev;
            self.rttvar = self.rttvar.max(self.mdev_max);
        }
        if ends_round_trip {
            if self.mdev_max < self.rttvar {
                self.rttvar -= (self.rttvar - self.mdev_max) >> 2;
            }
            self.mdev_max = RTO_MIN;
        }
    }

    fn set_timer(&mut self, now: i64, oldest_sent: i64) {
        let rto = ((self.srtt >> 3) + self.rttvar).min(RTO_MAX);
        let probe = (self.srtt >> 2).min(rto);
        self.deadline = match self.timer {
            Timer::Restarted => now + rto,
            Timer::OldestSent => oldest_sent + rto,
            Timer::Probe { is_spent: true } => (oldest_sent + rto).max(now + probe),
            Timer::Probe { is_spent: false } => {
                // Where the next ACK comes before it, it is still to be sent.
                self.timer = Timer::Probe { is_spent: true };
                now + probe + rto
            }
        };
    }
}
