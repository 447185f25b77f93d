//! `[[peer]]`.

use std::collections::HashMap;
use std::net::IpAddr;

use toml::Spanned;

use super::names;
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Peer, Tos};
use crate::report::{Problem, Problems};
use crate::section::Section;

/// The names that `via` may refer to, and the peers beside them; a peer is `None` if something
/// in it is wrong.
pub(super) fn peers<'t>(
    root: &Section<'t>,
    problems: &mut Problems,
) -> (Vec<Option<&'t str>>, Vec<Option<Peer>>) {
    let mut names = Vec::new();
    let mut remotes = Vec::new();
    let mut peers = Vec::new();
    for section in root.tables(problems, "peer", keys::PEER) {
        let name = section.required(problems, "name", "\"hb-i\"", name);
        let ends = ends(&section, problems);
        remotes.extend(ends.as_ref().map(|(_, remote)| remote.clone()));
        peers.push(peer(name.as_ref(), ends, &section, problems));
        names.push(name);
    }
    names::refuse_duplicates("peers", names.iter().flatten(), problems);
    refuse_shared_remotes(&remotes, problems);
    (
        names
            .into_iter()
            .map(|name| name.map(Spanned::into_inner))
            .collect(),
        peers,
    )
}

fn peer(
    name: Option<&Spanned<&str>>,
    ends: Option<(IpAddr, Spanned<IpAddr>)>,
    section: &Section<'_>,
    problems: &mut Problems,
) -> Option<Peer> {
    let mtu = section.optional(problems, "mtu", |field| field.number(bounds::PEER_MTU));
    let ttl = section.optional(problems, "ttl", |field| field.number(bounds::TTL));
    let tos = section
        .optional(problems, "tos", tos)
        .unwrap_or(Tos::Inherit);
    let keep = section
        .optional(problems, "keep", Field::boolean)
        .unwrap_or(false);
    let (local, remote) = ends?;
    let name = (*name?.get_ref()).to_owned();
    Some(Peer {
        name,
        local,
        remote: remote.into_inner(),
        mtu,
        ttl,
        tos,
        keep,
    })
}

fn name(field: Field<'_>) -> Result<Spanned<&str>, Problem> {
    let name = field.name(bounds::PEER_NAME).map_err(|problem| {
        // Why so short is not obvious.
        problem.label("`pepd-NAME` must be an interface name of at most 15 characters")
    })?;
    if matches!(*name.get_ref(), "local" | "routing") {
        return Err(field
            .problem(format!("a peer cannot be named `{}`", name.get_ref()))
            .label("means something else in `via`")
            .help("give it another name, such as \"hb-i\""));
    }
    Ok(name)
}

/// Both ends of the tunnel, which have to fit each other.
fn ends(section: &Section<'_>, problems: &mut Problems) -> Option<(IpAddr, Spanned<IpAddr>)> {
    let local = section.required(problems, "local", "\"192.0.2.1\"", unicast);
    let remote = section.required(problems, "remote", "\"198.51.100.1\"", unicast);
    let (local, remote) = (local?, remote?);
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
        return None;
    }
    if here.is_ipv4() != there.is_ipv4() {
        problems.push(
            Problem::new(remote.span(), "`local` and `remote` are not of one family")
                .label(family(there))
                .also(local.span(), family(here))
                .help("write two IPv4 or two IPv6 addresses; either tunnel carries both"),
        );
        return None;
    }
    Some((here, remote))
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn unicast(field: Field<'_>) -> Result<Spanned<IpAddr>, Problem> {
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
fn refuse_shared_remotes(remotes: &[Spanned<IpAddr>], problems: &mut Problems) {
    let mut seen = HashMap::new();
    for remote in remotes {
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
