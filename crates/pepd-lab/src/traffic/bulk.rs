//! Bulk flows: each sends as much as it can.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::time::ClockId;
use pepd_testbed::Netns;
use pepd_testbed::traffic::{accept, listen};
use socket2::{Domain, Socket, Type};

use crate::path::Path;
use crate::stats::real64;

/// The width of the bins that arrivals are counted in.
pub const BIN: Duration = Duration::from_millis(100);
/// A path that loses a fifth of its packets needs several attempts to connect.
const CONNECT: Duration = Duration::from_secs(120);
/// The port that the receiver listens on.
pub const PORT: u16 = 9000;
/// The port for flows of somebody else's.
const FOREIGN_PORT: u16 = 9001;

/// Flows under way from the sender to the receiver.
#[derive(Debug)]
pub struct Flows {
    epoch: Instant,
    ends: Vec<TcpStream>,
    senders: Vec<JoinHandle<()>>,
    receivers: Vec<JoinHandle<Vec<u64>>>,
}

/// The bytes that arrived at the receiver, per flow and [`BIN`] since the start.
#[derive(Clone, Debug)]
pub struct Arrivals(Vec<Vec<u64>>);

impl Flows {
    /// Connects `count` flows that send by the congestion control `congestion`, and lets them.
    ///
    /// # Errors
    /// When a connection is not established.
    pub fn start(path: &Path, count: usize, congestion: &str) -> Result<Self> {
        Self::between(path, (&path.sender, PORT), count, congestion)
    }

    /// The same of one flow of somebody else's, who is where the box in the middle is: it is not split.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn foreign(path: &Path, congestion: &str) -> Result<Self> {
        Self::between(path, (&path.hb, FOREIGN_PORT), 1, congestion)
    }

    fn between(
        path: &Path,
        (from, port): (&Netns, u16),
        count: usize,
        congestion: &str,
    ) -> Result<Self> {
        let listener = listen(&path.receiver, Path::receiver_address(port))?;
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push(pair(from, &listener, congestion)?);
        }
        let epoch = Instant::now();
        let mut flows = Self {
            epoch,
            ends: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
        };
        for (sender, receiver) in pairs {
            flows.ends.push(sender.try_clone()?);
            flows.ends.push(receiver.try_clone()?);
            flows.senders.push(thread::spawn(move || send(sender)));
            flows
                .receivers
                .push(thread::spawn(move || receive(receiver, epoch)));
        }
        Ok(flows)
    }

    /// Returns when the flows began to send.
    #[must_use]
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// Cuts the flows off and returns what arrived.
    #[must_use]
    pub fn stop(self) -> Arrivals {
        for end in &self.ends {
            // It fails where the path has already done so.
            let _ = end.shutdown(Shutdown::Both);
        }
        for sender in self.senders {
            let _ = sender.join();
        }
        let arrived = self.receivers.into_iter();
        Arrivals(
            arrived
                .map(|receiver| receiver.join().unwrap_or_default())
                .collect(),
        )
    }
}

impl Arrivals {
    /// Returns each flow's goodput in bit/s from `from` after the start for `length`, both
    /// multiples of [`BIN`].
    #[must_use]
    pub fn goodput(&self, from: Duration, length: Duration) -> Vec<f64> {
        let [first, count] = [bin(from), bin(length)];
        let sum = |flow: &Vec<u64>| flow.iter().skip(first).take(count).sum::<u64>();
        self.0
            .iter()
            .map(|flow| real64(sum(flow)) * 8.0 / length.as_secs_f64())
            .collect()
    }

    /// Returns when all flows together first had a rate in bit/s: the middle of the first two [`BIN`]s of
    /// which that is so; `None` if they never had.
    #[must_use]
    pub fn reached(&self, rate: f64) -> Option<Duration> {
        let bins = self.0.iter().map(Vec::len).max().unwrap_or_default();
        let count = u32::try_from(bins).unwrap_or(u32::MAX);
        (0..count).map(|bin| BIN * bin).find_map(|from| {
            let sum: f64 = self.goodput(from, 2 * BIN).iter().sum();
            (sum >= rate).then_some(from + BIN)
        })
    }
}

/// Sleeps until `when`.
pub fn sleep_until(when: Instant) {
    while let Some(left) = when.checked_duration_since(Instant::now()) {
        thread::park_timeout(left);
        if left.is_zero() {
            return;
        }
    }
}

/// Opens a connection from `sender`, whose end sends by the congestion control `congestion`, to
/// `listener`, and returns both ends.
///
/// # Errors
/// When it is not established.
pub fn pair(
    sender: &Netns,
    listener: &TcpListener,
    congestion: &str,
) -> Result<(TcpStream, TcpStream)> {
    let to = listener.local_addr()?;
    let connecting = sender.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket
            .set_tcp_congestion(congestion.as_bytes())
            .with_context(|| format!("congestion control `{congestion}`"))?;
        Ok(socket)
    })?;
    let connected = thread::scope(|scope| {
        let connecting = scope.spawn(move || {
            connecting
                .connect_timeout(&to.into(), CONNECT)
                .map(|()| connecting)
        });
        let accepted = accept(listener);
        let connected = connecting.join();
        accepted.map(|(accepted, _)| (connected, accepted))
    });
    let (connected, accepted) = connected.context("no connection across the path")?;
    let connected = connected.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    connected.set_nonblocking(false)?;
    accepted.set_read_timeout(None)?;
    accepted.set_write_timeout(None)?;
    Ok((connected.into(), accepted))
}

/// Waits half a second or less, until the kernel's timers tick. TCP's timeouts are as coarse as
/// ticks are: the point between two of them at which flows begin affects when timeouts run out, and
/// should be the same for the same seed.
///
/// # Errors
/// Without the clocks that tell.
pub fn wait_for_tick() -> Result<()> {
    /// A whole number of ticks with 100, 250, 300 and 1000 of them per second.
    const AHEAD: Duration = Duration::from_millis(500);
    // It shows the last tick. It is read first, or the difference could be negative.
    let tick = ClockId::CLOCK_MONOTONIC_COARSE.now();
    let tick = tick.context("coarse clock")?;
    let since = ClockId::CLOCK_MONOTONIC.now().context("clock")? - tick;
    sleep_until(Instant::now() + AHEAD.saturating_sub(since.into()));
    Ok(())
}

fn send(mut stream: TcpStream) {
    let block = vec![0x5a; 64 * 1024];
    while stream.write_all(&block).is_ok() {}
}

fn receive(mut stream: TcpStream, epoch: Instant) -> Vec<u64> {
    let mut buffer = vec![0; 256 * 1024];
    let mut bins = Vec::new();
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let at = bin(epoch.elapsed());
        if bins.len() <= at {
            bins.resize(at + 1, 0);
        }
        bins[at] += length as u64;
    }
    bins
}

fn bin(time: Duration) -> usize {
    usize::try_from(time.as_millis() / BIN.as_millis()).unwrap_or(usize::MAX)
}
