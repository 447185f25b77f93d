//! Clients who ask the admin API as fast as it answers, beside a measurement.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::float;

/// The number that ask at once.
pub const CLIENTS: u16 = 1000;

/// The question that they ask: the one that costs the daemon most.
const QUESTION: &[u8] = b"GET /v1/flows?limit=10000 HTTP/1.1\r\nhost: bench\r\n\r\n";

/// A client has nothing on its stack.
const STACK: usize = 64 * 1024;

/// The difference from the precedence that the benchmark takes to that of other programs.
const NICER: i32 = 15;

/// Does `work` while the crowd asks at `socket`. Returns its result, and how many were answered
/// per second.
///
/// # Errors
/// Those of `work`, or that nobody was answered.
pub fn beside<T>(socket: &Path, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let started = Instant::now();
        let crowd = (0..CLIENTS).try_for_each(|_| {
            thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, || ask(socket, &over, &answered))
                .map(drop)
        });
        let result = crowd.context("start a client").and_then(|()| work());
        let rate = float(answered.load(Relaxed)) / started.elapsed().as_secs_f64();
        over.store(true, Relaxed);
        let result = result?;
        ensure!(rate > 0.0, "no client of the admin API was answered");
        Ok((result, rate))
    })
}

/// Asks until it is over; one who is turned away asks again.
fn ask(socket: &Path, over: &AtomicBool, answered: &AtomicU64) {
    // The point is what the daemon does, not what the crowd does to the hosts' programs.
    let _ = rustix::process::nice(NICER);
    let mut answer = Vec::new();
    while !over.load(Relaxed) {
        answer.clear();
        let asked = UnixStream::connect(socket).and_then(|mut stream| {
            stream.write_all(QUESTION)?;
            stream.read_to_end(&mut answer)
        });
        if asked.is_ok() && answer.starts_with(b"HTTP/1.1 200") {
            answered.fetch_add(1, Relaxed);
        }
    }
}
