//! Many users with some connections each, all ends of which are in this process.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::sockopt::{IpBindAddressNoPort, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket,
};
use pepd_testbed::traffic::{PATIENCE, accept, listen};
use pepd_testbed::{Family, World};

/// The connections of a user.
pub const PER_USER: u32 = 20;

/// Of so many connections one carries data.
const ONE_IN: usize = 20;

/// The bytes that it carries at a time.
const PIECE: usize = 6000;

/// Threads that open connections, each with a listener of its own.
const OPENERS: u32 = 8;

/// The users' network, with room for 16,382 of them.
const USERS: Ipv4Addr = Ipv4Addr::new(10, 1, 64, 0);
const USERS_BITS: u8 = 18;

/// How often it is seen how far it is.
const GLANCE: Duration = Duration::from_millis(200);

/// A client's end, and the server's.
type Ends = (TcpStream, TcpStream);

/// The connections.
pub struct Crowd(Vec<Ends>);

/// Gives the client a network of addresses, one for each user.
///
/// # Errors
/// When `ip` fails.
pub fn place_users(world: &World) -> Result<()> {
    let network = format!("{USERS}/{USERS_BITS}");
    let client = World::client_address(Family::V4);
    world
        .client()
        .sh(&format!("ip route add local {network} dev lo"))?;
    world
        .hb()
        .sh(&format!("ip route add {network} via {client}"))?;
    Ok(())
}

impl Crowd {
    /// Opens the connections, several at a time and until `end` at the latest, has each carry a byte both
    /// ways, and tells again and again how many there are.
    ///
    /// # Errors
    /// When one is not established, or `watch` fails.
    pub fn open(
        world: &World,
        connections: u32,
        end: Instant,
        mut watch: impl FnMut(u32) -> Result<()>,
    ) -> Result<Self> {
        let count = AtomicU32::new(0);
        let crowd = thread::scope(|scope| {
            let openers: Vec<_> = (0..OPENERS)
                .map(|opener| {
                    let numbers = (opener..connections).step_by(OPENERS as usize);
                    let numbers = numbers.take_while(move |_| Instant::now() < end);
                    let count = &count;
                    scope.spawn(move || open_some(world, numbers, count))
                })
                .collect();
            let mut watched = Ok(());
            while openers.iter().any(|opener| !opener.is_finished()) {
                thread::park_timeout(GLANCE);
                if watched.is_ok() {
                    watched = watch(count.load(Relaxed));
                }
            }
            let parts: Result<Vec<_>> = openers.into_iter().map(joined).collect();
            watched.and(parts)
        })
        .with_context(|| format!("{} were open", count.load(Relaxed)))?;
        Ok(Self(crowd.into_iter().flatten().collect()))
    }

    /// Returns how many there are.
    ///
    /// # Errors
    /// Never, with fewer than 2³².
    pub fn connections(&self) -> Result<u32> {
        Ok(u32::try_from(self.0.len())?)
    }

    /// Has one in twenty carry data to its client, one piece after the other, for `time`; returns how
    /// many pieces there were.
    ///
    /// # Errors
    /// When one ends.
    pub fn carry(&self, time: Duration) -> Result<u32> {
        let end = Instant::now() + time;
        let (sent, mut got) = ([b'x'; PIECE], [0; PIECE]);
        let mut pieces = 0;
        for (client, server) in self.0.iter().step_by(ONE_IN).cycle() {
            if Instant::now() >= end {
                break;
            }
            (&*server).write_all(&sent).context("send a piece")?;
            (&*client).read_exact(&mut got).context("read a piece")?;
            pieces += 1;
        }
        Ok(pieces)
    }

    /// Returns how many of them still carry a byte both ways.
    ///
    /// # Errors
    /// When a thread panics.
    pub fn answering(&self) -> Result<u32> {
        let share = self.0.len().div_ceil(OPENERS as usize).max(1);
        thread::scope(|scope| {
            let askers: Vec<_> = self
                .0
                .chunks(share)
                .map(|ends| {
                    scope.spawn(|| {
                        let answer = ends.iter().filter(|ends| exchange(ends, b'?').is_ok());
                        Ok(u32::try_from(answer.count())?)
                    })
                })
                .collect();
            askers.into_iter().map(joined).sum()
        })
    }
}

fn open_some(
    world: &World,
    numbers: impl Iterator<Item = u32> + Send,
    count: &AtomicU32,
) -> Result<Vec<Ends>> {
    let server = SocketAddr::new(World::server_address(Family::V4), 0);
    let listener = listen(world.server(), server)?;
    world.client().run(|| {
        numbers
            .map(|number| {
                let ends =
                    open(number, &listener).with_context(|| format!("connection {number}"))?;
                count.fetch_add(1, Relaxed);
                Ok(ends)
            })
            .collect()
    })
}

fn open(number: u32, listener: &TcpListener) -> Result<Ends> {
    // The network's own address is nobody's.
    let user = Ipv4Addr::from_bits(USERS.to_bits() + 1 + number / PER_USER);
    let client = connect_from(user, listener.local_addr()?)?;
    let (server, _) = accept(listener)?;
    let ends = (client, server);
    exchange(&ends, b'!')?;
    Ok(ends)
}

/// Connects from this address and any port: one that this address does not use towards `to`, as the
/// kernel chooses it where it knows both (IP_BIND_ADDRESS_NO_PORT).
fn connect_from(address: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let IpAddr::V4(host) = to.ip() else {
        return Err(anyhow!("{to} is no IPv4 address"));
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    setsockopt(&socket, IpBindAddressNoPort, &true)?;
    let sockaddr = |address: Ipv4Addr, port| {
        let [a, b, c, d] = address.octets();
        SockaddrIn::new(a, b, c, d, port)
    };
    let local = sockaddr(address, 0);
    bind(socket.as_raw_fd(), &local).with_context(|| format!("bind {address}"))?;
    connect(socket.as_raw_fd(), &sockaddr(host, to.port())).context("connect")?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn exchange((client, server): &Ends, byte: u8) -> Result<()> {
    for (mut from, mut to) in [(client, server), (server, client)] {
        let mut got = [0];
        from.write_all(&[byte])?;
        to.read_exact(&mut got)?;
        anyhow::ensure!(got == [byte], "another byte");
    }
    Ok(())
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
