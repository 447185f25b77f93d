//! What happens to the daemon during a soak: reloads, pauses, kills, forged packets.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ends::{PATIENCE, Shared};
use super::ground::config;
use super::plan::{CLOSED, PORTS, SILENT};
use crate::forge::{Flood, Segment, flag, random_syn, stranger};
use crate::pepd::Pepd;
use crate::traffic::Rng;
use crate::wait::{Deadline, wait_until};
use crate::world::{Family, World};

/// How many things happen in a round.
const EVENTS: usize = 4;

/// Forged packets a second.
const FORGED: u32 = 400;

/// The daemon, and what is done to it.
pub struct Weather {
    /// It may be killed.
    pub kills: bool,
    /// Connections that the daemon has seen since its start.
    pub life: u64,
    /// How often it was started.
    pub lives: u64,
    /// How often it has read its configuration again.
    pub reloads: u64,
    /// How often it was paused.
    pub pauses: u64,
    /// How many forged packets there were.
    pub forged: u64,
    pepd: Option<Pepd>,
    early: bool,
    rounds: u64,
    binary: PathBuf,
    rng: Rng,
}

impl Weather {
    /// Starts the daemon from the file `binary`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(binary: &Path, world: &World, seed: u64) -> Result<Self> {
        Ok(Self {
            kills: true,
            life: 0,
            lives: 1,
            reloads: 0,
            pauses: 0,
            forged: 0,
            pepd: Some(Pepd::start(binary, world.hb(), &config(false))?),
            early: false,
            rounds: 0,
            binary: binary.to_owned(),
            rng: Rng::new(!seed),
        })
    }

    /// Returns the daemon.
    ///
    /// # Errors
    /// When it could not be started again.
    pub fn pepd(&self) -> Result<&Pepd> {
        self.pepd.as_ref().context("no daemon")
    }

    /// Returns what the daemon has logged.
    pub fn log(&self) -> String {
        self.pepd.as_ref().map(Pepd::log).unwrap_or_default()
    }

    /// Has weather for a round of so many connections.
    ///
    /// # Errors
    /// When the daemon does not survive what it should, or no client comes to its end.
    pub fn have(&mut self, world: &World, shared: &Shared, length: usize) -> Result<()> {
        self.rounds += 1;
        let floods = match self.rounds % 2 {
            0 => floods(world, self.rng.bits())?,
            _ => Vec::new(),
        };
        let kill = self.kills.then(|| self.below(EVENTS));
        for event in 0..EVENTS {
            let due = length * (event + 1) / (EVENTS + 1);
            // Long enough for the slowest of rounds.
            wait_until(10 * PATIENCE, "clients come to their ends", || {
                shared.clients_over.load(Relaxed) >= due
            })?;
            if kill == Some(event) {
                self.kill(world, shared)?;
            } else if self.rng.between(0, 2) == 0 {
                self.pause()?;
            } else {
                self.reload()?;
            }
        }
        for flood in floods {
            self.forged += flood.stop()?;
        }
        let log = self.log();
        ensure!(!log.contains("panicked"), "a panic in the daemon's log");
        Ok(())
    }

    /// Ends the daemon.
    ///
    /// # Errors
    /// When its end is not in order, or something is left.
    pub fn end(self, world: &World, before: &str) -> Result<()> {
        let (status, log) = self.pepd.context("no daemon")?.stop()?;
        ensure!(status.success(), "{status}: {log}");
        let now = world.steady_state()?;
        ensure!(now == before, "{now}\ninstead of\n{before}");
        Ok(())
    }

    fn reload(&mut self) -> Result<()> {
        self.early = !self.early;
        self.reloads += 1;
        let config = config(self.early);
        let pepd = self.pepd.as_mut().context("no daemon")?;
        pepd.reload(&config)
    }

    fn pause(&mut self) -> Result<()> {
        self.pauses += 1;
        // One in four is longer than the gate stays open by itself.
        let millis = match self.rng.between(0, 3) {
            0 => self.rng.between(5000, 7000),
            _ => self.rng.between(10, 1000),
        };
        let over = Deadline::after(Duration::from_millis(millis));
        let pepd = self.pepd()?;
        pepd.pause()?;
        while !over.passed() {
            over.glance();
        }
        pepd.resume()
    }

    fn kill(&mut self, world: &World, shared: &Shared) -> Result<()> {
        shared.epoch.fetch_add(1, Relaxed);
        self.pepd.take().context("no daemon")?.kill()?;
        self.pepd = Some(Pepd::start(&self.binary, world.hb(), &config(self.early))?);
        shared.epoch.fetch_add(1, Relaxed);
        self.lives += 1;
        self.life = 0;
        Ok(())
    }

    fn below(&mut self, number: usize) -> usize {
        let last = u64::try_from(number - 1).unwrap_or_default();
        usize::try_from(self.rng.between(0, last)).unwrap_or_default()
    }
}

/// Starts one flood for each family: SYNs and other segments, of strangers, to open, closed and
/// silent ports.
fn floods(world: &World, seed: u64) -> Result<Vec<Flood>> {
    let flood = |family| {
        let to = World::server_address(family);
        let mut rng = Rng::new(seed);
        Flood::start(world.sibling(), FORGED / 2, move || forged(&mut rng, to))
    };
    Family::BOTH.into_iter().map(flood).collect()
}

fn forged(rng: &mut Rng, to: IpAddr) -> Segment {
    let port = match rng.between(0, 3) {
        0 => CLOSED,
        1 => SILENT,
        _ => PORTS.start,
    };
    let mut segment = random_syn(
        rng,
        |number| stranger(number, to),
        SocketAddr::new(to, port),
    );
    segment.flags = match rng.between(0, 5) {
        0 => flag::RST,
        1 => flag::ACK,
        2 => flag::FIN | flag::ACK,
        3 => flag::SYN | flag::ACK,
        _ => flag::SYN,
    };
    if segment.flags != flag::SYN {
        segment.payload = vec![7; usize::from(rng.bits().to_be_bytes()[0])];
    }
    segment
}
