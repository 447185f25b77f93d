//! Whether the other helper boxes answer: an echo request through each tunnel, now and then.
//!
//! A tunnel has no state of its own: when the other box is gone, or the path to it, packets into
//! the tunnel vanish without a word. The probe is what notices. The log and the admin API report it,
//! and legs that have a peer for their `link` go by it.
//!
//! A link that is back is to be used at once at both its ends, and one of them may know of it long
//! before the next probe is due: it asks all its peers then. A request of a peer's that has not answered
//! is therefore a reason to ask that peer, and no more than that: whoever forges one causes a probe.

mod echo;
mod filter;
mod record;
mod socket;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pepd_admin::wire::{Liveness, PeerState};
use pepd_config::{Config, Peer};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use self::echo::Echo;
use self::record::{Change, Record};
use self::socket::Heard;

/// The time that an answer may take at least, however often the peer is probed: twice a satellite's
/// round trip and a second.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The least time between two probes of which the second was not due.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// The name of a tunnel's interface, before the peer's.
const DEVICE_PREFIX: &str = "pepd-";

/// The probes of all peers. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Probes {
    tasks: Vec<Task>,
    shared: PeerStates,
}

/// The records of all peers, for whoever asks; they follow a reload.
#[derive(Debug, Clone, Default)]
pub struct PeerStates {
    records: Arc<Mutex<Vec<SharedRecord>>>,
    changed: Arc<Notify>,
    ask: Ask,
}

/// Has all peers asked at once.
#[derive(Debug, Clone)]
struct Ask(watch::Sender<()>);

impl Default for Ask {
    fn default() -> Self {
        Self(watch::Sender::new(()))
    }
}

type SharedRecord = Arc<Mutex<Record>>;

#[derive(Debug)]
struct Task {
    peer: Peer,
    record: SharedRecord,
    /// The task that probes the peer; none where it is not probed.
    handle: Option<JoinHandle<()>>,
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

impl Probes {
    /// Probes the peers of this configuration from now on. A peer that has not changed keeps
    /// everything. To be called within a runtime.
    pub fn follow(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.tasks);
        for peer in &config.peers {
            let known = before
                .iter()
                .position(|task| is_same_probe(&task.peer, peer));
            self.tasks.push(match known {
                Some(index) => before.swap_remove(index),
                None => start(peer.clone(), &self.shared),
            });
        }
        let records = self.tasks.iter().map(|task| Arc::clone(&task.record));
        *lock(&self.shared.records) = records.collect();
        self.shared.changed.notify_one();
    }

    /// Gives a handle on what is known of each peer.
    pub fn states(&self) -> PeerStates {
        self.shared.clone()
    }
}

impl PeerStates {
    /// Gives the state of each peer now, in the order of the file.
    pub fn get(&self) -> Vec<PeerState> {
        let records = lock(&self.records);
        records.iter().map(|it| lock(it).state()).collect()
    }

    /// Has all peers asked now: a link is back.
    pub fn ask(&self) {
        self.ask.0.send_replace(());
    }

    /// Waits until a peer answers or has fallen silent; there is one who waits.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Gives the names of the peers that do not answer, if there are any, for a line on the daemon.
    pub fn silent(&self) -> Option<String> {
        let silent: Vec<String> = self
            .get()
            .into_iter()
            .filter(|state| state.liveness == Liveness::Silent)
            .map(|state| state.name)
            .collect();
        (!silent.is_empty()).then(|| silent.join(", "))
    }
}

/// Tells whether a probe of the one is a probe of the other.
fn is_same_probe(one: &Peer, other: &Peer) -> bool {
    let what = |peer: &Peer| (peer.name.clone(), peer.local, peer.remote, peer.probe);
    what(one) == what(other)
}

fn start(peer: Peer, states: &PeerStates) -> Task {
    let liveness = match peer.probe {
        Some(_) => Liveness::Unknown,
        None => Liveness::Unprobed,
    };
    let record = Arc::new(Mutex::new(Record::new(&peer.name, liveness)));
    let handle = peer.probe.map(|every| {
        let probed = Probed {
            peer: peer.clone(),
            record: Arc::clone(&record),
            changed: Arc::clone(&states.changed),
        };
        tokio::spawn(probe(probed, every, states.ask.0.subscribe()))
    });
    Task {
        peer,
        record,
        handle,
    }
}

/// A peer that is probed.
struct Probed {
    peer: Peer,
    record: SharedRecord,
    /// Hears of each change.
    changed: Arc<Notify>,
}

impl Probed {
    /// Logs what has changed, once, and tells whoever waits for it.
    fn report(&self, change: Option<Change>) {
        if let Some(change) = change {
            report(&self.peer, change);
            self.changed.notify_one();
        }
    }
}

/// Sends requests to the peer and listens for its answers, for ever.
async fn probe(probed: Probed, every: Duration, mut ask: watch::Receiver<()>) {
    let Probed { peer, record, .. } = &probed;
    let mut echo = Echo::new(peer.local, peer.remote);
    let device = format!("{DEVICE_PREFIX}{}", peer.name);
    let mut heard = None;
    let timeout = every.max(MIN_ANSWER_TIMEOUT);
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        tokio::select! {
            _ = tick.tick() => {
                // This comes before the next one is sent: with the default interval it is the last
                // one's turn.
                let change = lock(record).expire(Instant::now(), timeout);
                probed.report(change);
                let (at, date) = (Instant::now(), SystemTime::now());
                let packet = echo.next();
                let sent = send_request(peer, &device, &packet, &echo, &mut heard);
                if let Err(error) = &sent && error.kind() == io::ErrorKind::PermissionDenied {
                    tracing::warn!(
                        peer = peer.name, %error,
                        "the peer is not probed: this takes the capability CAP_NET_RAW"
                    );
                    *lock(record) = Record::new(&peer.name, Liveness::Unprobed);
                    return;
                }
                lock(record).sent(echo.sequence(), at, date, sent.err());
                last = at;
            }
            Ok(()) = ask.changed() => {
                if last.elapsed() >= LEAST_INTERVAL {
                    tick.reset_immediately();
                }
            }
            () = asked(heard.as_ref(), &echo, last), if !lock(record).is_answering() => {
                tick.reset_immediately();
            }
            received = answer(heard.as_ref(), &device) => match received {
                Ok(packet) => {
                    let Some(sequence) = echo.answers(&packet) else {
                        continue;
                    };
                    let (at, date) = (Instant::now(), SystemTime::now());
                    let change = lock(record).answered(sequence, at, date);
                    probed.report(change);
                }
                // An ICMP error about a probe, for instance. What counts is that nothing comes
                // back.
                Err(error) => tracing::debug!(peer = peer.name, %error, "receive an answer"),
            },
        }
    }
}

/// Sends a request through the peer's tunnel. Before the first one, starts to listen for answers.
fn send_request(
    peer: &Peer,
    device: &str,
    packet: &[u8],
    echo: &Echo,
    heard: &mut Option<Heard>,
) -> io::Result<()> {
    if heard.is_none() {
        *heard = Some(Heard::of(peer, echo.answer())?);
    }
    socket::send(peer, device, packet)
}

async fn answer(heard: Option<&Heard>, device: &str) -> io::Result<Vec<u8>> {
    match heard {
        Some(heard) => heard.answer(device).await,
        None => std::future::pending().await,
    }
}

/// Waits for a request of the peer's after which it may be asked, where it was asked `last` then.
async fn asked(heard: Option<&Heard>, echo: &Echo, last: Instant) {
    let Some(heard) = heard else {
        return std::future::pending().await;
    };
    // More are not even read: whoever forges them makes nobody work.
    tokio::time::sleep_until((last + LEAST_INTERVAL).into()).await;
    loop {
        match heard.request().await {
            Ok(packet) if echo.is_asked(&packet) => return,
            Ok(_) => {}
            // An ICMP error about a probe, for instance.
            Err(error) => tracing::debug!(%error, "receive a request"),
        }
    }
}

fn report(peer: &Peer, change: Change) {
    let name = peer.name.as_str();
    match change {
        Change::Silent {
            since,
            probes,
            failure,
        } => {
            let since = humantime::format_rfc3339_seconds(since);
            let (remote, failure) = (peer.remote, failure.map(tracing::field::display));
            tracing::warn!(
                peer = name, %remote, %since, probes, failure,
                "the peer does not answer through its tunnel"
            );
        }
        Change::Answers { rtt, silent } => {
            let silent = silent.map(tracing::field::debug);
            tracing::info!(
                peer = name,
                ?rtt,
                silent,
                "the peer answers through its tunnel"
            );
        }
    }
}

/// Locks a mutex. A panic while the lock is held cannot leave what it guards half-changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
