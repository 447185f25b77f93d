//! What the file means: sections are read, names resolved, and what stands in different places
//! compared.

mod basics;
mod campus;
mod capture;
mod fleet;
mod leg;
mod log;
mod names;
mod peer;
mod prefixes;
mod rule;
mod this;

use toml::de::DeTable;

use crate::model::{Admin, Campus, Capture, Leg, Limits, Log, Rule};
use crate::report::Problems;
use crate::section::Section;
use crate::{Config, Context, Which};

/// The configuration of one box, or of each box of a fleet in the order of the file. `None` is
/// always after a problem.
pub(crate) fn file(
    document: &DeTable<'_>,
    text: &str,
    context: &Context,
    which: Which,
    problems: &mut Problems,
) -> Option<Vec<Config>> {
    let root = Section::root(document, text, problems);
    let is_fleet = fleet::is_given(&root);
    let node = basics::node(&root, is_fleet, problems);
    let capture = capture::capture(&root, context, problems);
    let limits = basics::limits(&root, problems);
    let admin = basics::admin(&root, problems);
    let log = log::log(&root, problems);
    let (leg_names, mut legs) = leg::legs(&root, problems);
    let before = problems.count();
    let peers = peer::peers(&root, problems);
    let names = campus::Names {
        legs: &leg_names,
        peers: &peers.iter().map(peer::Draft::name).collect::<Vec<_>>(),
        fleet: is_fleet,
    };
    let campuses = campus::campuses(&root, &names, &mut legs, problems);
    let fleet = is_fleet.then(|| fleet::fleet(&root, &campuses, &leg_names, &mut legs, problems));
    let rules = rule::rules(&root, &campuses, problems);
    if let Some(capture) = &capture {
        capture::mark_is_wide_enough(&root, capture, &rules, problems);
    }
    // One that could not be resolved has left a problem, and its absence goes unseen.
    let campuses: Vec<Campus> = campuses
        .into_iter()
        .filter_map(campus::Draft::finish)
        .collect();
    // A `via` that is misspelt has been told as such.
    if !is_fleet && problems.count() == before {
        peer::refuse_unused(&peers, &campuses, problems);
    }
    let parts = Parts {
        node: node?,
        capture: capture?,
        limits,
        campuses,
        legs,
        rules,
        admin,
        log,
    };
    match fleet {
        Some(fleet) => this::of_fleet(&fleet?, &parts, context, which, problems),
        None => this::of_one(&parts, peers, context, problems).map(|config| vec![config]),
    }
}

/// What a configuration is made of, before it is known which box it is for.
struct Parts<'t> {
    node: basics::NodeDraft<'t>,
    capture: Capture,
    limits: Limits,
    campuses: Vec<Campus>,
    legs: Vec<Leg>,
    rules: Vec<Rule>,
    admin: Admin,
    log: Log,
}

impl Parts<'_> {
    /// The configuration of the box with this name, which has no peers yet.
    fn config(&self, name: &str, campuses: Vec<Campus>) -> Config {
        Config {
            node: self.node.named(name),
            capture: self.capture.clone(),
            limits: self.limits,
            campuses,
            peers: Vec::new(),
            legs: self.legs.clone(),
            rules: self.rules.clone(),
            admin: self.admin.clone(),
            log: self.log,
        }
    }
}
