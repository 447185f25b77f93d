//! The namespaces of a soak, and what is left in the daemon and in its box's kernel when nothing
//! goes on.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::ends::VANISHED;
use super::plan::SILENT;
use crate::netns::Netns;
use crate::pepd::Pepd;
use crate::sockets::established;
use crate::world::World;

/// How long connection tracking keeps what has ended: less than a soak takes.
const TRACKED: [(&str, &str); 6] = [
    ("syn_sent", "5"),
    ("time_wait", "5"),
    ("close", "2"),
    ("close_wait", "5"),
    ("fin_wait", "5"),
    ("last_ack", "5"),
];

/// Makes the world, with hosts in which a socket can vanish and a port that is silent.
///
/// # Errors
/// Without root.
pub fn prepare() -> Result<World> {
    let world = World::standard()?;
    for host in [world.client(), world.server()] {
        host.sh(&format!(
            "nft 'table inet soak {{
                chain out {{
                    type filter hook output priority 0
                    meta mark {VANISHED} drop
                }}
                chain in {{
                    type filter hook input priority 0
                    tcp dport {SILENT} drop
                }}
            }}'"
        ))?;
        // Nothing but the soak runs there: its clients' ports begin below the usual ones.
        host.sysctl("net.ipv4.ip_local_port_range", "60001 65000")?;
    }
    for (state, seconds) in TRACKED {
        // A kernel without connection tracking has nothing to be told.
        let key = format!("net.netfilter.nf_conntrack_tcp_timeout_{state}");
        let _ = world.hb().sysctl(&key, seconds);
    }
    Ok(world)
}

/// Returns the daemon's configuration, with one handshake or the other. A peer that has vanished is
/// found out within seconds; the rate of one leg is found.
pub fn config(early: bool) -> String {
    let config = if early {
        World::early_config()
    } else {
        World::config()
    };
    let quick = "user_timeout = \"5s\"\nconnect_timeout = \"3s\"\n\
        keepalive = { idle = \"2s\", interval = \"1s\", count = 3 }\n";
    let config = ["reno", "cubic"].iter().fold(config, |config, control| {
        let line = format!("congestion = \"{control}\"\n");
        config.replacen(&line, &format!("{line}{quick}"), 1)
    });
    let config = config.replacen("congestion = \"cubic\"", "congestion = \"find-rate\"", 1);
    format!("{config}\n[limits]\nconnections = 6000\nconnections_per_source = 6000\n")
}

/// What is held while no connection is open.
#[derive(Clone, Debug)]
pub struct Rest {
    /// The connections that the daemon's life has seen.
    pub connections: u64,
    /// The daemon's resident memory in bytes.
    pub resident: u64,
    /// Its descriptors.
    pub descriptors: usize,
    /// The elements of each set in its table.
    pub sets: BTreeMap<String, usize>,
    /// The entries of connection tracking, where there is any.
    pub tracked: Option<u64>,
}

impl Rest {
    /// Looks, once no socket is established any more.
    ///
    /// # Errors
    /// When there are sockets all the same, or the daemon has ended.
    pub fn measure(world: &World, pepd: &Pepd, connections: u64, limit: Duration) -> Result<Self> {
        crate::wait_until(limit, "no socket is established on the helper box", || {
            established(world.hb()).is_ok_and(|sockets| sockets == 0)
        })?;
        Ok(Self {
            connections,
            resident: pepd.resident_bytes()?,
            descriptors: pepd.descriptors()?,
            sets: sets(world.hb())?,
            tracked: tracked(world.hb()),
        })
    }
}

/// Returns how many connections are tracked in a namespace.
pub fn tracked(netns: &Netns) -> Option<u64> {
    let count = netns.run(|| {
        Ok(fs::read_to_string(
            "/proc/sys/net/netfilter/nf_conntrack_count",
        )?)
    });
    count.ok()?.trim().parse().ok()
}

/// Returns how many elements each set and map of pepd's table has.
pub fn sets(netns: &Netns) -> Result<BTreeMap<String, usize>> {
    let listing = netns.sh("nft -j list table inet pepd")?;
    let listing: Value = serde_json::from_str(&listing).context("nft -j")?;
    let objects = listing["nftables"].as_array().into_iter().flatten();
    let sets = objects.flat_map(|object| [&object["set"], &object["map"]]);
    let sizes = sets.filter_map(|set| {
        let name = set["name"].as_str()?;
        Some((name.to_owned(), set["elem"].as_array().map_or(0, Vec::len)))
    });
    Ok(sizes.collect())
}
