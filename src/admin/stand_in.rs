//! What can be told without a table of flows, until there is one.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pepd_config::{Config, Via};
use pepd_observe::{
    API_VERSION, CampusSnapshot, CountedReason, Counters, DaemonState, FlowHistory, FlowSnapshot,
    Status, View,
};

struct StandIn {
    node: String,
    campuses: Vec<CampusSnapshot>,
    counters: Arc<Counters>,
    started: (Instant, f64),
}

/// A view of the counters and the configuration.
pub fn stand_in(config: &Config, counters: Arc<Counters>) -> Arc<dyn View> {
    let campus = |campus: &pepd_config::Campus| CampusSnapshot {
        name: campus.name.clone(),
        prefixes: campus.prefixes.iter().map(ToString::to_string).collect(),
        via: match campus.via {
            Via::Local => "local".to_owned(),
            Via::Routing => "routing".to_owned(),
            Via::Peer(peer) => config
                .peers
                .get(peer.0)
                .map_or_else(String::new, |peer| peer.name.clone()),
        },
        leg: config.leg(campus.leg).name.clone(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Arc::new(StandIn {
        node: config.node.name.clone(),
        campuses: config.campuses.iter().map(campus).collect(),
        counters,
        started: (Instant::now(), now.map_or(0.0, |now| now.as_secs_f64())),
    })
}

impl View for StandIn {
    fn status(&self) -> Status {
        let count = |name: &str, count, meaning: &str| CountedReason {
            name: name.to_owned(),
            count,
            meaning: meaning.to_owned(),
        };
        Status {
            api: API_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.node.clone(),
            state: DaemonState::Splitting,
            started: self.started.1,
            uptime: self.started.0.elapsed().as_secs_f64(),
            workers: 0,
            limits: Vec::new(),
            counters: vec![
                count(
                    "accepted",
                    self.counters.accepted.get(),
                    "connections split",
                ),
                count("closed", self.counters.closed.get(), "ended with both FINs"),
            ],
            campuses: self.campuses.clone(),
            pairs: Vec::new(),
            peers: Vec::new(),
            advice: Vec::new(),
        }
    }

    fn flows(&self) -> Vec<FlowSnapshot> {
        Vec::new()
    }

    fn flow(&self, _: u64) -> Option<FlowSnapshot> {
        None
    }

    fn history(&self, _: u64) -> Option<FlowHistory> {
        None
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}
