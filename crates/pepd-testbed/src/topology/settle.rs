//! Waits until the kernel is done with new links.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;

use super::commands::IP_LIMIT;
use super::link::{Link, device};
use crate::netns::Netns;
use crate::wait::wait_until;

/// Waits until the kernel has given the links what it gives them by itself, in its own time:
/// carriers, link-local addresses and their routes. Whoever compares a namespace before and after
/// something would take these for its doing.
pub(super) fn settle(nodes: &BTreeMap<String, Netns>, links: &[Link]) -> Result<()> {
    for (name, netns) in nodes {
        let devices = links
            .iter()
            .filter(|link| link.v6.is_some())
            .flat_map(|link| {
                let at = |side: usize| (link.ends[side] == *name).then(|| &link.ends[1 - side]);
                let devices = [at(0), at(1)].into_iter().flatten();
                // An emulated link is silent by itself.
                devices.map(|peer| (device(peer), link.emulation.is_none()))
            });
        let devices: Vec<_> = devices.collect();
        netns.run(|| {
            let mut before = None;
            wait_until(IP_LIMIT, "the links have settled", || {
                let now = Ipv6::read().ok();
                let settled = now.as_ref().is_some_and(|now| {
                    devices
                        .iter()
                        .all(|(device, speaks)| now.is_ready(device, *speaks))
                });
                let settled = settled && now == before;
                before = now;
                settled
            })
        })?;
    }
    Ok(())
}

/// The addresses and routes of this thread's namespace.
#[derive(PartialEq, Eq)]
struct Ipv6 {
    /// Each with its device.
    addresses: Vec<[String; 2]>,
    /// Destination, the length of its prefix (hexadecimal), and device.
    routes: Vec<[String; 3]>,
}

impl Ipv6 {
    fn read() -> Result<Self> {
        let table = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        // `if_inet6` has the device last; so does `ipv6_route`, with counters before it.
        let (addresses, routes) = (table("if_inet6")?, table("ipv6_route")?);
        let words = |line: &str| -> Vec<_> { line.split_whitespace().map(str::to_owned).collect() };
        let address = |line| match &words(line)[..] {
            [address, .., device] => Some([address.clone(), device.clone()]),
            _ => None,
        };
        let route = |line| match &words(line)[..] {
            [to, length, .., device] => Some([to.clone(), length.clone(), device.clone()]),
            _ => None,
        };
        Ok(Self {
            addresses: addresses.lines().filter_map(address).collect(),
            routes: routes.lines().filter_map(route).collect(),
        })
    }

    /// Returns whether a device has a route to each of its addresses, and a link-local one among
    /// them where it is to have one.
    fn is_ready(&self, device: &str, link_local: bool) -> bool {
        let own = |at: &&[String; 2]| at[1] == device;
        let mut addresses = self.addresses.iter().filter(own);
        let host = |address: &str| [address, "80", device].map(str::to_owned);
        let mut found = addresses.clone().map(|[address, _]| address);
        let has_link_local = found.any(|address| address.starts_with("fe80"));
        (has_link_local || !link_local)
            && addresses.all(|[address, _]| self.routes.contains(&host(address)))
    }
}
