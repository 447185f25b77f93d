//! `[[peer]]`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use toml::Spanned;

use super::duplicates::refuse_duplicates;
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Campus, Peer, Tos, Via};
use crate::report::{Problem, Problems};
use crate::section::Section;

/// The interval of a peer's probes if the file does not say.
const PROBE: Duration = Duration::from_secs(5);

/// The TTL of the outer packets where a routing daemon uses the tunnels and the file does not say:
/// OSPF's own packets and others have 1, and would die at the first router between the boxes if the
/// outer packets had the same.
const ROUTED_TTL: u8 = 64;

/// An example of `inside`.
const INSIDE: &str = "[\"10.255.0.1/30\"]";

/// A peer, as far as it could be read.
pub(super) struct PeerDraft<'t> {
    name: Option<Spanned<&'t str>>,
    local: Option<Spanned<IpAddr>>,
    remote: Option<Spanned<IpAddr>>,
    inside: Vec<Spanned<IpNet>>,
    tunnel: Tunnel,
}

impl<'t> PeerDraft<'t> {
    /// Returns whether it is asked for signs of life.
    pub(super) fn is_probed(&self) -> bool {
        self.tunnel.probe.is_some()
    }

    /// Returns the name that `via` may refer to, if it is known.
    pub(super) fn name(&self) -> Option<&'t str> {
        self.name.as_ref().map(|name| *name.get_ref())
    }

    /// Returns the peer, where `campuses` are; `None` is always after a problem.
    pub(super) fn finish(self, campuses: &[Campus]) -> Option<Peer> {
        let (local, remote) = (self.local?.into_inner(), self.remote?.into_inner());
        let mut peer = self.tunnel.between(self.name?.get_ref(), local, remote);
        peer.inside = self.inside.into_iter().map(Spanned::into_inner).collect();
        if are_routed(campuses) {
            peer.ttl.get_or_insert(ROUTED_TTL);
        }
        Some(peer)
    }
}

/// The settings of a tunnel, wherever its ends are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tunnel {
    mtu: Option<u16>,
    ttl: Option<u8>,
    tos: Tos,
    reverse_path_filter: bool,
    keep: bool,
    probe: Option<Duration>,
}

impl Tunnel {
    /// Reads the keys that `[[peer]]` and `[[link]]` have in common.
    pub(super) fn read(section: &Section<'_>, problems: &mut Problems) -> Self {
        Self {
            mtu: section.optional(problems, "mtu", |field| field.number(bounds::PEER_MTU)),
            ttl: section.optional(problems, "ttl", |field| field.number(bounds::TTL)),
            tos: section
                .optional(problems, "tos", tos)
                .unwrap_or(Tos::Inherit),
            reverse_path_filter: section
                .optional(problems, "reverse_path_filter", Field::boolean)
                .unwrap_or(false),
            keep: section
                .optional(problems, "keep", Field::boolean)
                .unwrap_or(false),
            probe: section
                .optional(problems, "probe", probe)
                .unwrap_or(Some(PROBE)),
        }
    }

    /// Makes a peer of these settings with these ends.
    pub(super) fn between(self, name: &str, local: IpAddr, remote: IpAddr) -> Peer {
        Peer {
            name: name.to_owned(),
            local,
            remote,
            inside: Vec::new(),
            mtu: self.mtu,
            ttl: self.ttl,
            tos: self.tos,
            reverse_path_filter: self.reverse_path_filter,
            keep: self.keep,
            probe: self.probe,
        }
    }
}

/// Reads the peers in the order of the file.
pub(super) fn peers<'t>(root: &Section<'t>, problems: &mut Problems) -> Vec<PeerDraft<'t>> {
    let mut peers = Vec::new();
    for section in root.tables(problems, "peer", keys::PEER) {
        let name = section.required(problems, "name", "\"hb-i\"", |field| name(field, "peer"));
        let tunnel = Tunnel::read(&section, problems);
        let (local, remote) = ends(&section, problems);
        peers.push(PeerDraft {
            name,
            local,
            remote,
            inside: inside(&section, problems),
            tunnel,
        });
    }
    let names = peers.iter().filter_map(|peer| peer.name.as_ref());
    refuse_duplicates("peers", names, problems);
    refuse_shared_remotes(&peers, problems);
    refuse_own_box(&peers, problems);
    refuse_overlaps_inside(&peers, problems);
    peers
}

/// Notes a problem for every peer that nothing goes to. What comes from it would be dropped,
/// since no campus lies behind it: such a tunnel is a slip, and an expensive one to look for.
pub(super) fn refuse_unused(peers: &[PeerDraft<'_>], campuses: &[Campus], problems: &mut Problems) {
    // A routing daemon may use any of them.
    if are_routed(campuses) {
        return;
    }
    for (index, peer) in peers.iter().enumerate() {
        let used = |campus: &Campus| matches!(campus.via, Via::Peer(id) if id.0 == index);
        let Some(name) = &peer.name else { continue };
        if !campuses.iter().any(used) {
            let shown = name.get_ref();
            problems.push(
                Problem::new(
                    name.span(),
                    format!("no campus is reached through the peer `{shown}`"),
                )
                .label("carries nothing")
                .help(format!(
                    "write `via = \"{shown}\"` in the campuses behind it, or `via = \"routing\"` \
                         if a routing daemon decides, or remove the peer"
                )),
            );
        }
    }
}

/// Reads a name that makes an interface name; of a peer, or of a box, which is a peer to others.
pub(super) fn name<'t>(field: Field<'t>, what: &str) -> Result<Spanned<&'t str>, Problem> {
    let name = field.name(bounds::PEER_NAME).map_err(|problem| {
        // Why so short is not obvious.
        problem.label("`pepd-NAME` must be an interface name of at most 15 characters")
    })?;
    if matches!(*name.get_ref(), "local" | "routing") {
        return Err(field
            .problem(format!("a {what} cannot be named `{}`", name.get_ref()))
            .label("means something else in `via`")
            .help("give it another name, such as \"hb-i\""));
    }
    Ok(name)
}

/// Reads both ends of the tunnel, which have to fit each other.
fn ends(
    section: &Section<'_>,
    problems: &mut Problems,
) -> (Option<Spanned<IpAddr>>, Option<Spanned<IpAddr>>) {
    let local = section.required(problems, "local", "\"192.0.2.1\"", unicast);
    let remote = section.required(problems, "remote", "\"198.51.100.1\"", unicast);
    if let (Some(local), Some(remote)) = (&local, &remote) {
        let (here, there) = (*local.get_ref(), *remote.get_ref());
        if here == there {
            problems.push(
                Problem::new(
                    remote.span(),
                    format!("`local` and `remote` are both `{there}`"),
                )
                .label("the other box's address")
                .also(local.span(), "this box's address")
                .help("write the address of the other helper box as `remote`"),
            );
        } else if here.is_ipv4() != there.is_ipv4() {
            let title = "`local` and `remote` are not of one family";
            problems.push(mixed_families(title, local, remote));
        }
    }
    (local, remote)
}

/// Returns the problem that a tunnel has an end in either family.
pub(super) fn mixed_families(
    title: &str,
    here: &Spanned<IpAddr>,
    there: &Spanned<IpAddr>,
) -> Problem {
    Problem::new(there.span(), title)
        .label(family(*there.get_ref()))
        .also(here.span(), family(*here.get_ref()))
        .help("write two IPv4 or two IPv6 addresses; either tunnel carries both")
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

pub(super) fn unicast(field: Field<'_>) -> Result<Spanned<IpAddr>, Problem> {
    let address = field.address()?;
    match not_a_hosts(address) {
        None => Ok(field.spanned(address)),
        Some(what) => Err(field
            .problem(format!("`{address}` is {what}"))
            .label("a tunnel cannot end here")
            .help("write the address by which the boxes reach each other, such as \"192.0.2.1\"")),
    }
}

/// Returns the kind of an address that no host can have in a network.
fn not_a_hosts(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_multicast() => Some("a multicast address"),
        IpAddr::V4(v4) if v4.is_broadcast() => Some("the broadcast address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address"),
        _ => None,
    }
}

/// Refuses peers with one remote end, by which the kernel tells tunnels apart.
fn refuse_shared_remotes(peers: &[PeerDraft<'_>], problems: &mut Problems) {
    let mut seen = HashMap::new();
    for remote in peers.iter().filter_map(|peer| peer.remote.as_ref()) {
        let address = *remote.get_ref();
        if let Some(first) = seen.insert(address, remote.span()) {
            problems.push(
                Problem::new(
                    remote.span(),
                    format!("two peers have the remote `{address}`"),
                )
                .label("the second one")
                .also(first, "the first one")
                .help("remove one: a campus may name the other in its `via`"),
            );
        }
    }
}

/// Refuses a tunnel that ends at a box where another starts. (That both ends of one tunnel are the
/// same is found with the ends.)
fn refuse_own_box(peers: &[PeerDraft<'_>], problems: &mut Problems) {
    let locals: HashMap<IpAddr, &Spanned<IpAddr>> = peers
        .iter()
        .filter_map(|peer| peer.local.as_ref())
        .map(|local| (*local.get_ref(), local))
        .collect();
    for peer in peers {
        let Some(remote) = &peer.remote else { continue };
        let own = peer.local.as_ref().map(|local| *local.get_ref());
        let address = *remote.get_ref();
        if let Some(local) = locals.get(&address)
            && own != Some(address)
        {
            problems.push(
                Problem::new(
                    remote.span(),
                    format!("the remote `{address}` is this box itself"),
                )
                .label("the other box's address")
                .also(local.span(), "one of this box's own")
                .help("write the address of the other helper box as `remote`"),
            );
        }
    }
}

/// Tells whether a routing daemon decides how some campus is reached.
fn are_routed(campuses: &[Campus]) -> bool {
    campuses.iter().any(|campus| campus.via == Via::Routing)
}

/// Reads the box's own addresses inside the tunnel.
fn inside(section: &Section<'_>, problems: &mut Problems) -> Vec<Spanned<IpNet>> {
    let Some(list) = section.optional(problems, "inside", |field| field.list(INSIDE)) else {
        return Vec::new();
    };
    let read = list.map(host_in_network);
    read.filter_map(|address| problems.take(address)).collect()
}

/// Reads an address that a host may have, and the network that it is in.
fn host_in_network(field: Field<'_>) -> Result<Spanned<IpNet>, Problem> {
    let text = field.text("a list of addresses in quotes", INSIDE)?;
    let Ok(net) = text.parse::<IpNet>() else {
        let help = match text.parse::<IpAddr>() {
            Ok(address) => format!(
                "write the network's prefix length, too: \"{address}/{}\" for one of two hosts",
                IpNet::from(address).max_prefix_len() - 1
            ),
            Err(_) => "write one such as \"10.255.0.1/30\"".to_owned(),
        };
        return Err(field.malformed(text, "an address with a prefix length", help));
    };
    // In a network of two addresses, or of one, all are hosts' (RFC 3021, RFC 6164).
    let small = net.max_prefix_len() - net.prefix_len() <= 1;
    let address = net.addr();
    let what = match not_a_hosts(address) {
        None if small => None,
        None if address == net.network() => Some("the network's own address"),
        None if address.is_ipv4() && address == net.broadcast() => Some("the broadcast address"),
        what => what,
    };
    match what {
        None => Ok(field.spanned(net)),
        Some(what) => Err(field
            .problem(format!("`{address}` is {what}"))
            .label("not the address of an end of a tunnel")
            .help("write this end's address, such as \"10.255.0.1/30\"")),
    }
}

/// Refuses overlaps: the network of one tunnel's other end cannot be that of another's.
fn refuse_overlaps_inside(peers: &[PeerDraft<'_>], problems: &mut Problems) {
    let mut seen: Vec<&Spanned<IpNet>> = Vec::new();
    for inside in peers.iter().flat_map(|peer| &peer.inside) {
        let net = inside.get_ref();
        let overlaps = |other: &&&Spanned<IpNet>| {
            other.get_ref().contains(&net.trunc()) || net.contains(&other.get_ref().trunc())
        };
        match seen.iter().find(overlaps) {
            Some(first) => problems.push(
                Problem::new(
                    inside.span(),
                    format!("`{}` and `{net}` are in one network", first.get_ref()),
                )
                .label("the second one")
                .also(first.span(), "the first one")
                .help("give each tunnel a network of its own, such as one of two addresses (/31)"),
            ),
            None => seen.push(inside),
        }
    }
}

/// Reads the interval of the probes; `None` is off.
fn probe(field: Field<'_>) -> Result<Option<Duration>, Problem> {
    if field.value().as_str() == Some("off") {
        return Ok(None);
    }
    field
        .time(bounds::PROBE, Duration::from_millis(1))
        .map(Some)
}

fn tos(field: Field<'_>) -> Result<Tos, Problem> {
    if field.value().is_integer() {
        let byte = field.number(bounds::TOS)?;
        if byte % 4 != 0 {
            return Err(field
                .problem(format!("`tos`: `{byte}` is not a multiple of 4"))
                .label("the two low bits belong to ECN")
                .help(format!("write `tos = {}`", byte & !3)));
        }
        return Ok(Tos::Set(byte));
    }
    match field.text("\"inherit\" or a number from 0 to 252", "\"inherit\"")? {
        "inherit" => Ok(Tos::Inherit),
        other => Err(field.malformed(
            other,
            "a traffic class",
            "write \"inherit\", or a multiple of 4 from 0 to 252 without quotes",
        )),
    }
}
