//! A soak: connections by the hundred thousand through the real daemon, with every kind of end, in
//! bad weather, and every byte accounted for.
//!
//! Connections come in rounds. Within a round the daemon reads its configuration again, is paused,
//! and is killed and started, and forged packets come by the thousand; between rounds nothing goes
//! on, and what the daemon and the kernel still hold is compared with what they held before.

mod account;
mod ends;
mod ground;
mod plan;
mod summary;
mod weather;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::sync::oneshot;

use crate::netns::Netns;
use crate::process::raise_descriptor_limit;
use crate::traffic::Rng;
use crate::wait::wait_until;
use crate::world::World;
use account::Conversation;
use ends::{PATIENCE, Shared};
use ground::Rest;
use plan::Plan;
pub use summary::Summary;
use weather::Weather;

/// How long a soak is, and by what it is drawn.
#[derive(Clone, Debug)]
pub struct Soak {
    /// How many connections are opened.
    pub connections: u64,
    /// The time after which no new round begins.
    pub time: Option<Duration>,
    /// What everything is drawn by.
    pub seed: u64,
    /// How many connections are open at once.
    pub at_a_time: usize,
    /// How many connections a round has.
    pub round: u64,
}

impl Soak {
    /// Runs it with the daemon from the file `binary`; `tell` hears how far it is after each round.
    ///
    /// # Errors
    /// What does not hold, with the daemon's log.
    pub fn run(&self, binary: &Path, tell: impl FnMut(&Summary)) -> Result<Summary> {
        raise_descriptor_limit()?;
        let world = ground::prepare()?;
        let before = world.steady_state()?;
        let shared = Arc::new(Shared::new(self.seed));
        let (over, is_over) = oneshot::channel();
        let server = {
            let shared = Arc::clone(&shared);
            world.server().spawn(move || {
                runtime()?.block_on(async { ends::serve(shared, ends::listen()?, is_over).await })
            })?
        };
        let mut weather = Weather::start(binary, &world, self.seed)?;
        let outcome = self.rounds(&world, &shared, &mut weather, tell);
        drop(over);
        let served = server.join();
        let served = served.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let log = weather.log();
        let with_log = || format!("the daemon's log ends with:\n{}", tail(&log));
        let summary = outcome.with_context(with_log)?;
        served?;
        weather.end(&world, &before).with_context(with_log)?;
        Ok(summary)
    }

    fn rounds(
        &self,
        world: &World,
        shared: &Arc<Shared>,
        weather: &mut Weather,
        mut tell: impl FnMut(&Summary),
    ) -> Result<Summary> {
        let start = Instant::now();
        let mut rng = Rng::new(self.seed);
        let mut summary = Summary::default();
        let unused = ground::sets(world.hb())?;
        while summary.connections < self.connections
            && self.time.is_none_or(|time| start.elapsed() < time)
        {
            let length = self.round.min(self.connections - summary.connections);
            let numbers = summary.connections..summary.connections + length;
            let round: Vec<_> = numbers
                .map(|number| Arc::new(Conversation::new(Plan::draw(number, &mut rng))))
                .collect();
            shared.expect(&round);
            let share = start.elapsed().as_secs_f64()
                / self.time.map_or(f64::INFINITY, |time| time.as_secs_f64());
            let done = (summary.connections as f64 / self.connections as f64).max(share);
            // The second half is one life, long enough to see what grows.
            weather.kills = done < 0.5;
            self.round(world, shared, weather, round.clone())?;
            summary.add(&round, weather, shared)?;
            let rest = Rest::measure(world, weather.pepd()?, weather.life + length, PATIENCE)?;
            weather.life += length;
            summary.rest(rest, weather.lives);
            summary.time = start.elapsed();
            tell(&summary);
        }
        summary.judge_rest(&unused, || {
            (ground::sets(world.hb()), ground::tracked(world.hb()))
        })?;
        Ok(summary)
    }

    /// Runs one round: the clients, and the weather meanwhile; and waits until it is quiet.
    fn round(
        &self,
        world: &World,
        shared: &Arc<Shared>,
        weather: &mut Weather,
        round: Vec<Arc<Conversation>>,
    ) -> Result<()> {
        let length = round.len();
        let (its, at_a_time) = (Arc::clone(shared), self.at_a_time);
        let clients = in_namespace(world.client(), ends::ask(its, round, at_a_time))?;
        let weathered = weather.have(world, shared, length);
        let asked = clients.join();
        asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        weathered?;
        let over = shared.clients_over.load(Relaxed);
        ensure!(over == length, "{over} of {length} clients are over");
        wait_until(PATIENCE, "the server's ends are over", || {
            shared.serving.load(Relaxed) == 0
        })
    }
}

fn in_namespace(
    netns: &Netns,
    work: impl Future<Output = ()> + Send + 'static,
) -> Result<std::thread::JoinHandle<Result<()>>> {
    netns.spawn(move || {
        runtime()?.block_on(work);
        Ok(())
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Returns the last lines of a log, without those of each connection.
fn tail(log: &str) -> String {
    let ended = "INFO connection ended";
    let lines: Vec<_> = log.lines().filter(|line| !line.contains(ended)).collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
