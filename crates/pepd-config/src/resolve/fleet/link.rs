//! `[[link]]`.

use std::collections::HashMap;
use std::net::IpAddr;

use toml::Spanned;

use super::helper_box::{HelperBox, unknown};
use crate::field::Field;
use crate::keys;
use crate::model::{Leg, LegId};
use crate::report::{Problem, Problems, Span, shown};
use crate::resolve::campus::{default_leg, leg};
use crate::resolve::peer::{Tunnel, mixed_families, unicast};
use crate::section::Section;

/// A tunnel between two boxes. Pairs are in the order of the ends.
pub(super) struct Link {
    /// The place of its `boxes`.
    pub(super) at: Span,
    /// Indices of the two boxes, which are not the same.
    pub(super) ends: [usize; 2],
    /// The addresses of the ends of the tunnel.
    pub(super) addresses: [IpAddr; 2],
    /// The leg that each end has towards the other.
    pub(super) legs: [LegId; 2],
    pub(super) tunnel: Tunnel,
}

impl Link {
    /// Returns which end of the link the box is, if it is one.
    pub(super) fn end_of(&self, index: usize) -> Option<usize> {
        self.ends.iter().position(|end| *end == index)
    }
}

/// Reads the links in the order of the file. One that could not be read has left a problem.
pub(super) fn links(
    root: &Section<'_>,
    boxes: &[HelperBox<'_>],
    leg_names: &[&str],
    legs: &mut Vec<Leg>,
    problems: &mut Problems,
) -> Vec<Link> {
    let mut links = Vec::new();
    let mut owners = Owners::new(boxes, problems);
    let mut homeless = vec![false; boxes.len()];
    for section in root.tables(problems, "link", keys::LINK) {
        let ends = section.required(problems, "boxes", "[\"hb-a\", \"hb-b\"]", |field| {
            ends(field, boxes)
        });
        let legs = leg_pair(&section, leg_names, legs, problems);
        let tunnel = Tunnel::read(&section, problems);
        let given = section.optional(problems, "addresses", address_pair);
        let (Some(ends), Some(legs)) = (ends, legs) else {
            continue;
        };
        let addresses = match given {
            Some(addresses) => {
                for (end, address) in ends.get_ref().iter().zip(&addresses) {
                    owners.claim(address, *end, boxes, problems);
                }
                addresses.map(Some)
            }
            None if section.field("addresses").is_some() => continue,
            None => ends
                .get_ref()
                .map(|end| address_of(end, boxes, &mut homeless, problems)),
        };
        let [Some(here), Some(there)] = addresses else {
            continue;
        };
        if here.get_ref().is_ipv4() != there.get_ref().is_ipv4() {
            let title = "the addresses of a link are not of one family";
            problems.push(mixed_families(title, &here, &there));
            continue;
        }
        links.push(Link {
            at: ends.span(),
            ends: ends.into_inner(),
            addresses: [here.into_inner(), there.into_inner()],
            legs,
            tunnel,
        });
    }
    refuse_parallel(&links, boxes, problems);
    links
}

/// Reads two entries, one for each end.
fn pair<'t>(field: Field<'t>, key: &str, example: &str) -> Result<[Field<'t>; 2], Problem> {
    let entries: Vec<_> = field.list(example)?.collect();
    let count = entries.len();
    entries.try_into().map_err(|_| {
        field
            .problem(format!("`{key}` has {count} of two entries"))
            .label("one for each end of the link")
            .help(field.write(example))
    })
}

fn ends(field: Field<'_>, boxes: &[HelperBox<'_>]) -> Result<Spanned<[usize; 2]>, Problem> {
    const EXAMPLE: &str = "[\"hb-a\", \"hb-b\"]";
    let [one, other] = pair(field, "boxes", EXAMPLE)?;
    let find = |end: Field<'_>| {
        let text = end.text("a list of two boxes' names in quotes", EXAMPLE)?;
        let known = boxes.iter().filter_map(HelperBox::name);
        boxes
            .iter()
            .position(|it| it.name() == Some(text))
            .ok_or_else(|| unknown(end, "box", text, known))
    };
    let ends = [find(one)?, find(other)?];
    if ends[0] == ends[1] {
        return Err(field
            .problem("a link joins a box to itself")
            .label("twice the same")
            .help("write the names of two boxes"));
    }
    Ok(field.spanned(ends))
}

/// Reads one leg for both ends, or one for each.
fn leg_pair(
    section: &Section<'_>,
    names: &[&str],
    legs: &mut Vec<Leg>,
    problems: &mut Problems,
) -> Option<[LegId; 2]> {
    let Some(field) = section.field("leg") else {
        return Some([default_leg(legs); 2]);
    };
    if field.value().as_array().is_none() {
        return problems.take(leg(field, names)).map(|leg| [leg; 2]);
    }
    let [one, other] = problems.take(pair(field, "leg", "[\"long\", \"radio\"]"))?;
    let (one, other) = (
        problems.take(leg(one, names)),
        problems.take(leg(other, names)),
    );
    Some([one?, other?])
}

fn address_pair(field: Field<'_>) -> Result<[Spanned<IpAddr>; 2], Problem> {
    let [one, other] = pair(field, "addresses", "[\"192.0.2.1\", \"198.51.100.1\"]")?;
    Ok([unicast(one)?, unicast(other)?])
}

/// Returns the box's own address, which it must have if the link names none. Each box is told once.
fn address_of(
    index: usize,
    boxes: &[HelperBox<'_>],
    homeless: &mut [bool],
    problems: &mut Problems,
) -> Option<Spanned<IpAddr>> {
    let (it, told) = (boxes.get(index)?, homeless.get_mut(index)?);
    if it.address.is_none() && !*told {
        *told = true;
        problems.push(
            Problem::new(
                it.span(),
                format!("the box `{}` has no usable `address`", it.shown()),
            )
            .label("a link ends here")
            .help(
                "add `address = \"192.0.2.1\"` to the box, or \
                     `addresses = [\"192.0.2.1\", \"198.51.100.1\"]` to each of its links",
            ),
        );
    }
    it.address.clone()
}

/// The box that each address belongs to.
struct Owners(HashMap<IpAddr, (usize, Span)>);

impl Owners {
    fn new(boxes: &[HelperBox<'_>], problems: &mut Problems) -> Self {
        let mut owners = Self(HashMap::new());
        for (index, it) in boxes.iter().enumerate() {
            if let Some(address) = &it.address {
                owners.claim(address, index, boxes, problems);
            }
        }
        owners
    }

    /// Claims a tunnel's ends: the kernel tells tunnels apart by them, and no box has a tunnel to
    /// itself.
    fn claim(
        &mut self,
        address: &Spanned<IpAddr>,
        owner: usize,
        boxes: &[HelperBox<'_>],
        problems: &mut Problems,
    ) {
        let entry = self.0.entry(*address.get_ref());
        let (first, place) = entry.or_insert_with(|| (owner, address.span()));
        if *first != owner {
            let name = |index: usize| boxes.get(index).map(HelperBox::shown).unwrap_or_default();
            let title = format!(
                "the address `{}` is of two boxes: `{}` and `{}`",
                address.get_ref(),
                name(*first),
                name(owner)
            );
            problems.push(
                Problem::new(address.span(), title)
                    .label("the second time")
                    .also(place.clone(), "the first time")
                    .help("give each box an address of its own"),
            );
        }
    }
}

/// Refuses a second tunnel between the same boxes, which would never be taken.
fn refuse_parallel(links: &[Link], boxes: &[HelperBox<'_>], problems: &mut Problems) {
    let mut seen: HashMap<[usize; 2], Span> = HashMap::new();
    for link in links {
        let [one, other] = link.ends;
        let ends = [one.min(other), one.max(other)];
        if let Some(first) = seen.insert(ends, link.at.clone()) {
            let [one, other] =
                ends.map(|end| boxes.get(end).map(|it| it.shown()).unwrap_or_default());
            problems.push(
                Problem::new(
                    link.at.clone(),
                    format!("two links join `{}` and `{}`", shown(&one), shown(&other)),
                )
                .label("the second one")
                .also(first, "the first one")
                .help("remove one"),
            );
        }
    }
}
