//! The TCP sockets of a namespace, from the kernel's own tables: no program is started to read
//! them, which on a busy machine takes a second, and no server sees a connection.

use anyhow::{Context as _, Result};
use procfs::net::{Snmp, TcpNetEntries, TcpNetEntry, TcpState};
use procfs::{FromRead as _, FromReadSI as _, current_system_info};

use crate::netns::Netns;
use crate::traffic::Pair;

/// Returns all TCP sockets in `netns` with a state, of both families.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn tcp_sockets(netns: &Netns) -> Result<Vec<TcpNetEntry>> {
    netns.run(|| {
        let mut sockets = Vec::new();
        for table in ["tcp", "tcp6"] {
            let path = format!("/proc/thread-self/net/{table}");
            let read = TcpNetEntries::from_file(&path, current_system_info()).context(path)?;
            sockets.extend(read.0);
        }
        Ok(sockets)
    })
}

/// Returns true if something in `netns` listens on `port`.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn listens(netns: &Netns, port: u16) -> Result<bool> {
    let sockets = tcp_sockets(netns)?;
    Ok(sockets
        .iter()
        .any(|socket| socket.state == TcpState::Listen && socket.local_address.port() == port))
}

/// Returns how many TCP sockets in `netns` are established now: on the helper box, two for each
/// connection that is split.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn established(netns: &Netns) -> Result<usize> {
    let sockets = tcp_sockets(netns)?;
    let established = |socket: &&TcpNetEntry| socket.state == TcpState::Established;
    Ok(sockets.iter().filter(established).count())
}

/// Returns the bytes that wait to be read in the established sockets in `netns` whose peer has
/// `port`.
///
/// # Errors
/// When the kernel's tables cannot be read.
pub fn unread(netns: &Netns, port: u16) -> Result<usize> {
    let sockets = tcp_sockets(netns)?;
    let queues = sockets
        .iter()
        .filter(|socket| socket.state == TcpState::Established)
        .filter(|socket| socket.remote_address.port() == port)
        .map(|socket| socket.rx_queue as usize);
    Ok(queues.sum())
}

/// Returns how many TCP connections sockets in `netns` have accepted so far (`PassiveOpens`, RFC
/// 4022 section 3): on the helper box, how many were split. Routed ones leave it as it is.
///
/// Where two processors take the end of a handshake and what follows it at the same moment, the
/// kernel counts the connection twice, and then drops one of the two sockets
/// (tcp_create_openreq_child, inet_csk_complete_hashdance). So the number may be too high, and zero
/// is certain once the connection has carried a byte: a client's end is up before its last
/// acknowledgement has been processed here.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn accepted(netns: &Netns) -> Result<u64> {
    let path = "/proc/thread-self/net/snmp";
    netns.run(|| Ok(Snmp::from_file(path).context(path)?.tcp_passive_opens))
}

/// Returns the connection that `open` makes, with a byte carried each way, and whether the helper
/// box in `netns` has split it.
///
/// # Errors
/// Those of `open`, and when no byte crosses.
pub fn splits(netns: &Netns, open: impl FnOnce() -> Result<Pair>) -> Result<(Pair, bool)> {
    let before = accepted(netns)?;
    let pair = open()?;
    pair.exchange(1)?;
    Ok((pair, accepted(netns)? > before))
}
