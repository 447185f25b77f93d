//! `[[campus]]`.

use ipnet::IpNet;
use toml::Spanned;

use super::duplicates::refuse_duplicates;
use super::prefixes::{self, Listed};
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Campus, Leg, LegId, PeerId, Via};
use crate::report::{Problem, Problems, listed, nearest, shown};
use crate::section::Section;

/// The leg of a campus that names none.
const DEFAULT_LEG: &str = "default";

/// The names that a campus may refer to.
pub(super) struct Names<'n, 't> {
    /// The legs, in the order of [`LegId`].
    pub(super) legs: &'n [&'t str],
    /// The peers, in the order of [`PeerId`].
    pub(super) peers: &'n [Option<&'t str>],
    /// Whether the file is a fleet's, where each box finds the next one itself.
    pub(super) fleet: bool,
}

/// A campus, as far as it could be read.
pub(super) struct CampusDraft<'t> {
    name: Option<Spanned<&'t str>>,
    prefixes: Vec<Spanned<IpNet>>,
    via: Via,
    leg: LegId,
}

impl<'t> CampusDraft<'t> {
    /// Returns the campus; `None` if it has no usable name.
    pub(super) fn finish(self) -> Option<Campus> {
        Some(Campus {
            name: (*self.name?.get_ref()).to_owned(),
            prefixes: self.prefixes.into_iter().map(Spanned::into_inner).collect(),
            via: self.via,
            leg: self.leg,
        })
    }

    /// Returns the name with its place, if it is known.
    pub(super) fn spanned_name(&self) -> Option<&Spanned<&'t str>> {
        self.name.as_ref()
    }

    /// Returns the name, if it is known.
    pub(super) fn name(&self) -> Option<&'t str> {
        self.name.as_ref().map(|name| *name.get_ref())
    }

    /// Returns the prefixes that could be read.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = &IpNet> {
        self.prefixes.iter().map(Spanned::get_ref)
    }
}

/// Reads the campuses in the order of the file. A leg `default` is added to `legs` if one is needed
/// and the file has none.
pub(super) fn campuses<'t>(
    root: &Section<'t>,
    names: &Names<'_, 't>,
    legs: &mut Vec<Leg>,
    problems: &mut Problems,
) -> Vec<CampusDraft<'t>> {
    let sections = root.tables(problems, "campus", keys::CAMPUS);
    refuse_too_few(root, &sections, problems);
    let mut drafts = Vec::new();
    for section in &sections {
        let name = section.required(problems, "name", "\"a\"", |field| field.name(bounds::NAME));
        let fields = section
            .required(problems, "prefixes", "[\"192.0.2.0/24\"]", |field| {
                field.list("[\"192.0.2.0/24\"]")
            })
            .into_iter()
            .flatten();
        let prefixes = fields
            .filter_map(|field| problems.take(prefixes::prefix(field, |_| None)))
            .collect();
        let via = section
            .optional(problems, "via", |field| match names.fleet {
                true => Err(not_in_a_fleet(field)),
                false => via(field, names),
            })
            .unwrap_or(Via::Local);
        let leg = match section.field("leg") {
            Some(field) => problems.take(leg(field, names.legs)),
            None => Some(default_leg(legs)),
        };
        // A leg that is not known has left a problem.
        drafts.push(CampusDraft {
            name,
            prefixes,
            via,
            leg: leg.unwrap_or(LegId(0)),
        });
    }
    refuse_duplicates(
        "campuses",
        drafts.iter().filter_map(|it| it.name.as_ref()),
        problems,
    );
    compare_prefixes(&drafts, problems);
    drafts
}

fn refuse_too_few(root: &Section<'_>, sections: &[Section<'_>], problems: &mut Problems) {
    let given = root
        .field("campus")
        .and_then(|field| field.value().as_array())
        .map(|it| it.len());
    let problem = match (given, sections) {
        // Given, but not as a list, which is a problem of its own.
        (None, _) if root.field("campus").is_some() => return,
        (None | Some(0), _) => Problem::new(root.span(), "the file has no `[[campus]]`")
            .label("at least two are required"),
        (Some(1), [only]) => Problem::new(only.span(), "there is only one `[[campus]]`")
            .label("pepd splits what goes from one campus to another"),
        _ => return,
    };
    problems.push(problem.help(
        "describe both sides of the box, each with its own `[[campus]]`, `name` and `prefixes`; \
         [\"0.0.0.0/0\", \"::/0\"] is everything that is in no other",
    ));
}

fn via(field: Field<'_>, names: &Names<'_, '_>) -> Result<Via, Problem> {
    let text = field.text("\"local\", \"routing\" or the name of a peer", "\"local\"")?;
    match text {
        "local" => return Ok(Via::Local),
        "routing" => return Ok(Via::Routing),
        _ => {}
    }
    if let Some(index) = names.peers.iter().position(|peer| *peer == Some(text)) {
        return Ok(Via::Peer(PeerId(index)));
    }
    let peers = || names.peers.iter().flatten().copied();
    let help = match nearest(text, peers().chain(["local", "routing"])) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if names.peers.is_empty() => "write \"local\": the file has no `[[peer]]`".to_owned(),
        None => format!(
            "write \"local\", \"routing\" or the name of a peer, which are: {}",
            listed(peers())
        ),
    };
    Err(field
        .problem(format!("there is no peer named `{}`", shown(text)))
        .label("not known")
        .help(help))
}

fn not_in_a_fleet(field: Field<'_>) -> Problem {
    field
        .problem("a campus has no `via` in the file of a fleet")
        .label("each box finds it itself")
        .help(
            "remove it, and list the campus in the `campuses` of the `[[box]]` that it lies behind",
        )
}

/// Finds the leg that this field names.
pub(super) fn leg(field: Field<'_>, names: &[&str]) -> Result<LegId, Problem> {
    let text = field.text("the name of a leg in quotes", "\"lan\"")?;
    if let Some(index) = names.iter().position(|leg| *leg == text) {
        return Ok(LegId(index));
    }
    let known = || names.iter().copied();
    let add = format!("add `[leg.{}]`", shown(text));
    let help = match nearest(text, known()) {
        Some(near) => format!("did you mean \"{near}\"? The legs are: {}", listed(known())),
        None if names.is_empty() => format!("{add}: the file has no legs"),
        None => format!("{add}, or write one of: {}", listed(known())),
    };
    Err(field
        .problem(format!("there is no leg named `{}`", shown(text)))
        .label("not known")
        .help(help))
}

/// Returns the leg of what names none.
pub(super) fn default_leg(legs: &mut Vec<Leg>) -> LegId {
    let known = legs.iter().position(|leg| leg.name == DEFAULT_LEG);
    LegId(known.unwrap_or_else(|| {
        legs.push(Leg::new(DEFAULT_LEG));
        legs.len() - 1
    }))
}

/// Notes a problem for every prefix that two campuses have; one within another's prefix is fine:
/// the longest wins.
fn compare_prefixes(drafts: &[CampusDraft<'_>], problems: &mut Problems) {
    let all: Vec<Listed> = drafts
        .iter()
        .enumerate()
        .flat_map(|(list, draft)| {
            draft.prefixes.iter().map(move |prefix| Listed {
                prefix: prefix.clone(),
                list,
            })
        })
        .collect();
    let name = |index: usize| drafts.get(index).and_then(CampusDraft::name);
    let both = |first, second| listed([name(first), name(second)].into_iter().flatten());
    prefixes::refuse_repeated(&all, both, problems);
    prefixes::refuse_redundant(&all, problems);
}
