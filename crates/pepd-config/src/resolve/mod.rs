//! The meaning of the file: sections are read, names resolved, and what is written in different
//! places is compared.

mod admin;
mod campus;
mod capture;
mod choose_box;
mod dlep;
mod duplicates;
mod fleet;
mod leg;
mod limits;
mod log;
mod measure;
mod moves;
mod node;
mod parts;
mod peer;
mod prefixes;
mod rule;

use toml::de::DeTable;

use self::campus::CampusDraft;
use self::dlep::ModemDraft;
use self::parts::Parts;
use self::peer::PeerDraft;
use crate::context::{Context, Which};
use crate::model::{Campus, Config};
use crate::report::Problems;
use crate::section::Section;

/// Resolves the configuration of one box, or of each box of a fleet in the order of the file.
/// `None` is always after a problem.
pub(crate) fn file(
    document: &DeTable<'_>,
    text: &str,
    context: &Context,
    which: Which,
    problems: &mut Problems,
) -> Option<Vec<Config>> {
    let root = Section::root(document, text, problems);
    let is_fleet = fleet::is_given(&root);
    let node = node::node(&root, is_fleet, problems);
    let capture = capture::capture(&root, context, problems);
    let limits = limits::limits(&root, problems);
    let admin = admin::admin(&root, problems);
    let (measure, measures_nothing) = measure::measure(&root, problems);
    let moves = moves::moves(&root, is_fleet, problems);
    let log = log::log(&root, problems);
    let (leg_names, mut legs) = leg::legs(&root, problems);
    let before = problems.count();
    let peers = peer::peers(&root, problems);
    let names = campus::Names {
        legs: &leg_names,
        peers: &peers.iter().map(PeerDraft::name).collect::<Vec<_>>(),
        fleet: is_fleet,
    };
    let campuses = campus::campuses(&root, &names, &mut legs, problems);
    let fleet = is_fleet.then(|| fleet::fleet(&root, &campuses, &leg_names, &mut legs, problems));
    let known: Vec<&str> = match &fleet {
        Some(fleet) => fleet.iter().flat_map(fleet::Fleet::names).collect(),
        None => names.peers.iter().flatten().copied().collect(),
    };
    let unprobed = peers.iter().filter(|peer| !peer.is_probed());
    let unprobed: Vec<&str> = unprobed.filter_map(PeerDraft::name).collect();
    leg::links_have_peers(&root, &known, &unprobed, problems);
    let modems = dlep::modems(&root, problems);
    dlep::links_have_modems(&root, &modems, problems);
    let rules = rule::rules(&root, &campuses, problems);
    rule::weights_have_a_rate(&root, &legs, problems);
    if let (Some(node), Some(capture), Some(moves)) = (&node, &capture, &moves) {
        moves::fit(&root, node, (capture, &admin), moves, problems);
    }
    if let Some(capture) = &capture {
        capture::mark_is_wide_enough(&root, capture, &rules, problems);
        measure::fits(measures_nothing, capture, &rules, problems);
    }
    // One that could not be resolved has left a problem, and its absence goes unnoticed.
    let campuses = campuses.into_iter().filter_map(CampusDraft::finish);
    let campuses: Vec<Campus> = campuses.collect();
    // A misspelt `via` has been reported as such.
    if !is_fleet && problems.count() == before {
        peer::refuse_unused(&peers, &campuses, problems);
    }
    let parts = Parts {
        node: node?,
        capture: capture?,
        limits,
        campuses,
        legs,
        modems: modems.into_iter().filter_map(ModemDraft::finish).collect(),
        rules,
        measure,
        moves: moves?,
        admin,
        log,
    };
    match fleet {
        Some(fleet) => choose_box::of_fleet(&fleet?, &parts, context, which, problems),
        None => choose_box::of_one(&parts, peers, context, problems).map(|config| vec![config]),
    }
}
