//! The upstream leg: a socket with the client's own address and port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use libc::EINPROGRESS;
use pepd_packet::Syn;
use pepd_sys::{sockopt, stream};
use socket2::{Domain, Socket};

use crate::call::Call;
use crate::settings::{Dscp, Leg};
use crate::sockopts::{self, SocketError};

/// The reasons why there is no upstream leg.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// A call failed before anything was sent.
    #[error("upstream leg: {0}")]
    Option(#[from] SocketError),
    /// A call failed.
    #[error("upstream leg: {call}: {source}")]
    Call { call: Call, source: io::Error },
    /// The destination did not answer in the leg's `connect_timeout`.
    #[error("upstream leg: no answer within connect_timeout")]
    Timeout,
    /// A process before this one has read more of the client than it has sent.
    #[error("upstream leg: the process before had bytes in hand when it died")]
    Unclear,
    /// The client left first.
    #[error("client leg: gave up while the upstream leg was opened")]
    ClientLeft,
}

impl UpstreamError {
    pub(crate) fn call(call: Call) -> impl Fn(io::Error) -> Self {
        move |source| Self::Call { call, source }
    }

    /// Gives the errno of the call that failed, if one did.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Option(error) => error.errno(),
            Self::Call { source, .. } => source.raw_os_error(),
            Self::Timeout | Self::Unclear | Self::ClientLeft => None,
        }
    }
}

/// An upstream socket whose connection is under way.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) socket: Socket,
    /// Whether it has the client's port, and not just its address.
    pub(crate) own_port: bool,
    /// Whether the SYN waits for the first data (Fast Open with a known cookie).
    pub(crate) deferred: bool,
}

/// Starts to connect `socket` from `client` to `destination`, with the options of the leg
/// towards it.
///
/// Where the client's port cannot be had (another socket on this host has it, or the very
/// 4-tuple is in TIME_WAIT), any port of the client's address is used.
pub(crate) fn connect(
    socket: Socket,
    client: SocketAddr,
    destination: SocketAddr,
    leg: &Leg,
    dscp: u8,
) -> Result<Connecting, UpstreamError> {
    let domain = Domain::for_address(destination);
    prepare(&socket, domain, leg, dscp)?;
    match bind_and_connect(&socket, client, destination) {
        Ok(deferred) => {
            return Ok(Connecting {
                socket,
                own_port: true,
                deferred,
            });
        }
        Err(error) if !port_is_taken(&error) => return Err(error),
        Err(_) => drop(socket),
    }
    // A socket that failed to connect keeps its port: a new one is needed.
    let socket = sockopts::new_socket(domain).map_err(UpstreamError::call(Call::Socket))?;
    prepare(&socket, domain, leg, dscp)?;
    sockopt::set_bind_address_no_port(socket.as_fd(), 1).map_err(SocketError::from)?;
    let any_port = SocketAddr::new(client.ip(), 0);
    let deferred = bind_and_connect(&socket, any_port, destination)?;
    Ok(Connecting {
        socket,
        own_port: false,
        deferred,
    })
}

/// Starts to connect `socket` from exactly the client's address and port, as its SYN asks for.
///
/// `first` is what the client says first, and may go out with the SYN; gives how much of it did.
/// Without it the client has not proved its address, and the destination's handshake does not end
/// before the leg has been claimed: the kernel puts the acknowledgement off for 200 ms
/// (tcp_rcv_synsent_state_process, net/ipv4/tcp_input.c; TCP_DELACK_MAX), and the capture withholds
/// what has the mark of an unclaimed leg.
pub(crate) fn connect_as(
    socket: &Socket,
    syn: &Syn,
    first: &[u8],
    leg: &Leg,
) -> Result<usize, UpstreamError> {
    let domain = Domain::for_address(syn.four_tuple.server);
    sockopts::set_transparent(socket, domain)?;
    let unclaimed = leg.unclaimed_mark.filter(|_| first.is_empty());
    sockopts::apply(socket, domain, leg, unclaimed.or(leg.upstream_mark))?;
    if unclaimed.is_some() {
        sockopt::set_quick_ack(socket.as_fd(), 0).map_err(SocketError::from)?;
    }
    copy_dscp(socket, domain, leg, syn.dscp)?;
    if let Some(mss) = shaped_mss(leg.mss, syn.mss) {
        sockopt::set_max_segment(socket.as_fd(), i32::from(mss)).map_err(SocketError::from)?;
    }
    if !first.is_empty() {
        sockopt::set_fast_open_connect(socket.as_fd(), 1).map_err(SocketError::from)?;
    }
    match bind_and_connect(socket, syn.four_tuple.client, syn.four_tuple.server)? {
        true => send_deferred(socket, first),
        // No cookie yet; the SYN asks for one.
        false => Ok(0),
    }
}

/// Gives the smaller of what the leg and the client's SYN say, within what a socket takes
/// (TCP_MIN_MSS and MAX_TCP_WINDOW in net/ipv4/tcp.c).
fn shaped_mss(leg: Option<u16>, syn: Option<u16>) -> Option<u16> {
    const SMALLEST: u16 = 88;
    const LARGEST: u16 = 32767;
    let mss = leg.unwrap_or(u16::MAX).min(syn.unwrap_or(u16::MAX));
    (mss <= LARGEST).then_some(mss.max(SMALLEST))
}

fn copy_dscp(socket: &Socket, domain: Domain, leg: &Leg, dscp: u8) -> Result<(), SocketError> {
    if leg.dscp == Dscp::Copy && dscp != 0 {
        sockopts::set_dscp(socket.as_fd(), domain, dscp)?;
    }
    Ok(())
}

fn prepare(socket: &Socket, domain: Domain, leg: &Leg, dscp: u8) -> Result<(), SocketError> {
    sockopts::set_transparent(socket, domain)?;
    sockopts::apply(socket, domain, leg, leg.upstream_mark)?;
    if leg.fast_open {
        sockopt::set_fast_open_connect(socket.as_fd(), 1)?;
    }
    copy_dscp(socket, domain, leg, dscp)
}

/// Binds and connects; gives whether the SYN was deferred.
fn bind_and_connect(
    socket: &Socket,
    from: SocketAddr,
    to: SocketAddr,
) -> Result<bool, UpstreamError> {
    socket
        .bind(&from.into())
        .map_err(UpstreamError::call(Call::Bind))?;
    match socket.connect(&to.into()) {
        // A non-blocking connect never finishes at once, but for Fast Open.
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => Ok(false),
        Err(error) => Err(UpstreamError::call(Call::Connect)(error)),
    }
}

fn port_is_taken(error: &UpstreamError) -> bool {
    matches!(error, UpstreamError::Call { source, .. } if matches!(
        source.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    ))
}

/// Sends the deferred SYN with `first`, which may be empty; gives how much of it went along.
pub(crate) fn send_deferred(socket: &Socket, first: &[u8]) -> Result<usize, UpstreamError> {
    match stream::send(socket.as_fd(), first) {
        Ok(len) => Ok(len),
        // The SYN is under way, without data.
        Err(error)
            if error.raw_os_error() == Some(EINPROGRESS)
                || error.kind() == io::ErrorKind::WouldBlock =>
        {
            Ok(0)
        }
        Err(error) => Err(UpstreamError::call(Call::Send)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mss_counts() {
        assert_eq!(shaped_mss(None, None), None);
        assert_eq!(shaped_mss(Some(1400), Some(1460)), Some(1400));
        assert_eq!(shaped_mss(None, Some(1460)), Some(1460));
        assert_eq!(shaped_mss(None, Some(65495)), None, "loopback's");
        assert_eq!(shaped_mss(None, Some(0)), Some(88));
    }
}
