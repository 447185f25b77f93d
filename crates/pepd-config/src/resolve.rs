//! What the file means: sections are read, names resolved, and what stands in different places
//! compared.

mod basics;
mod campus;
mod capture;
mod leg;
mod log;
mod names;
mod peer;
mod prefixes;
mod rule;

use toml::de::DeTable;

use crate::report::Problems;
use crate::section::Section;
use crate::{Config, Context};

/// The whole file. `None` is always after a problem.
pub(crate) fn file(
    document: &DeTable<'_>,
    text: &str,
    context: &Context,
    problems: &mut Problems,
) -> Option<Config> {
    let root = Section::root(document, text, problems);
    let node = basics::node(&root, problems);
    let capture = capture::capture(&root, context, problems);
    let limits = basics::limits(&root, problems);
    let admin = basics::admin(&root, problems);
    let log = log::log(&root, problems);
    let (leg_names, mut legs) = leg::legs(&root, problems);
    let (peer_names, peers) = peer::peers(&root, problems);
    let names = campus::Names {
        legs: &leg_names,
        peers: &peer_names,
    };
    let campuses = campus::campuses(&root, &names, &mut legs, problems);
    let rules = rule::rules(&root, &campuses, problems);
    if let Some(capture) = &capture {
        capture::mark_is_wide_enough(&root, capture, &rules, problems);
    }
    Some(Config {
        node: node?,
        capture: capture?,
        limits,
        // One that could not be resolved has left a problem, and its absence goes unseen.
        campuses: campuses
            .into_iter()
            .filter_map(campus::Draft::finish)
            .collect(),
        peers: peers.into_iter().flatten().collect(),
        legs,
        rules,
        admin,
        log,
    })
}
