//! Streams of bytes whose place can be told from their value, and connections to carry them.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pepd_sys::sockopt;
use socket2::{Domain, Socket, Type};

use crate::netns::Netns;
use crate::wait::Deadline;

/// No single read, write or accept of a test waits longer: what hangs fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// TCP_SEND_QUEUE (include/uapi/linux/tcp.h).
const SEND_QUEUE: i32 = 2;
/// TCP_REPAIR_OFF_NO_WP.
const OFF_WITHOUT_PROBE: i32 = -1;

/// A small, fast, seeded generator (splitmix64; Steele, Lea, Flood, OOPSLA 2014, figure 17):
/// a failing test prints its seed, and the seed brings the failure back.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }
}

/// An endless stream that repeats only after a prime number of bytes: a byte that is lost,
/// doubled or out of order by anything but a multiple of that is seen.
#[derive(Clone, Debug)]
pub struct Pattern {
    block: Vec<u8>,
}

impl Pattern {
    /// The largest prime below 2¹⁷.
    const PERIOD: usize = 131_071;

    /// Makes the stream that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut block = Vec::with_capacity(Self::PERIOD + 8);
        while block.len() < Self::PERIOD {
            block.extend_from_slice(&rng.bits().to_le_bytes());
        }
        block.truncate(Self::PERIOD);
        Self { block }
    }

    /// Returns as many bytes as there are in one piece from `offset` on, at most `limit`.
    #[must_use]
    pub fn piece(&self, offset: u64, limit: usize) -> &[u8] {
        let rest = &self.block[Self::index(offset)..];
        &rest[..rest.len().min(limit)]
    }

    /// Checks that `bytes` are those of the stream from `offset` on.
    ///
    /// # Errors
    /// The first place where they are not.
    pub fn verify(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let want = self.piece(offset, bytes.len());
            let (have, rest) = bytes.split_at(want.len());
            if have != want {
                let at = have.iter().zip(want).take_while(|(a, b)| a == b).count();
                bail!("wrong byte at offset {} of the stream", offset + at as u64);
            }
            offset += want.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn index(offset: u64) -> usize {
        usize::try_from(offset % Self::PERIOD as u64).unwrap_or_default()
    }
}

/// The way in which a stream ended for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A FIN: the sender said that this was all.
    Fin,
    /// An error, a RST mostly (`ErrorKind::ConnectionReset`).
    Error(ErrorKind),
}

impl End {
    /// The end by RST.
    pub const RESET: Self = Self::Error(ErrorKind::ConnectionReset);
}

/// Sends bytes `from..from + length` of `pattern`.
///
/// # Errors
/// As `send(2)`, and when nothing moves for [`PATIENCE`].
pub fn send(mut stream: &TcpStream, pattern: &Pattern, from: u64, length: u64) -> Result<()> {
    let end = from + length;
    let mut at = from;
    while at < end {
        let piece = pattern.piece(at, usize::try_from(end - at).unwrap_or(usize::MAX));
        let sent = uninterrupted(|| stream.write(piece))
            .with_context(|| format!("send at offset {at} of {end}"))?;
        at += sent as u64;
    }
    Ok(())
}

/// Reads once, as often as a signal interrupts it: the kernel does not restart a call that has a
/// deadline of its own (signal(7)), and any thread may be told of a child's end.
///
/// # Errors
/// As `recv(2)`.
pub fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    uninterrupted(|| stream.read(buffer))
}

/// Waits for an event, or an error, at most for `limit`: whether it has come.
///
/// # Errors
/// As `poll(2)`.
pub fn await_event(at: &impl AsFd, event: PollFlags, limit: Duration) -> io::Result<bool> {
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    let ready = uninterrupted(|| Ok(poll(&mut [PollFd::new(at.as_fd(), event)], limit)?))?;
    Ok(ready > 0)
}

/// Makes a call again that a signal has interrupted, or the machine, which was stopped for a while.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Writes what travels in the SYN of a socket that waits for it (`TCP_FASTOPEN_CONNECT`), and waits
/// until the destination has answered.
///
/// A write that waited for the answer itself would start again after any signal, such as that of
/// another test's child that has ended; and as the SYN was under way, the data would be sent twice
/// (tcp_sendmsg_fastopen, net/ipv4/tcp.c).
///
/// # Errors
/// As `connect(2)` and `send(2)`: the `io::Error` itself.
pub fn send_first(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let sent = match stream.write(bytes) {
        Ok(sent) => sent,
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => 0,
        Err(error) => return Err(error),
    };
    if !await_event(&stream, PollFlags::POLLOUT, PATIENCE)? {
        return Err(ErrorKind::TimedOut.into());
    }
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    stream.set_nonblocking(false)?;
    stream.write_all(&bytes[sent..])
}

/// Reads until the stream ends, and returns how many bytes there were and how it ended.
///
/// # Errors
/// When a byte is not that of `pattern` (which starts at `from` here), or nothing comes for
/// [`PATIENCE`].
pub fn receive(stream: &TcpStream, pattern: &Pattern, from: u64) -> Result<(u64, End)> {
    let mut buffer = vec![0; 256 * 1024];
    let mut at = from;
    loop {
        match read(stream, &mut buffer) {
            Ok(0) => return Ok((at - from, End::Fin)),
            Ok(length) => {
                pattern.verify(at, &buffer[..length])?;
                at += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("nothing comes, not even an end, at offset {at}")
            }
            Err(error) => return Ok((at - from, End::Error(error.kind()))),
        }
    }
}

/// Reads bytes `from..from + length` of `pattern`, no more.
///
/// # Errors
/// When the stream ends before, or a byte is wrong.
pub fn receive_exactly(
    stream: &TcpStream,
    pattern: &Pattern,
    from: u64,
    length: u64,
) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut at = from;
    while at < from + length {
        let limit = usize::try_from(from + length - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let length = read(stream, &mut buffer[..limit]).with_context(|| format!("offset {at}"))?;
        ensure!(length > 0, "the stream ended at offset {at}");
        pattern.verify(at, &buffer[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// A connection from one namespace to an address in another, both ends in hand.
#[derive(Debug)]
pub struct Pair {
    /// The end that connected.
    pub client: TcpStream,
    /// The end that accepted.
    pub server: TcpStream,
}

impl Pair {
    /// Connects, and checks that each end sees the other's own address and port.
    ///
    /// # Errors
    /// When the connection is not established, or the addresses differ.
    pub fn open(client: &Netns, server: &Netns, address: IpAddr) -> Result<Self> {
        let listener = listen(server, SocketAddr::new(address, 0))?;
        Self::through(&listener, client)
    }

    /// Opens a connection to a listener that is there already.
    ///
    /// # Errors
    /// When the connection is not established, or the addresses differ.
    pub fn through(listener: &TcpListener, client: &Netns) -> Result<Self> {
        let client = connect(client, listener.local_addr()?)?;
        let (server, _) = accept(listener)?;
        let pair = Self { client, server };
        ensure!(
            pair.server.peer_addr()? == pair.client.local_addr()?,
            "{pair:?}"
        );
        ensure!(
            pair.client.peer_addr()? == pair.server.local_addr()?,
            "{pair:?}"
        );
        Ok(pair)
    }

    /// Sends `length` bytes each way, one after the other, and checks them.
    ///
    /// # Errors
    /// When a byte does not arrive, or is wrong.
    pub fn exchange(&self, length: u64) -> Result<()> {
        let pattern = Pattern::new(length);
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            // In pieces that are sure to fit the buffers, since nobody reads meanwhile.
            for at in (0..length).step_by(16 * 1024) {
                let piece = (length - at).min(16 * 1024);
                send(from, &pattern, at, piece)?;
                receive_exactly(to, &pattern, at, piece)?;
            }
        }
        Ok(())
    }

    /// Sends `length` bytes and a FIN the one way, as fast as they go, then the other way, and
    /// checks them.
    ///
    /// # Errors
    /// When a byte or the FIN does not arrive, or a byte is wrong.
    ///
    /// # Panics
    /// When the reading thread does.
    pub fn stream(&self, length: u64) -> Result<()> {
        let pattern = Pattern::new(length);
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            let received = thread::scope(|scope| {
                let reader = scope.spawn(|| receive(to, &pattern, 0));
                send(from, &pattern, 0, length)?;
                from.shutdown(Shutdown::Write)?;
                let received = reader.join();
                received.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })?;
            ensure!(
                received == (length, End::Fin),
                "{received:?} of {length} bytes"
            );
        }
        Ok(())
    }

    /// Returns both ends the other way round: the client as the server, the server as the client.
    #[must_use]
    pub fn swapped(self) -> Self {
        Self {
            client: self.server,
            server: self.client,
        }
    }
}

/// Listens in `netns`.
///
/// # Errors
/// As `bind(2)`.
pub fn listen(netns: &Netns, address: SocketAddr) -> Result<TcpListener> {
    netns.run(|| TcpListener::bind(address).with_context(|| format!("bind {address}")))
}

/// Connects from `netns`; reads and writes on the stream give up after [`PATIENCE`].
///
/// # Errors
/// As `connect(2)`: the `io::Error` is the error's source.
pub fn connect(netns: &Netns, to: SocketAddr) -> Result<TcpStream> {
    let stream = netns.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        begin_anywhere(&socket)?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        Ok(TcpStream::from(socket))
    })?;
    patient(&stream)?;
    Ok(stream)
}

/// Has a client begin at any sequence number, as another host does: all namespaces have one secret
/// (net/core/secure_seq.c), so that what belongs to a box's leg of the same addresses and ports would fit the
/// client's, and what is not to be routed past the box would be taken where it is.
fn begin_anywhere(client: &Socket) -> Result<()> {
    let client = client.as_fd();
    sockopt::set_repair(client, 1)?;
    sockopt::set_repair_queue(client, SEND_QUEUE)?;
    let [a, b, c, d, ..] = RandomState::new().hash_one(0).to_ne_bytes();
    sockopt::set_queue_seq(client, i32::from_ne_bytes([a, b, c, d]))?;
    sockopt::set_repair(client, OFF_WITHOUT_PROBE)?;
    Ok(())
}

/// Connects as [`connect`], from an address and port that may have been used before: while the last
/// acknowledgement of their last connection is under way, their kernel says that they are in use.
///
/// # Errors
/// As `connect(2)`: the `io::Error` is the error's source.
pub fn connect_from(netns: &Netns, local: SocketAddr, to: SocketAddr) -> Result<TcpStream> {
    let deadline = Deadline::after(PATIENCE);
    loop {
        let connected = netns.run(|| {
            let socket = Socket::new(Domain::for_address(local), Type::STREAM, None)?;
            begin_anywhere(&socket)?;
            socket.set_reuse_address(true)?;
            socket.bind(&local.into())?;
            socket.connect_timeout(&to.into(), PATIENCE)?;
            Ok(TcpStream::from(socket))
        });
        match connected {
            Err(error)
                if kind(&error) == Some(ErrorKind::AddrNotAvailable) && !deadline.passed() =>
            {
                deadline.glance();
            }
            Err(error) => return Err(error),
            Ok(stream) => {
                patient(&stream)?;
                return Ok(stream);
            }
        }
    }
}

/// Accepts, with a deadline; reads and writes on the stream give up after [`PATIENCE`].
///
/// # Errors
/// When nothing comes for [`PATIENCE`].
pub fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true)?;
    let deadline = Deadline::after(PATIENCE);
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false)?;
                patient(&stream)?;
                return Ok((stream, peer));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && !deadline.passed() => {
                deadline.glance();
            }
            Err(error) => return Err(error).context("accept"),
        }
    }
}

/// Returns the errno kind at the bottom of an error from here.
#[must_use]
pub fn kind(error: &anyhow::Error) -> Option<ErrorKind> {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind)
}

fn patient(stream: &TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn the_pattern_finds_a_lost_a_doubled_and_a_swapped_byte() {
        let pattern = Pattern::new(1);
        let mut good = Vec::new();
        while good.len() < 400_000 {
            let piece = pattern.piece(good.len() as u64, 60_000).to_vec();
            good.extend(piece);
        }
        pattern.verify(0, &good).unwrap();
        pattern.verify(5, &good[5..]).unwrap();
        let place = 200_000;
        let mut lost = good.clone();
        lost.remove(place);
        let mut doubled = good.clone();
        doubled.insert(place, good[place]);
        let mut swapped = good;
        swapped.swap(place, place + 7);
        for bad in [lost, doubled, swapped] {
            let message = pattern.verify(0, &bad).unwrap_err().to_string();
            assert!(message.contains("offset 2000"), "{message}");
        }
    }
}
