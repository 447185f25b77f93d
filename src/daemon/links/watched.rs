//! Which legs there are, and what tells of their links by the configuration.

use std::sync::Arc;
use std::time::Duration;

use pepd_config::{Config, LinkSource, Rate};

/// A leg, and what tells of its link.
#[derive(Debug, Clone)]
pub(super) struct Watched {
    pub(super) leg: Arc<str>,
    pub(super) source: Option<LinkSource>,
    pub(super) rate: Option<Rate>,
    /// Its `user_timeout`.
    pub(super) patience: Duration,
}

impl Watched {
    /// Returns the legs of a configuration.
    pub(super) fn all(config: &Config) -> impl Iterator<Item = Self> {
        let peers: Vec<&str> = config.peers.iter().map(|peer| peer.name.as_str()).collect();
        config.legs.iter().map(move |leg| Self {
            leg: leg.name.as_str().into(),
            rate: leg.rate,
            patience: leg.user_timeout.unwrap_or_default(),
            // Of a fleet's file: the other end of the link tells, not the box itself.
            source: leg.link.clone().filter(|source| match source {
                LinkSource::Interface(_) | LinkSource::Dlep(_) => true,
                LinkSource::Peer(peer) => peers.contains(&peer.as_str()),
            }),
        })
    }
}
