//! Carries out a description, with the program `ip` and with emulated links.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

use super::link::{Link, device};
use crate::link::{self, Endpoint, Mtu, Seed, Shape};
use crate::netns::Netns;
use crate::process::run;

/// No `ip` batch takes this long unless the machine is in trouble.
pub(super) const IP_LIMIT: Duration = Duration::from_secs(120);

/// A route of a node by way of a neighbour.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) node: String,
    pub(super) destination: String,
    pub(super) via: String,
}

/// Makes an emulated link.
pub(super) fn emulate(
    nodes: &BTreeMap<String, Netns>,
    link: &Link,
    shape: &Shape,
    seed: Seed,
) -> Result<link::Link> {
    let end = |side: usize| {
        let device = device(&link.ends[1 - side]);
        Ok::<_, anyhow::Error>(Endpoint::named(netns(nodes, link, side)?, device))
    };
    let mtu = u16::try_from(link.mtu).context("an MTU of more than 65,535 bytes")?;
    let (there, back) = (shape.clone(), shape.clone());
    Ok(link::Link::connect(
        &end(0)?,
        &end(1)?,
        there,
        back,
        seed,
        Mtu::new(mtu)?,
    )?)
}

/// Appends a veth pair to a batch for `ip -batch`.
pub(super) fn describe_cable(
    batch: &mut String,
    nodes: &BTreeMap<String, Netns>,
    link: &Link,
    index: u8,
) -> Result<()> {
    let [left, right] = [device(&link.ends[1]), device(&link.ends[0])];
    ensure!(
        left.len() < 16 && right.len() < 16,
        "device name too long: {left}, {right}"
    );
    writeln!(
        batch,
        "link add {left} address {} netns {} type veth peer name {right} address {} netns {}",
        mac(index, 0),
        netns(nodes, link, 0)?,
        mac(index, 1),
        netns(nodes, link, 1)?,
    )?;
    Ok(())
}

/// Returns the addresses of one end of a link, and its neighbour's, for `ip -batch`.
///
/// The neighbour is entered by hand: the first IPv6 packet after a link comes up otherwise
/// waits a second for the answer to a solicitation that was sent too early. (An emulated link has
/// no addresses of its own to ask for.)
pub(super) fn describe_end(batch: &mut String, link: &Link, index: u8, side: usize) -> Result<()> {
    let (device, peer) = (device(&link.ends[1 - side]), 1 - side);
    writeln!(batch, "link set {device} mtu {} up", link.mtu)?;
    let mut neighbours = Vec::new();
    if let Some(v4) = link.v4 {
        writeln!(batch, "address add {} dev {device}", v4[side])?;
        neighbours.push(v4[peer].addr().to_string());
    }
    if let Some(v6) = link.v6 {
        writeln!(batch, "address add {} dev {device} nodad", v6[side])?;
        neighbours.push(v6[peer].addr().to_string());
    }
    if link.emulation.is_some() {
        return Ok(());
    }
    let mac = mac(index, peer);
    for neighbour in neighbours {
        writeln!(
            batch,
            "neighbour replace {neighbour} lladdr {mac} dev {device} nud permanent"
        )?;
    }
    Ok(())
}

/// Appends a route to a batch for `ip -batch`.
pub(super) fn describe_route(batch: &mut String, links: &[Link], route: &Route) -> Result<()> {
    let (link, peer) = links
        .iter()
        .find_map(|link| {
            let at = link.ends.iter().position(|end| *end == route.node)?;
            (link.ends[1 - at] == route.via).then_some((link, 1 - at))
        })
        .with_context(|| format!("{} and {} have no link", route.node, route.via))?;
    let wants = |v6: bool| route.destination == "default" || route.destination.contains(':') == v6;
    if let Some(v4) = link.v4.filter(|_| wants(false)) {
        writeln!(
            batch,
            "route add {} via {}",
            route.destination,
            v4[peer].addr()
        )?;
    }
    if let Some(v6) = link.v6.filter(|_| wants(true)) {
        writeln!(
            batch,
            "route add {} via {}",
            route.destination,
            v6[peer].addr()
        )?;
    }
    Ok(())
}

/// Runs a batch of commands, in a namespace or in this process's.
pub(super) fn ip_batch(netns: Option<&Netns>, batch: &str) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut file = NamedTempFile::new()?;
    file.write_all(batch.as_bytes())?;
    let mut command = Command::new("ip");
    if let Some(netns) = netns {
        command.args(["-n", netns.name()]);
    }
    run(command.arg("-batch").arg(file.path()), IP_LIMIT)?
        .success()
        .with_context(|| fs::read_to_string(file.path()).unwrap_or_default())?;
    Ok(())
}

/// Returns the name of the namespace at one end of a link.
fn netns<'a>(nodes: &'a BTreeMap<String, Netns>, link: &Link, side: usize) -> Result<&'a str> {
    let name = &link.ends[side];
    nodes
        .get(name)
        .map(Netns::name)
        .with_context(|| format!("a link to an unknown `{name}`"))
}

/// Returns a locally administered address, the same in every run.
fn mac(link: u8, side: usize) -> String {
    format!("02:70:65:70:{link:02x}:{side:02x}")
}
