//! The pause that connections see when the daemon's process dies or is replaced, and that not one byte
//! is lost by it: each connection exchanges checked bytes after each of these.

use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{Pattern, read, receive_exactly, send};
use pepd_testbed::wait_until;
use serde_json::{Value, json};

use super::interrupt::Interrupt;
use super::lane::Lane;
use super::load::{float, quantile};

/// The name of the setting.
pub const NAME: &str = "takeover";

/// The connections that are open, unless there are fewer descriptors.
pub const CONNECTIONS: [u16; 3] = [100, 1000, 8000];

/// Of these, connections that carry a byte there and back, again and again.
const PINGS: usize = 8;

/// The rest between two round trips: by as much a pause may be longer than it is seen.
const REST: Duration = Duration::from_millis(2);

/// The bytes that a bulk stream sends at a time.
const BULK_PIECE: u64 = 1 << 20;

/// The bytes that every other connection exchanges each way after each death.
const PIECE: u64 = 256;

/// Where in the one stream of bytes each of them begins: at another place than its neighbours.
const STRIDE: u64 = 1009;

/// The time that a process may take to go on.
const LIMIT: Duration = Duration::from_secs(60);

/// What a reader needs to know of these numbers.
pub const NOTE: &str = "\
Take-over: the longest round trip of a byte on each of 8 connections (with 2 ms of rest between two) \
about each death of the daemon's process (SIGKILL) or `pepd upgrade`, while bulk runs on two others. All \
of the connections exchange bytes after each, and every byte is checked: none was wrong, and no \
connection ended.";

/// What makes another process follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SIGKILL of the daemon's process.
    Crash,
    /// `pepd upgrade`.
    Upgrade,
}

impl Cause {
    const ALL: [Self; 2] = [Self::Crash, Self::Upgrade];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "crash",
            Self::Upgrade => "upgrade",
        })
    }
}

/// What a number of connections has seen.
#[derive(Clone, Debug)]
pub struct Takeovers {
    connections: usize,
    cause: Cause,
    deaths: u16,
    /// The pauses, the shortest first.
    pauses: Vec<Duration>,
    /// The bytes that have arrived, and were those that were sent.
    checked: u64,
}

impl Takeovers {
    fn cells(&self) -> Result<Vec<String>> {
        let ms = |percent| Ok(format!("{:.1}", quantile(&self.pauses, percent)? * 1e3));
        let numbers: Vec<String> = [50, 99, 100].into_iter().map(ms).collect::<Result<_>>()?;
        let mut cells = vec![
            format!("{} connections, {}", self.connections, self.cause),
            self.deaths.to_string(),
        ];
        cells.extend(numbers);
        cells.push(format!("{:.1}", float(self.checked) / 1e6));
        Ok(cells)
    }

    /// Returns it for the JSON.
    ///
    /// # Errors
    /// When there was no pause.
    pub fn json(&self) -> Result<Value> {
        Ok(json!({
            "connections": self.connections,
            "cause": self.cause.to_string(),
            "deaths": self.deaths,
            "pause-p50": quantile(&self.pauses, 50)?,
            "pause-p99": quantile(&self.pauses, 99)?,
            "pause-longest": quantile(&self.pauses, 100)?,
            "unit": "s",
            "bytes-checked": self.checked,
        }))
    }
}

/// Returns the head of a table, and its rows; none where there is nothing to show.
pub fn rows(all: &[Takeovers]) -> Option<Vec<Vec<String>>> {
    let head = [
        "take-over",
        "deaths",
        "pause, p50: ms",
        "p99: ms",
        "longest: ms",
        "MB checked",
    ];
    let rows = all.iter().filter_map(|it| it.cells().ok());
    let lines = std::iter::once(head.map(str::to_owned).to_vec()).chain(rows);
    (!all.is_empty()).then(|| lines.collect())
}

/// Has the daemon's process die `deaths` times, and be replaced as often, with so many connections; or
/// with as many as there are descriptors for.
///
/// # Errors
/// When one byte is wrong or one connection ends, when the daemon does not go on, and when interrupted.
pub fn run(
    lane: &mut Lane,
    connections: u16,
    deaths: u16,
    interrupt: &Interrupt,
) -> Result<Vec<Takeovers>> {
    let connections = usize::from(connections).min(most()?);
    let crowd = Crowd::open(lane, connections, interrupt)?;
    let over = AtomicBool::new(false);
    let (seen, streams) = thread::scope(|scope| {
        let (crowd, over) = (&crowd, &over);
        let [(client_a, server_a), (client_b, server_b)] = &crowd.bulk;
        let streams = [
            scope.spawn(|| crowd.send_until(server_a, over)),
            scope.spawn(|| crowd.receive(client_a, over)),
            scope.spawn(|| crowd.send_until(client_b, over)),
            scope.spawn(|| crowd.receive(server_b, over)),
        ];
        let pings = crowd.pings.iter();
        let pings: Vec<_> = pings
            .map(|ping| scope.spawn(|| ping.go(&crowd.pattern, over)))
            .collect();
        let seen = Cause::ALL.into_iter().map(|cause| {
            let before = crowd.checked();
            let pauses = (0..deaths).map(|_| crowd.outlives(lane, cause, over, interrupt));
            let pauses = pauses.collect::<Result<Vec<_>>>()?;
            let mut pauses: Vec<_> = pauses.into_iter().flatten().collect();
            pauses.sort_unstable();
            Ok(Takeovers {
                connections,
                cause,
                deaths,
                pauses,
                checked: crowd.checked() - before,
            })
        });
        let seen: Result<Vec<_>> = seen.collect();
        over.store(true, Relaxed);
        let all = streams.into_iter().chain(pings).map(joined);
        (seen, all.collect::<Result<Vec<u64>>>())
    });
    // What a connection says tells more than that something has not come.
    let streams = streams?;
    for (sent, got) in [(streams[0], streams[1]), (streams[2], streams[3])] {
        ensure!(sent == got, "of {sent} bytes of bulk {got} have come");
    }
    seen
}

/// Returns how many connections this process has descriptors for: both ends of each are its own.
fn most() -> Result<usize> {
    /// Those that it has besides: of the namespaces, devices and children.
    const OTHERS: u64 = 256;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(usize::try_from(soft.saturating_sub(OTHERS) / 2)?)
}

/// A client's end of a connection, and the server's.
type Ends = (TcpStream, TcpStream);

/// The connections, each of which has been split.
struct Crowd {
    bulk: [Ends; 2],
    pings: Vec<Ping>,
    others: Vec<Ends>,
    /// What each of the others has exchanged each way.
    exchanged: AtomicU64,
    /// The bytes of bulk that have arrived.
    moved: AtomicU64,
    pattern: Pattern,
}

impl Crowd {
    fn open(lane: &Lane, connections: usize, interrupt: &Interrupt) -> Result<Self> {
        let listener = lane.listen()?;
        lane.checked(|| {
            let open = || {
                interrupt.check()?;
                lane.connect(&listener)
            };
            let bulk = [open()?, open()?];
            let (mut pings, mut others) = (Vec::new(), Vec::new());
            let rest = connections.saturating_sub(bulk.len());
            // Spread over all, and so over the order in which connections go on.
            let every = (rest / PINGS).max(1);
            for number in 0..rest {
                match number % every == every / 2 && pings.len() < PINGS {
                    true => pings.push(Ping::on(open()?)),
                    false => others.push(open()?),
                }
            }
            let crowd = Self {
                bulk,
                pings,
                others,
                exchanged: AtomicU64::new(0),
                moved: AtomicU64::new(0),
                pattern: Pattern::new(1),
            };
            Ok((crowd, connections as u64))
        })
    }

    /// The bytes that have arrived on all of them, and been checked.
    fn checked(&self) -> u64 {
        let echoed: u64 = self.pings.iter().map(|ping| ping.trips.load(Relaxed)).sum();
        let exchanged = self.exchanged.load(Relaxed) * self.others.len() as u64;
        self.moved.load(Relaxed) + 2 * (echoed + exchanged)
    }

    /// Has one process follow another; gives the pause that each ping-pong has seen.
    fn outlives(
        &self,
        lane: &mut Lane,
        cause: Cause,
        over: &AtomicBool,
        interrupt: &Interrupt,
    ) -> Result<Vec<Duration>> {
        interrupt.check()?;
        for ping in &self.pings {
            ping.longest.store(0, Relaxed);
        }
        match cause {
            Cause::Crash => lane.pepd()?.dies(Signal::SIGKILL)?,
            Cause::Upgrade => lane.upgrade()?,
        }
        // One is under way, and has waited; the next one has not.
        let before: Vec<u64> = self.pings.iter().map(Ping::trips).collect();
        wait_until(LIMIT, "each ping-pong goes on", || {
            let mut all = self.pings.iter().zip(&before);
            over.load(Relaxed) || all.all(|(ping, before)| ping.trips() > before + 1)
        })?;
        let pause = |ping: &Ping| Duration::from_nanos(ping.longest.load(Relaxed));
        let pauses = self.pings.iter().map(pause).collect();
        self.exchange()?;
        Ok(pauses)
    }

    /// Has all that do nothing else exchange bytes both ways.
    fn exchange(&self) -> Result<()> {
        let before = self.exchanged.load(Relaxed);
        let place = |number: usize| before + number as u64 * STRIDE;
        let each = |from: fn(&Ends) -> &TcpStream, to: fn(&Ends) -> &TcpStream| {
            for (number, ends) in self.others.iter().enumerate() {
                send(from(ends), &self.pattern, place(number), PIECE)?;
            }
            for (number, ends) in self.others.iter().enumerate() {
                receive_exactly(to(ends), &self.pattern, place(number), PIECE)
                    .with_context(|| format!("connection {number}"))?;
            }
            Ok::<_, anyhow::Error>(())
        };
        each(|ends| &ends.0, |ends| &ends.1).context("to the servers")?;
        each(|ends| &ends.1, |ends| &ends.0).context("to the clients")?;
        self.exchanged.store(before + PIECE, Relaxed);
        Ok(())
    }

    /// Sends bulk until it is over, and then a FIN; gives how much it was.
    fn send_until(&self, stream: &TcpStream, over: &AtomicBool) -> Result<u64> {
        let mut sent = 0;
        while !over.load(Relaxed) {
            if let Err(error) = send(stream, &self.pattern, sent, BULK_PIECE) {
                over.store(true, Relaxed);
                return Err(error);
            }
            sent += BULK_PIECE;
        }
        stream.shutdown(Shutdown::Write)?;
        Ok(sent)
    }

    /// Receives bulk up to its FIN; gives how much it was.
    fn receive(&self, stream: &TcpStream, over: &AtomicBool) -> Result<u64> {
        let mut buffer = vec![0; 256 * 1024];
        let mut at = 0;
        let mut step = || {
            let length = read(stream, &mut buffer).with_context(|| format!("bulk, at {at}"))?;
            self.pattern.verify(at, &buffer[..length])?;
            at += length as u64;
            self.moved.fetch_add(length as u64, Relaxed);
            Ok((length, at))
        };
        loop {
            match step() {
                Ok((0, at)) => return Ok(at),
                Ok(_) => {}
                Err(error) => {
                    over.store(true, Relaxed);
                    return Err(error);
                }
            }
        }
    }
}

/// A connection that carries a byte there and back, again and again.
struct Ping {
    ends: Ends,
    /// The round trips that there have been.
    trips: AtomicU64,
    /// The longest of them since this was last set to 0, in nanoseconds.
    longest: AtomicU64,
}

impl Ping {
    fn on(ends: Ends) -> Self {
        Self {
            ends,
            trips: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    fn trips(&self) -> u64 {
        self.trips.load(Relaxed)
    }

    /// Goes on until it is over; gives the round trips.
    fn go(&self, pattern: &Pattern, over: &AtomicBool) -> Result<u64> {
        while !over.load(Relaxed) {
            let begun = Instant::now();
            if let Err(error) = self.trip(pattern) {
                over.store(true, Relaxed);
                return Err(error.context("ping-pong"));
            }
            let time = u64::try_from(begun.elapsed().as_nanos())?;
            self.longest.fetch_max(time, Relaxed);
            self.trips.fetch_add(1, Relaxed);
            thread::park_timeout(REST);
        }
        Ok(self.trips())
    }

    fn trip(&self, pattern: &Pattern) -> Result<()> {
        let (client, server) = &self.ends;
        let at = self.trips();
        for (from, to) in [(client, server), (server, client)] {
            send(from, pattern, at, 1)?;
            receive_exactly(to, pattern, at, 1)?;
        }
        Ok(())
    }
}

fn joined(thread: ScopedJoinHandle<'_, Result<u64>>) -> Result<u64> {
    thread
        .join()
        .map_err(|_| anyhow!("a thread has panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_middle_and_the_longest_pause() {
        let seen = Takeovers {
            connections: 100,
            cause: Cause::Crash,
            deaths: 3,
            pauses: [10, 20, 35].map(Duration::from_millis).to_vec(),
            checked: 2_500_000,
        };
        let rows = rows(&[seen]).unwrap();
        let cells = ["100 connections, crash", "3", "20.0", "35.0", "35.0", "2.5"];
        assert_eq!(rows[1], cells);
        assert_eq!(super::rows(&[]), None);
    }
}
