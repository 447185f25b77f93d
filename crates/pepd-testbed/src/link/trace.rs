//! Rates that change with time, as a cellular link's do.

use std::{fmt, io, path::Path, path::PathBuf, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

use super::units::{Rate, RateError};

/// The least length of a repeating trace: a packet must not have to walk through millions of
/// repetitions.
const SHORTEST_PERIOD: Duration = Duration::from_millis(1);

/// A rate over time: a step function, which may repeat.
///
/// As text (and so in a file) one step per line, the time in seconds and the rate from then on;
/// `#` starts a comment. The first step is at 0. The last rate holds for ever, unless a final
/// line `repeat SECONDS` starts it all again at that time.
///
/// ```text
/// # a handover every minute
/// 0     20Mbit
/// 58.5  0bit
/// 59.2  4Mbit
/// repeat 60
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Trace {
    steps: Vec<(Duration, Rate)>,
    period: Option<Duration>,
}

impl Trace {
    /// Returns the trace that has each rate from its time on, repeated every `period` if one is
    /// given.
    ///
    /// # Errors
    /// [`TraceError`] if the first time is not 0, times do not rise, the period ends before the
    /// last step or within 1 ms, or a repeating trace never carries anything.
    pub fn new(steps: Vec<(Duration, Rate)>, period: Option<Duration>) -> Result<Self, TraceError> {
        if steps.first().is_none_or(|(at, _)| !at.is_zero()) {
            return Err(TraceError::Start);
        }
        if let Some(pair) = steps.windows(2).find(|pair| pair[1].0 <= pair[0].0) {
            return Err(TraceError::Order { at: pair[1].0 });
        }
        if let Some(period) = period {
            let last = steps.last().map_or(Duration::ZERO, |(at, _)| *at);
            if period <= last || period < SHORTEST_PERIOD {
                return Err(TraceError::Period { period, last });
            }
            if steps.iter().all(|(_, rate)| rate.as_bits_per_second() == 0) {
                return Err(TraceError::Idle);
            }
        }
        Ok(Self { steps, period })
    }

    /// Reads the trace from a file.
    ///
    /// # Errors
    /// [`TraceError::Read`] with the file's name and errno; otherwise as [`Trace::from_str`].
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        std::fs::read_to_string(path)
            .map_err(|source| TraceError::Read {
                path: path.to_owned(),
                source,
            })?
            .parse()
            .map_err(|source| TraceError::In {
                path: path.to_owned(),
                source: Box::new(source),
            })
    }

    /// Returns the steps: from which time after the start, and how fast.
    #[must_use]
    pub fn steps(&self) -> &[(Duration, Rate)] {
        &self.steps
    }

    /// Returns the time after which it all begins again.
    #[must_use]
    pub const fn period(&self) -> Option<Duration> {
        self.period
    }
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the rate trace {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file was read, but is not a trace.
    #[error("in the rate trace {path}")]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong in the line.
        source: Box<TraceError>,
    },
    /// A line is neither a step nor the repetition.
    #[error("line {line}: `{text}`: expected `SECONDS RATE`, or `repeat SECONDS` as the last line")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// The rate of a step cannot be read.
    #[error("line {line}")]
    Rate {
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with the rate.
        source: RateError,
    },
    /// There is no rate for the beginning.
    #[error("the rate at time 0 is missing: the first step has to be at 0")]
    Start,
    /// The steps are not in order.
    #[error("the step at {at:?} does not come after the one before it: sort the steps by time")]
    Order {
        /// The time of the step.
        at: Duration,
    },
    /// The trace repeats too early.
    #[error(
        "a trace cannot repeat after {period:?}: its last step is at {last:?}, and the period must be later and at least 1 ms"
    )]
    Period {
        /// The period given.
        period: Duration,
        /// The last step's time.
        last: Duration,
    },
    /// The trace repeats, and is zero throughout.
    #[error("a repeating trace with no rate above zero carries nothing: give one step a rate")]
    Idle,
}

impl FromStr for Trace {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let mut steps = Vec::new();
        let mut period = None;
        for (index, full) in text.lines().enumerate() {
            let line = index + 1;
            let bare = full.split('#').next().unwrap_or_default();
            let wrong = || TraceError::Line {
                line,
                text: full.trim().to_owned(),
            };
            let mut words = bare.split_whitespace();
            let (first, second) = match (words.next(), words.next(), words.next()) {
                (None, ..) => continue,
                (Some(first), Some(second), None) if period.is_none() => (first, second),
                _ => return Err(wrong()),
            };
            if first == "repeat" {
                period = Some(seconds(second).ok_or_else(wrong)?);
            } else {
                let at = seconds(first).ok_or_else(wrong)?;
                let rate = second
                    .parse()
                    .map_err(|source| TraceError::Rate { line, source })?;
                steps.push((at, rate));
            }
        }
        Self::new(steps, period)
    }
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, rate) in &self.steps {
            writeln!(f, "{} {rate}", at.as_secs_f64())?;
        }
        self.period.map_or(Ok(()), |period| {
            writeln!(f, "repeat {}", period.as_secs_f64())
        })
    }
}

impl TryFrom<String> for Trace {
    type Error = TraceError;

    fn try_from(text: String) -> Result<Self, TraceError> {
        text.parse()
    }
}

impl From<Trace> for String {
    fn from(trace: Trace) -> Self {
        trace.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_reads_back_as_written() {
        let text = "# a comment\n\n0 20Mbit\n58.5 0bit # handover\n59.2 4Mbit\nrepeat 60\n";
        let trace: Trace = text.parse().unwrap();
        assert_eq!(trace.steps().len(), 3);
        assert_eq!(
            trace.steps()[1],
            (Duration::from_millis(58_500), Rate::mbit(0))
        );
        assert_eq!(trace.period(), Some(Duration::from_secs(60)));
        assert_eq!(trace.to_string().parse::<Trace>().unwrap(), trace);
    }

    #[test]
    fn an_error_names_the_line() {
        let error = "0 1Mbit\n1 fast".parse::<Trace>().unwrap_err();
        assert!(matches!(error, TraceError::Rate { line: 2, .. }), "{error}");
        for text in [
            "0 1Mbit\n1",
            "0 1Mbit\n-1 2Mbit",
            "0 1Mbit\nrepeat 2\n3 1Mbit",
            "0 1Mbit x",
        ] {
            let error = text.parse::<Trace>().unwrap_err();
            assert!(matches!(error, TraceError::Line { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn a_trace_that_cannot_run_is_refused() {
        let refused = |text: &str| text.parse::<Trace>().unwrap_err();
        assert!(matches!(refused(""), TraceError::Start));
        assert!(matches!(refused("1 1Mbit"), TraceError::Start));
        assert!(matches!(
            refused("0 1Mbit\n2 2Mbit\n2 3Mbit"),
            TraceError::Order { .. }
        ));
        assert!(matches!(
            refused("0 1Mbit\n2 2Mbit\nrepeat 2"),
            TraceError::Period { .. }
        ));
        assert!(matches!(
            refused("0 1Mbit\nrepeat 0.0005"),
            TraceError::Period { .. }
        ));
        assert!(matches!(refused("0 0bit\nrepeat 1"), TraceError::Idle));
    }
}
