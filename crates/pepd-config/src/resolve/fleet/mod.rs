//! `[[box]]` and `[[link]]`: one file for every box of a fleet.
//!
//! The file says which campuses lie behind which box, and which boxes a tunnel joins. From this
//! each box derives its own peers, and for every campus the next box and the leg towards it: what
//! comes out is the same [`Config`] as that of a file for one box.

mod check;
mod helper_box;
mod link;
mod shortest_paths;

use self::helper_box::{HelperBox, helper_box};
use self::link::Link;
use self::shortest_paths::ShortestPaths;
use super::campus::CampusDraft;
use super::duplicates::refuse_duplicates;
use super::parts::Parts;
use crate::bounds;
use crate::keys;
use crate::model::{Campus, Config, Leg, LegId, LinkSource, PeerId, Via};
use crate::report::{Problem, Problems};
use crate::section::Section;

/// Boxes and links that fit each other: every campus lies behind one box, and there is a path from
/// each to every other.
pub(super) struct Fleet<'t> {
    boxes: Vec<HelperBox<'t>>,
    links: Vec<Link>,
    paths: ShortestPaths,
    /// The box that each campus lies behind.
    home: Vec<usize>,
}

/// Tells whether the file is that of a fleet.
pub(super) fn is_given(root: &Section<'_>) -> bool {
    root.field("box").is_some() || root.field("link").is_some()
}

/// Reads the fleet. `None` is always after a problem. A leg `default` is added to `legs` if a link
/// needs one and the file has none.
pub(super) fn fleet<'t>(
    root: &Section<'t>,
    campuses: &[CampusDraft<'t>],
    leg_names: &[&str],
    legs: &mut Vec<Leg>,
    problems: &mut Problems,
) -> Option<Fleet<'t>> {
    let before = problems.count();
    refuse_peers(root, problems);
    let sections = root.tables(problems, "box", keys::BOX);
    refuse_too_few_or_many(root, &sections, problems);
    let boxes: Vec<_> = sections
        .iter()
        .map(|section| helper_box(section, campuses, problems))
        .collect();
    let known = boxes.iter().filter_map(|it| it.name.as_ref());
    refuse_duplicates("boxes", known, problems);
    let links = link::links(root, &boxes, leg_names, legs, problems);
    let home = check::homes(&boxes, campuses, problems);
    // With a box or a link that could not be read, more would seem to be missing than really is.
    if problems.count() > before || boxes.len() > bounds::BOXES {
        return None;
    }
    let ends: Vec<_> = links.iter().map(|link| link.ends).collect();
    let paths = ShortestPaths::new(boxes.len(), &ends);
    check::paths(&boxes, &links, &paths, problems);
    (problems.count() == before).then_some(Fleet {
        boxes,
        links,
        paths,
        home: home?,
    })
}

impl Fleet<'_> {
    /// Returns every box's name, in the order of the file.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.boxes.iter().filter_map(HelperBox::name)
    }

    /// Returns the configuration of the box with this index.
    pub(super) fn config(&self, this: usize, parts: &Parts<'_>) -> Config {
        let name = |index: usize| self.boxes.get(index).and_then(HelperBox::name);
        // This box's links, each with the end that it is.
        let own: Vec<(usize, &Link, usize)> = self
            .links
            .iter()
            .enumerate()
            .filter_map(|(index, link)| Some((index, link, link.end_of(this)?)))
            .collect();
        let peers = own.iter().map(|(_, link, end)| {
            let other = name(link.ends[1 - end]).unwrap_or_default();
            link.tunnel
                .between(other, link.addresses[*end], link.addresses[1 - end])
        });
        let campus = |(campus, home): (&Campus, &usize)| {
            let towards = self.paths.next_link(this, *home);
            let own = own
                .iter()
                .enumerate()
                .find(|(_, (link, ..))| Some(*link) == towards);
            match own {
                Some((peer, (_, link, end))) => Campus {
                    via: Via::Peer(PeerId(peer)),
                    leg: link.legs[*end],
                    ..campus.clone()
                },
                None => campus.clone(),
            }
        };
        let campuses = parts.campuses.iter().zip(&self.home).map(campus).collect();
        let mut config = Config {
            peers: peers.collect(),
            ..parts.config(name(this).unwrap_or_default(), campuses)
        };
        keep_used_legs(&mut config);
        keep_used_modems(&mut config);
        config
    }
}

/// Drops the other boxes' legs, which are no concern of this one's: it may not even have their
/// congestion controls.
fn keep_used_legs(config: &mut Config) {
    let used = |leg: usize| config.campuses.iter().any(|campus| campus.leg.0 == leg);
    let kept: Vec<usize> = (0..config.legs.len()).filter(|leg| used(*leg)).collect();
    config.legs = kept
        .iter()
        .filter_map(|leg| config.legs.get(*leg).cloned())
        .collect();
    for campus in &mut config.campuses {
        if let Ok(index) = kept.binary_search(&campus.leg.0) {
            campus.leg = LegId(index);
        }
    }
}

/// Drops the modems of legs that this box has not: there is nobody to look for.
fn keep_used_modems(config: &mut Config) {
    let links: Vec<_> = config
        .legs
        .iter()
        .filter_map(|leg| leg.link.as_ref())
        .collect();
    let is_used = |name: &str| {
        let mut modems = links.iter().filter_map(|link| match link {
            LinkSource::Dlep(name) => Some(name),
            _ => None,
        });
        modems.any(|used| used == name)
    };
    config.modems.retain(|modem| is_used(&modem.name));
}

fn refuse_peers(root: &Section<'_>, problems: &mut Problems) {
    // What is wrong with them has already been reported.
    let peers = root.tables(&mut Problems::default(), "peer", keys::PEER);
    if let Some(first) = peers.first() {
        problems.push(
            Problem::new(first.span(), "a fleet has no `[[peer]]`")
                .label("belongs to a single box")
                .help(
                    "write a `[[link]]` with the names of both boxes: each derives its own peers",
                ),
        );
    }
}

fn refuse_too_few_or_many(root: &Section<'_>, boxes: &[Section<'_>], problems: &mut Problems) {
    if boxes.is_empty() && root.field("box").is_none() {
        let links = root.tables(&mut Problems::default(), "link", keys::LINK);
        let at = links.first().map_or(root.span(), Section::span);
        problems.push(
            Problem::new(at, "the file has a `[[link]]` and no `[[box]]`")
                .label("joins two boxes")
                .help("describe each box with a `[[box]]`: `name`, `address` and `campuses`"),
        );
    }
    if let Some(one_too_many) = boxes.get(bounds::BOXES) {
        let title = format!("there are more than {} boxes", bounds::BOXES);
        problems.push(
            Problem::new(one_too_many.span(), title)
                .label("the first one too many")
                .help("make several fleets of them, with a file each"),
        );
    }
}
