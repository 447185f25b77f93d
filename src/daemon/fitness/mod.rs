//! Whether the box is fit: whether routing daemons and the like had better lead connections to it.
//!
//! Each second, with the gate, all that the box needs is looked at here; [`record`] judges it, each thing
//! damped ([`damper`]), and what comes out is [`published`] for whoever asks. pepd withdraws nothing by
//! itself: `config/` has files for those who do.

mod damper;
mod published;
mod record;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_admin::wire::{Fit, LinkReport, LinkState, Liveness, PeerState};
use pepd_config::{Config, Via, WhileGone};
use pepd_relay::Admission;

use self::damper::Seen;
pub use self::published::{Draining, Published};
pub use self::record::Trouble;
use self::record::{CampusSight, Noted, Record, Sight, Use};
use crate::clock::unix_time;
use crate::daemon::links::LinkStates;
use crate::daemon::peers::PeerStates;
use crate::keeper::board::Board;

/// The deaths within [`DEATHS_WITHIN`] from which on there may soon be no other process: the keeper gives
/// up with the fifth.
const MANY_DEATHS: u64 = 3;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// The time that a peer is given to answer once the link to it is back.
const LINK_IS_BACK_FOR: f64 = 30.0;

/// What is seen of the daemon itself.
#[derive(Debug)]
pub struct Vitals<'a> {
    /// Whether all workers respond.
    pub workers: bool,
    /// What is in use.
    pub admission: &'a Admission,
    /// Why split connections do not come through this host, if they do not.
    pub blocked: Option<String>,
    /// Whether the host forwards anything.
    pub forwards: bool,
    /// Why the gate could not be set, if it could not: it closes by itself.
    pub gate: Option<Trouble>,
}

/// The judgement on the box, renewed with the gate.
#[derive(Debug)]
pub struct Fitness {
    record: Record,
    ways: Vec<Way>,
    links: LinkStates,
    board: Arc<Board>,
    published: Published,
    /// What is the matter with the kernel state, as it was verified last.
    trouble: Option<Trouble>,
    /// What the log was told last.
    told: Option<bool>,
}

/// The way to a campus.
#[derive(Debug)]
struct Way {
    campus: String,
    leg: String,
    peer: Option<String>,
    /// Whether its connections wait while the link under the leg is gone.
    waits: bool,
}

impl Fitness {
    /// Begins: with what a process before this one knew, where it goes on with its connections, and
    /// otherwise with nothing, so that the box is not fit until all has been looked at.
    pub fn new(config: &Config, goes_on: bool, board: Arc<Board>, published: Published) -> Self {
        let before = goes_on.then(|| board.fitness()).flatten();
        let before = before.map(Noted::from_bits);
        let names = config.campuses.iter().map(|campus| campus.name.clone());
        let record = Record::new(before, names);
        if before.is_some() {
            published.set(record.judge(), Instant::now());
        }
        Self {
            record,
            ways: ways(config),
            links: LinkStates::default(),
            board,
            published,
            trouble: None,
            told: None,
        }
    }

    /// Has the links' states from now on.
    pub fn hear_links(&mut self, links: LinkStates) {
        self.links = links;
    }

    /// Follows another configuration.
    pub fn follow(&mut self, config: &Config) {
        self.ways = ways(config);
    }

    /// Hears what is the matter with the kernel state; none where it is as it should be.
    pub fn set_trouble(&mut self, trouble: Option<Trouble>) {
        self.trouble = trouble;
    }

    /// Looks at everything, and publishes what comes of it; the log hears where that is another verdict than before.
    pub fn look(&mut self, vitals: Vitals<'_>, peers: &PeerStates, now: Instant) {
        let (peers, links) = (peers.get(), self.links.get());
        let campuses = self.ways.iter().map(|way| way.see(&peers, &links));
        let sight = Sight {
            workers: vitals.workers,
            blocked: vitals.blocked,
            forwards: vitals.forwards,
            trouble: worse(self.trouble.clone(), vitals.gate),
            exhausted: vitals.admission.pressure(now).exhausted,
            dying: self.is_dying(),
            limits: uses(vitals.admission),
            campuses: campuses.collect(),
        };
        self.record.see(sight, now);
        self.board.set_fitness(self.record.noted().to_bits());
        let readiness = self.record.judge();
        self.report(&readiness.new);
        self.published.set(readiness, now);
    }

    /// Logs that the box is fit for new connections, or is not any more and why.
    fn report(&mut self, new: &Fit) {
        if self.told == Some(new.fit) {
            return;
        }
        let why = new.why.as_deref();
        match new.fit {
            true => tracing::info!(why, "ready: connections are best led to this box"),
            false => tracing::info!(why, "not ready: new connections are best led elsewhere"),
        }
        self.told = Some(new.fit);
    }

    fn is_dying(&self) -> bool {
        let Some((_, died)) = self.board.last_death() else {
            return false;
        };
        let ago = pepd_sys::clock::monotonic().saturating_sub(died);
        self.board.recent_deaths() >= MANY_DEATHS && ago < DEATHS_WITHIN
    }
}

impl Way {
    fn see(&self, peers: &[PeerState], links: &[LinkState]) -> CampusSight {
        let link = links.iter().find(|link| link.leg == self.leg);
        let is_gone = link.is_some_and(|link| link.state == LinkReport::Gone);
        let peer = self.peer.as_ref();
        let peer = peer.and_then(|name| peers.iter().find(|peer| peer.name == *name));
        CampusSight {
            name: self.campus.clone(),
            seen: match (is_gone, peer) {
                (true, _) => Seen::Ill(format!("the link under leg {} is gone", self.leg)),
                (false, None) => Seen::Well,
                (false, Some(peer)) => answers(peer),
            },
            waits: self.waits && (is_gone || link.is_some_and(is_just_back)),
        }
    }
}

/// Returns which of two counts: what is known to be broken is not better for what cannot be seen.
fn worse(one: Option<Trouble>, other: Option<Trouble>) -> Option<Trouble> {
    match (one, other) {
        (Some(Trouble::Unseen(_)), Some(broken @ Trouble::Broken(_))) => Some(broken),
        (one, other) => one.or(other),
    }
}

fn ways(config: &Config) -> Vec<Way> {
    let way = |campus: &pepd_config::Campus| {
        let leg = config.leg(campus.leg);
        Way {
            campus: campus.name.clone(),
            leg: leg.name.clone(),
            peer: match campus.via {
                Via::Peer(peer) => config.peers.get(peer.0).map(|peer| peer.name.clone()),
                Via::Local | Via::Routing => None,
            },
            waits: leg.while_gone == WhileGone::Wait,
        }
    };
    config.campuses.iter().map(way).collect()
}

/// Tells whether a campus is reached by its peer.
fn answers(peer: &PeerState) -> Seen {
    match peer.liveness {
        // Another box has the tunnel's address, and this one stands by: it can do no more.
        _ if peer.elsewhere => Seen::Well,
        Liveness::Answering | Liveness::Unprobed => Seen::Well,
        Liveness::Silent => Seen::Ill(format!("the peer {} is silent", peer.name)),
        Liveness::Unknown => Seen::Unknown,
    }
}

/// Tells whether a link has been back for so short a time that a peer behind it may not have answered.
fn is_just_back(link: &LinkState) -> bool {
    let now = unix_time();
    link.since
        .is_some_and(|since| now - since < LINK_IS_BACK_FOR)
}

fn uses(admission: &Admission) -> Vec<Use> {
    let limits = admission.limits();
    let mut uses = vec![Use {
        name: "connections",
        used: admission.live().into(),
        limit: limits.connections.into(),
    }];
    if let Some(memory) = limits.memory {
        uses.push(Use {
            name: "memory",
            used: admission.memory_counted(),
            limit: memory.0,
        });
    }
    uses
}
