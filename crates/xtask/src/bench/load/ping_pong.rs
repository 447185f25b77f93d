//! One byte there and one byte back, again and again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Window, break_off, float};
use crate::bench::interrupt::Interrupt;
use crate::bench::lane::Lane;

/// Round-trip times, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrips {
    /// The median.
    pub p50: f64,
    /// What one in a hundred exceeds.
    pub p99: f64,
}

/// Measures round trips over one connection.
///
/// # Errors
/// When the connection does not come about or fails.
pub fn run(lane: &Lane, window: Window, interrupt: &Interrupt) -> Result<RoundTrips> {
    interrupt.check()?;
    lane.checked(|| {
        let listener = lane.listen()?;
        let (client, server) = lane.connect(&listener)?;
        let mut times = thread::scope(|scope| {
            scope.spawn(|| echo(&server));
            let times = round_trips(&client, window.warm_up)
                .and_then(|_| round_trips(&client, window.counted));
            break_off(&client);
            times
        })?;
        times.sort_unstable();
        let round_trips = RoundTrips {
            p50: quantile(&times, 50)?,
            p99: quantile(&times, 99)?,
        };
        Ok((round_trips, 1))
    })
}

fn echo(mut stream: &TcpStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
}

fn round_trips(mut stream: &TcpStream, time: Duration) -> Result<Vec<Duration>> {
    let end = Instant::now() + time;
    let mut times = Vec::with_capacity(1 << 16);
    let mut byte = [0];
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(times);
        }
        stream.write_all(&byte).context("ping")?;
        stream.read_exact(&mut byte).context("pong")?;
        times.push(sent.elapsed());
    }
}

/// The value in `sorted` that `percent` of all do not exceed, in seconds (nearest rank).
fn quantile(sorted: &[Duration], percent: usize) -> Result<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    let value = sorted
        .get(rank.saturating_sub(1))
        .context("not a single round trip")?;
    Ok(float(u64::try_from(value.as_nanos())?) / 1e9)
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
