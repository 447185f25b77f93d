//! The sockets by which a modem is spoken to. What comes through a router is not a modem's: RFC 8175
//! has it one hop away, and RFC 5082 has the TTL tell.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use pepd_config::Modem;
use pepd_sys::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// What a packet begins with that no router has passed on (RFC 5082).
pub(super) const TTL: u32 = 255;
/// The time in which a modem answers that is there.
const ANSWER: Duration = Duration::from_secs(5);
/// The least time for which what is sent may stay unacknowledged.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a modem.
pub(super) async fn connect(modem: &Modem, with: SocketAddr) -> io::Result<TcpStream> {
    let socket = of(
        modem,
        Domain::for_address(with),
        Type::STREAM,
        Protocol::TCP,
    )?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some((4 * modem.heartbeat).max(LEAST_PATIENCE)))?;
    let socket = TcpSocket::from_std_stream(socket.into());
    let answered = timeout(ANSWER, socket.connect(scoped(modem, with)?)).await;
    let stream = answered.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if modem.ttl_security {
        // Not before: some modems set their TTL only on connections that are there.
        sockopt::refuse_routed(stream.as_fd(), with.is_ipv6())
            .map_err(|error| io::Error::from_raw_os_error(error.errno().unwrap_or_default()))?;
    }
    Ok(stream)
}

/// Makes a socket on the modem's interface, whose packets have the highest TTL.
pub(super) fn of(modem: &Modem, domain: Domain, kind: Type, by: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, kind, Some(by))?;
    socket.set_nonblocking(true)?;
    if let Some(interface) = &modem.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    // Others know no groups, and refuse the option.
    let is_datagram = kind == Type::DGRAM;
    match domain {
        Domain::IPV4 => {
            socket.set_ttl_v4(TTL)?;
            if is_datagram {
                socket.set_multicast_ttl_v4(TTL)?;
            }
        }
        _ => {
            socket.set_unicast_hops_v6(TTL)?;
            if is_datagram {
                socket.set_multicast_hops_v6(TTL)?;
            }
        }
    }
    Ok(socket)
}

/// Returns the address with the interface that a link-local one is of.
pub(super) fn scoped(modem: &Modem, mut address: SocketAddr) -> io::Result<SocketAddr> {
    if let (SocketAddr::V6(v6), Some(interface)) = (&mut address, &modem.interface)
        && (v6.ip().is_unicast_link_local() || v6.ip().is_multicast())
    {
        v6.set_scope_id(if_nametoindex(interface.as_str())?);
    }
    Ok(address)
}
