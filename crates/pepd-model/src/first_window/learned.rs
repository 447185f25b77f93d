//! What is known of one place.

use std::time::{Duration, Instant};

use super::{FORGOTTEN, Flight, LEAST, MOST};

/// The share of what comes first that may be lost: what is lost beyond that is lost because it came at once.
const LOSS: f64 = 0.02;

/// Fewer lost segments are a chance, or were repeated for nothing.
const FEW: f64 = 3.0;

/// The segments over which that share is a mean.
const MEMORY: f64 = 1000.0;

/// The part of what a connection has under way in full swing with which the next one begins: it comes at
/// once, and beside others (RFC 9959, section 3.2, has a half as well).
const PART: f64 = 0.5;

/// The first windows of one size that have to be lost no more of before it is doubled.
const TRIED: u32 = 2;

/// The time for which a size at which too much was lost is not tried again.
const PATIENCE: Duration = Duration::from_secs(600);

/// A size is changed where it is off by such a part of it: each change is one of a route.
const OFF: f64 = 0.25;

/// The weights of another measurement, where it is more and where it is less. What is more is a fact; less
/// may have had other reasons.
const WEIGHT: [f64; 2] = [0.5, 0.125];

/// Why a window has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing is known that says otherwise: it is the kernel's.
    Kernel,
    /// Half of what connections to there have under way.
    Rate,
    /// The same would be more, and it is tried step by step.
    Trial,
    /// Of more too much was lost.
    Loss,
}

/// What is known of one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// The window, in segments.
    window: u32,
    /// What connections have under way, in segments; 0 before the first measurement.
    carried: f64,
    /// The first windows that were tried since it has this size, and what was sent and lost of them.
    tried: u32,
    sent: f64,
    lost: f64,
    bound: Option<Bound>,
    used: Instant,
}

/// The largest size that may be tried, since of more too much was lost.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    most: u32,
    until: Instant,
    /// The share that was lost.
    loss: f64,
}

impl Learned {
    /// Makes one of which nothing is known.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            window: LEAST,
            carried: 0.0,
            tried: 0,
            sent: 0.0,
            lost: 0.0,
            bound: None,
            used: now,
        }
    }

    /// Returns the window that the next connection is to begin with, in segments.
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Returns what connections have under way in full swing, in segments; 0 where that is not known.
    pub const fn carried(&self) -> f64 {
        self.carried
    }

    /// Returns the share of first windows that was lost: of those that were too large, if it is for them that
    /// the window is what it is, else of those of its size.
    pub fn loss(&self) -> f64 {
        self.bound.map_or_else(|| self.share_lost(), |it| it.loss)
    }

    fn share_lost(&self) -> f64 {
        if self.sent > 0.0 {
            self.lost / self.sent
        } else {
            0.0
        }
    }

    /// Returns when it was of use last.
    pub const fn used(&self) -> Instant {
        self.used
    }

    /// Returns why the window has its size.
    pub fn why(&self) -> Why {
        let wanted = self.wanted();
        match self.bound {
            Some(bound) if bound.most < wanted => Why::Loss,
            _ if f64::from(wanted) >= f64::from(self.window) * (1.0 + OFF) => Why::Trial,
            _ if self.window > LEAST => Why::Rate,
            _ => Why::Kernel,
        }
    }

    /// Returns whether nobody has used it for so long that it is as if it had never been.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) > FORGOTTEN
    }

    /// Takes what a connection has under way, in segments, and whether that is all that the path carries.
    pub(super) fn take_rate(&mut self, now: Instant, carried: f64, is_settled: bool) {
        self.use_it(now);
        let [more, less] = WEIGHT;
        let off = carried - self.carried;
        if self.carried == 0.0 {
            self.carried = carried;
        } else if off > 0.0 {
            self.carried += more * off;
        } else if is_settled {
            self.carried += less * off;
        }
        self.adapt();
    }

    /// Takes what has become of a first window.
    pub(super) fn take_flight(&mut self, now: Instant, flight: Flight) {
        self.use_it(now);
        // What began with more says nothing of less, nor the other way about.
        let is_old = self.bound.is_some() && flight.window > self.window;
        if is_old || flight.window < self.window {
            return;
        }
        let keep = (1.0 - f64::from(flight.known) / MEMORY).max(0.0);
        self.sent = self.sent * keep + f64::from(flight.known);
        self.lost = self.lost * keep + f64::from(flight.lost);
        self.tried = self.tried.saturating_add(1);
        if self.loses_too_much() {
            self.halve(now);
        } else {
            self.adapt();
        }
    }

    /// Tells whether more is lost than may be, beyond three standard deviations of what chance does to so few:
    /// it is looked at again and again.
    fn loses_too_much(&self) -> bool {
        let usual = LOSS * self.sent;
        self.lost >= FEW && self.lost > usual + 3.0 * (usual * (1.0 - LOSS)).sqrt()
    }

    fn halve(&mut self, now: Instant) {
        let half = (self.window / 2).max(LEAST);
        self.bound = Some(Bound {
            most: half,
            until: now + PATIENCE,
            loss: self.share_lost(),
        });
        self.set(half);
    }

    /// Comes nearer to what is wanted: up by doubling, when the present size was tried; down at once.
    fn adapt(&mut self) {
        let most = self.bound.map_or(MOST, |bound| bound.most);
        let wanted = self.wanted().min(most);
        let (now, then) = (f64::from(self.window), f64::from(wanted));
        if then >= now * (1.0 + OFF) {
            if self.tried >= TRIED {
                self.set(wanted.min(2 * self.window));
            }
        } else if then <= now * (1.0 - OFF) {
            self.set(wanted);
        }
    }

    fn set(&mut self, window: u32) {
        self.window = window;
        self.tried = 0;
        self.sent = 0.0;
        self.lost = 0.0;
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is clamped to small positive numbers"
    )]
    fn wanted(&self) -> u32 {
        (PART * self.carried).clamp(f64::from(LEAST), f64::from(MOST)) as u32
    }

    fn use_it(&mut self, now: Instant) {
        self.used = now;
        self.bound = self.bound.filter(|bound| now < bound.until);
    }
}
