//! Messages of the box to its own sockets.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrLike, sendmsg};
use pepd_packet::MarkValue;
use pepd_packet::ip::Packet;
use socket2::{Domain, Protocol, Socket, Type};

/// IPPROTO_RAW: packets with their IP header, and nothing is received (raw(7)).
const RAW: i32 = 255;

/// A sender of packets in the name of others: ICMP messages to sockets of this host that have addresses
/// of others, which by pepd's mark the policy routing delivers here, and segments of connections.
#[derive(Debug)]
pub struct Injector {
    v4: Mutex<Socket>,
    /// None where the kernel has no IPv6.
    v6: Option<Mutex<Socket>>,
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
        let v4 = open(Domain::IPV4)?;
        // So that a route may be looked up for somebody else's address.
        v4.set_ip_transparent_v4(true)?;
        v6.as_ref()
            .map_or(Ok(()), |v6| v6.set_ip_transparent_v6(true))?;
        Ok(Self {
            v4: Mutex::new(v4),
            v6: v6.map(Mutex::new),
        })
    }

    /// Sends an IP packet, by the route that packets from its source with this mark take.
    ///
    /// # Errors
    ///
    /// As sendmsg(2); EINVAL where it is no IP packet.
    pub fn send(&self, packet: &[u8], mark: MarkValue) -> io::Result<()> {
        let Packet {
            source,
            destination,
            ..
        } = Packet::read(packet).ok_or(io::ErrorKind::InvalidInput)?;
        match (source, destination, &self.v6) {
            (IpAddr::V4(from), IpAddr::V4(to), _) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: address_v4(from),
                    ipi_addr: address_v4(Ipv4Addr::UNSPECIFIED),
                };
                let to = SockaddrIn::from(SocketAddrV4::new(to, 0));
                give(
                    &self.v4,
                    packet,
                    mark,
                    ControlMessage::Ipv4PacketInfo(&info),
                    &to,
                )
            }
            (IpAddr::V6(from), IpAddr::V6(to), Some(v6)) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: address_v6(from),
                    ipi6_ifindex: 0,
                };
                let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, 0));
                give(v6, packet, mark, ControlMessage::Ipv6PacketInfo(&info), &to)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

fn give<A: SockaddrLike>(
    socket: &Mutex<Socket>,
    packet: &[u8],
    mark: MarkValue,
    source: ControlMessage<'_>,
    to: &A,
) -> io::Result<()> {
    // The mark is the socket's, and others send by it, too.
    let socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    socket.set_mark(mark.0)?;
    let (parts, flags) = ([IoSlice::new(packet)], MsgFlags::empty());
    sendmsg(socket.as_raw_fd(), &parts, &[source], flags, Some(to))?;
    Ok(())
}

fn address_v4(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from_ne_bytes(address.octets()),
    }
}

fn address_v6(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr {
        s6_addr: address.octets(),
    }
}
