//! `[node]`, `[limits]` and `[admin]`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;

use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Admin, Limits, Node};
use crate::report::{Problem, Problems};
use crate::section::Section;

const DRAIN: Duration = Duration::from_secs(30);
const CONNECTIONS: u32 = 8000;
const CONNECTIONS_PER_SOURCE: u32 = 1000;
const PENDING: u32 = 1024;

/// `[node]`, as far as it could be read.
pub(super) struct NodeDraft<'t> {
    /// The name with its place, if it is given.
    pub(super) name: Option<Spanned<&'t str>>,
    workers: Option<NonZeroUsize>,
    drain: Duration,
}

impl NodeDraft<'_> {
    /// The node, under this name.
    pub(super) fn named(&self, name: &str) -> Node {
        Node {
            name: name.to_owned(),
            workers: self.workers,
            drain: self.drain,
        }
    }
}

/// What the file says about the box that runs it. In the file of a fleet, which every box runs,
/// it need not say which one that is.
pub(super) fn node<'t>(
    root: &Section<'t>,
    is_fleet: bool,
    problems: &mut Problems,
) -> Option<NodeDraft<'t>> {
    let section = root.table(problems, "node", keys::NODE);
    if section.is_none() && root.field("node").is_none() && !is_fleet {
        problems.push(
            Problem::new(root.span(), "the file has no `[node]`")
                .label("`[node]` is required")
                .help("add `[node]`, and below it `name = \"hb-a\"`"),
        );
    }
    let Some(section) = section else {
        return is_fleet.then_some(NodeDraft {
            name: None,
            workers: None,
            drain: DRAIN,
        });
    };
    let read = |field: Field<'t>| field.name(bounds::NAME);
    let name = if is_fleet {
        section.optional(problems, "name", read)
    } else {
        section.required(problems, "name", "\"hb-a\"", read)
    };
    let workers = section
        .optional(problems, "workers", |field| field.number(bounds::WORKERS))
        .unwrap_or(0);
    let drain = section.optional(problems, "drain", |field| {
        field.time(bounds::DRAIN, Duration::from_millis(1))
    });
    Some(NodeDraft {
        name,
        workers: NonZeroUsize::new(usize::from(workers)),
        drain: drain.unwrap_or(DRAIN),
    })
}

pub(super) fn limits(root: &Section<'_>, problems: &mut Problems) -> Limits {
    let section = root.table(problems, "limits", keys::LIMITS);
    let mut read = |key, bounds| {
        section
            .as_ref()?
            .optional(problems, key, |field| field.number(bounds))
    };
    let connections = read("connections", bounds::CONNECTIONS).unwrap_or(CONNECTIONS);
    Limits {
        connections,
        connections_per_source: read("connections_per_source", bounds::CONNECTIONS)
            .unwrap_or(CONNECTIONS_PER_SOURCE.min(connections)),
        pending: read("pending", bounds::PENDING).unwrap_or(PENDING),
    }
}

pub(super) fn admin(root: &Section<'_>, problems: &mut Problems) -> Admin {
    let Some(section) = root.table(problems, "admin", keys::ADMIN) else {
        return Admin::default();
    };
    Admin {
        socket: section.optional(problems, "socket", socket),
        group: section.optional(problems, "group", group),
        metrics: section.optional(problems, "metrics", metrics),
        names: host_names(&section, problems),
    }
}

fn host_names(section: &Section<'_>, problems: &mut Problems) -> Vec<String> {
    section
        .optional(problems, "names", |field| {
            field.list("[\"hb-a.example.net\"]")
        })
        .into_iter()
        .flatten()
        .filter_map(|field| problems.take(host_name(field)))
        .collect()
}

/// A name that a URL may have: labels of letters, digits and hyphens (RFC 1123, section 2.1).
fn host_name(field: Field<'_>) -> Result<String, Problem> {
    const EXAMPLE: &str = "\"hb-a.example.net\"";
    let text = field.text("the name of a host in quotes", EXAMPLE)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.chars().all(legal);
    if text.len() > bounds::HOST_NAME || !text.split('.').all(label) {
        let help = format!("write the name alone, without a port: `names = [{EXAMPLE}]`");
        return Err(field.malformed(text, "the name of a host", help));
    }
    Ok(text.to_ascii_lowercase())
}

/// Whether this host has it is for the daemon to find out.
fn group(field: Field<'_>) -> Result<String, Problem> {
    const EXAMPLE: &str = "\"netadmin\"";
    let text = field.text("the name of a group in quotes", EXAMPLE)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.', '$'].contains(&c);
    if !(1..=bounds::GROUP).contains(&text.len()) || !text.chars().all(legal) {
        let help = format!("write it as getent(1) does: `group = {EXAMPLE}`");
        return Err(field.malformed(text, "the name of a group", help));
    }
    Ok(text.to_owned())
}

fn socket(field: Field<'_>) -> Result<PathBuf, Problem> {
    const EXAMPLE: &str = "\"/run/pepd/admin.sock\"";
    let text = field.text("a path in quotes", EXAMPLE)?;
    let help = format!("write `socket = {EXAMPLE}`");
    if !text.starts_with('/') || text.ends_with('/') || text.contains('\0') {
        return Err(field.malformed(text, "an absolute path of a socket", help));
    }
    if text.len() > bounds::SOCKET_PATH {
        let longest = bounds::SOCKET_PATH;
        return Err(field
            .problem(format!("`socket` has {} bytes", text.len()))
            .label(format!("a socket's path has at most {longest}"))
            .help(help));
    }
    Ok(PathBuf::from(text))
}

fn metrics(field: Field<'_>) -> Result<SocketAddr, Problem> {
    const EXAMPLE: &str = "\"127.0.0.1:9730\"";
    let text = field.text("an address and a port in quotes", EXAMPLE)?;
    text.parse()
        .ok()
        .filter(|address: &SocketAddr| address.port() != 0)
        .ok_or_else(|| {
            let help = "write one such as \"127.0.0.1:9730\" or \"[::1]:9730\"";
            field.malformed(text, "an address and a port", help)
        })
}
