//! `[[box]]`.

use std::net::IpAddr;

use toml::Spanned;

use crate::field::Field;
use crate::report::{Problem, Problems, Span, listed, nearest, shown};
use crate::resolve::campus::CampusDraft;
use crate::resolve::peer;
use crate::section::Section;

/// `[[box]]`, as far as it could be read.
pub(super) struct HelperBox<'t> {
    pub(super) at: Span,
    pub(super) name: Option<Spanned<&'t str>>,
    pub(super) address: Option<Spanned<IpAddr>>,
    /// The campuses behind it: the indices of those that are known.
    pub(super) campuses: Vec<Spanned<usize>>,
}

impl<'t> HelperBox<'t> {
    pub(super) fn name(&self) -> Option<&'t str> {
        self.name.as_ref().map(|name| *name.get_ref())
    }

    /// Returns the name as it is quoted in a message.
    pub(super) fn shown(&self) -> String {
        self.name().map(shown).unwrap_or_default()
    }

    /// Returns the place of the name, or else of the box.
    pub(super) fn span(&self) -> Span {
        self.name
            .as_ref()
            .map_or_else(|| self.at.clone(), Spanned::span)
    }
}

/// Reads a `[[box]]`.
pub(super) fn helper_box<'t>(
    section: &Section<'t>,
    campuses: &[CampusDraft<'_>],
    problems: &mut Problems,
) -> HelperBox<'t> {
    let name = section.required(problems, "name", "\"hb-a\"", |field| {
        peer::name(field, "box")
    });
    let address = section.optional(problems, "address", peer::unicast);
    let behind = section
        .optional(problems, "campuses", |field| field.list("[\"a\"]"))
        .into_iter()
        .flatten()
        .filter_map(|field| problems.take(campus(field, campuses)))
        .collect();
    HelperBox {
        at: section.span(),
        name,
        address,
        campuses: behind,
    }
}

fn campus(field: Field<'_>, campuses: &[CampusDraft<'_>]) -> Result<Spanned<usize>, Problem> {
    let text = field.text("a list of campuses' names in quotes", "[\"a\"]")?;
    let known = || campuses.iter().filter_map(CampusDraft::name);
    if let Some(index) = campuses
        .iter()
        .position(|campus| campus.name() == Some(text))
    {
        return Ok(field.spanned(index));
    }
    Err(unknown(field, "campus", text, known()))
}

/// Describes the problem that there is no `what` with this name.
pub(super) fn unknown<'n>(
    field: Field<'_>,
    what: &str,
    text: &str,
    known: impl Iterator<Item = &'n str> + Clone,
) -> Problem {
    let help = match nearest(text, known.clone()) {
        Some(near) => format!(
            "did you mean \"{near}\"? There are: {}",
            listed(known.clone())
        ),
        None if known.clone().next().is_none() => format!("add a `[[{what}]]` with this name"),
        None => format!(
            "write one of {}, or add a `[[{what}]]` with this name",
            listed(known)
        ),
    };
    field
        .problem(format!("there is no {what} named `{}`", shown(text)))
        .label("not known")
        .help(help)
}
