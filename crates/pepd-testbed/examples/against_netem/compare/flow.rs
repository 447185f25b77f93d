//! One TCP flow, and round trips without one.

use std::ffi::OsString;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use pepd_testbed::traffic::{accept, connect, listen};

use super::path::{Path, SERVER};

/// A round trip that takes longer has lost a packet.
const LOST: Duration = Duration::from_secs(2);
/// The bytes of a probe: with the headers a full packet, so that its transmission counts.
const PROBE: usize = 1472;

/// The way in which a flow is measured.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The sender's congestion control.
    pub congestion: &'static str,
    /// The time that it runs before the measurement, so that its start does not count.
    pub warm_up: Duration,
    /// The length of the measurement.
    pub span: Duration,
}

impl Flow {
    /// Sends as much as possible over `path`, and says how many bits per second arrived.
    ///
    /// # Errors
    /// When the connection is not established or breaks.
    pub fn goodput(&self, path: &Path) -> Result<f64> {
        let listener = listen(path.server(), SocketAddr::new(SERVER, 0))?;
        let sender = connect(path.client(), listener.local_addr()?)?;
        let congestion = OsString::from(self.congestion);
        setsockopt(&sender, sockopt::TcpCongestion, &congestion)
            .with_context(|| format!("congestion control {}", self.congestion))?;
        let (receiver, _) = accept(&listener)?;
        let source = thread::spawn(move || pour(&sender));
        let bits = self.measure(&receiver);
        // The sender notices.
        drop(receiver);
        let _ = source.join();
        bits
    }

    fn measure(&self, mut receiver: &TcpStream) -> Result<f64> {
        let mut buffer = vec![0; 256 << 10];
        let begin = Instant::now() + self.warm_up;
        let end = begin + self.span;
        let (mut first, mut last, mut bytes) = (None, begin, 0);
        while last < end {
            let length = receiver.read(&mut buffer).context("receive")?;
            ensure!(length > 0, "the flow has ended before the measurement did");
            last = Instant::now();
            match first {
                None if last >= begin => first = Some(last),
                None => {}
                Some(_) => bytes += length,
            }
        }
        let first = first.context("the flow has stalled for the whole measurement")?;
        Ok(bytes as f64 * 8.0 / (last - first).as_secs_f64())
    }
}

/// Writes until the other end has had enough.
fn pour(mut stream: &TcpStream) {
    let zeros = vec![0; 256 << 10];
    while stream.write(&zeros).is_ok() {}
}

/// Returns the median round trip of full packets on the idle path, of those that were not lost: the
/// first one waits for the neighbours' addresses, which a veth pair asks for and TUN does not.
///
/// # Errors
/// When none comes back.
pub fn round_trip(path: &Path, probes: u32) -> Result<Duration> {
    let echo = path
        .server()
        .run(|| Ok(UdpSocket::bind(SocketAddr::new(SERVER, 0))?))?;
    let address = echo.local_addr()?;
    let probe = path.client().run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(address)?;
        Ok(socket)
    })?;
    probe.set_read_timeout(Some(LOST))?;
    // An empty datagram ends it.
    let answering = thread::spawn(move || {
        let mut buffer = [0; PROBE];
        while let Ok((length @ 1.., peer)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], peer);
        }
        echo
    });
    let mut times = Vec::new();
    let mut buffer = [0; PROBE];
    for _ in 0..probes {
        let sent = Instant::now();
        probe.send(&buffer)?;
        match probe.recv(&mut buffer) {
            Ok(_) => times.push(sent.elapsed()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("a round trip"),
        }
    }
    let own = path.server().run(|| {
        let socket = UdpSocket::bind(SocketAddr::new(SERVER, 0))?;
        Ok(socket.send_to(&[], address)?)
    });
    own.context("cannot end the echo")?;
    drop(answering.join());
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied();
    median.with_context(|| format!("none of {probes} packets came back"))
}
