//! What is kept of the connections that have ended, and compared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::gain::Gain;
use crate::sample::{Client, Sample};
use crate::watcher::{Arm, Ended};

/// The connections of each kind that are kept of a pair of campuses, the last ones: what is compared grows
/// with the square.
const KEPT: usize = 200;

/// The time for which they are.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The pairs of campuses of which anything is kept.
const PAIRS: usize = 256;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// The time from the client's SYN to the first byte that the server says.
    FirstByte,
    /// The time from the SYN until the client had acknowledged all, of up to 10 kB.
    UpTo10Kilobytes,
    /// The same, of up to 100 kB.
    UpTo100Kilobytes,
    /// The same, of up to 1 MB.
    UpToMegabyte,
    /// The goodput of what is longer.
    Longer,
}

impl Quantity {
    /// Every quantity.
    pub const ALL: [Self; 5] = [
        Self::FirstByte,
        Self::UpTo10Kilobytes,
        Self::UpTo100Kilobytes,
        Self::UpToMegabyte,
        Self::Longer,
    ];

    /// Returns its name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstByte => "first_byte",
            Self::UpTo10Kilobytes => "up_to_10kB",
            Self::UpTo100Kilobytes => "up_to_100kB",
            Self::UpToMegabyte => "up_to_1MB",
            Self::Longer => "longer",
        }
    }

    /// Returns whether it is a rate, of which more is better, and not a time.
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::Longer)
    }

    /// Returns what the whole of a connection belongs to, and its time there: in seconds, or the seconds that a byte
    /// took where rates are compared.
    pub(crate) fn of_whole(ended: &Ended) -> (Self, f64) {
        let quantity = Self::of(ended.bytes);
        let seconds = ended.whole.as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "bytes are far below 2^53")]
        let time = match quantity.is_rate() {
            true => seconds / ended.bytes as f64,
            false => seconds,
        };
        (quantity, time)
    }

    const fn of(bytes: u64) -> Self {
        match bytes {
            0..=10_000 => Self::UpTo10Kilobytes,
            10_001..=100_000 => Self::UpTo100Kilobytes,
            100_001..=1_000_000 => Self::UpToMegabyte,
            _ => Self::Longer,
        }
    }
}

/// The last connections of one kind, each with when it has ended and its time in seconds; with the seconds that a byte
/// took, where rates are compared.
type Times = Sample<(Instant, f64)>;

/// Something of both kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arms<T> {
    /// Of connections that were split.
    pub split: T,
    /// Of connections that were not.
    pub unsplit: T,
}

impl<T> Arms<T> {
    pub(crate) fn of(&mut self, arm: Arm) -> &mut T {
        match arm {
            Arm::Split => &mut self.split,
            Arm::Unsplit => &mut self.unsplit,
        }
    }
}

/// What is known of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The connections that are compared.
    pub connections: usize,
    /// The median: in seconds, of a rate in bits a second. None without connections.
    pub median: Option<f64>,
}

impl Summary {
    fn of(quantity: Quantity, values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied();
        Self {
            connections: sorted.len(),
            median: median.map(|value| {
                if quantity.is_rate() {
                    8.0 / value
                } else {
                    value
                }
            }),
        }
    }
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding {
    /// What is compared.
    pub quantity: Quantity,
    /// What is known of each kind.
    pub arms: Arms<Summary>,
    /// How it comes out; none as long as there are too few.
    pub gain: Option<Gain>,
}

/// All comparisons of a pair of campuses.
#[derive(Clone, Debug, PartialEq)]
pub struct PairFindings<C> {
    /// The campus of the clients.
    pub from: C,
    /// The campus of the servers.
    pub to: C,
    /// What of at least one connection is known.
    pub findings: Vec<Finding>,
}

/// What splitting is worth, by pair of campuses, of which each has a key.
#[derive(Clone, Debug)]
pub struct Worth<C> {
    pairs: BTreeMap<(C, C), [Arms<Times>; Quantity::ALL.len()]>,
}

impl<C> Default for Worth<C> {
    fn default() -> Self {
        Self {
            pairs: BTreeMap::new(),
        }
    }
}

impl<C: Clone + Ord> Worth<C> {
    /// Adds a connection that has ended, from the campus of its client to that of its server.
    pub fn add(&mut self, pair: (C, C), ended: &Ended, now: Instant) {
        if self.pairs.len() >= PAIRS && !self.pairs.contains_key(&pair) {
            return;
        }
        let all = self.pairs.entry(pair).or_default();
        let client = Client::of(ended.client);
        let mut add = |quantity: Quantity, time: f64| {
            if let Some(arms) = all.get_mut(quantity as usize) {
                arms.of(ended.arm).add(client, (now, time), KEPT);
            }
        };
        add(Quantity::FirstByte, ended.first_byte.as_secs_f64());
        let (quantity, time) = Quantity::of_whole(ended);
        add(quantity, time);
    }

    /// Forgets what was measured between two campuses: the path is another one now.
    pub fn forget(&mut self, pair: &(C, C)) {
        self.pairs.remove(pair);
    }

    /// Compares, and forgets what is long past. It takes about a millisecond for each pair of campuses.
    pub fn findings(&mut self, now: Instant) -> Vec<PairFindings<C>> {
        let is_old = |(at, _): &(Instant, f64)| now.saturating_duration_since(*at) > LONGEST;
        self.pairs.retain(|_, all| {
            for arms in all.iter_mut() {
                arms.split.forget(is_old);
                arms.unsplit.forget(is_old);
            }
            all.iter()
                .any(|arms| !(arms.split.is_empty() && arms.unsplit.is_empty()))
        });
        let pairs = self.pairs.iter().map(|((from, to), all)| PairFindings {
            from: from.clone(),
            to: to.clone(),
            findings: findings(all),
        });
        pairs.collect()
    }
}

fn findings(all: &[Arms<Times>]) -> Vec<Finding> {
    let known = Quantity::ALL
        .into_iter()
        .zip(all)
        .filter_map(|(quantity, arms)| {
            let is_known = !(arms.split.is_empty() && arms.unsplit.is_empty());
            is_known.then(|| finding(quantity, arms))
        });
    known.collect()
}

fn finding(quantity: Quantity, arms: &Arms<Times>) -> Finding {
    let Arms { split, unsplit } = arms.counted();
    let [split, unsplit]: [Vec<f64>; 2] =
        [split, unsplit].map(|of| of.into_iter().map(|(_, (_, time))| *time).collect());
    Finding {
        quantity,
        arms: Arms {
            split: Summary::of(quantity, &split),
            unsplit: Summary::of(quantity, &unsplit),
        },
        gain: Gain::of(&unsplit, &split),
    }
}

/// Campuses whose truth is known.
#[cfg(test)]
pub(crate) mod simulated {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt as _, SeedableRng as _};

    /// A campus: how long its transfers take, with and without splitting.
    pub(crate) struct Campus {
        random: Xoshiro256PlusPlus,
        /// By what factor they take longer without.
        pub(crate) gain: f64,
        /// How much the logarithms scatter, without and with.
        scatter: [f64; 2],
        count: [usize; 2],
    }

    impl Campus {
        pub(crate) fn new(seed: u64) -> Self {
            let mut campus = Self {
                random: Xoshiro256PlusPlus::seed_from_u64(seed),
                gain: 1.0,
                scatter: [0.0; 2],
                count: [0; 2],
            };
            campus.gain = (campus.uniform() * 3.0 - 1.0).exp();
            let scatter = 0.1 + campus.uniform() * 1.5;
            campus.scatter = [scatter * (0.5 + 1.5 * campus.uniform()), scatter];
            // Chosen with the same probability each, so that there are about as many of both.
            let all = campus.random.random_range(60..=400);
            let unsplit = (0..all).filter(|_| campus.random.random()).count();
            campus.count = [unsplit, all - unsplit].map(|count| count.clamp(20, 200));
            campus
        }

        /// Gives times without and with splitting.
        pub(crate) fn times(&mut self) -> (Vec<f64>, Vec<f64>) {
            let [without, with] = [0, 1].map(|which| {
                let factor = if which == 0 { self.gain } else { 1.0 };
                let (scatter, count) = (self.scatter[which], self.count[which]);
                let one = |_| factor * (self.normal() * scatter).exp();
                (0..count).map(one).collect()
            });
            (without, with)
        }

        fn uniform(&mut self) -> f64 {
            self.random.random()
        }

        /// Draws from the normal distribution (Box and Muller).
        fn normal(&mut self) -> f64 {
            let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
            radius * (self.uniform() * std::f64::consts::TAU).cos()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gain::FEWEST;

    fn ended(arm: Arm, bytes: u64, milliseconds: u64) -> Ended {
        Ended {
            client: "10.1.0.2:4000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
            arm,
            first_byte: Duration::from_millis(milliseconds / 2),
            whole: Duration::from_millis(milliseconds),
            bytes,
        }
    }

    #[test]
    fn what_is_compared_follows_from_the_bytes() {
        let sizes = [1, 10_000, 10_001, 100_000, 1_000_000, 1_000_001];
        let quantities = sizes.map(|bytes| Quantity::of(bytes).name());
        assert_eq!(
            quantities,
            [
                "up_to_10kB",
                "up_to_10kB",
                "up_to_100kB",
                "up_to_100kB",
                "up_to_1MB",
                "longer"
            ]
        );
    }

    #[test]
    fn a_pair_is_compared_once_there_is_enough_of_both() {
        let (mut worth, now) = (Worth::default(), Instant::now());
        assert!(worth.findings(now).is_empty());
        for _ in 0..FEWEST {
            for pair in worth.findings(now) {
                assert_eq!((pair.from, pair.to), ("lan", "wan"));
                assert!(pair.findings.iter().all(|finding| finding.gain.is_none()));
            }
            worth.add(("lan", "wan"), &ended(Arm::Split, 2_000_000, 1000), now);
            worth.add(("lan", "wan"), &ended(Arm::Unsplit, 2_000_000, 4000), now);
        }
        let findings = &worth.findings(now)[0].findings;
        let [first_byte, longer] = findings[..] else {
            panic!("{findings:?}");
        };
        assert_eq!(first_byte.quantity, Quantity::FirstByte);
        assert_eq!(first_byte.arms.unsplit.median, Some(2.0));
        assert_eq!(longer.quantity, Quantity::Longer);
        // 16 Mbit in a second and in four.
        assert_eq!(longer.arms.split.median.map(f64::round), Some(16e6));
        assert_eq!(longer.arms.unsplit.median.map(f64::round), Some(4e6));
        let gain = longer.gain.unwrap();
        assert!(
            (gain.factor - 4.0).abs() < 1e-9 && gain.is_other_than_one(),
            "{gain:?}"
        );
    }

    #[test]
    fn the_last_are_kept_and_not_for_ever() {
        let (mut worth, start) = (Worth::default(), Instant::now());
        for _ in 0..3 * KEPT {
            worth.add((1, 2), &ended(Arm::Split, 10, 5), start);
        }
        let connections = |found: &[PairFindings<u16>]| found[0].findings[0].arms.split.connections;
        assert_eq!(connections(&worth.findings(start)), KEPT);
        let later = start + LONGEST + Duration::from_secs(1);
        worth.add((1, 2), &ended(Arm::Split, 10, 5), later);
        assert_eq!(connections(&worth.findings(later)), 1);
        assert!(worth.findings(later + 2 * LONGEST).is_empty());
    }

    #[test]
    fn so_many_pairs_have_room() {
        let (mut worth, now) = (Worth::default(), Instant::now());
        for pair in 0..2 * PAIRS {
            worth.add((pair, pair), &ended(Arm::Split, 10, 5), now);
        }
        assert_eq!(worth.findings(now).len(), PAIRS);
    }

    /// One client that is nine in ten connections, and tells the contrary of whatever is so, leaves what is said within
    /// the interval that the twenty others have without it.
    #[test]
    fn one_client_of_many_does_not_make_the_figures() {
        let outside = (0..200).filter(|seed| {
            let mut campus = simulated::Campus::new(*seed);
            let slow = if campus.gain > 1.0 { 1e-3 } else { 1e3 };
            let (unsplit, split) = campus.times();
            let (mut without, mut with, now) = (Worth::default(), Worth::default(), Instant::now());
            for (arm, times, hostile) in [
                (Arm::Unsplit, unsplit, slow),
                (Arm::Split, split, 1.0 / slow),
            ] {
                for (at, time) in times.into_iter().enumerate() {
                    let honest = by(10 + at % 20, arm, time);
                    without.add((1, 2), &honest, now);
                    with.add((1, 2), &honest, now);
                    for _ in 0..9 {
                        with.add((1, 2), &by(2, arm, hostile), now);
                    }
                }
            }
            let [without, with] = [without, with].map(|mut worth| {
                let whole = worth.findings(now)[0].findings[1];
                assert_eq!(whole.quantity, Quantity::UpTo100Kilobytes);
                whole.gain
            });
            // Of the twenty there may be too few to compare them evenly.
            let (Some(without), Some(with)) = (without, with) else {
                return false;
            };
            !(without.low..=without.high).contains(&with.factor)
        });
        let outside = outside.count();
        assert!(outside <= 10, "{outside} of 200");
    }

    fn by(host: usize, arm: Arm, seconds: f64) -> Ended {
        Ended {
            client: format!("10.1.0.{host}:4000").parse().unwrap(),
            whole: Duration::from_secs_f64(seconds),
            ..ended(arm, 50_000, 2)
        }
    }
}
