//! What limits the rate, for people.

use super::Controller;
use super::seen::Seen;

/// The seconds for which it is remembered that others send, too: that is seen once in a pulse or two.
const SHARED: f64 = 5.0;

/// What limits the rate of a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LimitedBy {
    /// Nothing is known to yet: it is raised to see whether the path carries more.
    #[default]
    Looking,
    /// The connections had less to send than they were let.
    Applications,
    /// The most that the controller may send at.
    Ceiling,
    /// The link: there is a queue before it, or was a moment ago.
    Link,
    /// The link, of which others have their part.
    Others,
    /// The link, which drops at once what is too much: a policer, or a very short buffer.
    Drops,
}

impl LimitedBy {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 6] = [
        Self::Looking,
        Self::Applications,
        Self::Ceiling,
        Self::Link,
        Self::Others,
        Self::Drops,
    ];
}

/// What the epoch that was finished last has said of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    is_limited: bool,
    is_queued: bool,
    /// When there surely was a queue last, in seconds, and when it was plain that others send, too.
    queued: Option<f64>,
    shared: Option<f64>,
    now: f64,
}

impl Told {
    /// Returns when there surely was a queue last, in seconds.
    pub(super) fn queued(&self) -> Option<f64> {
        self.queued
    }

    pub(super) fn take(&mut self, seen: &Seen<'_>, is_shared: bool) {
        self.is_limited = seen.is_limited;
        self.is_queued = seen.is_queued || seen.is_rising;
        self.now = seen.now;
        if seen.is_surely_queued {
            self.queued = Some(seen.now);
        }
        if is_shared {
            self.shared = Some(seen.now);
        }
    }
}

impl Controller {
    /// Returns what limits the rate at present, by the epoch that was finished last.
    pub fn limited_by(&self) -> LimitedBy {
        let told = self.told;
        // Without a queue it is looked for more, up to the next one, which shows in a few round trips.
        let memory = 1.0_f64.max(8.0 * self.rtt());
        let is_lately = |when: Option<f64>, memory| when.is_some_and(|it| told.now - it < memory);
        if told.is_limited && !told.is_queued {
            LimitedBy::Applications
        } else if !told.is_queued && self.capacity >= 0.99 * self.ceiling {
            LimitedBy::Ceiling
        } else if self.starting {
            LimitedBy::Looking
        } else if is_lately(told.shared, SHARED) {
            LimitedBy::Others
        } else if self.trial.is_some() || self.shallow.is_one {
            LimitedBy::Drops
        } else if told.is_queued || is_lately(told.queued, memory) {
            LimitedBy::Link
        } else {
            LimitedBy::Looking
        }
    }
}
