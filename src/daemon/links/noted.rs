//! What is known of the links, as it is noted for the process that goes on if this one dies.
//!
//! Without it a link that whoever knows had said to be gone would be up for that process: nothing would
//! keep its connections from being given up, and nobody would restart them when it is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_admin::wire::Outage;
use pepd_sys::clock;
use serde::{Deserialize, Serialize};

use super::link::Link;
use super::record::State;
use crate::keeper::board::Board;

/// What was known of the link under a leg.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct NotedLink {
    pub(super) state: State,
    /// When it went or was about to; none if it never has. All of these are of CLOCK_MONOTONIC, as the
    /// next process has it.
    gone: Option<Duration>,
    /// When it came back.
    back: Option<Duration>,
    /// What it had carried when it went, in bytes a second.
    #[serde(default)]
    pub(super) carried: Option<u64>,
    /// When it is taken for up if nothing else is heard.
    up_at: Option<Duration>,
    /// When it changed last, in seconds since the Unix epoch.
    pub(super) since: Option<f64>,
    pub(super) by: Option<String>,
    pub(super) changes: u64,
    pub(super) outages: Vec<Outage>,
}

impl NotedLink {
    fn of(link: &Link) -> Self {
        Self {
            state: link.record.state(),
            gone: link.gone.map(monotonic),
            back: link.back.map(monotonic),
            carried: link.carried,
            up_at: link.record.deadline().map(monotonic),
            since: link.since,
            by: link.by.clone(),
            changes: link.changes,
            outages: link.outages.iter().copied().collect(),
        }
    }

    /// Returns when it went.
    pub(super) fn gone(&self) -> Option<Instant> {
        self.gone.map(instant)
    }

    /// Returns when it came back.
    pub(super) fn back(&self) -> Option<Instant> {
        self.back.map(instant)
    }

    /// Returns when it is taken for up.
    pub(super) fn up_at(&self) -> Option<Instant> {
        self.up_at.map(instant)
    }
}

/// The notes on all links.
#[derive(Debug)]
pub struct LinkNotes {
    board: Arc<Board>,
    /// What the process before has left, of legs that have not been asked for yet.
    left: BTreeMap<String, NotedLink>,
    noted: String,
}

impl LinkNotes {
    /// Begins with what is on the board.
    pub fn new(board: Arc<Board>) -> Self {
        let noted = board.links().unwrap_or_default();
        let left = read(&noted);
        Self { board, left, noted }
    }

    /// Takes what the process before knew of the link under a leg, once.
    pub(super) fn take(&mut self, leg: &str) -> Option<NotedLink> {
        self.left.remove(leg)
    }

    /// Takes the legs that nobody has taken: of one that comes later it would be long past.
    pub(super) fn take_the_rest(&mut self) -> Vec<Arc<str>> {
        let left = std::mem::take(&mut self.left);
        left.into_keys().map(Arc::from).collect()
    }

    /// Notes what is known of these; of one that has never changed there is nothing to note.
    pub(super) fn note(&mut self, legs: &BTreeMap<Arc<str>, Link>) {
        let changed = legs.iter().filter(|(_, link)| link.changes > 0);
        let notes: BTreeMap<&str, NotedLink> = changed
            .map(|(leg, link)| (&**leg, NotedLink::of(link)))
            .collect();
        if notes.is_empty() && self.noted.is_empty() {
            return;
        }
        match serde_json::to_string(&notes) {
            Ok(text) if text != self.noted => {
                self.board.set_links(&text);
                self.noted = text;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "what is known of links is not noted"),
        }
    }
}

/// Returns the legs whose links were gone for the process before, or about to go.
pub fn gone_links(board: &Board) -> Vec<Arc<str>> {
    let links = read(&board.links().unwrap_or_default());
    let gone = links
        .into_iter()
        .filter(|(_, link)| link.state != State::Up);
    gone.map(|(leg, _)| Arc::from(leg)).collect()
}

fn read(noted: &str) -> BTreeMap<String, NotedLink> {
    match serde_json::from_str(noted) {
        Ok(left) => left,
        Err(_) if noted.is_empty() => BTreeMap::new(),
        Err(error) => {
            tracing::warn!(%error, "what the process before knew of links is not understood");
            BTreeMap::new()
        }
    }
}

fn monotonic(at: Instant) -> Duration {
    let now = Instant::now();
    match at.checked_duration_since(now) {
        Some(left) => clock::monotonic() + left,
        None => clock::monotonic().saturating_sub(now - at),
    }
}

fn instant(at: Duration) -> Instant {
    let (instant, now) = (Instant::now(), clock::monotonic());
    match at.checked_sub(now) {
        Some(left) => instant + left,
        None => instant.checked_sub(now - at).unwrap_or(instant),
    }
}
