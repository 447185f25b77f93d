//! `[[dlep]]`: modems that tell of links by DLEP (RFC 8175).

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use pepd_dlep::MacAddress;
use toml::Spanned;

use super::duplicates::refuse_duplicates;
use super::leg::interface;
use crate::bounds;
use crate::field::Field;
use crate::keys;
use crate::model::Modem;
use crate::report::{Problem, Problems, Span, listed, nearest, shown};
use crate::section::{Section, entries};

/// The time between two heartbeats if the file does not say: a modem notices within ten seconds that
/// this box is gone.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A modem, as far as it could be read.
pub(super) struct ModemDraft<'t> {
    name: Option<Spanned<&'t str>>,
    rest: Option<Modem>,
}

impl ModemDraft<'_> {
    /// Returns the modem; `None` is always after a problem.
    pub(super) fn finish(self) -> Option<Modem> {
        let name = (*self.name?.get_ref()).to_owned();
        Some(Modem { name, ..self.rest? })
    }

    fn name(&self) -> Option<&str> {
        self.name.as_ref().map(|name| *name.get_ref())
    }
}

/// Reads the modems in the order of the file.
pub(super) fn modems<'t>(root: &Section<'t>, problems: &mut Problems) -> Vec<ModemDraft<'t>> {
    let sections = root.tables(problems, "dlep", keys::DLEP);
    if let Some(one_too_many) = sections.get(bounds::MODEMS) {
        let title = format!("there are more than {} `[[dlep]]`", bounds::MODEMS);
        problems.push(
            Problem::new(one_too_many.span(), title)
                .label("the first one too many")
                .help("remove those whose links no leg needs"),
        );
    }
    let modems: Vec<_> = sections
        .iter()
        .map(|section| ModemDraft {
            name: section.required(problems, "name", "\"modem\"", |field| {
                field.name(bounds::NAME)
            }),
            rest: modem(section, problems),
        })
        .collect();
    let names = modems.iter().filter_map(|modem| modem.name.as_ref());
    refuse_duplicates("modems", names, problems);
    modems
}

/// Reads everything but the name.
fn modem(section: &Section<'_>, problems: &mut Problems) -> Option<Modem> {
    let before = problems.count();
    let modem = Modem {
        name: String::new(),
        interface: section.optional(problems, "interface", interface),
        address: section.optional(problems, "modem", modems_address),
        port: section
            .optional(problems, "port", |field| field.number(bounds::PORT))
            .unwrap_or(pepd_dlep::PORT),
        heartbeat: section
            .optional(problems, "heartbeat", |field| {
                field.time(bounds::HEARTBEAT, Duration::from_millis(1))
            })
            .unwrap_or(HEARTBEAT),
        destination: section.optional(problems, "destination", destination),
        ttl_security: section
            .optional(problems, "ttl_security", Field::boolean)
            .unwrap_or(true),
    };
    if problems.count() > before {
        return None;
    }
    let problem = |at: Span, title: &str| Problem::new(at, title.to_owned());
    match (&modem.interface, modem.address) {
        (None, None) => problems.push(
            problem(section.span(), "nothing says where the modem is")
                .label("`interface` or `modem` is required")
                .help(
                    "write `interface = \"eth1\"` to look for it there, or `modem = \
                     \"192.0.2.10\"`",
                ),
        ),
        (None, Some(IpAddr::V6(address))) if address.is_unicast_link_local() => problems.push(
            problem(
                section.span(),
                "a link-local address is one of an interface",
            )
            .label("`interface` is missing")
            .help("add the interface that the modem is behind, such as `interface = \"eth1\"`"),
        ),
        _ => {}
    }
    if let (None, Some(port)) = (modem.address, section.field("port")) {
        problems.push(
            problem(port.span(), "`port` belongs to `modem`")
                .label("a modem that is looked for says itself where it waits")
                .help("remove it, or write the modem's address, such as `modem = \"192.0.2.10\"`"),
        );
    }
    (problems.count() == before).then_some(modem)
}

fn modems_address(field: Field<'_>) -> Result<IpAddr, Problem> {
    let address = field.address()?;
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_multicast() || is_broadcast {
        return Err(field
            .problem(format!("`{address}` is not the address of one modem"))
            .label("not an address that a modem can have")
            .help("write its own, or leave it out and name an `interface` to look for it"));
    }
    Ok(address)
}

fn destination(field: Field<'_>) -> Result<MacAddress, Problem> {
    const EXAMPLE: &str = "\"02:00:5e:10:00:01\"";
    let text = field.text("a MAC address in quotes", EXAMPLE)?;
    text.parse().map_err(|_| {
        field.malformed(
            text,
            "a MAC address",
            format!("write one such as {EXAMPLE}"),
        )
    })
}

/// Notes a problem for every leg whose link is told by a modem that there is not, and for every modem
/// that tells of no leg's.
pub(super) fn links_have_modems(
    root: &Section<'_>,
    modems: &[ModemDraft<'_>],
    problems: &mut Problems,
) {
    let known: Vec<&str> = modems.iter().filter_map(ModemDraft::name).collect();
    let mut used = Vec::new();
    for field in named_by_legs(root) {
        let Some(name) = field.value().as_str() else {
            continue;
        };
        used.push(name);
        if known.contains(&name) {
            continue;
        }
        let help = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if known.is_empty() => {
                format!("add a `[[dlep]]` with `name = \"{}\"`", shown(name))
            }
            None => format!("the modems are: {}", listed(known.iter().copied())),
        };
        problems.push(
            field
                .problem(format!("there is no `[[dlep]]` named `{}`", shown(name)))
                .label("not known")
                .help(help),
        );
    }
    for name in modems.iter().filter_map(|modem| modem.name.as_ref()) {
        let shown = name.get_ref();
        if !used.contains(shown) {
            problems.push(
                Problem::new(name.span(), format!("no leg's link is told by `{shown}`"))
                    .label("tells nothing")
                    .help(format!(
                        "write `link = {{ dlep = \"{shown}\" }}` in a leg, or remove it"
                    )),
            );
        }
    }
}

fn named_by_legs<'t>(root: &Section<'t>) -> Vec<Field<'t>> {
    let legs = root.field("leg").and_then(|field| field.value().as_table());
    let legs = legs.map(entries).unwrap_or_default();
    let modem = |(_, item)| {
        let leg = Field::new("leg", item).value().as_table()?;
        let link = leg.get("link")?.get_ref().as_table()?;
        Some(Field::new("dlep", link.get("dlep")?))
    };
    legs.into_iter().filter_map(modem).collect()
}
