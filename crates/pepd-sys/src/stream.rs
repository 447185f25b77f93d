//! Reading, peeking, discarding and urgent data on a connected TCP socket that never blocks.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use pepd_packet::IcmpError;
use socket2::{SockAddr, SockAddrStorage};

use crate::syscall::{check, check_len};

/// Accepts a connection as a non-blocking socket, with its peer's address.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let accept = |storage: *mut SockAddrStorage, len: *mut libc::socklen_t| {
        // SAFETY: `try_init` gives a pointer to storage of the length that `len` points to.
        // socket2's own accept sets the flags with more calls, three per connection.
        let fd = check(unsafe { libc::accept4(listener.as_raw_fd(), storage.cast(), len, flags) })?;
        // SAFETY: accept4 succeeded, so the descriptor is open and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: accept4 writes an address and its length, which is what `try_init` asks for.
    let (fd, address) = unsafe { SockAddr::try_init(accept) }?;
    let peer = address
        .as_socket()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
    Ok((fd, peer))
}

/// Gives whom a socket is, or was, connected to: unlike getpeername(2) it says so of one that is closed,
/// too (SO_PEERNAME; inet_getname, net/ipv4/af_inet.c).
pub fn peer_ever(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    // The kernel gives none to whoever has room for more than there is (sk_getsockopt, net/core/sock.c).
    peer_of_size::<libc::sockaddr_in6>(fd).or_else(|_| peer_of_size::<libc::sockaddr_in>(fd))
}

fn peer_of_size<T>(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let peer_name = |storage: *mut SockAddrStorage, len: *mut libc::socklen_t| {
        // SAFETY: `try_init` gives a pointer to a length, that of a storage which has room for any address.
        unsafe { *len = std::mem::size_of::<T>() as libc::socklen_t };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERNAME);
        // SAFETY: the kernel writes no more than that.
        check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, storage.cast(), len) })
    };
    // SAFETY: the kernel writes an address, and its length.
    let (_, address) = unsafe { SockAddr::try_init(peer_name) }?;
    address
        .as_socket()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

/// Reads into `buffer`; 0 is the end of the stream. Unlike splice(2) it reads past the urgent mark
/// if it starts there.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    receive_flags(fd, buffer, 0)
}

/// Reads into `buffer` and leaves the bytes in the socket; 0 is the end of the stream.
pub fn peek(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    receive_flags(fd, buffer, libc::MSG_PEEK)
}

fn receive_flags(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most `buffer.len()` bytes into the buffer.
    check_len(unsafe {
        libc::recv(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags,
        )
    })
}

/// Drops `len` bytes that the socket is known to hold (tcp(7), MSG_TRUNC).
pub fn discard(fd: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    // SAFETY: with MSG_TRUNC a TCP socket writes nothing to the buffer, which may be null.
    check_len(unsafe { libc::recv(fd.as_raw_fd(), ptr::null_mut(), len, flags) })
}

/// Writes from `bytes`, never raising SIGPIPE.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    send_flags(fd, bytes, 0)
}

/// Writes from `bytes` what is sent in segments of its own: nothing that is written later shares one (MSG_EOR;
/// tcp_skb_can_collapse_to, include/net/tcp.h). Never raises SIGPIPE.
pub fn send_apart(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    send_flags(fd, bytes, libc::MSG_EOR)
}

/// Writes one urgent byte (RFC 793, section 3.7), never raising SIGPIPE.
pub fn send_urgent(fd: BorrowedFd<'_>, byte: u8) -> io::Result<usize> {
    send_flags(fd, &[byte], libc::MSG_OOB)
}

fn send_flags(fd: BorrowedFd<'_>, bytes: &[u8], flags: i32) -> io::Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads `bytes.len()` bytes of the slice.
    check_len(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Returns whether the next byte to read is the urgent one (SIOCATMARK, tcp(7)).
pub fn at_urgent_mark(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const SIOCATMARK: libc::Ioctl = 0x8905; // include/uapi/asm-generic/sockios.h
    ioctl_int(fd, SIOCATMARK).map(|mark| mark != 0)
}

/// Returns the bytes that the peer has not acknowledged yet, sent or not; a FIN counts as one
/// (SIOCOUTQ, tcp(7)).
pub fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl_int(fd, libc::TIOCOUTQ).map(|len| usize::try_from(len).unwrap_or(0))
}

/// Bytes written that have not been sent once (SIOCOUTQNSD, include/uapi/linux/sockios.h); a FIN
/// counts as one. Takes no lock of the socket.
pub fn unsent(fd: BorrowedFd<'_>) -> io::Result<usize> {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B;
    ioctl_int(fd, SIOCOUTQNSD).map(|len| usize::try_from(len).unwrap_or(0))
}

/// Bytes received that have not been read; a FIN does not count (SIOCINQ, tcp(7)).
pub fn unread(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl_int(fd, libc::FIONREAD).map(|len| usize::try_from(len).unwrap_or(0))
}

/// Takes the oldest ICMP error that the socket got, if
/// [`set_receive_errors_v4`](crate::sockopt::set_receive_errors_v4) or its IPv6 sister told it to
/// keep them; none where there is none.
pub fn icmp_error(fd: BorrowedFd<'_>) -> Option<IcmpError> {
    let mut control: Control = [0; _];
    // SAFETY: all zeroes are a valid msghdr: no buffers at all.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes at most `msg_controllen` bytes of control data, and the packet
    // that caused the error nowhere, because there is no buffer for it.
    check_len(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) }).ok()?;
    extended_error(&control, message.msg_controllen as _)
}

/// What recvmsg(2) writes beside a message: aligned for a cmsghdr, and enough for a
/// sock_extended_err with an address behind it.
type Control = [u64; 32];

/// Reads the error in the first `written` bytes of control data; none where it is something else.
fn extended_error(control: &Control, written: usize) -> Option<IcmpError> {
    const ERROR: usize = std::mem::size_of::<libc::sock_extended_err>();
    // SAFETY: all zeroes are a valid msghdr: no buffers at all.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_ptr().cast_mut().cast();
    message.msg_controllen = written.min(std::mem::size_of_val(control)) as _;
    // SAFETY: the control data has the length that the message says, and is only read.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: there is room for a whole header at the beginning, or it would be null; and the array
    // is aligned for one.
    let libc::cmsghdr {
        cmsg_len,
        cmsg_level,
        cmsg_type,
        ..
    } = unsafe { header.read() };
    let wanted = [
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ];
    // SAFETY: it computes.
    let whole = unsafe { libc::CMSG_LEN(ERROR as libc::c_uint) } as usize;
    let length: usize = cmsg_len as _;
    if !wanted.contains(&(cmsg_level, cmsg_type)) || length < whole || length > written {
        return None;
    }
    // SAFETY: with this level and type the data is a sock_extended_err (ip(7)), of which all bytes
    // are there; any bytes make one. The pointer is derived from that to the array and not from a
    // reference to the header, beyond which nothing might be read.
    let error = unsafe {
        libc::CMSG_DATA(header)
            .cast::<libc::sock_extended_err>()
            .read_unaligned()
    };
    let (kind, code) = (error.ee_type, error.ee_code);
    match error.ee_origin {
        libc::SO_EE_ORIGIN_ICMP => Some(IcmpError::V4 { kind, code }),
        libc::SO_EE_ORIGIN_ICMP6 => Some(IcmpError::V6 { kind, code }),
        _ => None,
    }
}

fn ioctl_int(fd: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    // SAFETY: every request given here writes one int to the pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) })?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use socket2::SockRef;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    /// Blocks until the socket has something, so that the calls under test do not wait.
    fn wait_readable(stream: &TcpStream) {
        stream.peek(&mut [0]).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn it_says_who_its_peer_was() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert!(peer_ever(listener.as_fd()).is_err());
            let b = listener.accept().unwrap().0;
            assert_eq!(peer_ever(a.as_fd()).unwrap(), b.local_addr().unwrap());
            SockRef::from(&b)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
            let was = b.local_addr().unwrap();
            drop(b);
            a.peek(&mut [0]).unwrap_err();
            assert!(a.peer_addr().is_err());
            assert_eq!(peer_ever(a.as_fd()).unwrap(), was);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn peek_leaves_and_discard_takes() {
        let (mut a, b) = pair();
        a.write_all(b"hello").unwrap();
        wait_readable(&b);
        let mut buffer = [0; 16];
        assert_eq!(peek(b.as_fd(), &mut buffer).unwrap(), 5);
        assert_eq!(discard(b.as_fd(), 2).unwrap(), 2);
        assert_eq!(receive(b.as_fd(), &mut buffer).unwrap(), 3);
        assert_eq!(&buffer[..3], b"llo");
    }

    /// Returns control data of one message, and its length.
    fn control(level: i32, kind: i32, length: usize, error: &[u8]) -> (Control, usize) {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(error);
        let written = bytes.len();
        bytes.resize(std::mem::size_of::<Control>(), 0xff);
        let (words, _) = bytes.as_chunks();
        let mut control: Control = [0; _];
        for (word, bytes) in control.iter_mut().zip(words) {
            *word = u64::from_ne_bytes(*bytes);
        }
        (control, written)
    }

    #[test]
    fn an_error_is_read_of_what_the_kernel_writes_beside_it() {
        // Errno, origin, type, code, and what pepd does not read.
        let of = |origin| [&[113, 0, 0, 0, origin, 3, 1, 0][..], &[0; 8]].concat();
        let header = std::mem::size_of::<libc::cmsghdr>();
        let read = |level, kind, length, error: &[u8]| {
            let (control, written) = control(level, kind, length, error);
            extended_error(&control, written)
        };
        let v4 = (libc::IPPROTO_IP, libc::IP_RECVERR);
        let v6 = (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
        let whole = header + 16;
        let error = IcmpError::V4 { kind: 3, code: 1 };
        assert_eq!(
            read(v4.0, v4.1, whole, &of(libc::SO_EE_ORIGIN_ICMP)),
            Some(error)
        );
        let error = IcmpError::V6 { kind: 3, code: 1 };
        assert_eq!(
            read(v6.0, v6.1, whole, &of(libc::SO_EE_ORIGIN_ICMP6)),
            Some(error)
        );
        assert_eq!(read(v4.0, v4.1, whole, &of(libc::SO_EE_ORIGIN_LOCAL)), None);
        assert_eq!(
            read(v4.0, libc::IP_TTL, whole, &of(libc::SO_EE_ORIGIN_ICMP)),
            None
        );
        for cut in 0..16 {
            let bytes = &of(libc::SO_EE_ORIGIN_ICMP)[..cut];
            assert_eq!(read(v4.0, v4.1, header + cut, bytes), None, "cut");
            assert_eq!(
                read(v4.0, v4.1, whole, bytes),
                None,
                "it says that there is more"
            );
        }
        let (control, _) = control(v4.0, v4.1, whole, &of(libc::SO_EE_ORIGIN_ICMP));
        for written in 0..header {
            assert_eq!(extended_error(&control, written), None, "no header");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not know its calls")]
    fn the_urgent_byte_keeps_its_place() {
        let (mut a, b) = pair();
        SockRef::from(&b).set_out_of_band_inline(true).unwrap();
        a.write_all(b"ab").unwrap();
        send_urgent(a.as_fd(), b'!').unwrap();
        a.write_all(b"cd").unwrap();
        wait_readable(&b);
        let mut buffer = [0; 16];
        assert_eq!(receive(b.as_fd(), &mut buffer).unwrap(), 2);
        assert!(at_urgent_mark(b.as_fd()).unwrap());
        assert_eq!(receive(b.as_fd(), &mut buffer[..1]).unwrap(), 1);
        assert_eq!(buffer[0], b'!');
        wait_readable(&b);
        assert!(!at_urgent_mark(b.as_fd()).unwrap());
        assert_eq!(receive(b.as_fd(), &mut buffer).unwrap(), 2);
        assert_eq!(&buffer[..2], b"cd");
    }
}
