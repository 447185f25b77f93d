//! Short connections: a request, an answer of 1 KiB, the end.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{Shutdown as Both, shutdown};

use super::{Counted, Window, float};
use crate::bench::interrupt::Interrupt;
use crate::bench::lane::Lane;

const REQUEST_BYTES: usize = 64;
const ANSWER_BYTES: usize = 1024;

/// Clients at once, each with one connection at a time.
const CLIENTS: usize = 16;
/// More threads than clients: one may still be closing when its client is back already.
const SERVERS: usize = 2 * CLIENTS;

/// No connection waits longer; a failed one is counted, and no answer is a failure.
const PATIENCE: Duration = Duration::from_secs(10);

/// The results of the connections.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    /// Those that got their answer.
    pub answered: Counted,
    /// The share of all that did not, from 0 to 1.
    pub failed: f64,
}

#[derive(Debug, Default)]
struct Totals {
    answered: AtomicU64,
    failed: AtomicU64,
    over: AtomicBool,
}

/// Counts connections that are opened, answered with 1 KiB and closed, by the server first (so
/// that TIME_WAIT is its affair, and the client's ports are free again at once).
///
/// # Errors
/// When the server cannot listen, nothing is answered, or the proxy ends.
pub fn run(lane: &Lane, window: Window, interrupt: &Interrupt) -> Result<Short> {
    lane.checked(|| {
        let listener = lane.listen()?;
        let address = listener.local_addr()?;
        let totals = Totals::default();
        let client = lane.client();
        let answered = thread::scope(|scope| {
            for _ in 0..SERVERS {
                scope.spawn(|| serve(&listener));
            }
            for _ in 0..CLIENTS {
                scope.spawn(|| client.run(|| ask(address, &totals)));
            }
            let answered = window.watch(lane, interrupt, || totals.answered.load(Relaxed));
            totals.over.store(true, Relaxed);
            // Clients first: those whose connection the server no longer takes would wait.
            let _ = shutdown(listener.as_raw_fd(), Both::Read);
            answered
        })?;
        ensure!(answered.per_second > 0.0, "no connection was answered");
        let (good, bad) = (totals.answered.load(Relaxed), totals.failed.load(Relaxed));
        let short = Short {
            answered,
            failed: float(bad) / float(good + bad),
        };
        Ok((short, good))
    })
}

/// Serves one connection after another until the listener is shut down.
fn serve(listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        // A client that fails counts it.
        let _ = answer(&stream);
    }
}

fn answer(mut stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST_BYTES];
    stream.read_exact(&mut request)?;
    stream.write_all(&[b'x'; ANSWER_BYTES])?;
    Ok(stream.shutdown(Shutdown::Write)?)
}

/// Opens one connection after another until it is over.
fn ask(address: SocketAddr, totals: &Totals) -> Result<()> {
    while !totals.over.load(Relaxed) {
        let outcome = question(address);
        if totals.over.load(Relaxed) {
            break;
        }
        let total = match outcome {
            Ok(()) => &totals.answered,
            Err(_) => &totals.failed,
        };
        total.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn question(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[b'?'; REQUEST_BYTES])?;
    let mut answer = [0; ANSWER_BYTES + 1];
    let mut length = 0;
    loop {
        match stream.read(&mut answer[length..])? {
            0 => break,
            more => length += more,
        }
        ensure!(length <= ANSWER_BYTES, "more than was sent");
    }
    ensure!(length == ANSWER_BYTES, "{length} bytes of {ANSWER_BYTES}");
    Ok(())
}
