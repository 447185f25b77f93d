//! Packets that their sender has no right to: segments with anybody's addresses, one by one or as a
//! flood.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
pub use pepd_packet::segment::{Segment, flag};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::netns::Netns;
use crate::traffic::Rng;
use crate::world::Family;

/// A sender of whole IP packets, in the namespace in which it was made.
#[derive(Debug)]
pub struct Forger {
    v4: Socket,
    v6: Socket,
}

impl Forger {
    /// Makes one in a namespace; it may be used from any thread.
    ///
    /// # Errors
    /// Without root.
    pub fn new(host: &Netns) -> Result<Self> {
        host.run(|| {
            let raw = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(255)));
            Ok(Self {
                v4: raw(Domain::IPV4)?,
                v6: raw(Domain::IPV6)?,
            })
        })
    }

    /// Sends a segment. That the host's own queue is full is part of a flood and no error.
    ///
    /// # Errors
    /// Where [`Segment::packet`] makes none of it.
    pub fn send(&self, segment: &Segment) -> Result<()> {
        let packet = segment.packet();
        let packet = packet.with_context(|| format!("no packet is made of {segment:?}"))?;
        self.send_packet(&packet, segment.to.ip());
        Ok(())
    }

    /// Sends an IP packet as it is, well-formed or not, on the way to an address.
    pub fn send_packet(&self, packet: &[u8], to: IpAddr) {
        let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let _ = socket.send_to(packet, &SockAddr::from(SocketAddr::new(to, 0)));
    }
}

/// What hears the segments that come to a host, whatever becomes of them there.
#[derive(Debug)]
pub struct Ear {
    socket: Socket,
    is_v4: bool,
}

/// A segment that was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its header.
    pub header: Vec<u8>,
    /// The port that it comes from.
    pub from: u16,
    /// The bytes of its data.
    pub data: u32,
    /// The number of what its sender sends next.
    pub next: u32,
    /// What it acknowledges.
    pub acknowledgement: u32,
}

impl Ear {
    /// Begins to hear what comes to a host by one family.
    ///
    /// # Errors
    /// Without root.
    pub fn new(host: &Netns, family: Family) -> Result<Self> {
        let is_v4 = family == Family::V4;
        let domain = if is_v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = host.run(|| Ok(Socket::new(domain, Type::RAW, Some(Protocol::TCP))?))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, is_v4 })
    }

    /// Gives what has come since.
    ///
    /// # Errors
    /// As read(2).
    pub fn heard(&self) -> Result<Vec<Heard>> {
        let (mut all, mut packet) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match (&self.socket).read(&mut packet) {
                Ok(length) => all.extend(self.read(&packet[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(all),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read(&self, packet: &[u8]) -> Option<Heard> {
        // Raw sockets give the header of IPv4, and not that of IPv6 (raw(7), ipv6(7)).
        let header = match self.is_v4 {
            true => usize::from(packet.first()? & 15) * 4,
            false => 0,
        };
        let tcp = packet.get(header..)?;
        let offset = usize::from(tcp.get(12)? >> 4) * 4;
        let word = |at: usize| Some(u32::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
        let data = u32::try_from(tcp.len().checked_sub(offset)?).ok()?;
        let ends = tcp.get(13)? & (flag::SYN | flag::FIN);
        Some(Heard {
            header: tcp.get(..offset)?.to_vec(),
            from: u16::from_be_bytes(*tcp.first_chunk()?),
            data,
            next: word(4)?.wrapping_add(data + ends.count_ones()),
            acknowledgement: word(8)?,
        })
    }
}

/// A flood under way, on a thread of its own. Dropped, it ends.
#[derive(Debug)]
pub struct Flood {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Flood {
    /// Sends what `next` gives, so many per second, until it is stopped.
    ///
    /// # Errors
    /// Without root.
    pub fn start(
        host: &Netns,
        per_second: u32,
        mut next: impl FnMut() -> Segment + Send + 'static,
    ) -> Result<Self> {
        let forger = Forger::new(host)?;
        let (over, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (is_over, count) = (Arc::clone(&over), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            while !is_over.load(Relaxed) {
                let due = start.elapsed().as_secs_f64() * f64::from(per_second);
                while (count.load(Relaxed) as f64) < due && !is_over.load(Relaxed) {
                    forger.send(&next())?;
                    count.fetch_add(1, Relaxed);
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
            Ok(())
        });
        Ok(Self {
            over,
            sent,
            thread: Some(thread),
        })
    }

    /// Starts a flood of SYNs to one destination, each from another of `sources`' addresses, with
    /// random ports and numbers.
    ///
    /// # Errors
    /// Without root.
    pub fn of_syns(
        host: &Netns,
        per_second: u32,
        sources: impl Fn(u64) -> IpAddr + Send + 'static,
        to: SocketAddr,
    ) -> Result<Self> {
        let mut rng = Rng::new(7);
        Self::start(host, per_second, move || random_syn(&mut rng, &sources, to))
    }

    /// Returns how many have been sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Ends it; gives how many were sent.
    ///
    /// # Errors
    /// What made it end by itself.
    pub fn stop(mut self) -> Result<u64> {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok().context("a flood panicked")??;
        }
        Ok(self.sent())
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns a SYN with a random port and number from one of `sources`' addresses.
pub fn random_syn(rng: &mut Rng, sources: impl Fn(u64) -> IpAddr, to: SocketAddr) -> Segment {
    let (bits, host) = (rng.bits().to_be_bytes(), rng.bits());
    let port = u16::from_be_bytes([bits[0] | 0x40, bits[1]]);
    let sequence = u32::from_be_bytes([bits[2], bits[3], bits[4], bits[5]]);
    Segment::syn(SocketAddr::new(sources(host), port), to, sequence)
}

/// Returns the one of 65,536 addresses of campus a of [`crate::World`] that `number` chooses, in
/// the family of `to`; nobody has any of them.
#[must_use]
pub fn stranger(number: u64, to: IpAddr) -> IpAddr {
    let [.., high, low] = number.to_be_bytes();
    match to {
        IpAddr::V4(_) => [10, 1, 2 + high % 250, 1 + low % 250].into(),
        IpAddr::V6(_) => {
            let host = u16::from_be_bytes([high, low]);
            Ipv6Addr::new(0xfd00, 0xa, 0, 9, 0, 0, 0, host).into()
        }
    }
}
