//! The timers of sockets, as `ss` shows them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pepd_testbed::{Netns, wait_until};

use crate::harness::LIMIT;

/// The doublings that an outage has to cause, for the kernel to wait for some seconds more.
pub(super) const DOUBLINGS: u32 = 5;

/// A socket's timer, as `ss` shows it.
#[derive(Debug, PartialEq)]
pub(super) struct Timer {
    pub(super) kind: String,
    pub(super) left: Duration,
    pub(super) doublings: u32,
}

/// Returns the timer of a host's socket with these two ends, if one runs.
pub(super) fn timer_of(
    host: &Netns,
    ours: SocketAddr,
    theirs: SocketAddr,
) -> Result<Option<Timer>> {
    let list = host.sh(&format!("ss -Htno src {ours} and dst {theirs}"))?;
    let Some((_, timer)) = list.split_once("timer:(") else {
        return Ok(None);
    };
    let timer = timer.split_once(')').context("timer:(…)")?.0;
    let [kind, left, doublings] = timer.split(',').collect::<Vec<_>>()[..] else {
        anyhow::bail!("{timer}");
    };
    Ok(Some(Timer {
        kind: kind.to_owned(),
        left: time_left(left).with_context(|| format!("{left} in {timer}"))?,
        doublings: doublings.parse()?,
    }))
}

/// Reads a time as `ss` writes it: `12sec`, `3.456ms` (seconds, and a fraction), `456ms`, `1min2sec`.
pub(super) fn time_left(text: &str) -> Option<Duration> {
    let (minutes, rest) = text.split_once("min").unwrap_or(("0", text));
    let seconds: f64 = match (rest.strip_suffix("sec"), rest.strip_suffix("ms")) {
        (Some(seconds), _) => seconds.parse().ok()?,
        (_, Some(fraction)) if fraction.contains('.') => fraction.parse().ok()?,
        (_, Some(milliseconds)) => milliseconds.parse::<f64>().ok()? / 1000.0,
        _ if rest.is_empty() => 0.0,
        _ => return None,
    };
    let minutes: f64 = minutes.parse().ok()?;
    Duration::try_from_secs_f64(minutes * 60.0 + seconds).ok()
}

/// Waits until such a timer has been doubled so often, and has some time left.
pub(super) fn wait_for_doublings(
    timer: impl Fn() -> Result<Option<Timer>>,
    kind: &str,
) -> Result<Timer> {
    let mut last = None;
    wait_until(LIMIT, "the kernel waits for longer and longer", || {
        last = timer().ok().flatten();
        last.as_ref().is_some_and(|timer| {
            timer.kind == kind
                && timer.doublings >= DOUBLINGS
                && timer.left > Duration::from_secs(3)
        })
    })?;
    last.context("a timer")
}
