//! One byte there and one byte back, again and again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Times, Window, break_off};
use crate::bench::interrupt::Interrupt;
use crate::bench::lane::Lane;

/// Measures round trips over one connection.
///
/// # Errors
/// When the connection is not established or fails.
pub fn run(lane: &Lane, window: Window, interrupt: &Interrupt) -> Result<Times> {
    interrupt.check()?;
    lane.checked(|| {
        let listener = lane.listen()?;
        let (client, server) = lane.connect(&listener)?;
        let times = thread::scope(|scope| {
            scope.spawn(|| echo(&server));
            let times = round_trips(&client, window.warm_up)
                .and_then(|_| round_trips(&client, window.counted));
            break_off(&client);
            times
        })?;
        Ok((Times::of(times)?, 1))
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
