//! What was measured, and what it comes to: medians and ratios within a round.

use std::collections::BTreeMap;

use super::contender::Contender;
use super::lineup::Lineup;
use super::takeover::Takeovers;

/// A figure that is measured of every contender in every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    /// Bits per second that arrive over so many flows.
    Bulk(Bulk),
    /// The proxy's CPU seconds per GB (10⁹ bytes) in the same measurement.
    CpuPerGigabyte(Bulk),
    /// The median round trip of one byte, in seconds.
    PingPongMedian,
    /// The time that one round trip in a hundred exceeds, in seconds.
    PingPongTail,
    /// Connections with an answer of 1 KiB, per second.
    Short,
    /// The proxy's CPU seconds per such connection.
    CpuPerShort,
    /// The share of such connections that failed.
    ShortFailed,
    /// The same connections per second, of those who answer early and end to end.
    Handshakes,
    /// The share of these that failed.
    HandshakesFailed,
    /// The median time from `connect` to the first byte of an answer, in seconds.
    FirstByteMedian,
    /// The time that one in a hundred of these exceeds, in seconds.
    FirstByteTail,
    /// The median round trip of one byte, in seconds, beside clients of the admin API.
    AdminMedian,
    /// The time that one such round trip in a hundred exceeds, in seconds.
    AdminTail,
    /// Answers of the admin API per second meanwhile.
    AdminAnswers,
    /// Bytes of the proxy's resident memory per idle connection.
    IdleResident,
    /// Bytes of kernel objects per idle connection.
    IdleKernel,
}

/// A setting of bulk transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bulk {
    /// Without offloads every packet is MTU-sized (GSO, TSO and GRO off on every device).
    pub without_offloads: bool,
    /// Flows at once.
    pub flows: u16,
}

impl Bulk {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::new(1, false),
        Self::new(32, false),
        Self::new(1, true),
        Self::new(32, true),
    ];

    const fn new(flows: u16, without_offloads: bool) -> Self {
        Self {
            without_offloads,
            flows,
        }
    }
}

/// One number.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// The round, from 0 on.
    pub round: usize,
    /// The measure.
    pub measure: Measure,
    /// The contender that it is about.
    pub contender: Contender,
    /// The value, in the unit that the measure says.
    pub value: f64,
}

/// Every number of a run.
#[derive(Debug)]
pub struct Results {
    setup: String,
    lineup: Lineup,
    all: Vec<Measurement>,
    takeovers: Vec<Takeovers>,
}

impl Results {
    /// Creates an empty set, measured of these in this setup.
    pub fn new(setup: String, lineup: Lineup) -> Self {
        Self {
            setup,
            lineup,
            all: Vec::new(),
            takeovers: Vec::new(),
        }
    }

    /// Returns how the hosts and the box were set up.
    pub fn setup(&self) -> &str {
        &self.setup
    }

    /// Returns who was compared with whom.
    pub fn lineup(&self) -> Lineup {
        self.lineup
    }

    /// Notes a number.
    pub fn add(&mut self, measurement: Measurement) {
        self.all.push(measurement);
    }

    /// Notes what connections have seen when one process followed another.
    pub fn add_takeovers(&mut self, takeovers: Vec<Takeovers>) {
        self.takeovers.extend(takeovers);
    }

    /// Returns what connections have seen when one process followed another.
    pub fn takeovers(&self) -> &[Takeovers] {
        &self.takeovers
    }

    /// Returns all of them, in the order they were measured in.
    pub fn all(&self) -> &[Measurement] {
        &self.all
    }

    /// Returns what was measured, in the order that a reader expects.
    pub fn measures(&self) -> Vec<Measure> {
        let mut measures: Vec<_> = self.all.iter().map(|m| m.measure).collect();
        measures.sort_unstable();
        measures.dedup();
        measures
    }

    /// Returns the rounds that there are numbers of.
    pub fn rounds(&self) -> usize {
        self.all.iter().map(|m| m.round + 1).max().unwrap_or(0)
    }

    /// Returns a contender's numbers.
    pub fn summary(&self, measure: Measure, contender: Contender) -> Option<Summary> {
        Summary::of(self.by_round(measure, contender).into_values())
    }

    /// Returns a contender's numbers divided by another's of the same round.
    pub fn ratio(&self, measure: Measure, of: Contender, to: Contender) -> Option<Summary> {
        let base = self.by_round(measure, to);
        let ratios = self.by_round(measure, of).into_iter();
        Summary::of(ratios.filter_map(|(round, value)| {
            let base = base.get(&round).filter(|base| **base > 0.0)?;
            Some(value / base)
        }))
    }

    /// Returns a contender's numbers less plain forwarding's of the same round.
    pub fn above_plain(&self, measure: Measure, contender: Contender) -> Option<Summary> {
        let plain = self.by_round(measure, Contender::Plain);
        let values = self.by_round(measure, contender).into_iter();
        Summary::of(values.filter_map(|(round, value)| Some(value - plain.get(&round)?)))
    }

    fn by_round(&self, measure: Measure, contender: Contender) -> BTreeMap<usize, f64> {
        self.all
            .iter()
            .filter(|m| m.measure == measure && m.contender == contender)
            .map(|m| (m.round, m.value))
            .collect()
    }
}

/// The middle and the spread of a few numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Half of the numbers lie below, half above.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(*sorted.get(middle.checked_sub(1)?)?, upper)
        } else {
            upper
        };
        Some(Self {
            median,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }

    /// Returns the same in another unit.
    pub fn times(self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(values: &[(usize, Contender, f64)]) -> Results {
        let mut results = Results::new(String::new(), Lineup::Haproxy);
        for &(round, contender, value) in values {
            results.add(Measurement {
                round,
                measure: Measure::Short,
                contender,
                value,
            });
        }
        results
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine is ten times slower in the second round, and has no third for pepd.
        let results = results(&[
            (0, Contender::Plain, 100.0),
            (0, Contender::Pepd, 80.0),
            (1, Contender::Plain, 10.0),
            (1, Contender::Pepd, 9.0),
            (2, Contender::Plain, 50.0),
        ]);
        let ratio = results.ratio(Measure::Short, Contender::Pepd, Contender::Plain);
        let ratio = ratio.unwrap();
        assert!((ratio.median - 0.85).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.min - 0.8).abs() < 1e-9 && (ratio.max - 0.9).abs() < 1e-9);
        assert_eq!(results.rounds(), 3);
    }

    #[test]
    fn the_median_of_an_odd_and_of_an_even_number() {
        let of = |values: &[f64]| Summary::of(values.iter().copied());
        assert_eq!(of(&[3.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let results = results(&[(0, Contender::Plain, 0.0), (0, Contender::Pepd, 1.0)]);
        let ratio = results.ratio(Measure::Short, Contender::Pepd, Contender::Plain);
        assert_eq!(ratio, None);
    }
}
