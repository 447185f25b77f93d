//! `[[rule]]`.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use toml::Spanned;
use toml::de::DeValue;

use super::campus::CampusDraft;
use super::capture::handshake;
use super::prefixes::{self, Listed};
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::{Action, Congestion, Leg, Rule};
use crate::report::{Problem, Problems, Span, nearest};
use crate::section::Section;

/// Ports, from first to last.
type Ports = RangeInclusive<u16>;

/// Reads the rules in the order of the file. One without an action has left a problem.
pub(super) fn rules(
    root: &Section<'_>,
    campuses: &[CampusDraft<'_>],
    problems: &mut Problems,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut places = Vec::new();
    for section in root.tables(problems, "rule", keys::RULE) {
        let before = problems.count();
        let rule = rule(&section, campuses, problems);
        // A rule with something wrong in it would seem wider than it is meant.
        if problems.count() == before {
            places.extend(rule.iter().map(|_| section.span()));
            rules.extend(rule);
        }
    }
    refuse_shadowed(&rules, &places, problems);
    rules
}

fn rule(
    section: &Section<'_>,
    campuses: &[CampusDraft<'_>],
    problems: &mut Problems,
) -> Option<Rule> {
    let source = prefix_list(section, "source", campuses, problems);
    let destination = prefix_list(section, "destination", campuses, problems);
    let destination_port = port_list(section, problems);
    let action = section.required(problems, "action", "\"bypass\"", action);
    let handshake = section.optional(problems, "handshake", handshake);
    let routed = match action {
        Some(Action::Bypass) => Some("a rule that bypasses pepd has no `handshake`"),
        Some(Action::HoldAcks) => Some("a rule that holds ACKs has no `handshake`"),
        Some(Action::Split | Action::Auto) | None => None,
    };
    if let (Some(problem), Some(_), Some(field)) = (routed, handshake, section.field("handshake")) {
        problems.push(
            field
                .problem(problem)
                .label("the hosts shake hands with each other")
                .help("leave the key out, or write `action = \"split\"`"),
        );
    }
    let weight = section.optional(problems, "weight", |field| field.number(bounds::WEIGHT));
    let is_split = matches!(action, Some(Action::Split | Action::Auto) | None);
    if let (false, Some(_), Some(field)) = (is_split, weight, section.field("weight")) {
        problems.push(
            field
                .problem("a rule whose connections are not split has no `weight`")
                .label("they are routed")
                .help("leave the key out, or write `action = \"split\"`"),
        );
    }
    refuse_mixed_families(section, &source, &destination, problems);
    Some(Rule {
        source,
        destination,
        destination_port,
        action: action?,
        handshake,
        weight: weight.unwrap_or(1),
    })
}

/// Notes a problem for every weight where no leg shares a rate: with the kernel's controls connections do not know of
/// each other.
pub(super) fn weights_have_a_rate(root: &Section<'_>, legs: &[Leg], problems: &mut Problems) {
    let is_shared = |leg: &Leg| {
        let congestion = leg.congestion.as_ref();
        congestion.is_some_and(|it| it.is_own() || *it == Congestion::Auto)
    };
    if legs.iter().any(is_shared) {
        return;
    }
    // What else may be wrong with them has been noted.
    for section in root.tables(&mut Problems::default(), "rule", keys::RULE) {
        if let Some(field) = section.field("weight") {
            problems.push(
                field
                    .problem("`weight` says nothing without a leg whose connections share a rate")
                    .label("as many as what?")
                    .help(
                        "leave it out, or write `congestion = \"find-rate\"` or \"fixed-rate\" in \
                         the leg that they share",
                    ),
            );
        }
    }
}

fn prefix_list(
    section: &Section<'_>,
    key: &'static str,
    campuses: &[CampusDraft<'_>],
    problems: &mut Problems,
) -> Vec<IpNet> {
    let fields = section
        .optional(problems, key, |field| field.list("[\"192.0.2.0/24\"]"))
        .into_iter()
        .flatten();
    let listed: Vec<Listed> = fields
        .filter_map(|field| {
            problems.take(prefixes::prefix(field, |text| campus_hint(text, campuses)))
        })
        .map(|prefix| Listed { prefix, list: 0 })
        .collect();
    prefixes::refuse_repeated(&listed, |_, _| String::new(), problems);
    prefixes::refuse_redundant(&listed, problems);
    listed
        .into_iter()
        .map(|it| it.prefix.into_inner())
        .collect()
}

/// Says what to write for something that looks like the name of a campus.
fn campus_hint(text: &str, campuses: &[CampusDraft<'_>]) -> Option<String> {
    let name = nearest(text, campuses.iter().filter_map(CampusDraft::name))?;
    let campus = campuses.iter().find(|campus| campus.name() == Some(name))?;
    let prefixes: Vec<String> = campus.prefixes().map(|net| format!("\"{net}\"")).collect();
    let prefixes = prefixes.join(", ");
    Some(format!(
        "a rule takes prefixes, not names; the campus `{name}` is {prefixes}"
    ))
}

fn port_list(section: &Section<'_>, problems: &mut Problems) -> Vec<Ports> {
    let fields = section
        .optional(problems, "destination_port", |field| {
            field.list("[22, \"8000-8100\"]")
        })
        .into_iter()
        .flatten();
    let mut ranges: Vec<Spanned<Ports>> = fields
        .filter_map(|field| problems.take(ports(field)))
        .collect();
    let given = ranges.iter().map(|it| it.get_ref().clone()).collect();
    // nft(8) takes no overlapping intervals.
    ranges.sort_by_key(|it| (*it.get_ref().start(), it.span().start));
    let mut widest: Option<&Spanned<Ports>> = None;
    for range in &ranges {
        let clash = widest.filter(|it| it.get_ref().contains(range.get_ref().start()));
        if let Some(other) = clash {
            problems.push(
                Problem::new(range.span(), "two entries of `destination_port` overlap")
                    .label("this one")
                    .also(other.span(), "and this one")
                    .help("join them to one range, or remove one"),
            );
        }
        if widest.is_none_or(|it| it.get_ref().end() < range.get_ref().end()) {
            widest = Some(range);
        }
    }
    given
}

/// Reads a port, or a range of ports.
fn ports(field: Field<'_>) -> Result<Spanned<Ports>, Problem> {
    if field.value().is_integer() {
        let port = field.number(bounds::PORT)?;
        return Ok(field.spanned(port..=port));
    }
    const EXAMPLE: &str = "[22, \"8000-8100\"]";
    const HELP: &str = "write a port such as 22, or a range in quotes such as \"8000-8100\"";
    let DeValue::String(text) = field.value() else {
        return Err(field.wrong_type("a list of ports and ranges", field.write(EXAMPLE)));
    };
    let malformed = || field.malformed(text, "a range of ports", HELP);
    let (low, high) = text.split_once('-').ok_or_else(malformed)?;
    let port = |text: &str| {
        let text = text.trim();
        // `parse` would take a sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|port| digits && bounds::PORT.contains(port))
    };
    let (low, high) = (
        port(low).ok_or_else(malformed)?,
        port(high).ok_or_else(malformed)?,
    );
    if low > high {
        return Err(field
            .problem(format!("the range `{low}-{high}` is the wrong way round"))
            .label("holds no port")
            .help(format!("write \"{high}-{low}\"")));
    }
    Ok(field.spanned(low..=high))
}

fn action(field: Field<'_>) -> Result<Action, Problem> {
    match field.text(
        "`split`, `auto`, `bypass` or `hold-acks`, in quotes",
        "\"bypass\"",
    )? {
        "split" => Ok(Action::Split),
        "auto" => Ok(Action::Auto),
        "bypass" => Ok(Action::Bypass),
        "hold-acks" => Ok(Action::HoldAcks),
        other => {
            let help = "write \"split\", \"auto\" (where it pays), \"bypass\" for connections that pepd shall not touch, or \
                        \"hold-acks\" for those that it shall only help through an outage";
            Err(field.malformed(other, "an action", help))
        }
    }
}

/// Refuses rules from one family to the other: no connection goes from an IPv4 to an IPv6 address.
fn refuse_mixed_families(
    section: &Section<'_>,
    source: &[IpNet],
    destination: &[IpNet],
    problems: &mut Problems,
) {
    let (Some(from), Some(to)) = (section.field("source"), section.field("destination")) else {
        return;
    };
    let is_v4 = |net: &IpNet| net.addr().is_ipv4();
    let only_v4 = |nets: &[IpNet]| !nets.is_empty() && nets.iter().all(is_v4);
    let only_v6 = |nets: &[IpNet]| !nets.is_empty() && !nets.iter().any(is_v4);
    let (source_is, destination_is) = if only_v4(source) && only_v6(destination) {
        ("only IPv4", "only IPv6")
    } else if only_v6(source) && only_v4(destination) {
        ("only IPv6", "only IPv4")
    } else {
        return;
    };
    problems.push(
        Problem::new(to.span(), "the rule can never match")
            .label(destination_is)
            .also(from.span(), source_is)
            .help("write source and destination of one family, or a rule for each"),
    );
}

/// Notes a problem for every rule that an earlier one leaves nothing to.
fn refuse_shadowed(rules: &[Rule], places: &[Span], problems: &mut Problems) {
    for (index, (rule, place)) in rules.iter().zip(places).enumerate() {
        let earlier = rules.iter().zip(places).take(index);
        let mut covering = earlier.filter(|(earlier, _)| covers(earlier, rule));
        if let Some((_, first)) = covering.next() {
            problems.push(
                Problem::new(place.clone(), "the rule can never match")
                    .label("comes too late")
                    .also(first.clone(), "takes all that this one would")
                    .help("the first rule that matches decides: put the narrower one first"),
            );
        }
    }
}

/// Tells whether every connection that matches `narrow` matches `wide`.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    let nets = |wide: &[IpNet], narrow: &[IpNet]| {
        covers_list(wide, narrow, |wide, narrow| wide.contains(narrow))
    };
    nets(&wide.source, &narrow.source)
        && nets(&wide.destination, &narrow.destination)
        && covers_list(
            &wide.destination_port,
            &narrow.destination_port,
            |wide, narrow| wide.start() <= narrow.start() && narrow.end() <= wide.end(),
        )
}

/// Returns whether `wide` covers all of `narrow`; an empty list is everything.
fn covers_list<T>(wide: &[T], narrow: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    wide.is_empty()
        || !narrow.is_empty()
            && narrow
                .iter()
                .all(|narrow| wide.iter().any(|wide| covers(wide, narrow)))
}
