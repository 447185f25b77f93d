//! `[admin]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Admin, AdminSocket};
use crate::report::{Problem, Problems};
use crate::section::Section;

/// Reads where the daemon can be asked about itself; without the section, at the usual socket.
pub(super) fn admin(root: &Section<'_>, problems: &mut Problems) -> Admin {
    let Some(section) = root.table(problems, "admin", keys::ADMIN) else {
        return Admin::default();
    };
    Admin {
        socket: section
            .optional(problems, "socket", socket)
            .unwrap_or_default(),
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

/// Reads a name that a URL may have: labels of letters, digits and hyphens (RFC 1123, section 2.1).
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

/// Reads the name of a group. Whether this host has it is for the daemon to find out.
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

fn socket(field: Field<'_>) -> Result<AdminSocket, Problem> {
    const EXAMPLE: &str = "\"/run/pepd/admin.sock\"";
    let text = field.text("a path in quotes", EXAMPLE)?;
    if text == "off" {
        return Ok(AdminSocket::Off);
    }
    let help = format!("write `socket = {EXAMPLE}`, or \"off\"");
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
    Ok(AdminSocket::At(PathBuf::from(text)))
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
