//! The traffic of an experiment.

use std::time::Duration;

use pepd_testbed::link::Rate;
use serde::Deserialize;

use super::units::duration;

/// The traffic of an experiment: what the hosts do.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
pub enum Workload {
    /// Each flow sends as much as it can, for the whole time.
    Bulk {
        /// The number of flows at once.
        flows: usize,
        /// Whether results are in packets, not bits, per second.
        #[serde(default)]
        packets: bool,
        /// Whether results are the mean per flow, not the sum.
        #[serde(default)]
        per_flow: bool,
    },
    /// One flow, and a sample of both legs every 50 ms.
    Trace,
    /// A byte at a time, which comes back as ssh's echo does.
    Keystrokes {
        /// The interval at which a key is pressed, whatever has come back.
        #[serde(deserialize_with = "duration")]
        every: Duration,
        /// The time that the last echo is waited for.
        #[serde(deserialize_with = "duration")]
        wait: Duration,
    },
    /// Pages, one after the other.
    Web(Browsing),
    /// Videos, all at once.
    Video(Watching),
}

/// A page over HTTP/1.1: a document, and then its objects over a few persistent connections to
/// one server, a request at a time on each.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Browsing {
    /// The interval at which a page is opened, or as soon as the last one is complete.
    #[serde(deserialize_with = "duration")]
    pub every: Duration,
    /// The document, in bytes.
    pub document: u64,
    /// The number of objects that it names.
    pub objects: u32,
    /// The smallest of them, in bytes.
    pub smallest: u64,
    /// The largest, in bytes; the others are in between, evenly on a logarithmic scale.
    pub largest: u64,
    /// The number of connections that a browser opens at most.
    pub connections: usize,
}

impl Browsing {
    /// Returns the objects' sizes in bytes, in the order in which the document names them: the same
    /// for every page, small and large ones mixed.
    #[must_use]
    pub fn objects(&self) -> Vec<u64> {
        let (low, high) = (real(self.smallest).ln(), real(self.largest).ln());
        let steps = f64::from(self.objects.saturating_sub(1).max(1));
        let size = |rank: u32| (low + (high - low) * f64::from(rank) / steps).exp();
        // Seven is prime to most numbers of objects: neighbours differ.
        let order = (0..self.objects).map(|index| (index * 7) % self.objects);
        order.map(|rank| whole(size(rank))).collect()
    }

    /// Returns the size of the whole page, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.document + self.objects().iter().sum::<u64>()
    }
}

/// A video that is downloaded as fast as it goes, and played meanwhile.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Watching {
    /// The number that are watched at once, each begun a second after the one before.
    pub viewers: usize,
    /// The rate at which it plays.
    pub rate: Rate,
    /// The time that it plays.
    #[serde(deserialize_with = "duration")]
    pub length: Duration,
    /// The part of it that must be there before it begins to play.
    #[serde(deserialize_with = "duration")]
    pub ahead: Duration,
    /// The part that must be there before it goes on after an interruption.
    #[serde(deserialize_with = "duration")]
    pub again: Duration,
}

impl Watching {
    /// Returns the size of the whole video, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rate.as_bits_per_second() / 8 * self.length.as_secs()
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes here are far below 2^53")]
fn real(bytes: u64) -> f64 {
    bytes as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes here are positive and far below 2^53"
)]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_small_and_large_objects_each_once() {
        let page = Browsing {
            every: Duration::from_secs(1),
            document: 40_000,
            objects: 60,
            smallest: 500,
            largest: 60_000,
            connections: 6,
        };
        let mut sizes = page.objects();
        assert_eq!(page.bytes(), 40_000 + sizes.iter().sum::<u64>());
        sizes.sort_unstable();
        assert_eq!(sizes.first(), Some(&500));
        assert_eq!(sizes.last(), Some(&60_000));
        sizes.dedup();
        assert_eq!(sizes.len(), 60, "each rank once");
    }
}
