//! What a soak has come to.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::account::Conversation;
use super::ends::{PATIENCE, Shared};
use super::ground::Rest;
use super::weather::Weather;
use crate::wait::wait_until;

/// What may be added to the descriptors: listeners stay open for a minute after each reload, and
/// pipes are kept for the next connections. What leaks with connections comes to more.
const DESCRIPTORS: usize = 400;

/// The part of it that memory may grow by: an allocator does not give everything back.
const GROWTH: u64 = 4;
const SLACK: u64 = 4 << 20;

/// The elements that a set may have more than before: those of the gate come and go.
const ELEMENTS: usize = 8;

/// The entries that connection tracking may have at rest: what is not the soak's own.
const TRACKED: u64 = 64;

/// What has happened so far.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Connections opened, and judged.
    pub connections: u64,
    /// Bytes that arrived, all of them right.
    pub bytes: u64,
    /// Those that a kill of the daemon's may have broken.
    pub broken: u64,
    /// How often the daemon was killed.
    pub kills: u64,
    /// How often it has read its configuration again.
    pub reloads: u64,
    /// How often it was paused.
    pub pauses: u64,
    /// How many forged packets there were.
    pub forged: u64,
    /// How many connections reached the server that nobody had opened.
    pub strangers: u64,
    /// The time since the start.
    pub time: Duration,
    /// What was held at rest, in the daemon's last life: each time.
    rests: Vec<Rest>,
    life: u64,
}

impl Summary {
    /// Judges a round's connections and adds them.
    ///
    /// # Errors
    /// What cannot be.
    pub fn add(
        &mut self,
        round: &[Arc<Conversation>],
        weather: &Weather,
        shared: &Shared,
    ) -> Result<()> {
        let mut wrong = Vec::new();
        let strangers = shared.strangers.load(Relaxed);
        // Where a client's port is taken on the box, by what a killed daemon has left to the kernel, the
        // server sees another one, does not know whose connection it is, and resets it.
        let mut by_another_port = strangers.saturating_sub(self.strangers);
        for it in round {
            if let Err(error) = it.judge() {
                if by_another_port > 0 && it.was_reset_unseen() {
                    by_another_port -= 1;
                } else {
                    wrong.push(format!("{error:#}: {it:?}"));
                }
            }
            for account in [&it.client, &*it.server()] {
                self.bytes += account.received.load(Relaxed);
            }
            self.broken += u64::from(it.saw_a_kill());
        }
        self.connections += round.len() as u64;
        self.kills = weather.lives - 1;
        self.reloads = weather.reloads;
        self.pauses = weather.pauses;
        self.forged = weather.forged;
        self.strangers = strangers;
        if !wrong.is_empty() {
            bail!(
                "{} connections, and {strangers} reached the server that nobody had opened:\n{}",
                wrong.len(),
                wrong[..wrong.len().min(5)].join("\n")
            );
        }
        Ok(())
    }

    /// Adds what is held at rest.
    pub fn rest(&mut self, rest: Rest, life: u64) {
        if self.life != life {
            self.rests.clear();
            self.life = life;
        }
        self.rests.push(rest);
    }

    /// Compares what is held at the end with what was after the first tenth of the daemon's last
    /// life, and the kernel's tables, as `now` gives them, with those of a daemon unused.
    ///
    /// # Errors
    /// What has grown.
    pub fn judge_rest(
        &self,
        unused: &BTreeMap<String, usize>,
        now: impl Fn() -> (Result<BTreeMap<String, usize>>, Option<u64>),
    ) -> Result<()> {
        let (first, last) = self.first_and_last().context("no round was run")?;
        let most = first.resident + first.resident / GROWTH + SLACK;
        ensure!(
            last.resident <= most,
            "memory has grown: {first:?} … {last:?}"
        );
        let most = first.descriptors + DESCRIPTORS;
        ensure!(
            last.descriptors <= most,
            "descriptors have grown: {first:?} … {last:?}"
        );
        let allowed = |name: &String| unused.get(name).copied().unwrap_or_default() + ELEMENTS;
        let rests = wait_until(PATIENCE, "the kernel's tables are at rest", || {
            let (sets, tracked) = now();
            let sets = sets.is_ok_and(|sets| sets.iter().all(|(name, it)| *it <= allowed(name)));
            sets && tracked.is_none_or(|tracked| tracked <= TRACKED)
        });
        rests.with_context(|| format!("{:?}", now()))
    }

    fn first_and_last(&self) -> Option<(&Rest, &Rest)> {
        let last = self.rests.last()?;
        let tenth = last.connections / 10;
        let first = self.rests.iter().find(|rest| rest.connections >= tenth)?;
        Some((first, last))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs_f64();
        write!(
            f,
            "{:.0} s: {} connections ({:.0}/s), {:.2} GB right; {} kills ({} connections under \
             way), {} reloads, {} pauses, {} forged packets ({} reached the server)",
            seconds,
            self.connections,
            self.connections as f64 / seconds.max(0.001),
            self.bytes as f64 / 1e9,
            self.kills,
            self.broken,
            self.reloads,
            self.pauses,
            self.forged,
            self.strangers,
        )?;
        if let Some((first, last)) = self.first_and_last() {
            let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            write!(
                f,
                "; at rest {:.1} → {:.1} MiB, {} → {} descriptors",
                mebibytes(first.resident),
                mebibytes(last.resident),
                first.descriptors,
                last.descriptors,
            )?;
            if let Some(tracked) = last.tracked {
                write!(f, ", {tracked} tracked")?;
            }
        }
        Ok(())
    }
}
