//! `[move]` and `[[neighbor]]`.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use toml::Spanned;

use super::duplicates::refuse_duplicates;
use super::node::NodeDraft;
use super::peer::unicast;
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Admin, Capture, Moves, Neighbor};
use crate::report::{Problem, Problems};
use crate::section::Section;

const ADDRESS: &str = "\"10.9.0.2:7310\"";
const VIA: &str = "[\"10.9.0.2\", \"fd00:9::2\"]";
const KEY: &str = "\"/etc/pepd/keys/hb-b\"";

/// Reads where connections move, and where they come from. `None` is always after a problem.
pub(super) fn moves(root: &Section<'_>, is_fleet: bool, problems: &mut Problems) -> Option<Moves> {
    let before = problems.count();
    let section = root.table(problems, "move", keys::MOVE);
    let listen = section.and_then(|it| it.optional(problems, "listen", address));
    let sections = root.tables(problems, "neighbor", keys::NEIGHBOR);
    if let Some(first) = sections.first().filter(|_| is_fleet) {
        problems.push(
            Problem::new(first.span(), "the file of a fleet has a `[[neighbor]]`")
                .label("whose neighbor it is cannot be said")
                .help("give the boxes that hand connections over to each other files of their own"),
        );
    }
    if let Some(one_too_many) = sections.get(bounds::NEIGHBORS) {
        let title = format!("there are more than {} `[[neighbor]]`", bounds::NEIGHBORS);
        problems.push(
            Problem::new(one_too_many.span(), title)
                .label("the first one too many")
                .help("remove those to which no connection is to move"),
        );
    }
    let mut neighbors = Vec::new();
    let mut names = Vec::new();
    for section in &sections {
        let name = section.required(problems, "name", "\"hb-b\"", |field| {
            field.name(bounds::NAME)
        });
        let address = section.required(problems, "address", ADDRESS, |field| {
            let address = address(field)?;
            match Some(address) == listen {
                true => Err(field
                    .problem(format!("the neighbor at `{address}` is this box itself"))
                    .label("the `listen` of this box's `[move]`")
                    .help("write what the other box has there")),
                false => Ok(address),
            }
        });
        let key = section.required(problems, "key", KEY, key);
        let via = via(section, listen.map(|it| it.ip()), problems);
        if let (Some(name), Some(address), Some(key)) = (&name, address, key) {
            neighbors.push(neighbor(name, address, &via, key));
        }
        names.extend(name);
    }
    refuse_duplicates("neighbors", names.iter(), problems);
    refuse_shared(&sections, "address", address, problems);
    refuse_shared(&sections, "key", key, problems);
    if let (Some(listen), true) = (
        root.field("move"),
        neighbors.is_empty() && sections.is_empty(),
    ) {
        problems.push(
            Problem::new(listen.span(), "there is no `[[neighbor]]`")
                .label("nobody could hand connections over")
                .help("add the other box as a `[[neighbor]]`, or remove `[move]`"),
        );
    }
    (problems.count() == before).then_some(Moves { listen, neighbors })
}

fn neighbor(name: &Spanned<&str>, address: SocketAddr, via: &[IpAddr], key: PathBuf) -> Neighbor {
    let own = [address.ip()];
    let via = if via.is_empty() { &own } else { via };
    Neighbor {
        name: (*name.get_ref()).to_owned(),
        address,
        v4: via.iter().find_map(|ip| match ip {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        }),
        v6: via.iter().find_map(|ip| match ip {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        }),
        key,
    }
}

/// Reads the neighbor's addresses, at most one of each family.
fn via(section: &Section<'_>, own: Option<IpAddr>, problems: &mut Problems) -> Vec<IpAddr> {
    let Some(list) = section.optional(problems, "via", |field| field.list(VIA)) else {
        return Vec::new();
    };
    let mut via: Vec<IpAddr> = Vec::new();
    for field in list {
        let Some(address) = problems.take(unicast(field)) else {
            continue;
        };
        let ip = address.into_inner();
        if via.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) {
            problems.push(
                field
                    .problem(format!("`{ip}` is the second address of its family"))
                    .label("a packet is sent on to one")
                    .help(format!(
                        "write one IPv4 and one IPv6 address: `via = {VIA}`"
                    )),
            );
        }
        if own == Some(ip) {
            problems.push(
                field
                    .problem(format!("`{ip}` is this box's own address"))
                    .label("the address of its `[move] listen`")
                    .help("write the neighbor's address on the network of both"),
            );
        }
        via.push(ip);
    }
    via
}

/// Notes a problem for each address, or key, that another neighbor has as well.
fn refuse_shared<T: Eq + Hash>(
    sections: &[Section<'_>],
    name: &'static str,
    read: impl Fn(Field<'_>) -> Result<T, Problem>,
    problems: &mut Problems,
) {
    let help = match name {
        "key" => {
            "make each pair of boxes a key of its own: with one, each could say that it is the other"
        }
        _ => "write for each what it has in its own `[move]`",
    };
    let mut seen = HashMap::new();
    for field in sections.iter().filter_map(|section| section.field(name)) {
        let Ok(value) = read(field) else { continue };
        if let Some(first) = seen.insert(value, field.span()) {
            problems.push(
                field
                    .problem(format!("two neighbors have one {name}"))
                    .label("the second one's")
                    .also(first, "the first one's")
                    .help(help),
            );
        }
    }
}

/// Notes problems with the other sections.
pub(super) fn fit(
    root: &Section<'_>,
    node: &NodeDraft<'_>,
    others: (&Capture, &Admin),
    moves: &Moves,
    problems: &mut Problems,
) {
    are_others(root, node.name.as_ref(), moves, problems);
    listen_elsewhere(root, others, moves, problems);
}

/// Notes a problem where something else of pepd's listens at the place at which other boxes hand connections over.
fn listen_elsewhere(
    root: &Section<'_>,
    (capture, admin): (&Capture, &Admin),
    moves: &Moves,
    problems: &mut Problems,
) {
    let section = root.table(problems, "move", keys::MOVE);
    let field = section.and_then(|it| it.field("listen"));
    let (Some(listen), Some(field)) = (moves.listen, field) else {
        return;
    };
    let taken = if listen.port() == capture.port {
        Some(("`[capture] port`", "captured connections come to this port"))
    } else if admin.metrics == Some(listen) {
        Some(("`[admin] metrics`", "metrics are served here"))
    } else {
        None
    };
    if let Some((whose, label)) = taken {
        problems.push(
            field
                .problem(format!("`listen`: {listen} is the place of {whose}"))
                .label(label)
                .help("write another port; the other boxes' `address` has it, too"),
        );
    }
}

/// Notes a problem for a neighbor that is this box itself.
fn are_others(
    root: &Section<'_>,
    own: Option<&Spanned<&str>>,
    moves: &Moves,
    problems: &mut Problems,
) {
    let Some(own) = own else { return };
    let own_name = *own.get_ref();
    if let Some(field) = root.field("neighbor")
        && moves.neighbors.iter().any(|it| it.name == own_name)
    {
        problems.push(
            field
                .problem(format!("the neighbor `{own_name}` is this box itself"))
                .label("the other box's name")
                .also(own.span(), "this box's own")
                .help("write the `name` that the other box has in its `[node]`"),
        );
    }
}

fn address(field: Field<'_>) -> Result<SocketAddr, Problem> {
    let text = field.text("an address and a port in quotes", ADDRESS)?;
    let fits = |address: &SocketAddr| {
        let ip = address.ip();
        address.port() != 0 && !ip.is_unspecified() && !ip.is_multicast()
    };
    text.parse().ok().filter(fits).ok_or_else(|| {
        let help = "write one such as \"10.9.0.2:7310\" or \"[fd00:9::2]:7310\"";
        field.malformed(text, "an address of one box and a port", help)
    })
}

fn key(field: Field<'_>) -> Result<PathBuf, Problem> {
    let text = field.text("a path in quotes", KEY)?;
    let legal = text.starts_with('/') && !text.ends_with('/') && !text.contains('\0');
    if !legal || text.len() > bounds::PATH {
        let help =
            format!("write `key = {KEY}`; `openssl rand -hex 32` makes what is in that file");
        return Err(field.malformed(text, "an absolute path of a file", help));
    }
    Ok(PathBuf::from(text))
}
