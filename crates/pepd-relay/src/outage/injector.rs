//! Messages of the box to its own sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use pepd_packet::MarkValue;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// IPPROTO_RAW: packets with their IP header, and nothing is received (raw(7)).
const RAW: i32 = 255;

/// A sender of ICMP messages to sockets of this host that have addresses of others: by pepd's mark the
/// policy routing delivers them here.
#[derive(Debug)]
pub struct Injector {
    v4: Socket,
    /// None where the kernel has no IPv6.
    v6: Option<Socket>,
}

impl Injector {
    /// Opens the sockets, which takes CAP_NET_RAW; to use them does not.
    ///
    /// # Errors
    ///
    /// As socket(2); EPERM without that capability.
    pub fn open() -> io::Result<Self> {
        let open = |domain| -> io::Result<Socket> {
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let v6 = match open(Domain::IPV6) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => None,
            opened => Some(opened?),
        };
        Ok(Self {
            v4: open(Domain::IPV4)?,
            v6,
        })
    }

    /// Sends an IP packet to one of this host's sockets.
    pub(super) fn send(&self, packet: &[u8], to: IpAddr, mark: MarkValue) -> io::Result<()> {
        let socket = match (to, &self.v6) {
            (IpAddr::V4(_), _) => &self.v4,
            (IpAddr::V6(_), Some(v6)) => v6,
            (IpAddr::V6(_), None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        socket.set_mark(mark.0)?;
        socket.send_to(packet, &SockAddr::from(SocketAddr::new(to, 0)))?;
        Ok(())
    }
}
