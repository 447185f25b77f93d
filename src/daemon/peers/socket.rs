//! How probes leave, and how their answers come.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::libc::in_pktinfo;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::Ipv4PacketInfo;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use pepd_config::Peer;
use pepd_packet::icmp;
use pepd_sys::reactor;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::echo::Answer;
use super::filter;

/// IPv6 in IP (RFC 2473).
const IPV6_IN_IP: i32 = 41;

/// Bytes read of a packet: more than any answer to a probe has.
const LONGEST: usize = 256;

/// Sends a request to the peer, through the tunnel whose interface is `device`.
///
/// A socket for each: to a socket that is bound to it, an interface that was made again in the
/// meantime is another one.
///
/// Over IPv4 the request leaves through the device, and by its type of service the routing rules
/// of both boxes know it and its answer. Over IPv6 there are no such rules, and the kernel sends
/// nothing through a device that has no route. So there the request is put into its outer packet
/// here, and looks to the peer just the same.
pub fn send(peer: &Peer, device: &str, packet: &[u8]) -> io::Result<()> {
    let socket = match peer.remote {
        IpAddr::V4(_) => {
            let socket = raw(Domain::IPV4, Protocol::ICMPV4)?;
            socket.bind_device(Some(device.as_bytes()))?;
            socket.set_tos_v4(u32::from(pepd_net::PROBE_TOS))?;
            socket
        }
        IpAddr::V6(_) => raw(Domain::IPV6, Protocol::from(IPV6_IN_IP))?,
    };
    socket.bind(&address(peer.local))?;
    socket.send_to(packet, &address(peer.remote)).map(drop)
}

/// Sockets that receive what a peer answers, and what it asks, by whichever way that comes: two, so that
/// neither displaces the other.
#[derive(Debug)]
pub struct Heard {
    answers: AsyncFd<OwnedFd>,
    requests: AsyncFd<OwnedFd>,
}

impl Heard {
    /// Listens for such answers of this peer, and its requests. Fails as long as there is no route to it.
    pub fn of(peer: &Peer, answer: Answer) -> io::Result<Self> {
        let is_v6 = peer.remote.is_ipv6();
        let request = if is_v6 {
            icmp::REQUEST_V6
        } else {
            icmp::REQUEST
        };
        let open = |filter: &[SockFilter], tells_device| -> io::Result<AsyncFd<OwnedFd>> {
            let socket = match peer.remote {
                IpAddr::V4(_) => raw(Domain::IPV4, Protocol::ICMPV4)?,
                IpAddr::V6(_) => raw(Domain::IPV6, Protocol::ICMPV6)?,
            };
            socket.attach_filter(filter)?;
            if tells_device {
                setsockopt(&socket, Ipv4PacketInfo, &true)?;
            }
            // Nobody else's ICMP wakes us up then. Unbound, it would take only what comes to the
            // address that the host's own routes prefer towards the peer.
            socket.bind(&address(peer.local))?;
            socket.connect(&address(peer.remote))?;
            Ok(reactor::register(socket.into(), Interest::READABLE)?)
        };
        Ok(Self {
            answers: open(&filter::answers(answer, is_v6), !is_v6)?,
            requests: open(&filter::only(request, is_v6), false)?,
        })
    }

    /// Waits for a packet that may be an answer. Over IPv4 it has come through the tunnel whose interface is `device`: one
    /// that comes beside it does not show that the tunnel works.
    pub async fn answer(&self, device: &str) -> io::Result<Vec<u8>> {
        loop {
            let (packet, came_by) = next(&self.answers).await?;
            // An interface that was made again is another one.
            let is_tunnel =
                |index| if_nametoindex(device).is_ok_and(|own| i32::try_from(own) == Ok(index));
            if came_by.is_none_or(is_tunnel) {
                return Ok(packet);
            }
        }
    }

    /// Waits for a packet that may be a request.
    pub async fn request(&self) -> io::Result<Vec<u8>> {
        Ok(next(&self.requests).await?.0)
    }
}

/// Waits for a packet, and returns the number of the interface that it has come by, too, if the socket tells it.
async fn next(socket: &AsyncFd<OwnedFd>) -> io::Result<(Vec<u8>, Option<i32>)> {
    loop {
        let mut ready = socket.readable().await?;
        let received = ready.try_io(|socket| {
            let mut packet = vec![0; LONGEST];
            let mut control = nix::cmsg_space!(in_pktinfo);
            let mut parts = [IoSliceMut::new(&mut packet)];
            let message = recvmsg::<()>(
                socket.as_raw_fd(),
                &mut parts,
                Some(&mut control),
                MsgFlags::MSG_DONTWAIT,
            )?;
            let came_by = message.cmsgs()?.find_map(|message| match message {
                ControlMessageOwned::Ipv4PacketInfo(info) => Some(info.ipi_ifindex),
                _ => None,
            });
            let length = message.bytes;
            packet.truncate(length);
            Ok((packet, came_by))
        });
        if let Ok(received) = received {
            return received;
        }
    }
}

fn raw(domain: Domain, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Makes an address without a port: raw sockets have none.
fn address(ip: IpAddr) -> socket2::SockAddr {
    SocketAddr::new(ip, 0).into()
}
