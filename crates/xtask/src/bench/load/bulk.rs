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

/// The most that one read takes.
const READ_BYTES: usize = 256 * 1024;

/// What receivers do with what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ends {
    /// Have the kernel drop it, without a copy (MSG_TRUNC, tcp(7)): the path decides.
    Discard,
    /// Read it, as programs do: the hosts' copies take their share of the machine's cores.
    Read,
}

/// Counts the bytes that arrive over `flows` connections from the server to the client.
///
/// # Errors
/// When a connection is not established, or the proxy ends.
pub fn run(
    lane: &Lane,
    flows: u16,
    ends: Ends,
    window: Window,
    interrupt: &Interrupt,
) -> Result<Counted> {
    lane.checked(|| {
        let listener = lane.listen()?;
        let pairs = (0..flows)
            .map(|_| lane.connect(&listener))
            .collect::<Result<Vec<_>>>()?;
        let received: Vec<AtomicU64> = pairs.iter().map(|_| AtomicU64::new(0)).collect();
        let counted = thread::scope(|scope| {
            for ((client, server), received) in pairs.iter().zip(&received) {
                scope.spawn(|| send(server));
                scope.spawn(|| receive(client, ends, received));
            }
            let counted = window.watch(lane, interrupt, || {
                received.iter().map(|bytes| bytes.load(Relaxed)).sum()
            });
            for (client, server) in &pairs {
                break_off(server);
                break_off(client);
            }
            counted
        })?;
        Ok((counted, u64::from(flows)))
    })
}

fn send(mut stream: &TcpStream) {
    while stream.write_all(&BLOCK).is_ok() {}
}

fn receive(stream: &TcpStream, ends: Ends, received: &AtomicU64) {
    let flags = match ends {
        Ends::Discard => MsgFlags::MSG_TRUNC,
        Ends::Read => MsgFlags::empty(),
    };
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(length @ 1..) = recv(stream.as_raw_fd(), &mut buffer, flags) {
        received.fetch_add(length as u64, Relaxed);
    }
}
