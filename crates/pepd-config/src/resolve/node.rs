//! `[node]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;

use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::Node;
use crate::report::{Problem, Problems};
use crate::section::Section;

/// The time for which connections may go on after SIGTERM if the file does not say.
const DRAIN: Duration = Duration::from_secs(30);

/// `[node]`, as far as it could be read.
pub(super) struct NodeDraft<'t> {
    /// The name with its place, if it is given.
    pub(super) name: Option<Spanned<&'t str>>,
    workers: Option<NonZeroUsize>,
    user: Option<String>,
    drain: Duration,
    state: Option<PathBuf>,
}

impl NodeDraft<'_> {
    /// Returns the node, under this name.
    pub(super) fn named(&self, name: &str) -> Node {
        Node {
            name: name.to_owned(),
            workers: self.workers,
            user: self.user.clone(),
            drain: self.drain,
            state: self.state.clone(),
        }
    }
}

/// Reads what the file says about the box that runs it. In the file of a fleet, which every box
/// runs, it need not say which one that is.
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
            user: None,
            drain: DRAIN,
            state: None,
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
        user: section.optional(problems, "user", user),
        drain: drain.unwrap_or(DRAIN),
        state: section.optional(problems, "state", state),
    })
}

/// Reads the path of the file that keeps what was learned. Whether it can be written is for the daemon to find out.
fn state(field: Field<'_>) -> Result<PathBuf, Problem> {
    const EXAMPLE: &str = "\"/var/lib/pepd/state\"";
    let text = field.text("a path in quotes", EXAMPLE)?;
    let legal = text.starts_with('/') && !text.ends_with('/') && !text.contains('\0');
    if !legal || text.len() > bounds::PATH {
        let help = format!("write `state = {EXAMPLE}`, or leave it out");
        return Err(field.malformed(text, "an absolute path of a file", help));
    }
    Ok(PathBuf::from(text))
}

/// Reads the name of a user. Whether this host has it is for the daemon to find out.
fn user(field: Field<'_>) -> Result<String, Problem> {
    const EXAMPLE: &str = "\"pepd\"";
    let text = field.text("the name of a user in quotes", EXAMPLE)?;
    let legal = |c: char| c.is_ascii_alphanumeric() || ['-', '_', '.', '$'].contains(&c);
    if !(1..=bounds::USER).contains(&text.len()) || !text.chars().all(legal) {
        let help = format!("write it as getent(1) does: `user = {EXAMPLE}`");
        return Err(field.malformed(text, "the name of a user", help));
    }
    Ok(text.to_owned())
}
