//! A modem that speaks DLEP (RFC 8175), as far as a test has it do so.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::net::if_::if_nametoindex;
use pepd_dlep::{
    DataItem, GROUP_V4, GROUP_V6, MacAddress, Message, MessageKind, PORT, Signal, StatusCode,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::netns::Netns;
use crate::traffic::uninterrupted;

/// What a test waits for at most.
const LIMIT: Duration = Duration::from_secs(30);

/// The times that a router looks for a modem, on a busy machine, and the time until it looks again.
const LOOKS: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(4);

/// The TTL of what no router has passed on (RFC 5082).
pub const TTL: u32 = 255;

/// A destination beyond a modem's radio.
pub const FAR: MacAddress = MacAddress::Eui48([0x00, 0x00, 0x5e, 0x00, 0x53, 0x01]);

/// A modem that waits for sessions.
#[derive(Debug)]
pub struct Modem {
    listener: TcpListener,
}

impl Modem {
    /// Waits at this address of a host, with packets of this TTL.
    ///
    /// # Errors
    /// When the address is not there, or taken.
    pub fn listen(host: &Netns, address: SocketAddr, ttl: u32) -> Result<Self> {
        let listener = host.run(|| {
            let domain = Domain::for_address(address);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            match address {
                SocketAddr::V4(_) => socket.set_ttl_v4(ttl)?,
                SocketAddr::V6(_) => socket.set_unicast_hops_v6(ttl)?,
            }
            socket.bind(&address.into())?;
            socket.listen(8)?;
            Ok(TcpListener::from(socket))
        })?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// When none comes.
    pub fn accept(&self) -> Result<Session> {
        self.accept_within(LIMIT)
    }

    fn accept_within(&self, limit: Duration) -> Result<Session> {
        let mut stream = None;
        crate::wait_until(limit, "a router connects", || {
            stream = self.listener.accept().ok();
            stream.is_some()
        })?;
        let (stream, _) = stream.context("a connection")?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Session {
            stream,
            inbox: Vec::new(),
        })
    }

    /// Accepts the next session: answers its beginning, with this time between two heartbeats.
    ///
    /// # Errors
    /// When none comes, or it does not begin as it should.
    pub fn session(&self, heartbeat: Duration) -> Result<Session> {
        self.accept()?.begin(heartbeat)
    }

    /// Answers a router that looks for modems, and begins the session that comes of it, of a modem that
    /// need not say that it is there. A router that has waited in vain looks again.
    ///
    /// # Errors
    /// When none comes of it.
    pub fn found_by(&self, mut answer: impl FnMut() -> Result<()>) -> Result<Session> {
        for _ in 0..LOOKS {
            answer()?;
            if let Ok(session) = self.accept_within(PATIENCE) {
                return session.begin(20 * LIMIT);
            }
        }
        bail!("no router connects")
    }
}

/// Returns what a modem says that takes a session: 8 Mbit/s in, 4 out, 250 ms.
#[must_use]
pub fn accepted(heartbeat: Duration) -> Message {
    let interval = u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX);
    let items = [
        DataItem::Status(StatusCode::SUCCESS.into()),
        DataItem::PeerType {
            secured: false,
            description: "a modem of the testbed's".to_owned(),
        },
        DataItem::HeartbeatInterval(interval),
        DataItem::MaximumRateReceive(10_000_000),
        DataItem::MaximumRateTransmit(10_000_000),
        DataItem::CurrentRateReceive(8_000_000),
        DataItem::CurrentRateTransmit(4_000_000),
        DataItem::Latency(250_000),
    ];
    Message::new(MessageKind::SessionInitializationResponse, items)
}

/// A session, from the modem's side. Dropping it ends the connection.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Session {
    fn begin(mut self, heartbeat: Duration) -> Result<Self> {
        let asked = self.receive()?;
        let is_asked = asked.kind == MessageKind::SessionInitialization;
        ensure!(is_asked, "{asked:?}");
        self.send(&accepted(heartbeat))?;
        Ok(self)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send(&mut self, message: &Message) -> Result<()> {
        self.send_bytes(&message.to_bytes())
    }

    /// Sends what need not be a message.
    ///
    /// # Errors
    /// When the connection has ended.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("send to the router")
    }

    /// Waits for the router's next message that is no heartbeat.
    ///
    /// # Errors
    /// When none comes, or something that is none.
    pub fn receive(&mut self) -> Result<Message> {
        loop {
            while let Some((message, length)) = Message::read(&self.inbox) {
                self.inbox.drain(..length);
                let message = message?;
                if message.kind != MessageKind::Heartbeat {
                    return Ok(message);
                }
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes).context("hear the router")? {
                0 => bail!("the router has ended the connection"),
                length => self.inbox.extend(&bytes[..length]),
            }
        }
    }

    /// Says something of a destination, and waits for the answer if there is one to it.
    ///
    /// # Errors
    /// When the answer is another.
    pub fn say(&mut self, kind: MessageKind, of: MacAddress, items: &[DataItem]) -> Result<()> {
        let items = [&[DataItem::Mac(of)], items].concat();
        self.send(&Message::new(kind, items))?;
        let expected = match kind {
            MessageKind::DestinationUp => MessageKind::DestinationUpResponse,
            MessageKind::DestinationDown => MessageKind::DestinationDownResponse,
            _ => return Ok(()),
        };
        let answer = self.receive()?;
        let code = answer.status().map(|status| status.code);
        let is_expected = answer.kind == expected && answer.destination() == Some(of);
        ensure!(
            is_expected && code == Some(StatusCode::SUCCESS),
            "{answer:?}"
        );
        Ok(())
    }

    /// Returns the code with which the router ends the session.
    ///
    /// # Errors
    /// When it does not.
    pub fn terminated(&mut self) -> Result<StatusCode> {
        let message = self.receive()?;
        ensure!(
            message.kind == MessageKind::SessionTermination,
            "{message:?}"
        );
        Ok(message.status().context("a status")?.code)
    }

    /// Waits until the router has ended the connection.
    ///
    /// # Errors
    /// When it does not.
    pub fn closed(&mut self) -> Result<()> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error).context("the end of the connection"),
            }
        }
    }

    /// Resets the connection.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn reset(self) -> Result<()> {
        let socket = Socket::from(self.stream);
        socket.set_linger(Some(Duration::ZERO))?;
        Ok(())
    }
}

/// What hears routers that look for modems.
#[derive(Debug)]
pub struct Beacon {
    socket: UdpSocket,
}

impl Beacon {
    /// Listens on an interface of a host, with packets of this TTL. Several may, on one host.
    ///
    /// # Errors
    /// When the interface is not there.
    pub fn listen(host: &Netns, interface: &str, address: IpAddr, ttl: u32) -> Result<Self> {
        let socket = host.run(|| {
            let domain = Domain::for_address((address, 0).into());
            let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_reuse_address(true)?;
            match address {
                IpAddr::V4(address) => {
                    socket.set_ttl_v4(ttl)?;
                    socket.bind(&SocketAddr::from(([0, 0, 0, 0], PORT)).into())?;
                    socket.join_multicast_v4(&GROUP_V4, &address)?;
                }
                IpAddr::V6(_) => {
                    socket.set_only_v6(true)?;
                    socket.set_unicast_hops_v6(ttl)?;
                    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
                    socket.bind(&any.into())?;
                    socket.join_multicast_v6(&GROUP_V6, if_nametoindex(interface)?)?;
                }
            }
            Ok(UdpSocket::from(socket))
        })?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Self { socket })
    }

    /// Waits for a router that looks for modems, and returns where it is.
    ///
    /// # Errors
    /// When none does.
    pub fn hear(&self) -> Result<SocketAddr> {
        let mut bytes = [0; 2048];
        loop {
            let heard = uninterrupted(|| self.socket.recv_from(&mut bytes));
            let (length, from) = heard.context("a router")?;
            if let Some(Signal::PeerDiscovery { .. }) = Signal::read(&bytes[..length]) {
                return Ok(from);
            }
        }
    }

    /// Sends a router a datagram.
    ///
    /// # Errors
    /// When it cannot be sent.
    pub fn send(&self, bytes: &[u8], to: SocketAddr) -> Result<()> {
        self.socket.send_to(bytes, to).context("offer")?;
        Ok(())
    }
}
