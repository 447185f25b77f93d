//! What is known of the path of a leg whose rate is found.

use pepd_admin::wire::{FoundRate, RateLimit, RateState};
use pepd_model::find_rate::LimitedBy;

/// What is known of a leg's path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    /// The rate at which all connections may send together, in bytes of IP packets a second.
    pub rate: f64,
    /// What the path is taken to carry, in the same unit.
    pub capacity: f64,
    /// Whether that is still being looked for.
    pub is_starting: bool,
    /// Whether something was sent lately.
    pub is_used: bool,
    /// The share of packets that is lost on the path, from 0 to 1.
    pub loss: f64,
    /// The time that packets wait before the narrowest place, in seconds.
    pub queue: f64,
    /// The least round trip lately, in seconds; none before the first.
    pub rtt: Option<f64>,
    /// The same of the last five minutes of use.
    pub least_rtt: Option<f64>,
    /// What limits the rate.
    pub limit: RateLimit,
    /// The connections that are kept to what their own path carries.
    pub capped: u64,
}

impl Found {
    /// Returns it as the status has it; `limit` is what has limited it for most of the last second, where
    /// that is known.
    pub fn of(&self, leg: &str, limit: Option<RateLimit>) -> FoundRate {
        FoundRate {
            leg: leg.to_owned(),
            state: match (self.is_used, self.is_starting) {
                (false, _) => RateState::Idle,
                (true, true) => RateState::Looking,
                (true, false) => RateState::Found,
            },
            rate: whole(8.0 * self.rate),
            capacity: whole(8.0 * self.capacity),
            loss: self.loss,
            queue: self.queue,
            rtt: self.rtt,
            limit: self.is_used.then(|| limit.unwrap_or(self.limit)),
            narrow: if self.is_used { self.capped } else { 0 },
        }
    }
}

/// Gives the API's name to what the controller says.
pub fn limit(of: LimitedBy) -> RateLimit {
    match of {
        LimitedBy::Looking => RateLimit::Looking,
        LimitedBy::Applications => RateLimit::Applications,
        LimitedBy::Ceiling => RateLimit::Ceiling,
        LimitedBy::Link => RateLimit::Link,
        LimitedBy::Others => RateLimit::Others,
        LimitedBy::Drops => RateLimit::Drops,
    }
}

/// Returns the whole number below it; the nearest that there is, where there is none.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast is to the nearest that there is"
)]
pub fn whole(value: f64) -> u64 {
    value as u64
}
