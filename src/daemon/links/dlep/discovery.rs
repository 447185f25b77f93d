//! Looking for a modem: a signal to the group of all modems, and the first that offers itself
//! (RFC 8175, section 7.1).

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::sockopt::{Ipv4RecvTtl, Ipv6RecvHopLimit};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use pepd_config::Modem;
use pepd_dlep::Signal;
use socket2::{Domain, Protocol, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::socket::{TTL, of, scoped};

/// The time for which an offer is waited for.
const OFFER: Duration = Duration::from_secs(3);
/// Bytes read of a datagram: more than any offer has that can be followed.
const LONGEST: usize = 2048;

/// Looks for a modem once, by IPv4 and IPv6, and says where it waits for a session.
pub(super) async fn find(modem: &Modem) -> io::Result<SocketAddr> {
    let v4 = ask(modem, IpAddr::V4(pepd_dlep::GROUP_V4)).await;
    let v6 = ask(modem, IpAddr::V6(pepd_dlep::GROUP_V6)).await;
    let by_either = async {
        match (&v4, &v6) {
            (Ok(v4), Ok(v6)) => tokio::select! {
                found = offer(modem, v4) => found,
                found = offer(modem, v6) => found,
            },
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => offer(modem, one).await,
            (Err(_), Err(_)) => std::future::pending().await,
        }
    };
    if let (Err(error), Err(_)) = (&v4, &v6) {
        let interface = modem.interface.as_deref().unwrap_or_default();
        return Err(io::Error::new(
            error.kind(),
            format!("ask for a modem on {interface}: {error}"),
        ));
    }
    timeout(OFFER, by_either).await.map_err(|_| {
        let interface = modem.interface.as_deref().unwrap_or_default();
        let text = format!("no modem offers itself on {interface}");
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Asks the group of all modems, and returns the socket that hears the answers.
async fn ask(modem: &Modem, group: IpAddr) -> io::Result<UdpSocket> {
    let (domain, any) = match group {
        IpAddr::V4(_) => (Domain::IPV4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => (Domain::IPV6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let socket = of(modem, domain, Type::DGRAM, Protocol::UDP)?;
    match group {
        IpAddr::V4(_) => setsockopt(&socket, Ipv4RecvTtl, &true)?,
        IpAddr::V6(_) => {
            socket.set_only_v6(true)?;
            setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
        }
    }
    // Some modems answer to DLEP's own port, wherever they were asked from. It takes a capability, and
    // may be another's.
    let own = socket.bind(&SocketAddr::new(any, pepd_dlep::PORT).into());
    own.or_else(|_| socket.bind(&SocketAddr::new(any, 0).into()))?;
    let socket = UdpSocket::from_std(socket.into())?;
    let peer_type = Some("pepd".to_owned());
    let signal = Signal::PeerDiscovery { peer_type }.to_bytes();
    let group = scoped(modem, SocketAddr::new(group, pepd_dlep::PORT))?;
    socket.send_to(&signal, group).await?;
    Ok(socket)
}

/// Waits for an offer that can be followed, and says where it leads.
async fn offer(modem: &Modem, socket: &UdpSocket) -> SocketAddr {
    loop {
        let received = socket
            .async_io(Interest::READABLE, || receive(socket))
            .await;
        match received {
            Ok(received) => match received.leads_to(modem) {
                Ok(address) => return address,
                Err(why) => {
                    tracing::debug!(modem = modem.name, from = %received.from, why, "no offer");
                }
            },
            // An ICMP error about the question, for instance.
            Err(error) => {
                tracing::debug!(modem = modem.name, %error, "receive an offer");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A datagram, and how it has come.
struct Received {
    bytes: Vec<u8>,
    from: SocketAddr,
    ttl: Option<i32>,
}

fn receive(socket: &UdpSocket) -> io::Result<Received> {
    let mut bytes = vec![0; LONGEST];
    let mut control = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let ttl = message.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => Some(ttl),
        _ => None,
    });
    let from = message.address.as_ref().and_then(|from| {
        let v4 = from.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
        v4.or_else(|| Some(SocketAddr::V6((*from.as_sockaddr_in6()?).into())))
    });
    let from = from.ok_or(io::ErrorKind::InvalidData)?;
    let length = message.bytes;
    bytes.truncate(length);
    Ok(Received { bytes, from, ttl })
}

impl Received {
    /// Returns where the modem waits, if this is an offer of one that may be followed; or why not.
    fn leads_to(&self, modem: &Modem) -> Result<SocketAddr, &'static str> {
        if modem.ttl_security && self.ttl.map(i64::from) != Some(TTL.into()) {
            return Err("it has come through a router, or its sender does not know RFC 5082");
        }
        let Some(Signal::PeerOffer { points, .. }) = Signal::read(&self.bytes) else {
            return Err("it is not understood");
        };
        let is_possible = |address: IpAddr| !address.is_unspecified() && !address.is_multicast();
        let mut open = points
            .iter()
            .filter(|it| !it.tls && is_possible(it.address));
        match open.next() {
            Some(point) => {
                let port = point.port.unwrap_or(pepd_dlep::PORT);
                Ok(SocketAddr::new(point.address, port))
            }
            None if points.is_empty() => Ok(SocketAddr::new(self.from.ip(), pepd_dlep::PORT)),
            None => Err("the modem speaks only TLS, which pepd does not"),
        }
    }
}

#[cfg(test)]
mod tests {
    use pepd_dlep::item::ConnectionPoint;

    use super::*;

    fn leads_to(points: &[(bool, &str, Option<u16>)], ttl: i32) -> Option<String> {
        let point = |(tls, address, port): &(bool, &str, _)| ConnectionPoint {
            tls: *tls,
            address: address.parse().unwrap(),
            port: *port,
        };
        let points = points.iter().map(point).collect();
        let peer_type = None;
        let received = Received {
            bytes: Signal::PeerOffer { peer_type, points }.to_bytes(),
            from: "192.0.2.10:854".parse().unwrap(),
            ttl: Some(ttl),
        };
        let modem = Modem {
            name: "modem".to_owned(),
            interface: Some("eth1".to_owned()),
            address: None,
            port: pepd_dlep::PORT,
            heartbeat: Duration::from_secs(5),
            destination: None,
            ttl_security: true,
        };
        let there = received.leads_to(&modem);
        there.ok().map(|address| address.to_string())
    }

    #[test]
    fn an_offer_leads_to_its_first_point_without_tls() {
        assert_eq!(leads_to(&[], 255).as_deref(), Some("192.0.2.10:854"));
        let points = [
            (true, "192.0.2.11", None),
            (false, "192.0.2.12", Some(8854)),
            (false, "192.0.2.13", None),
        ];
        assert_eq!(leads_to(&points, 255).as_deref(), Some("192.0.2.12:8854"));
        assert_eq!(leads_to(&points[..1], 255), None);
        assert_eq!(leads_to(&[(false, "224.0.0.1", None)], 255), None);
        // It has come through a router.
        assert_eq!(leads_to(&points, 254), None);
    }
}
