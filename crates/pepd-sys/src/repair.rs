//! What the kernel tells of a connection only while it is in repair mode (TCP_REPAIR, net/ipv4/tcp.c;
//! CAP_NET_ADMIN).

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use crate::sockopt::{self, OptionError};

/// TCP_SEND_QUEUE (include/uapi/linux/tcp.h).
const SEND_QUEUE: c_int = 2;
/// TCP_REPAIR_OFF: out of repair mode with a probe of the window.
const OFF_WITH_PROBE: c_int = 0;
/// TCP_REPAIR_OFF_NO_WP: out of repair mode without a probe of the window.
const OFF_WITHOUT_PROBE: c_int = -1;

/// Returns the sequence number of what the socket sends next: of one that connects, that after its
/// SYN and what went with it.
///
/// For five system calls the socket is in repair mode, which does not concern what it receives. It
/// has SO_REUSEADDR afterwards, which leaving that mode takes from it.
///
/// # Errors
/// As setsockopt(2) and getsockopt(2).
pub fn next_sequence(fd: BorrowedFd<'_>) -> Result<u32, OptionError> {
    sockopt::set_repair(fd, 1)?;
    let number = sockopt::set_repair_queue(fd, SEND_QUEUE).and_then(|()| sockopt::queue_seq(fd));
    sockopt::set_repair(fd, OFF_WITHOUT_PROBE)?;
    sockopt::set_reuse_address(fd, 1)?;
    number.map(c_int::cast_unsigned)
}

/// Has an established socket ask its peer at once how much that would take (tcp_send_window_probe,
/// net/ipv4/tcp_output.c), whatever its timer says.
///
/// # Errors
/// As setsockopt(2).
pub fn probe_window(fd: BorrowedFd<'_>) -> Result<(), OptionError> {
    sockopt::set_repair(fd, 1)?;
    sockopt::set_repair(fd, OFF_WITH_PROBE)?;
    sockopt::set_reuse_address(fd, 1)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
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
}
