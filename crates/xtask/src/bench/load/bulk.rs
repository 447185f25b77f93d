//! Downloads, as many bytes as go through.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use anyhow::Result;
use nix::sys::socket::{MsgFlags, recv};

use super::{Counted, Window, break_off};
use crate::bench::interrupt::Interrupt;
use crate::bench::lane::Lane;

/// One write of a sender: large, and the same memory again and again, so that it stays in the
/// cache and costs the sender as little as a write can.
static BLOCK: [u8; 128 * 1024] = [b'x'; 128 * 1024];

/// The most that one read discards.
const READ_BYTES: usize = 1024 * 1024;

/// Counts the bytes that arrive over `flows` connections from the server to the client.
///
/// # Errors
/// When a connection does not come about, or the proxy ends.
pub fn run(lane: &Lane, flows: u16, window: Window, interrupt: &Interrupt) -> Result<Counted> {
    lane.checked(u64::from(flows), || {
        let listener = lane.listen()?;
        let pairs = (0..flows)
            .map(|_| lane.connect(&listener))
            .collect::<Result<Vec<_>>>()?;
        let received: Vec<AtomicU64> = pairs.iter().map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for ((client, server), received) in pairs.iter().zip(&received) {
                scope.spawn(|| send(server));
                scope.spawn(|| discard(client, received));
            }
            let counted = window.watch(lane, interrupt, || {
                received.iter().map(|bytes| bytes.load(Relaxed)).sum()
            });
            for (client, server) in &pairs {
                break_off(server);
                break_off(client);
            }
            counted
        })
    })
}

fn send(mut stream: &TcpStream) {
    while stream.write_all(&BLOCK).is_ok() {}
}

/// Counts what arrives and has the kernel drop it, without a copy (MSG_TRUNC, tcp(7)).
fn discard(stream: &TcpStream, received: &AtomicU64) {
    let mut untouched = vec![0; READ_BYTES];
    while let Ok(length @ 1..) = recv(stream.as_raw_fd(), &mut untouched, MsgFlags::MSG_TRUNC) {
        received.fetch_add(length as u64, Relaxed);
    }
}
