//! What a connection may send before anything is acknowledged, by what others to the same place have
//! carried (Farkas et al., section 5; RFC 9040, ensemble sharing; RFC 9959, Careful Resume).
//!
//! A sender begins with ten segments, whatever its path is (RFC 6928). A box has seen many connections to
//! the same network: half of what such a one has under way when it is in full swing is what the next one
//! may begin with. It comes to that by doubling, each time only after the present size has been tried, and
//! where more than a fiftieth of what comes first is lost it is halved. What nobody has used for a while is
//! forgotten.
//!
//! [`FirstFlight`] watches one connection until it is known what has become of its first window, and
//! [`Windows`] learns from all of them.

mod flight;
mod learned;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use self::flight::{FirstFlight, Flight, Look, Seen};
pub use self::learned::{Learned, Why};

/// The least window, in segments: what every sender begins with (TCP_INIT_CWND, include/net/tcp.h; RFC 6928).
/// With less a lossy link's connections, for which it is not to blame, would begin slower than without pepd.
pub const LEAST: u32 = 10;

/// The largest window, in segments: 145 kB, most of a web page. The kernel's controls do not pace what they
/// send first unless they pace everything, so it leaves at once.
pub const MOST: u32 = 100;

/// The time without a connection after which what is known of a place is forgotten: as long as routes and
/// the number of those who share a path stay the same, roughly (RFC 9959 speaks of minutes).
pub const FORGOTTEN: Duration = Duration::from_secs(600);

/// The places that are remembered; of more, those that were used last.
pub const PLACES: usize = 512;

/// What is known of all places, by keys of the caller's: a leg and a destination prefix.
#[derive(Clone, Debug)]
pub struct Windows<K>(BTreeMap<K, Learned>);

impl<K> Default for Windows<K> {
    /// Makes one that knows nothing.
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Windows<K> {
    /// Takes what has become of a connection's first window.
    pub fn take_flight(&mut self, place: K, now: Instant, flight: Flight) {
        self.at(place, now).take_flight(now, flight);
    }

    /// Takes what a look at a connection says of the path's rate, at any time of its life.
    pub fn take_rate(&mut self, place: K, now: Instant, look: &Look) {
        if let Some(carried) = look.carried() {
            let is_settled = look.is_settled();
            self.at(place, now).take_rate(now, carried, is_settled);
        }
    }

    /// Forgets the places that nobody has used for [`FORGOTTEN`].
    pub fn forget(&mut self, now: Instant) {
        self.0.retain(|_, it| !it.is_forgotten(now));
    }

    /// Gives what is known, in the order of the keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &Learned)> {
        self.0.iter()
    }

    fn at(&mut self, place: K, now: Instant) -> &mut Learned {
        if !self.0.contains_key(&place) && self.0.len() >= PLACES {
            let oldest = self.0.iter().min_by_key(|(_, it)| it.used());
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.0.remove(&oldest);
            }
        }
        let learned = self.0.entry(place).or_insert_with(|| Learned::new(now));
        if learned.is_forgotten(now) {
            *learned = Learned::new(now);
        }
        learned
    }
}
