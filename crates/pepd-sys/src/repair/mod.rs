//! What the kernel tells of a connection only while it is in repair mode, and takes of it (TCP_REPAIR,
//! net/ipv4/tcp.c; CAP_NET_ADMIN).
//!
//! [`take`] has all of one end of a connection, and [`restore`] puts that into another socket, on this host or
//! another.

mod restore;
mod take;

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

use socket2::{SockFilter, SockRef};

use crate::sockopt::{self, OptionError};
use crate::stream;
use crate::tcp_info::tcp_info;

pub use self::restore::{RestoreError, Restored, restore};
pub use self::take::{TakeError, close_silently, give_back, take};

/// TCP_NO_QUEUE: neither.
const NO_QUEUE: c_int = 0;
/// TCP_RECV_QUEUE (include/uapi/linux/tcp.h).
const RECEIVE_QUEUE: c_int = 1;
/// TCP_SEND_QUEUE.
const SEND_QUEUE: c_int = 2;
/// TCP_REPAIR_OFF: out of repair mode with a probe of the window.
const OFF_WITH_PROBE: c_int = 0;
/// TCP_REPAIR_OFF_NO_WP: out of repair mode without a probe of the window.
const OFF_WITHOUT_PROBE: c_int = -1;

/// How far a clock of timestamps is put forward: by so much that the kernel takes no round-trip time from
/// an echo of what it said before (tcp_ack_update_rtt, net/ipv4/tcp_input.c), in milliseconds. Even,
/// since the lowest bit is a flag of newer kernels (do_tcp_setsockopt, net/ipv4/tcp.c).
const FORWARD: c_int = i32::MAX / 1000 + 1;

/// The states in which the socket has queued a FIN that is not acknowledged
/// (include/net/tcp_states.h): FIN-WAIT-1, LAST-ACK and CLOSING.
const FIN_QUEUED: [u8; 3] = [4, 9, 11];

/// Returns whether a socket is in repair mode.
#[must_use]
pub fn is_on(fd: BorrowedFd<'_>) -> bool {
    sockopt::repair(fd).is_ok_and(|mode| mode == 1)
}

/// What was read in repair mode, or why it was not.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// An option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Another call.
    #[error(transparent)]
    Call(#[from] io::Error),
}

/// What a socket would say in a segment now, besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sequence number of its first byte.
    pub sequence: u32,
    /// RCV.NXT (RFC 9293, section 3.3.1): what is expected from the peer.
    pub acknowledgement: u32,
    /// RCV.WND, in bytes: how much of it is taken.
    pub window: u32,
    /// The clock that the socket's timestamps come from (RFC 7323, section 4).
    pub timestamp: u32,
}

/// Returns the sequence number of what the socket sends next: of one that connects, that after its
/// SYN and what went with it.
///
/// For five system calls the socket is in repair mode, which does not concern what it receives. It
/// has SO_REUSEADDR afterwards, which leaving that mode takes from it.
///
/// # Errors
/// As setsockopt(2) and getsockopt(2).
pub fn next_sequence(fd: BorrowedFd<'_>) -> Result<u32, OptionError> {
    in_repair(fd, || end_of(fd, SEND_QUEUE))
}

/// Returns the header of a segment without data (RFC 9293, section 3.10.7.4), with SND.NXT, of an
/// established socket.
///
/// The socket is in repair mode for that, as for [`next_sequence`].
///
/// # Errors
/// As setsockopt(2), getsockopt(2) and ioctl(2).
pub fn acknowledgement(fd: BorrowedFd<'_>) -> Result<Header, RepairError> {
    in_repair(fd, || {
        let unsent = u32::try_from(stream::unsent(fd)?).unwrap_or_default();
        header(fd, end_of(fd, SEND_QUEUE)?.wrapping_sub(unsent))
    })
}

/// Returns what an established socket has sent first of what is not acknowledged, at most `most`
/// bytes, with its header; none where that is nothing, or an acknowledgement comes meanwhile.
///
/// The socket is in repair mode for that, as for [`next_sequence`].
///
/// # Errors
/// As setsockopt(2), getsockopt(2), ioctl(2) and recv(2).
pub fn unacknowledged(
    fd: BorrowedFd<'_>,
    most: usize,
) -> Result<Option<(Header, Vec<u8>)>, RepairError> {
    in_repair(fd, || {
        let end = end_of(fd, SEND_QUEUE)?;
        let left = stream::unacknowledged(fd)?;
        let sent = left.saturating_sub(stream::unsent(fd)?);
        let fin = usize::from(FIN_QUEUED.contains(&tcp_info(fd)?.state));
        // In the queue is what is not acknowledged, and before it what belongs to the same segment.
        let mut bytes = vec![0; 2 * most];
        let queued = stream::peek(fd, &mut bytes)?;
        // The beginning of the queue moves only as this does, and nobody else writes to its end.
        if stream::unacknowledged(fd)? != left {
            return Ok(None);
        }
        let Some(before) = (queued + fin).checked_sub(left) else {
            return Ok(None);
        };
        let length = most.min(sent).min(queued.saturating_sub(before));
        let Some(bytes) = bytes.get(before..before + length) else {
            return Ok(None);
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        let first = end.wrapping_sub(u32::try_from(left).unwrap_or_default());
        Ok(Some((header(fd, first)?, bytes.to_vec())))
    })
}

/// Has an established socket take no round-trip time from acknowledgements of what it has sent so far,
/// by putting the clock of its timestamps 36 minutes forward. For its peer that is some time without a
/// packet (RFC 7323, section 5). Without timestamps it does nothing.
///
/// The socket is in repair mode for that, as for [`next_sequence`].
///
/// # Errors
/// As setsockopt(2) and getsockopt(2).
pub fn forget_echoes(fd: BorrowedFd<'_>) -> Result<(), OptionError> {
    in_repair(fd, || {
        let now = sockopt::timestamp(fd)?;
        sockopt::set_timestamp(fd, now.wrapping_add(FORWARD))
    })
}

/// Reads, in repair mode, what a segment says that begins at `sequence`.
fn header(fd: BorrowedFd<'_>, sequence: u32) -> Result<Header, RepairError> {
    let [.., room, since] = sockopt::repair_window(fd)?;
    let acknowledgement = end_of(fd, RECEIVE_QUEUE)?;
    let window = since.wrapping_add(room).wrapping_sub(acknowledgement);
    Ok(Header {
        sequence,
        acknowledgement,
        // What was announced may have been used up.
        window: u32::try_from(window.cast_signed()).unwrap_or_default(),
        timestamp: sockopt::timestamp(fd)?.cast_unsigned(),
    })
}

/// Reads something while the socket is in repair mode.
fn in_repair<T, E: From<OptionError>>(
    fd: BorrowedFd<'_>,
    read: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    sockopt::set_repair(fd, 1)?;
    let result = read();
    sockopt::set_repair(fd, OFF_WITHOUT_PROBE)?;
    sockopt::set_reuse_address(fd, 1)?;
    result
}

/// Returns the sequence number at the end of a queue.
fn end_of(fd: BorrowedFd<'_>, queue: c_int) -> Result<u32, OptionError> {
    sockopt::set_repair_queue(fd, queue)?;
    sockopt::queue_seq(fd).map(c_int::cast_unsigned)
}

/// Has an established socket ask its peer at once how much that would take (tcp_send_window_probe,
/// net/ipv4/tcp_output.c), whatever its timer says.
///
/// # Errors
/// As setsockopt(2).
pub fn probe_window(fd: BorrowedFd<'_>) -> Result<(), OptionError> {
    sockopt::set_repair(fd, 1)?;
    give_back(fd)
}

/// Has a socket take nothing that comes for it (SO_ATTACH_FILTER; tcp_filter, net/ipv4/tcp_ipv4.c), until it is given
/// back: what it would acknowledge while somebody else is about to have its connection would be nobody's. That its packets
/// are dropped before is not enough, as somebody may empty the host's tables meanwhile.
///
/// # Errors
/// As setsockopt(2).
fn deafen(fd: BorrowedFd<'_>) -> io::Result<()> {
    /// BPF_RET | BPF_K (include/uapi/linux/bpf_common.h): returns how much of a packet is left.
    const RETURN: u16 = 6;
    SockRef::from(&fd).attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn the_number_after_the_syn_is_told() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        // Nobody is there (RFC 5737), or there is no route.
        let nowhere: SocketAddr = "192.0.2.1:9".parse().unwrap();
        let connecting = socket
            .connect(&nowhere.into())
            .is_err_and(|error| error.raw_os_error() == Some(libc::EINPROGRESS));
        // Without CAP_NET_ADMIN it is not told.
        let Ok(first) = next_sequence(socket.as_fd()) else {
            return;
        };
        assert_eq!(next_sequence(socket.as_fd()).unwrap(), first);
        assert_eq!(first != 0, connecting);
        assert!(socket.reuse_address().unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn what_is_not_acknowledged_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let Ok(first) = next_sequence(sender.as_fd()) else {
            // Without CAP_NET_ADMIN it is not told.
            return;
        };
        let told = |sender: &TcpStream, most| unacknowledged(sender.as_fd(), most).unwrap();
        assert_eq!(told(&sender, 100), None, "nothing was sent");
        deafen(receiver.as_fd()).unwrap();
        let bytes: Vec<u8> = (0..200).collect();
        sender.write_all(&bytes).unwrap();
        let expected = next_sequence(receiver.as_fd()).unwrap();
        let (header, whole) = told(&sender, 1000).unwrap();
        assert_eq!((header.sequence, &whole), (first, &bytes));
        assert_eq!(header.acknowledgement, expected);
        assert!(header.window > 1000, "{header:?}");
        let (header, part) = told(&sender, 150).unwrap();
        assert_eq!((header.sequence, &part[..]), (first, &bytes[..150]));
        let now = acknowledgement(sender.as_fd()).unwrap();
        assert_eq!(now.sequence, first.wrapping_add(200));
        assert_eq!(now.acknowledgement, expected);
        // The FIN has a number of its own, and no byte.
        sender.shutdown(Shutdown::Write).unwrap();
        assert_eq!(told(&sender, 1000).unwrap().1, bytes);
        // Repair mode has left no trace: all of it arrives in the end.
        sockopt::detach_filter(receiver.as_fd()).unwrap();
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).unwrap();
        assert_eq!(got, bytes);
        assert_eq!(told(&sender, 100), None, "all is acknowledged");
    }
}
