//! One end of a connection in another socket, of this host or another.

use std::ffi::c_int;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pepd_packet::snapshot::{Agreed, Buffers, Fin, Sending, Snapshot, Windows};
use socket2::Socket;

use super::{NO_QUEUE, RECEIVE_QUEUE, SEND_QUEUE, deafen, give_back};
use crate::sockopt::{self, FixedBuffers, OptionError};
use crate::stream;
use crate::tcp_info::tcp_info;

// struct tcp_repair_opt (include/uapi/linux/tcp.h): TCPOPT_MAXSEG, TCPOPT_WINDOW, TCPOPT_SACK_PERM and
// TCPOPT_TIMESTAMP (include/net/tcp.h).
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK: u32 = 4;
const TIMESTAMP: u32 = 8;

/// What a socket takes as its largest segment (TCP_MIN_MSS and MAX_TCP_WINDOW, include/net/tcp.h).
const SMALLEST_MSS: u16 = 88;
const LARGEST_MSS: u16 = 32767;

/// By how much the clock of the timestamps goes on: reading it drops the lowest bit, and its peer takes
/// nothing that is older than what it has had (RFC 7323, section 5).
const CLOCK_STEP: u32 = 2;

/// The most that is put into a queue in one call.
const PIECE: usize = 64 * 1024;

/// The memory that bytes in a queue may take beyond themselves.
const ROOM: usize = 256 * 1024;

/// Why one end of a connection is not in a socket. There is no trace of it then.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot contradicts itself, or is nothing that the kernel could have told.
    #[error("the snapshot cannot be one: {0}")]
    Snapshot(&'static str),
    /// The kernel refused an option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The kernel refused another call: EADDRINUSE or EADDRNOTAVAIL where this host has such a connection,
    /// or EADDRNOTAVAIL where the address is not its own, and the socket not transparent.
    #[error("{call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel took less than it was given.
    #[error("{0}: the kernel has not taken all of it")]
    Short(&'static str),
}

impl RestoreError {
    /// Returns the errno of the call that failed, if one did.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Option(error) => error.errno(),
            Self::Call { source, .. } => source.raw_os_error(),
            Self::Snapshot(_) | Self::Short(_) => None,
        }
    }
}

fn call(call: &'static str) -> impl Fn(io::Error) -> RestoreError {
    move |source| RestoreError::Call { call, source }
}

/// One end of a connection in a socket that is still silent; dropped, it closes without a word to its peer.
#[derive(Debug)]
pub struct Restored {
    socket: Socket,
    /// What is said again as soon as it may speak.
    again: Vec<u8>,
    /// What is sent after that.
    rest: Vec<u8>,
    fin: bool,
    buffers: Buffers,
}

/// Puts one end of a connection into a new socket of its address family, which has the options that it is
/// to have (IP_TRANSPARENT, SO_MARK, TCP_CONGESTION and so on) and is neither bound nor connected. It has
/// TCP_NODELAY afterwards.
///
/// The socket is silent until [`Restored::activate`], and takes nothing that comes for it. Like [`take`](super::take) this
/// is for connections whose packets are dropped.
///
/// # Errors
/// Where the snapshot cannot be one, or the kernel refuses a call (TCP_REPAIR: CAP_NET_ADMIN).
pub fn restore(socket: Socket, snapshot: &Snapshot) -> Result<Restored, RestoreError> {
    check(snapshot)?;
    let fd = socket.as_fd();
    let (receiving, sending) = (&snapshot.receiving, &snapshot.sending);
    socket
        .set_tcp_nodelay(true)
        .map_err(call("set TCP_NODELAY"))?;
    let class = c_int::from(snapshot.traffic_class);
    match snapshot.local.is_ipv4() {
        true => sockopt::set_tos_v4(fd, class)?,
        false => sockopt::set_tclass_v6(fd, class)?,
    }
    hold(fd, sending, receiving.unread.len(), &snapshot.buffers)?;
    deafen(fd).map_err(call("SO_ATTACH_FILTER"))?;
    sockopt::set_repair(fd, 1)?;
    socket.bind(&snapshot.local.into()).map_err(call("bind"))?;
    // What is unread is put in after, and moves the number.
    let unread = length(&receiving.unread);
    set_end(fd, RECEIVE_QUEUE, receiving.next.wrapping_sub(unread))?;
    set_end(fd, SEND_QUEUE, sending.sequence)?;
    // Later the kernel would cut what is sent into pieces of 524 bytes until something is acknowledged.
    let mss = snapshot.agreed.mss.clamp(SMALLEST_MSS, LARGEST_MSS);
    sockopt::set_max_segment(fd, mss.into())?;
    socket
        .connect(&snapshot.peer.into())
        .map_err(call("connect"))?;
    agree(fd, &snapshot.agreed)?;
    put(fd, RECEIVE_QUEUE, &receiving.unread)?;
    let again = said_again(fd, snapshot)?;
    let (sent, again) = sending.sent.split_at(sending.sent.len() - again);
    put(fd, SEND_QUEUE, sent)?;
    set_windows(fd, &snapshot.windows, receiving.next)?;
    let fin_is_sent = sending.fin == Fin::Sent && again.is_empty() && !sending.sent.is_empty();
    if fin_is_sent {
        sockopt::set_repair_queue(fd, SEND_QUEUE)?;
        socket.shutdown(Shutdown::Write).map_err(call("shutdown"))?;
    }
    if stream::unsent(fd).map_err(call("SIOCOUTQNSD"))? > 0 {
        return Err(RestoreError::Short("what has been sent"));
    }
    sockopt::set_repair_queue(fd, NO_QUEUE)?;
    Ok(Restored {
        again: again.to_vec(),
        rest: sending.unsent.clone(),
        fin: sending.fin != Fin::None && !fin_is_sent,
        buffers: snapshot.buffers,
        socket,
    })
}

impl Restored {
    /// Has the socket speak, and gives it: it asks its peer at once how things are, and what is unsent is in
    /// its queue, with the FIN where there is one.
    ///
    /// From here on it closes as any other does.
    ///
    /// # Errors
    /// Where the kernel refuses a call. What the socket had is lost then: it closes without a word, or, once
    /// it has spoken, as any other does.
    pub fn activate(self) -> Result<OwnedFd, RestoreError> {
        let Self {
            socket,
            again,
            rest,
            fin,
            buffers,
        } = self;
        let fd = socket.as_fd();
        give_back(fd)?;
        // With what is unsent in one segment it might not fit the peer's window any more.
        send_all(&again, |piece| stream::send_apart(fd, piece))?;
        send_all(&rest, |piece| stream::send(fd, piece))?;
        if fin {
            socket.shutdown(Shutdown::Write).map_err(call("shutdown"))?;
        }
        release(fd, &buffers)?;
        Ok(socket.into())
    }
}

fn send_all(bytes: &[u8], send: impl Fn(&[u8]) -> io::Result<usize>) -> Result<(), RestoreError> {
    let mut left = bytes;
    while !left.is_empty() {
        match send(&left[..left.len().min(PIECE)]).map_err(call("send"))? {
            0 => return Err(RestoreError::Short("a queue")),
            sent => left = &left[sent..],
        }
    }
    Ok(())
}

/// Refuses what would have the kernel misunderstand it.
fn check(snapshot: &Snapshot) -> Result<(), RestoreError> {
    const LARGEST_SCALE: u8 = 14;
    let agreed = snapshot.agreed;
    let wrong = if snapshot.local.is_ipv4() != snapshot.peer.is_ipv4() {
        "addresses of two families"
    } else if agreed.send_scale.max(agreed.receive_scale) > LARGEST_SCALE {
        "a window is scaled by more than 14 bits"
    } else if snapshot.sending.fin == Fin::Sent && !snapshot.sending.unsent.is_empty() {
        "its FIN is sent before its data"
    } else {
        return Ok(());
    };
    Err(RestoreError::Snapshot(wrong))
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

fn set_end(fd: BorrowedFd<'_>, queue: c_int, sequence: u32) -> Result<(), OptionError> {
    sockopt::set_repair_queue(fd, queue)?;
    sockopt::set_queue_seq(fd, sequence.cast_signed())
}

/// Makes room for all that is put into the queues, with what the kernel needs for it.
fn hold(
    fd: BorrowedFd<'_>,
    sending: &Sending,
    unread: usize,
    buffers: &Buffers,
) -> Result<(), OptionError> {
    let size = |bytes: usize, had: u32| {
        let had = usize::try_from(had / 2).unwrap_or(usize::MAX);
        c_int::try_from(had.max(bytes + ROOM)).unwrap_or(c_int::MAX / 2)
    };
    let queued = sending.sent.len() + sending.unsent.len();
    sockopt::set_send_buffer(fd, size(queued, buffers.send))?;
    sockopt::set_receive_buffer(fd, size(unread, buffers.receive))
}

/// Gives the buffers the sizes that they had: what is in them stays.
fn release(fd: BorrowedFd<'_>, buffers: &Buffers) -> Result<(), OptionError> {
    let half = |bytes: u32| c_int::try_from(bytes / 2).unwrap_or(c_int::MAX / 2);
    sockopt::set_send_buffer(fd, half(buffers.send))?;
    sockopt::set_receive_buffer(fd, half(buffers.receive))?;
    sockopt::set_buffers_fixed(
        fd,
        FixedBuffers {
            send: buffers.send_fixed,
            receive: buffers.receive_fixed,
        },
    )
}

fn agree(fd: BorrowedFd<'_>, agreed: &Agreed) -> Result<(), OptionError> {
    sockopt::set_repair_option(fd, MSS, agreed.mss.into())?;
    // Where they are not scaled the kernel has to be told as well: it has chosen a shift of its own.
    let scales = u32::from(agreed.send_scale) | u32::from(agreed.receive_scale) << 16;
    sockopt::set_repair_option(fd, WINDOW_SCALE, scales)?;
    if agreed.sack {
        sockopt::set_repair_option(fd, SACK, 0)?;
    }
    if let Some(clock) = agreed.timestamp {
        sockopt::set_repair_option(fd, TIMESTAMP, 0)?;
        sockopt::set_timestamp(fd, clock.wrapping_add(CLOCK_STEP).cast_signed())?;
    }
    Ok(())
}

fn set_windows(fd: BorrowedFd<'_>, windows: &Windows, next: u32) -> Result<(), OptionError> {
    let Windows {
        updated_by,
        send,
        largest,
        receive,
        announced_at,
    } = *windows;
    // A kernel without memory takes its window back to nothing (tcp_select_window, net/ipv4/tcp_output.c), and
    // what has told it of the peer's may lie beyond it then; but none may that is set
    // (tcp_repair_set_window, net/ipv4/tcp.c). An older segment has the next one believed all the same.
    let edge = next.wrapping_add(receive);
    let is_beyond = updated_by.wrapping_sub(edge).cast_signed() > 0;
    let updated_by = if is_beyond { edge } else { updated_by };
    sockopt::set_repair_window(fd, [updated_by, send, largest, receive, announced_at])
}

/// Returns how much of what has been sent is sent once more: the last segment of it, if that may leave at
/// once. If it was lost nothing else would have the peer say so, and the timer begins with three seconds.
///
/// What may not leave at once must not be among what is to be sent: the kernel takes no acknowledgement of
/// it, and the peer may have it (tcp_ack, net/ipv4/tcp_input.c).
fn said_again(fd: BorrowedFd<'_>, snapshot: &Snapshot) -> Result<usize, RestoreError> {
    let info = tcp_info(fd).map_err(call("TCP_INFO"))?;
    let sending = &snapshot.sending;
    let segment = usize::try_from(info.mss).unwrap_or(usize::MAX).max(1);
    let window = usize::try_from(info.cwnd).unwrap_or(usize::MAX);
    // One for what is cut differently, and one for a FIN.
    let in_flight = sending.sent.len().div_ceil(segment) + 2;
    // It had room in the peer's window when it was sent, unless that has taken some of it back since.
    let fin = u32::from(sending.fin == Fin::Sent);
    let fits = length(&sending.sent).saturating_add(fin) <= snapshot.windows.send;
    Ok(match in_flight <= window && fits {
        true => sending.sent.len().min(segment),
        false => 0,
    })
}

/// Puts bytes into a queue.
fn put(fd: BorrowedFd<'_>, queue: c_int, bytes: &[u8]) -> Result<(), RestoreError> {
    sockopt::set_repair_queue(fd, queue)?;
    send_all(bytes, |piece| stream::send(fd, piece))
}

impl AsFd for Restored {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
