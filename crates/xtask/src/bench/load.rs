//! The traffic, and what is counted of it.

pub mod bulk;
pub mod idle;
pub mod ping_pong;
pub mod short;

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::interrupt::Interrupt;
use super::lane::Lane;

/// How long a measurement is let run before it counts, and how long it then counts.
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
    /// Of what was counted.
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

/// Ends a connection under the feet of whoever reads or writes on it.
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
