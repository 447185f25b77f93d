//! A leg: a congestion control over a path, by itself.

use super::Loss;

/// A leg: the path between two ends of a TCP connection, and how it is sent over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leg {
    /// The round trip without queues, seconds.
    pub rtt: f64,
    /// What is lost of what is sent.
    pub loss: Loss,
    /// What the link carries before the loss, packets a second.
    pub rate: Option<f64>,
    /// The most that may be under way, packets: the smaller of the sender's and the receiver's buffers.
    pub window: Option<f64>,
    /// How it is sent.
    pub control: Control,
    /// How many segments the sender counts as one, b: 1 where it counts what is acknowledged, as Linux
    /// does, and 2 where it counts ACKs and they are delayed.
    pub per_ack: f64,
}

/// A congestion control that something is known of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Control {
    /// Reno, or NewReno.
    Reno,
    /// CUBIC (RFC 9438), Linux's default.
    #[default]
    Cubic,
    /// pepd's own: the link's rate, whatever is lost.
    FixedRate,
    /// BBR of Linux 6.1, as far as it was measured.
    Bbr,
}

impl Control {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Reno, "reno"),
        (Self::Cubic, "cubic"),
        (Self::FixedRate, "fixed-rate"),
        (Self::Bbr, "bbr"),
    ];

    /// Its name, as in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut known = Self::ALL.iter();
        known
            .find(|(control, _)| *control == self)
            .map_or("", |(_, name)| name)
    }
}

impl Leg {
    /// A leg without losses and limits, by the default control.
    #[must_use]
    pub fn new(rtt: f64) -> Self {
        Self {
            rtt,
            loss: Loss::default(),
            rate: None,
            window: None,
            control: Control::default(),
            per_ack: 1.0,
        }
    }

    /// The leg that this one and then another make without a box between them: sent by this one's control,
    /// with its window, and limited by the slower link (Jain & Ott, eq. 4 and 6).
    #[must_use]
    pub fn joined(self, next: Self) -> Self {
        let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (known, None) | (None, known) => known,
        };
        Self {
            rtt: self.rtt + next.rtt,
            loss: self.loss.and(next.loss),
            rate: least(self.rate, next.rate),
            window: least(self.window, next.window),
            ..self
        }
    }
}
