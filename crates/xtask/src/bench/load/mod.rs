//! The traffic, and what is counted of it.

pub mod bulk;
pub mod crowd;
pub mod first_byte;
pub mod idle;
pub mod ping_pong;
pub mod short;

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::interrupt::Interrupt;
use super::lane::Lane;

/// The time that a measurement runs before it counts, and the time for which it then counts.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Slow start, autotuning of buffers, the first page faults.
    pub warm_up: Duration,
    /// What counts.
    pub counted: Duration,
}

/// What happened in a window.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The rate of what was counted.
    pub per_second: f64,
    /// The proxy's CPU seconds for each of what was counted; `None` without a proxy.
    pub cpu_seconds_each: Option<f64>,
}

impl Window {
    /// Watches a load that is under way; `count` is what has been counted of it so far.
    fn watch(self, lane: &Lane, interrupt: &Interrupt, count: impl Fn() -> u64) -> Result<Counted> {
        interrupt.wait(self.warm_up)?;
        let (started, from, cpu_from) = (Instant::now(), count(), lane.cpu_seconds()?);
        interrupt.wait(self.counted)?;
        let (seconds, to, cpu_to) = (
            started.elapsed().as_secs_f64(),
            count(),
            lane.cpu_seconds()?,
        );
        let counted = float(to - from);
        let cpu = cpu_from.zip(cpu_to).map(|(from, to)| to - from);
        Ok(Counted {
            per_second: counted / seconds,
            cpu_seconds_each: cpu.map(|cpu| cpu / counted),
        })
    }
}

/// The times that something took, again and again, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The median.
    pub p50: f64,
    /// The time that one in a hundred exceeds.
    pub p99: f64,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Result<Self> {
        times.sort_unstable();
        Ok(Self {
            p50: quantile(&times, 50)?,
            p99: quantile(&times, 99)?,
        })
    }
}

/// Returns the value in `sorted` that `percent` of all do not exceed, in seconds (nearest rank).
///
/// # Errors
/// When there is none.
pub fn quantile(sorted: &[Duration], percent: usize) -> Result<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    let value = sorted
        .get(rank.saturating_sub(1))
        .context("nothing happened in time")?;
    Ok(float(u64::try_from(value.as_nanos())?) / 1e9)
}

/// Ends a connection on which others still read or write.
fn break_off(stream: &TcpStream) {
    // It may have ended already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Exact below 2⁵³: nine petabytes.
#[allow(
    clippy::cast_precision_loss,
    reason = "what is measured here is far below 2^53"
)]
pub fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_nearest_rank() {
        let times: Vec<_> = (1..=200).map(Duration::from_secs).collect();
        assert!((quantile(&times, 50).unwrap() - 100.0).abs() < 1e-9);
        assert!((quantile(&times, 99).unwrap() - 198.0).abs() < 1e-9);
        assert!((quantile(&times[..1], 99).unwrap() - 1.0).abs() < 1e-9);
        assert!(quantile(&[], 50).is_err());
    }
}
