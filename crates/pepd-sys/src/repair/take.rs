//! Taking one end of a connection out of its socket.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use pepd_packet::snapshot::{Agreed, Buffers, Fin, Receiving, Sending, Snapshot, Windows};
use socket2::{Domain, SockRef};

use super::{NO_QUEUE, OFF_WITH_PROBE, RECEIVE_QUEUE, SEND_QUEUE, deafen, end_of};
use crate::sockopt::{self, OptionError};
use crate::stream;
use crate::tcp_info::{TcpInfo, tcp_info};

// include/net/tcp_states.h
const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// The bits of ECN in a TOS byte (RFC 3168, section 5).
const ECN: u8 = 0b11;

/// How often a socket is looked at until nothing has come meanwhile.
const MOST_LOOKS: usize = 100;

/// More than the kernel puts into one piece of a queue (tcp_sendmsg_locked, net/ipv4/tcp.c): so much may
/// stand before what is not acknowledged.
const LARGEST_PIECE: usize = 1 << 20;

/// Why one end of a connection was not taken out of its socket, which is then as it was.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// It is no connection yet, or none any more.
    #[error(
        "its state in the kernel is {0}: only a connection that is established or half-closed can be taken"
    )]
    State(u8),
    /// Urgent data is to be read, whose place would be lost.
    #[error("urgent data is to be read first")]
    Urgent,
    /// The connection is not frozen: something comes all the time.
    #[error("something came while it was looked at: its packets are to be dropped meanwhile")]
    Changing,
    /// The kernel refused an option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The kernel refused another call.
    #[error("{call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

fn call(call: &'static str) -> impl Fn(io::Error) -> TakeError {
    move |source| TakeError::Call { call, source }
}

/// Takes one end of a connection out of its socket, which stays in repair mode and takes nothing that comes for it: it
/// says nothing more when it is closed by [`close_silently`], and [`give_back`] has it go on.
///
/// All packets of the connection are to be dropped in both directions before, and until then: repair mode
/// does not keep the kernel from sending what it has (net/ipv4/tcp.c).
///
/// What the kernel does not tell is lost: congestion window and round-trip times, what has come out of
/// order, and what the peer has said of it.
///
/// # Errors
/// Where the connection cannot be taken, or the kernel refuses a call (TCP_REPAIR: CAP_NET_ADMIN). The
/// socket has left repair mode then.
pub fn take(fd: BorrowedFd<'_>) -> Result<Snapshot, TakeError> {
    sockopt::set_repair(fd, 1)?;
    let deaf = deafen(fd).map_err(call("SO_ATTACH_FILTER"));
    let taken = deaf
        .and_then(|()| look_until_still(fd))
        .and_then(|snapshot| {
            sockopt::set_repair_queue(fd, NO_QUEUE)?;
            Ok(snapshot)
        });
    if taken.is_err() {
        // What was wrong first is what is told.
        let _ = give_back(fd);
    }
    taken
}

/// Has a socket go on that was taken from: it takes what comes, leaves repair mode, and asks its peer at once how things
/// are.
///
/// # Errors
/// As setsockopt(2).
pub fn give_back(fd: BorrowedFd<'_>) -> Result<(), OptionError> {
    sockopt::detach_filter(fd)?;
    sockopt::set_repair(fd, OFF_WITH_PROBE)?;
    sockopt::set_reuse_address(fd, 1)
}

/// Closes a socket without a word to its peer, whatever is in it: another one has its connection.
///
/// # Errors
/// As setsockopt(2). The socket is closed all the same, and as any other is.
pub fn close_silently(socket: OwnedFd) -> Result<(), OptionError> {
    sockopt::set_repair(socket.as_fd(), 1)
}

/// What would be another if something had come or gone.
#[derive(PartialEq, Eq)]
struct Still {
    state: u8,
    received: u32,
    unread: usize,
    unacknowledged: usize,
    unsent: usize,
}

impl Still {
    fn ask(fd: BorrowedFd<'_>) -> Result<Self, TakeError> {
        Ok(Self {
            state: info(fd)?.state,
            received: end_of(fd, RECEIVE_QUEUE)?,
            unread: stream::unread(fd).map_err(call("SIOCINQ"))?,
            unacknowledged: stream::unacknowledged(fd).map_err(call("SIOCOUTQ"))?,
            unsent: stream::unsent(fd).map_err(call("SIOCOUTQNSD"))?,
        })
    }
}

fn info(fd: BorrowedFd<'_>) -> Result<TcpInfo, TakeError> {
    tcp_info(fd).map_err(call("TCP_INFO"))
}

fn look_until_still(fd: BorrowedFd<'_>) -> Result<Snapshot, TakeError> {
    for _ in 0..MOST_LOOKS {
        let before = Still::ask(fd)?;
        // What changed meanwhile may be why it went wrong.
        let looked = look(fd, &before);
        if Still::ask(fd)? == before {
            return looked;
        }
    }
    Err(TakeError::Changing)
}

fn look(fd: BorrowedFd<'_>, still: &Still) -> Result<Snapshot, TakeError> {
    let (fin_sent, ended) = match still.state {
        ESTABLISHED => (false, false),
        FIN_WAIT1 | FIN_WAIT2 => (true, false),
        CLOSE_WAIT => (false, true),
        LAST_ACK | CLOSING => (true, true),
        other => return Err(TakeError::State(other)),
    };
    let socket = SockRef::from(&fd);
    let address = |of: io::Result<socket2::SockAddr>, name| {
        let none = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        of.and_then(|of| of.as_socket().ok_or_else(none))
            .map_err(call(name))
    };
    let [updated_by, send, largest, receive, announced_at] = sockopt::repair_window(fd)?;
    Ok(Snapshot {
        local: address(socket.local_addr(), "getsockname")?,
        peer: address(socket.peer_addr(), "getpeername")?,
        traffic_class: traffic_class(fd, &socket)?,
        agreed: agreed(fd)?,
        sending: sending(fd, still, fin_sent)?,
        receiving: Receiving {
            next: still.received,
            unread: unread(fd, still.unread)?,
            ended,
        },
        windows: Windows {
            updated_by,
            send,
            largest,
            receive,
            announced_at,
        },
        buffers: buffers(fd)?,
    })
}

fn traffic_class(fd: BorrowedFd<'_>, socket: &SockRef<'_>) -> Result<u8, TakeError> {
    let class = match socket.domain().map_err(call("SO_DOMAIN"))? {
        Domain::IPV4 => sockopt::tos_v4(fd)?,
        _ => sockopt::tclass_v6(fd)?,
    };
    Ok(u8::try_from(class).unwrap_or_default() & !ECN)
}

/// Returns the largest segment that the peer takes, and the path: the host that goes on with the connection does not
/// hear what routers have said of that here.
fn mss(fd: BorrowedFd<'_>, info: &TcpInfo) -> Result<u16, TakeError> {
    // The least headers of IP and TCP.
    let headers = match SockRef::from(&fd).domain().map_err(call("SO_DOMAIN"))? {
        Domain::IPV4 => 20 + 20,
        _ => 40 + 20,
    };
    // In repair mode this is what the peer takes.
    let peers = sockopt::max_segment(fd)?.cast_unsigned();
    let fits = match info.path_mtu {
        0 => peers,
        path_mtu => peers.min(path_mtu.saturating_sub(headers)),
    };
    Ok(u16::try_from(fits).unwrap_or(u16::MAX))
}

fn agreed(fd: BorrowedFd<'_>) -> Result<Agreed, TakeError> {
    let info = info(fd)?;
    let timestamp = match info.timestamps {
        true => Some(sockopt::timestamp(fd)?.cast_unsigned()),
        false => None,
    };
    Ok(Agreed {
        mss: mss(fd, &info)?,
        send_scale: info.send_scale,
        receive_scale: info.receive_scale,
        sack: info.sack,
        timestamp,
    })
}

fn sending(fd: BorrowedFd<'_>, still: &Still, has_fin: bool) -> Result<Sending, TakeError> {
    let end = end_of(fd, SEND_QUEUE)?;
    let fin_acknowledged = still.state == FIN_WAIT2;
    let fin_queued = usize::from(has_fin && !fin_acknowledged);
    let left = still.unacknowledged.saturating_sub(fin_queued);
    let mut bytes = Vec::new();
    if left > 0 {
        // In the queue is what is not acknowledged, and before it what belongs to the same piece.
        bytes.resize(left + LARGEST_PIECE, 0);
        let queued = stream::peek(fd, &mut bytes).map_err(call("recv"))?;
        bytes.truncate(queued);
        let before = bytes.len().checked_sub(left).ok_or(TakeError::Changing)?;
        bytes.drain(..before);
    }
    let fin = match (has_fin, still.unsent) {
        (false, _) => Fin::None,
        (true, 0) => Fin::Sent,
        (true, _) => Fin::Waits,
    };
    let unsent = still.unsent - usize::from(fin == Fin::Waits);
    let unsent = bytes.split_off(left.saturating_sub(unsent));
    let back = still.unacknowledged + usize::from(fin_acknowledged);
    Ok(Sending {
        sequence: end.wrapping_sub(u32::try_from(back).unwrap_or_default()),
        sent: bytes,
        unsent,
        fin,
    })
}

fn unread(fd: BorrowedFd<'_>, length: usize) -> Result<Vec<u8>, TakeError> {
    if stream::at_urgent_mark(fd).map_err(call("SIOCATMARK"))? {
        return Err(TakeError::Urgent);
    }
    let mut bytes = vec![0; length];
    if length > 0 {
        sockopt::set_repair_queue(fd, RECEIVE_QUEUE)?;
        // It ends before urgent data.
        if stream::peek(fd, &mut bytes).map_err(call("recv"))? < length {
            return Err(TakeError::Urgent);
        }
    }
    Ok(bytes)
}

fn buffers(fd: BorrowedFd<'_>) -> Result<Buffers, TakeError> {
    let size = |bytes: c_int| u32::try_from(bytes).unwrap_or_default();
    let fixed = sockopt::buffers_fixed(fd)?;
    Ok(Buffers {
        receive: size(sockopt::receive_buffer(fd)?),
        send: size(sockopt::send_buffer(fd)?),
        receive_fixed: fixed.receive,
        send_fixed: fixed.send,
    })
}
