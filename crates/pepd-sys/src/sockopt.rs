//! Socket options that socket2 does not have, through one pair of functions.
//!
//! Each setter has its getter, because the kernel may grant something other than what it was asked
//! for. Errors name the option and keep errno.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::syscall::check;

/// An option that the kernel would not set or tell.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {option}: {source}")]
pub struct OptionError {
    operation: &'static str,
    option: &'static str,
    source: io::Error,
}

impl From<OptionError> for io::Error {
    /// Gives the kernel's own error.
    fn from(error: OptionError) -> Self {
        error.source
    }
}

impl OptionError {
    /// Returns the errno of the call.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Returns the option's name as in the manual pages.
    pub fn option(&self) -> &'static str {
        self.option
    }
}

/// A socket option with its name and the C type of its value.
struct Opt<T> {
    level: c_int,
    name: c_int,
    text: &'static str,
    value: std::marker::PhantomData<T>,
}

/// Plain C values for which every bit pattern is a value.
trait Plain: Copy + Default {}
impl Plain for c_int {}
impl Plain for u64 {}
impl<const N: usize> Plain for [u32; N] where Self: Default {}

impl<T: Plain> Opt<T> {
    const fn new(level: c_int, name: c_int, text: &'static str) -> Self {
        Self {
            level,
            name,
            text,
            value: std::marker::PhantomData,
        }
    }

    fn set(&self, fd: BorrowedFd<'_>, value: T) -> Result<(), OptionError> {
        let len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer is to a live value of the length given, and the kernel copies it.
        let result = check(unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                self.level,
                self.name,
                (&raw const value).cast(),
                len,
            )
        });
        result.map(drop).map_err(|source| self.error("set", source))
    }

    fn get(&self, fd: BorrowedFd<'_>) -> Result<T, OptionError> {
        let mut value = T::default();
        let mut len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of `value`, and any bytes
        // make a valid `T` (see `Plain`).
        let result = check(unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                self.level,
                self.name,
                (&raw mut value).cast(),
                &raw mut len,
            )
        });
        result
            .map(|_| value)
            .map_err(|source| self.error("get", source))
    }

    fn error(&self, operation: &'static str, source: io::Error) -> OptionError {
        OptionError {
            operation,
            option: self.text,
            source,
        }
    }
}

macro_rules! options {
    ($($(#[$doc:meta])* $set:ident, $get:ident: $t:ty = $level:expr, $name:expr;)*) => {$(
        $(#[$doc])*
        pub fn $set(fd: BorrowedFd<'_>, value: $t) -> Result<(), OptionError> {
            Opt::<$t>::new($level, $name, stringify!($name)).set(fd, value)
        }

        /// Reads the option back.
        pub fn $get(fd: BorrowedFd<'_>) -> Result<$t, OptionError> {
            Opt::<$t>::new($level, $name, stringify!($name)).get(fd)
        }
    )*};
}

use libc::{
    IP_BIND_ADDRESS_NO_PORT, IP_RECVERR, IP_TOS, IP_TRANSPARENT, IPPROTO_IP, IPPROTO_IPV6,
    IPPROTO_TCP, IPV6_RECVERR, IPV6_TCLASS, IPV6_TRANSPARENT, SO_MAX_PACING_RATE, SO_PRIORITY,
    SO_RCVBUF, SO_RCVBUFFORCE, SO_REUSEADDR, SO_SNDBUF, SO_SNDBUFFORCE, SOL_SOCKET, TCP_FASTOPEN,
    TCP_FASTOPEN_CONNECT, TCP_MAXSEG, TCP_NOTSENT_LOWAT, TCP_QUEUE_SEQ, TCP_QUICKACK, TCP_REPAIR,
    TCP_REPAIR_QUEUE, TCP_REPAIR_WINDOW, TCP_SAVE_SYN, TCP_SYNCNT, TCP_THIN_LINEAR_TIMEOUTS,
    TCP_TIMESTAMP,
};

/// SO_BUF_LOCK and its bits (include/uapi/linux/socket.h).
const SO_BUF_LOCK: c_int = 72;
const SOCK_SNDBUF_LOCK: c_int = 1;
const SOCK_RCVBUF_LOCK: c_int = 2;

/// TCP_RTO_MAX_MS, which libc does not have yet.
const RTO_MAX_MS: c_int = 44;

options! {
    /// Lets an IPv4 socket use addresses that are not the host's (ip(7)); CAP_NET_ADMIN.
    set_transparent_v4, transparent_v4: c_int = IPPROTO_IP, IP_TRANSPARENT;
    /// Lets an IPv6 socket use addresses that are not the host's (ipv6(7)); CAP_NET_ADMIN.
    set_transparent_v6, transparent_v6: c_int = IPPROTO_IPV6, IPV6_TRANSPARENT;
    /// Leaves the choice of the port to connect, where it can be shared between destinations
    /// (ip(7)); serves both families.
    set_bind_address_no_port, bind_address_no_port: c_int = IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT;
    /// Keeps the ICMP errors that the socket gets for [`icmp_error`](crate::stream::icmp_error),
    /// and makes each of them end a connection (ip(7)).
    set_receive_errors_v4, receive_errors_v4: c_int = IPPROTO_IP, IP_RECVERR;
    /// Keeps the ICMPv6 errors in the same way (ipv6(7)).
    set_receive_errors_v6, receive_errors_v6: c_int = IPPROTO_IPV6, IPV6_RECVERR;
    /// The IPv4 TOS byte of what the socket sends: DSCP in the upper six bits.
    set_tos_v4, tos_v4: c_int = IPPROTO_IP, IP_TOS;
    /// The IPv6 traffic class of what the socket sends: DSCP in the upper six bits.
    set_tclass_v6, tclass_v6: c_int = IPPROTO_IPV6, IPV6_TCLASS;
    /// The priority of what the socket sends among a queueing discipline's bands (socket(7)); more than 6
    /// takes CAP_NET_ADMIN.
    set_priority, priority: c_int = SOL_SOCKET, SO_PRIORITY;
    /// The ceiling of the pacing rate in bytes per second (socket(7)); the kernel paces by
    /// itself where there is no fq qdisc.
    set_max_pacing_rate, max_pacing_rate: u64 = SOL_SOCKET, SO_MAX_PACING_RATE;
    /// The most unanswered Fast Open requests of a listener (RFC 7413); 0 is off.
    set_fast_open, fast_open: c_int = IPPROTO_TCP, TCP_FASTOPEN;
    /// Puts the first data written into the SYN where a cookie is known (RFC 7413): connect
    /// then returns at once, and the SYN leaves with the first write.
    set_fast_open_connect, fast_open_connect: c_int = IPPROTO_TCP, TCP_FASTOPEN_CONNECT;
    /// Whether the socket acknowledges at once; not for good (tcp(7)).
    set_quick_ack, quick_ack: c_int = IPPROTO_TCP, TCP_QUICKACK;
    /// The times that a SYN, or a listener's SYN-ACK, is sent again (tcp(7)).
    set_syn_count, syn_count: c_int = IPPROTO_TCP, TCP_SYNCNT;
    /// Repair mode: see [`repair`](crate::repair).
    set_repair, repair: c_int = IPPROTO_TCP, TCP_REPAIR;
    /// The queue that [`queue_seq`] is about.
    set_repair_queue, repair_queue: c_int = IPPROTO_TCP, TCP_REPAIR_QUEUE;
    /// The sequence number at the end of a queue.
    set_queue_seq, queue_seq: c_int = IPPROTO_TCP, TCP_QUEUE_SEQ;
    /// The windows, in repair mode (struct tcp_repair_window, include/uapi/linux/tcp.h): SND.WL1, the
    /// send window, the largest one ever, the receive window, and what it was announced with.
    set_repair_window, repair_window: [u32; 5] = IPPROTO_TCP, TCP_REPAIR_WINDOW;
    /// The clock of the timestamps that the socket sends (RFC 7323, section 4), in milliseconds.
    set_timestamp, timestamp: c_int = IPPROTO_TCP, TCP_TIMESTAMP;
    /// Whether the local address may be shared (socket(7)).
    set_reuse_address, reuse_address: c_int = SOL_SOCKET, SO_REUSEADDR;
    /// The largest segment in bytes, which a socket must be given before its SYN (tcp(7)).
    set_max_segment, max_segment: c_int = IPPROTO_TCP, TCP_MAXSEG;
    /// The unsent bytes above which the socket is not writable (tcp(7)).
    set_notsent_lowat, notsent_lowat: c_int = IPPROTO_TCP, TCP_NOTSENT_LOWAT;
    /// The longest retransmission timeout in milliseconds (TCP_RTO_MAX_MS of
    /// include/uapi/linux/tcp.h): 1,000 to 120,000; ENOPROTOOPT before Linux 6.15.
    set_rto_max, rto_max: c_int = IPPROTO_TCP, RTO_MAX_MS;
    /// Keeps the headers of each SYN that a listener accepts, for [`saved_syn`] (tcp(7)).
    set_save_syn, save_syn: c_int = IPPROTO_TCP, TCP_SAVE_SYN;
    /// Linear retransmission timeouts for thin streams
    /// (Documentation/networking/tcp-thin.rst).
    set_thin_linear_timeouts, thin_linear_timeouts: c_int = IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS;
}

/// Sets the receive buffer in bytes, past `rmem_max` too (CAP_NET_ADMIN). The kernel doubles
/// the value for its own bookkeeping and stops tuning the buffer (socket(7)).
pub fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), OptionError> {
    Opt::<c_int>::new(SOL_SOCKET, SO_RCVBUFFORCE, "SO_RCVBUFFORCE").set(fd, bytes)
}

/// Returns the receive buffer in bytes as the kernel counts it: twice what was asked for.
pub fn receive_buffer(fd: BorrowedFd<'_>) -> Result<c_int, OptionError> {
    Opt::<c_int>::new(SOL_SOCKET, SO_RCVBUF, "SO_RCVBUF").get(fd)
}

/// The memory of a socket, in bytes as the kernel counts them: with what it needs for bookkeeping
/// (include/uapi/linux/sock_diag.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What it has received and nobody has read.
    pub received: u32,
    /// The most that this may be.
    pub receive_buffer: u32,
    /// What is sent and not acknowledged, and what waits to be sent.
    pub queued: u32,
    /// The most that this may be.
    pub send_buffer: u32,
    /// The packets that it had no room for and so did not get.
    pub drops: u32,
}

/// Reads the memory of a socket.
///
/// # Errors
/// As getsockopt(2).
pub fn memory(fd: BorrowedFd<'_>) -> io::Result<Memory> {
    // SK_MEMINFO_RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED, OPTMEM, BACKLOG, DROPS
    type MemInfo = [u32; 9];
    let info = Opt::<MemInfo>::new(SOL_SOCKET, libc::SO_MEMINFO, "SO_MEMINFO").get(fd);
    let [
        received,
        receive_buffer,
        _,
        send_buffer,
        _,
        queued,
        _,
        backlog,
        drops,
    ] = info.map_err(|error| error.source)?;
    Ok(Memory {
        received: received.saturating_add(backlog),
        receive_buffer,
        queued,
        send_buffer,
        drops,
    })
}

/// Returns what the socket had no room for and so did not get.
///
/// # Errors
/// As getsockopt(2).
pub fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    memory(fd).map(|memory| memory.drops)
}

/// Says which of a socket's buffers the kernel leaves as they are, and so which it sizes by itself
/// (SO_BUF_LOCK, Linux 5.14; include/uapi/linux/socket.h).
///
/// # Errors
/// As setsockopt(2); `ENOPROTOOPT` where the kernel cannot be told.
pub fn set_buffers_fixed(fd: BorrowedFd<'_>, fixed: FixedBuffers) -> Result<(), OptionError> {
    let send = if fixed.send { SOCK_SNDBUF_LOCK } else { 0 };
    let receive = if fixed.receive { SOCK_RCVBUF_LOCK } else { 0 };
    Opt::<c_int>::new(SOL_SOCKET, SO_BUF_LOCK, "SO_BUF_LOCK").set(fd, send | receive)
}

/// Returns which of a socket's buffers the kernel leaves as they are (SO_BUF_LOCK, Linux 5.14).
///
/// # Errors
/// As getsockopt(2); `ENOPROTOOPT` where the kernel cannot be asked.
pub fn buffers_fixed(fd: BorrowedFd<'_>) -> Result<FixedBuffers, OptionError> {
    let locks = Opt::<c_int>::new(SOL_SOCKET, SO_BUF_LOCK, "SO_BUF_LOCK").get(fd)?;
    Ok(FixedBuffers {
        send: locks & SOCK_SNDBUF_LOCK != 0,
        receive: locks & SOCK_RCVBUF_LOCK != 0,
    })
}

/// The buffers of a socket that the kernel leaves as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedBuffers {
    /// The send buffer.
    pub send: bool,
    /// The receive buffer.
    pub receive: bool,
}

/// Tells a socket in repair mode that has just been connected what its handshake would have settled: a kind
/// of option in the segments' headers, and its value (TCP_REPAIR_OPTIONS; struct tcp_repair_opt of
/// include/uapi/linux/tcp.h).
///
/// # Errors
/// As setsockopt(2): `EPERM` where something has been sent.
pub fn set_repair_option(fd: BorrowedFd<'_>, kind: u32, value: u32) -> Result<(), OptionError> {
    let name = "TCP_REPAIR_OPTIONS";
    Opt::<[u32; 2]>::new(IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, name).set(fd, [kind, value])
}

/// Has the socket take what comes for it again, where a filter has kept that away (SO_DETACH_FILTER, socket(7)).
///
/// # Errors
/// As setsockopt(2).
pub fn detach_filter(fd: BorrowedFd<'_>) -> Result<(), OptionError> {
    let option = Opt::<c_int>::new(SOL_SOCKET, libc::SO_DETACH_FILTER, "SO_DETACH_FILTER");
    match option.set(fd, 0) {
        // There is none.
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
        detached => detached,
    }
}

/// Bounds the window that the peer is told of (TCP_WINDOW_CLAMP, tcp(7)); the kernel has let it grow
/// with the receive buffer only as long as it sized that by itself.
///
/// # Errors
/// As setsockopt(2).
pub fn set_window_clamp(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), OptionError> {
    Opt::<c_int>::new(IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, "TCP_WINDOW_CLAMP").set(fd, bytes)
}

/// Returns the number that the kernel has given this socket, and will give no other (SO_COOKIE).
///
/// # Errors
/// As getsockopt(2).
pub fn cookie(fd: BorrowedFd<'_>) -> Result<u64, OptionError> {
    Opt::<u64>::new(SOL_SOCKET, libc::SO_COOKIE, "SO_COOKIE").get(fd)
}

/// Has a TCP socket take no segment that has come through a router (RFC 5082): of those with a TTL
/// below 255 the kernel drops each (IP_MINTTL, ip(7); IPV6_MINHOPCOUNT, include/uapi/linux/in6.h).
///
/// # Errors
/// As setsockopt(2).
pub fn refuse_routed(fd: BorrowedFd<'_>, is_ipv6: bool) -> Result<(), OptionError> {
    const IPV6_MINHOPCOUNT: c_int = 73;
    match is_ipv6 {
        false => Opt::<c_int>::new(IPPROTO_IP, libc::IP_MINTTL, "IP_MINTTL").set(fd, 255),
        true => Opt::<c_int>::new(IPPROTO_IPV6, IPV6_MINHOPCOUNT, "IPV6_MINHOPCOUNT").set(fd, 255),
    }
}

/// Sets the send buffer in bytes, past `wmem_max` too (CAP_NET_ADMIN). The kernel doubles
/// the value for its own bookkeeping and stops tuning the buffer (socket(7)).
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), OptionError> {
    Opt::<c_int>::new(SOL_SOCKET, SO_SNDBUFFORCE, "SO_SNDBUFFORCE").set(fd, bytes)
}

/// Returns the send buffer in bytes as the kernel counts it: twice what was asked for.
pub fn send_buffer(fd: BorrowedFd<'_>) -> Result<c_int, OptionError> {
    Opt::<c_int>::new(SOL_SOCKET, SO_SNDBUF, "SO_SNDBUF").get(fd)
}

/// Gives a listener a key of its own for the cookies of Fast Open (RFC 7413; TCP_FASTOPEN_KEY is
/// not in tcp(7)).
pub fn set_fast_open_key(fd: BorrowedFd<'_>, key: &[u8; 16]) -> Result<(), OptionError> {
    let option = Opt::<c_int>::new(IPPROTO_TCP, libc::TCP_FASTOPEN_KEY, "TCP_FASTOPEN_KEY");
    // SAFETY: the pointer is to a live array of the length given, and the kernel copies it.
    let result = check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            option.level,
            option.name,
            key.as_ptr().cast(),
            key.len() as libc::socklen_t,
        )
    });
    result
        .map(drop)
        .map_err(|source| option.error("set", source))
}

/// Copies the IP and TCP headers of the SYN that opened an accepted socket into `buffer`, and
/// gives their length; the kernel keeps no copy afterwards. 0 where none was saved.
pub fn saved_syn(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, OptionError> {
    let option = Opt::<c_int>::new(IPPROTO_TCP, libc::TCP_SAVED_SYN, "TCP_SAVED_SYN");
    let mut len = libc::socklen_t::try_from(buffer.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the kernel writes at most `len` bytes into the buffer, which has that length.
    let result = check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            option.level,
            option.name,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    });
    result.map_err(|source| option.error("get", source))?;
    Ok(usize::try_from(len).unwrap_or(0).min(buffer.len()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn what_is_set_is_read_back() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let fd = socket.as_fd();
        set_max_pacing_rate(fd, 6_250_000).unwrap();
        assert_eq!(max_pacing_rate(fd).unwrap(), 6_250_000);
        set_notsent_lowat(fd, 16384).unwrap();
        assert_eq!(notsent_lowat(fd).unwrap(), 16384);
        set_thin_linear_timeouts(fd, 1).unwrap();
        assert_eq!(thin_linear_timeouts(fd).unwrap(), 1);
        set_tos_v4(fd, 0x48).unwrap();
        assert_eq!(tos_v4(fd).unwrap(), 0x48);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn an_error_names_the_option_and_keeps_errno() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let error = set_max_segment(socket.as_fd(), 1400).unwrap_err();
        assert_eq!(error.option(), "TCP_MAXSEG");
        assert!(error.errno().is_some());
        assert!(error.to_string().starts_with("set TCP_MAXSEG: "), "{error}");
    }
}
