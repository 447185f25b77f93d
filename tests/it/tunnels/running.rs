//! Helper boxes with a daemon in each.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use pepd_testbed::{Family, Fleet, Pepd, Process, accepted};

use crate::harness::PEPD;

/// The boxes of [`Fleet::chain`].
pub const BOXES: [&str; 3] = ["a", "i", "b"];

/// A fleet, and a daemon on each of its boxes.
pub struct Running {
    pub fleet: Fleet,
    boxes: Vec<String>,
    daemons: BTreeMap<String, Pepd>,
    outer: Family,
    inner: Vec<Family>,
    edit: fn(String) -> String,
}

impl Running {
    /// Returns the chain.
    pub fn start(fleet: Fleet, outer: Family, inner: &[Family]) -> Result<Self> {
        Self::edited(fleet, outer, inner, |config| config)
    }

    /// Returns the chain, each of whose configurations is changed by `edit`.
    pub fn edited(
        fleet: Fleet,
        outer: Family,
        inner: &[Family],
        edit: fn(String) -> String,
    ) -> Result<Self> {
        Self::with_boxes(fleet, &BOXES, outer, inner, edit)
    }

    /// Any boxes.
    pub fn with_boxes(
        fleet: Fleet,
        boxes: &[&str],
        outer: Family,
        inner: &[Family],
        edit: fn(String) -> String,
    ) -> Result<Self> {
        let mut running = Self {
            fleet,
            boxes: boxes.iter().map(|&name| name.to_owned()).collect(),
            daemons: BTreeMap::new(),
            outer,
            inner: inner.to_vec(),
            edit,
        };
        for name in boxes {
            running.restart(name)?;
        }
        Ok(running)
    }

    pub fn config(&self, name: &str) -> Result<String> {
        let config = self.fleet.config(name, self.outer, &self.inner)?;
        Ok((self.edit)(config))
    }

    /// Starts the daemon of a box that has none.
    pub fn restart(&mut self, name: &str) -> Result<()> {
        let config = self.config(name)?;
        let daemon = Pepd::start(PEPD, self.fleet.helper(name), &config)
            .with_context(|| format!("box {name}"))?;
        self.daemons.insert(name.to_owned(), daemon);
        Ok(())
    }

    /// Returns the daemon of a box.
    pub fn daemon(&mut self, name: &str) -> &mut Pepd {
        self.daemons.get_mut(name).unwrap()
    }

    /// Returns the daemon of a box, for its end.
    pub fn take(&mut self, name: &str) -> Pepd {
        self.daemons.remove(name).unwrap()
    }

    /// Returns how many connections each box has split.
    pub fn split(&self) -> Result<Vec<u64>> {
        split(&self.fleet, &self.boxes)
    }

    /// As [`split_since`].
    pub fn split_since(&self, before: &[u64]) -> Result<Vec<bool>> {
        split_since(&self.fleet, &self.boxes, before)
    }

    /// Ends a scenario: every daemon must still run.
    pub fn finish(mut self) -> Result<()> {
        for (name, daemon) in &mut self.daemons {
            ensure!(daemon.runs(), "box {name}: {}", daemon.log());
        }
        self.daemons.clear();
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (name, daemon) in &self.daemons {
            println!("---- the log of box {name} ----\n{}----", daemon.log());
        }
    }
}

/// Returns how many connections each box has split.
pub fn split(fleet: &Fleet, boxes: &[impl AsRef<str>]) -> Result<Vec<u64>> {
    let counts = boxes
        .iter()
        .map(|name| accepted(fleet.helper(name.as_ref())));
    counts.collect()
}

/// Returns whether each has split any since it had split `before`; not how many, which the kernel
/// may count too high ([`accepted`]).
pub fn split_since(fleet: &Fleet, boxes: &[impl AsRef<str>], before: &[u64]) -> Result<Vec<bool>> {
    let now = split(fleet, boxes)?;
    let pairs = now.iter().zip(before);
    Ok(pairs.map(|(now, then)| now > then).collect())
}

/// Returns the packets that `tcpdump` has printed.
pub fn lines(tcpdump: &Process) -> Vec<String> {
    let log = tcpdump.log();
    let packets = log.lines().filter(|line| line.contains(" > "));
    packets.map(str::to_owned).collect()
}
