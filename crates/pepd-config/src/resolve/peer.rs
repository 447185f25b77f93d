//! `[[peer]]`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use toml::Spanned;

use super::names;
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Campus, Peer, Tos, Via};
use crate::report::{Problem, Problems};
use crate::section::Section;

/// How often a peer is probed if the file does not say.
const PROBE: Duration = Duration::from_secs(5);

/// A peer, as far as it could be read.
pub(super) struct Draft<'t> {
    name: Option<Spanned<&'t str>>,
    local: Option<Spanned<IpAddr>>,
    remote: Option<Spanned<IpAddr>>,
    tunnel: Tunnel,
}

impl<'t> Draft<'t> {
    /// The name that `via` may refer to, if it is known.
    pub(super) fn name(&self) -> Option<&'t str> {
        self.name.as_ref().map(|name| *name.get_ref())
    }

    /// The peer; `None` is always after a problem.
    pub(super) fn finish(self) -> Option<Peer> {
        let (local, remote) = (self.local?.into_inner(), self.remote?.into_inner());
        Some(self.tunnel.between(self.name?.get_ref(), local, remote))
    }
}

/// What a tunnel is like, wherever its ends are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tunnel {
    mtu: Option<u16>,
    ttl: Option<u8>,
    tos: Tos,
    keep: bool,
    probe: Option<Duration>,
}

impl Tunnel {
    /// The keys that `[[peer]]` and `[[link]]` have in common.
    pub(super) fn read(section: &Section<'_>, problems: &mut Problems) -> Self {
        Self {
            mtu: section.optional(problems, "mtu", |field| field.number(bounds::PEER_MTU)),
            ttl: section.optional(problems, "ttl", |field| field.number(bounds::TTL)),
            tos: section
                .optional(problems, "tos", tos)
                .unwrap_or(Tos::Inherit),
            keep: section
                .optional(problems, "keep", Field::boolean)
                .unwrap_or(false),
            probe: section
                .optional(problems, "probe", probe)
                .unwrap_or(Some(PROBE)),
        }
    }

    /// Such a tunnel with these ends.
    pub(super) fn between(self, name: &str, local: IpAddr, remote: IpAddr) -> Peer {
        Peer {
            name: name.to_owned(),
            local,
            remote,
            mtu: self.mtu,
            ttl: self.ttl,
            tos: self.tos,
            keep: self.keep,
            probe: self.probe,
        }
    }
}

/// The peers in the order of the file.
pub(super) fn peers<'t>(root: &Section<'t>, problems: &mut Problems) -> Vec<Draft<'t>> {
    let mut peers = Vec::new();
    for section in root.tables(problems, "peer", keys::PEER) {
        let name = section.required(problems, "name", "\"hb-i\"", |field| name(field, "peer"));
        let tunnel = Tunnel::read(&section, problems);
        let (local, remote) = ends(&section, problems);
        peers.push(Draft {
            name,
            local,
            remote,
            tunnel,
        });
    }
    let names = peers.iter().filter_map(|peer| peer.name.as_ref());
    names::refuse_duplicates("peers", names, problems);
    refuse_shared_remotes(&peers, problems);
    refuse_own_box(&peers, problems);
    peers
}

/// Notes a problem for every peer that nothing goes to. What comes from it would be dropped,
/// since no campus lies behind it: such a tunnel is a slip, and an expensive one to look for.
pub(super) fn refuse_unused(peers: &[Draft<'_>], campuses: &[Campus], problems: &mut Problems) {
    // A routing daemon may use any of them.
    if campuses.iter().any(|campus| campus.via == Via::Routing) {
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

/// A name that makes an interface name; of a peer, or of a box, which is a peer to others.
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

/// Both ends of the tunnel, which have to fit each other.
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

/// The problem that a tunnel has an end in either family.
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
    let wrong = match address {
        _ if address.is_unspecified() => "the unspecified address",
        _ if address.is_loopback() => "a loopback address",
        _ if address.is_multicast() => "a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "the broadcast address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
        _ => return Ok(field.spanned(address)),
    };
    Err(field
        .problem(format!("`{address}` is {wrong}"))
        .label("a tunnel cannot end here")
        .help("write the address by which the boxes reach each other, such as \"192.0.2.1\""))
}

/// The kernel tells tunnels apart by their remote end.
fn refuse_shared_remotes(peers: &[Draft<'_>], problems: &mut Problems) {
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

/// The box that a tunnel starts at is never the one that another ends at. (That both ends of
/// one tunnel are the same is found with the ends.)
fn refuse_own_box(peers: &[Draft<'_>], problems: &mut Problems) {
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

/// `None` is off.
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
