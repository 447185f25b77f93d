//! A daemon that has a modem, and what it says of it.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use pepd_dlep::PORT;
use pepd_testbed::modem::{Modem, TTL};
use pepd_testbed::{Family, Pepd, Stage, Via, World, run, wait_until};
use serde_json::Value;

use super::BYTES;
use crate::harness::{LIMIT, PEPD};

/// A world with a daemon that has a modem, and what it takes to ask the daemon.
pub(super) struct Lab {
    pub(super) stage: Stage,
}

impl Lab {
    /// Begins with these keys of a `[[dlep]]`.
    pub(super) fn with(keys: &str) -> Result<Self> {
        Self::in_world(World::standard()?, keys)
    }

    fn in_world(world: World, keys: &str) -> Result<Self> {
        let config = Self::config(&world, keys)?;
        let stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
        Ok(Self { stage })
    }

    fn config(world: &World, keys: &str) -> Result<String> {
        let config = World::config();
        let (before, wan) = config.split_once("[leg.wan]\n").context("the leg")?;
        let link = match keys {
            "" => "",
            _ => "link = { dlep = \"modem\" }\n",
        };
        let modem = match keys {
            "" => String::new(),
            keys => format!("[[dlep]]\nname = \"modem\"\n{keys}\n"),
        };
        Ok(format!(
            "{before}[leg.wan]\n{link}{wan}{modem}{}metrics = \"127.0.0.1:9730\"\n",
            world.admin()
        ))
    }

    /// Begins with a modem at an address of its own, without looking for it.
    pub(super) fn direct(family: Family, more: &str) -> Result<(Self, Modem)> {
        let world = World::standard()?;
        let address = Self::address(family)?;
        let modem = Modem::listen(world.outsider(), (address, PORT).into(), TTL)?;
        let lab = Self::in_world(world, &format!("modem = \"{address}\"\n{more}"))?;
        Ok((lab, modem))
    }

    pub(super) fn address(family: Family) -> Result<IpAddr> {
        let text = match family {
            Family::V4 => "10.9.0.2",
            Family::V6 => "fd00:9::2",
        };
        Ok(text.parse()?)
    }

    pub(super) fn ask(&self, words: &str) -> Result<String> {
        let pepd = self.stage.pepd.as_ref().context("the daemon")?;
        let command = format!("{PEPD} {words} -c {}", pepd.config_file().display());
        let mut shell = self.stage.world.hb().command("sh");
        run(shell.args(["-ec", &command]), LIMIT)?.success()
    }

    /// Returns what the API says of the link.
    pub(super) fn link(&self) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.ask("status --json")?)?;
        Ok(status["links"][0].clone())
    }

    pub(super) fn wait_for_state(&self, state: &str) -> Result<()> {
        wait_until(LIMIT, state, || {
            self.link().is_ok_and(|link| link["state"] == state)
        })
    }

    pub(super) fn wait_for(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let said = || self.link().unwrap_or_default()["modem"].clone();
        let waited = wait_until(LIMIT, what, || holds(&said()));
        waited.with_context(|| said().to_string())
    }

    pub(super) fn log(&self) -> String {
        let pepd = self.stage.pepd.as_ref();
        pepd.map(Pepd::log).unwrap_or_default()
    }

    pub(super) fn wait_for_log(&self, words: &str) -> Result<()> {
        wait_until(LIMIT, words, || self.log().contains(words))
    }

    pub(super) fn metrics(&self) -> Result<String> {
        let mut curl = self.stage.world.hb().command("curl");
        run(curl.args(["-sf", "http://127.0.0.1:9730/metrics"]), LIMIT)?.success()
    }

    pub(super) fn reload(&mut self, keys: &str) -> Result<()> {
        let config = Self::config(&self.stage.world, keys)?;
        self.stage.pepd()?.reload(&config)
    }

    /// The daemon goes on, and splits connections.
    pub(super) fn finish(self) -> Result<()> {
        self.stage.world.pair(Family::V4)?.exchange(BYTES)?;
        self.stage.finish()
    }
}
