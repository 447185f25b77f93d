//! A new connection, a request, the first byte of the answer: one client, one after another.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{Shutdown as Both, shutdown};

use super::{Times, Window};
use crate::bench::interrupt::Interrupt;
use crate::bench::lane::Lane;

const REQUEST: [u8; 64] = [b'?'; 64];
const ANSWER: u8 = b'x';

/// The time after which whoever still waits fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures the time from before `connect(2)` to the first byte of the answer. The server closes
/// first, as in [`super::short`], and the client waits for that before it comes again: nobody
/// queues, and what is measured is the path.
///
/// # Errors
/// When a connection is not established or fails.
pub fn run(lane: &Lane, window: Window, interrupt: &Interrupt) -> Result<Times> {
    lane.checked(|| {
        let listener = lane.listen()?;
        let address = listener.local_addr()?;
        let (times, connections) = thread::scope(|scope| {
            scope.spawn(|| serve(&listener));
            let times = lane.client().run(|| {
                let warm_up = ask(address, window.warm_up, interrupt)?;
                let times = ask(address, window.counted, interrupt)?;
                let connections = warm_up.len() + times.len();
                Ok((times, connections))
            });
            // Ends `accept`.
            let _ = shutdown(listener.as_raw_fd(), Both::Read);
            times
        })?;
        Ok((Times::of(times)?, u64::try_from(connections)?))
    })
}

/// Serves one connection after another until the listener is shut down.
fn serve(listener: &TcpListener) {
    while let Ok((stream, _)) = listener.accept() {
        // The client notices.
        let _ = answer(&stream);
    }
}

fn answer(mut stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = REQUEST;
    stream.read_exact(&mut request)?;
    stream.write_all(&[ANSWER])?;
    Ok(stream.shutdown(Shutdown::Write)?)
}

fn ask(address: SocketAddr, time: Duration, interrupt: &Interrupt) -> Result<Vec<Duration>> {
    let end = Instant::now() + time;
    let mut times = Vec::with_capacity(1 << 14);
    while Instant::now() < end {
        interrupt.check()?;
        times.push(question(address)?);
    }
    Ok(times)
}

fn question(address: SocketAddr) -> Result<Duration> {
    let started = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).context("connect")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&REQUEST).context("request")?;
    let mut byte = [0];
    stream.read_exact(&mut byte).context("answer")?;
    let taken = started.elapsed();
    stream.read_to_end(&mut Vec::new()).context("end")?;
    Ok(taken)
}
