//! pepd's configuration: TOML to typed, resolved and diagnosed, without I/O.
//!
//! [`parse`] takes the text of the file and gives a [`Config`] in which every name is resolved,
//! every default filled in and every bound checked, or a [`Report`] of everything that is wrong,
//! each problem with its place and its cure.
//!
//! ```
//! let text = r#"
//!     [node]
//!     name = "hb-a"
//!
//!     [[campus]]
//!     name = "a"
//!     prefixes = ["192.0.2.0/24"]
//!
//!     [[campus]]
//!     name = "b"
//!     prefixes = ["198.51.100.0/24"]
//!     leg = "satellite"
//!
//!     [leg.satellite]
//!     congestion = "bbr"
//! "#;
//! let context = pepd_config::Context {
//!     ephemeral_ports: 32768..=60999,
//!     node: None,
//!     host: None,
//! };
//! let config = pepd_config::parse("pepd.toml", text, &context)?;
//! let leg = config.leg(config.campuses[1].leg);
//! assert_eq!(leg.congestion, Some(pepd_config::Congestion::Kernel("bbr".into())));
//! # Ok::<(), pepd_config::Report>(())
//! ```
//!
//! The path of a file through this crate: `toml` gives a tree of values with their places;
//! `section` and `field` read single values out of it; `resolve` puts these together and
//! looks at what they mean. The tree is read by hand and not by serde, which stops at the first
//! problem and forgets places.

#![forbid(unsafe_code)]

mod bounds;
mod context;
mod field;
mod keys;
mod model;
mod report;
mod resolve;
mod section;
#[cfg(test)]
mod tests;
mod units;

pub use ipnet::IpNet;
pub use pepd_dlep::MacAddress;
pub use pepd_packet::{Mark, MarkMask, MarkValue, PerMyriad, Rate, Size};
use toml::de::DeTable;

pub use crate::context::Context;
use crate::context::Which;
pub use crate::model::{
    Action, Admin, AdminSocket, Buffer, Campus, CampusId, Capture, Config, Congestion, Dscp,
    Handshake, InitialWindow, Keepalive, Leg, LegId, Limits, LinkSource, Log, LogFormat, Measure,
    Modem, Moves, Neighbor, Node, Peer, PeerId, Rule, Share, Split, Table, Tos, Via, WhileGone,
};
pub use crate::report::Report;
use crate::report::{Problem, Problems};
pub use crate::units::{rate as parse_rate, size as parse_size};

/// Reads the configuration of one box. Of a file for a whole fleet (`[[box]]`) that is the box
/// that `context` names. `origin` is the file's name as messages show it.
///
/// # Errors
///
/// Everything that is wrong with it, not only the first.
pub fn parse(origin: &str, text: &str, context: &Context) -> Result<Config, Report> {
    // A byte order mark would count as a column.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    read(text, context, Which::This)
        .and_then(|configs| configs.into_iter().next().ok_or_else(Problems::default))
        .map_err(|problems| problems.into_report(origin, text))
}

/// Reads the configuration of every box of a fleet, in the order of the file; of a file for one
/// box, that one. `origin` is the file's name as messages show it.
///
/// # Errors
///
/// Everything that is wrong with it, not only the first.
pub fn parse_all(origin: &str, text: &str, context: &Context) -> Result<Vec<Config>, Report> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    read(text, context, Which::Every).map_err(|problems| problems.into_report(origin, text))
}

/// Reads at least one configuration.
fn read(text: &str, context: &Context, which: Which) -> Result<Vec<Config>, Problems> {
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return Err(syntax(text, &errors));
    }
    let document = document.into_inner();
    let mut problems = Problems::default();
    let configs = resolve::file(&document, text, context, which, &mut problems);
    match configs {
        Some(configs) if problems.count() == 0 => Ok(configs),
        _ => Err(problems),
    }
}

/// Describes what the TOML parser found: one problem per line, since one slip often makes several, and the first
/// of a row that say the same, as an array that is not closed has them on each line after it.
fn syntax(text: &str, errors: &[toml::de::Error]) -> Problems {
    let mut problems = Problems::default();
    let mut lines = std::collections::HashSet::new();
    let mut last = None;
    for error in errors {
        let at = error.span().unwrap_or(0..0);
        let before = &text[..text.floor_char_boundary(at.start)];
        if !lines.insert(before.matches('\n').count()) {
            continue;
        }
        if last.replace(error.message()) != Some(error.message()) {
            problems.push(
                Problem::new(at, "the file is not valid TOML")
                    .label(error.message())
                    .help(cure(error.message())),
            );
        }
    }
    problems
}

/// Says what would be right, for the slips that are made most.
fn cure(message: &str) -> &'static str {
    if message.starts_with("duplicate key") {
        "give each key and each `[table]` once; only `[[campus]]`, `[[peer]]`, `[[box]]`, \
         `[[link]]`, `[[dlep]]` and `[[rule]]` may be repeated"
    } else if message.starts_with("string values must be quoted") {
        "put the text in double quotes"
    } else if message.starts_with("missing comma between array elements") {
        "close the list that begins above with `]`, or put a comma between its elements"
    } else {
        "TOML is `key = value` lines under `[table]` headers; see https://toml.io"
    }
}
