//! `[leg.NAME]`.

use std::time::Duration;

use crate::bounds;
use crate::field::{Field, check_name};
use crate::keys;
use crate::model::{
    Buffer, Congestion, Dscp, InitialWindow, Keepalive, Leg, LinkSource, Share, WhileGone,
};
use crate::report::{Problem, Problems, listed, nearest, shown};
use crate::section::{Section, entries};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Reads the legs in the order of the file, and their names beside them.
pub(super) fn legs<'t>(root: &Section<'t>, problems: &mut Problems) -> (Vec<&'t str>, Vec<Leg>) {
    let Some(field) = root.field("leg") else {
        return (Vec::new(), Vec::new());
    };
    let Some(table) = field.value().as_table() else {
        problems.push(field.wrong_type("a table", "write `[leg.NAME]`, such as `[leg.lan]`"));
        return (Vec::new(), Vec::new());
    };
    let mut names = Vec::new();
    let mut legs = Vec::new();
    for (name, item) in entries(table) {
        let text = *name.get_ref();
        let field = Field::new(text, item);
        if field.value().as_table().is_none() {
            problems.push(without_name(&name, field));
            continue;
        }
        problems.take(check_name("leg name", &name, bounds::NAME));
        let title = format!("[leg.{}]", shown(text));
        if let Some(section) = Section::of(field, title, keys::LEG, problems) {
            if names.len() == bounds::LEGS {
                problems.push(too_many(&section));
            }
            names.push(text);
            legs.push(leg(text, &section, problems));
        }
    }
    (names, legs)
}

fn too_many(section: &Section<'_>) -> Problem {
    Problem::new(
        section.span(),
        format!("there are more than {} legs", bounds::LEGS),
    )
    .label("the first one too many")
    .help("give campuses with the same settings one leg in common")
}

/// Returns the problem of a `[leg]` with keys directly in it.
fn without_name(name: &toml::Spanned<&str>, field: Field<'_>) -> Problem {
    let text = *name.get_ref();
    if keys::LEG.contains(&text) {
        Problem::new(
            name.span(),
            format!("`{text}` belongs to a leg, and the leg has no name"),
        )
        .label("of which leg?")
        .help("write `[leg.NAME]` above it, such as `[leg.lan]`")
    } else {
        field.wrong_type("a table", format!("write `[leg.{}]`", shown(text)))
    }
}

fn leg(name: &str, section: &Section<'_>, problems: &mut Problems) -> Leg {
    let default = Leg::new(name);
    problems.take(fixed_rate_has_a_rate(section));
    problems.take(what_is_shared_is_there(section));
    problems.take(a_window_that_is_found_is_used(section));
    let rto_max = section.optional(problems, "rto_max", |field| {
        field.time(bounds::RTO_MAX, MILLISECOND)
    });
    Leg {
        congestion: section.optional(problems, "congestion", congestion),
        buffer: section
            .optional(problems, "buffer", buffer)
            // What is lost is under way until it has arrived, and what came behind it waits with it: the kernel's
            // maximum is for controls that stop at losses.
            .or(may_have_own_control(section).then_some(Buffer::Auto)),
        rate: section.optional(problems, "rate", |field| field.rate(bounds::RATE)),
        fast_open: section
            .optional(problems, "fast_open", Field::boolean)
            .unwrap_or(false),
        initial_window: section.optional(problems, "initial_window", initial_window),
        mss: section.optional(problems, "mss", |field| field.number(bounds::MSS)),
        user_timeout: section
            .optional(problems, "user_timeout", |field| {
                field.time(bounds::USER_TIMEOUT, MILLISECOND)
            })
            .or(rto_max.map(|_| Leg::KERNEL_PATIENCE)),
        rto_max,
        keepalive: keepalive(section, problems),
        dscp: section
            .optional(problems, "dscp", dscp)
            .unwrap_or(default.dscp),
        thin: section
            .optional(problems, "thin", Field::boolean)
            .unwrap_or(false),
        notsent_lowat: section.optional(problems, "notsent_lowat", |field| {
            field.size(bounds::NOTSENT_LOWAT)
        }),
        connect_timeout: section
            .optional(problems, "connect_timeout", |field| {
                field.time(bounds::CONNECT_TIMEOUT, MILLISECOND)
            })
            .unwrap_or(default.connect_timeout),
        link: link(section, problems),
        while_gone: section
            .optional(problems, "while_gone", while_gone)
            .unwrap_or(default.while_gone),
        share: section
            .optional(problems, "share", share)
            .unwrap_or(default.share),
        ..default
    }
}

/// Checks that the file gives a rate: without one there is none to keep to.
fn fixed_rate_has_a_rate(section: &Section<'_>) -> Result<(), Problem> {
    let asks = |field: &Field<'_>| field.value().as_str() == Some(Congestion::FIXED_RATE);
    match section.field("congestion").filter(asks) {
        Some(field) if section.field("rate").is_none() => Err(field
            .problem("`congestion = \"fixed-rate\"` needs a `rate` in the same leg")
            .label("at which rate?")
            .help(
                "add `rate`, just below what the link carries, such as `rate = \"48Mbit\"`; or \
                 write `congestion = \"find-rate\"`, which looks for the rate itself",
            )),
        _ => Ok(()),
    }
}

/// Reads a size, or that it is to be found.
fn buffer(field: Field<'_>) -> Result<Buffer, Problem> {
    const HELP: &str = "write a number and a unit, such as \"8MiB\", or \"auto\" for what the leg is found to need";
    let text = field.text("a size in quotes, or \"auto\"", "\"8MiB\"")?;
    if text == Buffer::AUTO {
        return Ok(Buffer::Auto);
    }
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(field.malformed(text, "a size, nor \"auto\"", HELP));
    }
    field.size(bounds::BUFFER).map(Buffer::Size)
}

/// Reads a number of segments, or that it is to be found.
fn initial_window(field: Field<'_>) -> Result<InitialWindow, Problem> {
    const HELP: &str = "write a number of segments, such as 32, or \"auto\" for what connections to the same \
                        network were seen to carry";
    match field.value().as_str() {
        Some(InitialWindow::AUTO) => Ok(InitialWindow::Auto),
        Some(text) => Err(field.malformed(text, "a number of segments, nor \"auto\"", HELP)),
        None => field
            .number(bounds::INITIAL_WINDOW)
            .map(InitialWindow::Segments),
    }
}

/// Checks that a window that is to be found is of use: pepd's own controls begin with a connection's share of
/// the leg's rate.
fn a_window_that_is_found_is_used(section: &Section<'_>) -> Result<(), Problem> {
    let is_found = |field: &Field<'_>| field.value().as_str() == Some(InitialWindow::AUTO);
    match section.field("initial_window").filter(is_found) {
        Some(field) if has_own_control(section) => Err(field
            .problem("`initial_window = \"auto\"` is for the kernel's congestion controls")
            .label("this leg's connections begin with their share of its rate")
            .help("leave it out")),
        _ => Ok(()),
    }
}

/// Checks that a leg that shares a rate has one: with the kernel's controls connections do not know of
/// each other.
fn what_is_shared_is_there(section: &Section<'_>) -> Result<(), Problem> {
    match section.field("share") {
        Some(field) if !may_have_own_control(section) => Err(field
            .problem("`share` says nothing without a rate that the leg's connections share")
            .label("what is shared?")
            .help(
                "leave it out, or write `congestion = \"find-rate\"` or \"fixed-rate\" in the same leg",
            )),
        _ => Ok(()),
    }
}

/// Returns whether its congestion control is one of pepd's own.
fn has_own_control(section: &Section<'_>) -> bool {
    has_control_of(section, &[Congestion::FIXED_RATE, Congestion::FIND_RATE])
}

/// Returns whether it may come to be one of them.
fn may_have_own_control(section: &Section<'_>) -> bool {
    has_own_control(section) || has_control_of(section, &[Congestion::AUTO])
}

fn has_control_of(section: &Section<'_>, names: &[&str]) -> bool {
    let congestion = section.field("congestion");
    let is_named = |text: &str| names.iter().any(|name| is_meant(text, name));
    congestion.is_some_and(|it| it.value().as_str().is_some_and(is_named))
}

/// Returns whether a name stands for one of pepd's own controls, perhaps misspelt. The kernel's are written with
/// underscores, and none of them is one of these.
fn is_meant(text: &str, own: &str) -> bool {
    let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
    plain(text) == plain(own)
}

fn share(field: Field<'_>) -> Result<Share, Problem> {
    match field.text("\"flow\" or \"source\"", "\"source\"")? {
        "flow" => Ok(Share::Flow),
        "source" => Ok(Share::Source),
        other => Err(field.malformed(
            other,
            "who gets equal parts",
            "write \"flow\" for each connection, or \"source\" for each client",
        )),
    }
}

/// Reads a congestion control. Whether the kernel has it is for the daemon to find out: it may be
/// a module.
fn congestion(field: Field<'_>) -> Result<Congestion, Problem> {
    /// Not exhaustive: only to guess what a misspelt one should be.
    const KNOWN: [&str; 12] = [
        Congestion::FIXED_RATE,
        Congestion::FIND_RATE,
        Congestion::AUTO,
        "bbr",
        "cubic",
        "reno",
        "hybla",
        "westwood",
        "vegas",
        "illinois",
        "dctcp",
        "htcp",
    ];
    let text = field.text("the name of a congestion control in quotes", "\"cubic\"")?;
    let own = [
        Congestion::FixedRate,
        Congestion::FindRate,
        Congestion::Auto,
    ];
    let meant = own.into_iter().find(|own| is_meant(text, own.as_str()));
    if let Some(own) = meant.clone().filter(|own| text == own.as_str()) {
        return Ok(own);
    }
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    let is_legal = (1..=bounds::CONGESTION).contains(&text.len()) && text.chars().all(legal);
    if is_legal && meant.is_none() {
        return Ok(Congestion::Kernel(text.to_owned()));
    }
    let help = match nearest(&text.to_ascii_lowercase(), KNOWN) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!(
            "write it as `sysctl net.ipv4.tcp_available_congestion_control` does: 1 to {} \
             characters out of a-z, 0-9, `-` and `_`",
            bounds::CONGESTION
        ),
    };
    Err(field.malformed(text, "the name of a congestion control", help))
}

fn dscp(field: Field<'_>) -> Result<Dscp, Problem> {
    if field.value().is_integer() {
        return field.number(bounds::DSCP).map(Dscp::Set);
    }
    match field.text("\"copy\" or a number from 0 to 63", "\"copy\"")? {
        "copy" => Ok(Dscp::Copy),
        other => Err(field.malformed(
            other,
            "a code point",
            "write \"copy\", or a number from 0 to 63 without quotes (46 is EF)",
        )),
    }
}

fn keepalive(leg: &Section<'_>, problems: &mut Problems) -> Keepalive {
    let default = Keepalive::default();
    let title = leg.title_of("keepalive");
    let section = leg
        .field("keepalive")
        .and_then(|field| Section::of(field, title, keys::KEEPALIVE, problems));
    let Some(section) = section else {
        return default;
    };
    let time = |field: Field<'_>| field.time(bounds::KEEPALIVE, SECOND);
    Keepalive {
        idle: section
            .optional(problems, "idle", time)
            .unwrap_or(default.idle),
        interval: section
            .optional(problems, "interval", time)
            .unwrap_or(default.interval),
        count: section
            .optional(problems, "count", |field| {
                field.number(bounds::KEEPALIVE_COUNT)
            })
            .unwrap_or(default.count),
    }
}

/// Reads what tells of the link under the leg: one thing.
fn link(leg: &Section<'_>, problems: &mut Problems) -> Option<LinkSource> {
    let field = leg.field("link")?;
    let section = Section::of(field, leg.title_of("link"), keys::LEG_LINK, problems)?;
    let interface = section.optional(problems, "interface", interface);
    let peer = section.optional(problems, "peer", |field| {
        field
            .text("the name of a peer", "\"hb-i\"")
            .map(str::to_owned)
    });
    let dlep = section.optional(problems, "dlep", |field| {
        field
            .text("the name of a modem", "\"modem\"")
            .map(str::to_owned)
    });
    match (interface, peer, dlep) {
        (Some(interface), None, None) => Some(LinkSource::Interface(interface)),
        (None, Some(peer), None) => Some(LinkSource::Peer(peer)),
        (None, None, Some(modem)) => Some(LinkSource::Dlep(modem)),
        // What is wrong with the one that is there has been said.
        (None, None, None)
            if !keys::LEG_LINK
                .iter()
                .all(|key| section.field(key).is_none()) =>
        {
            None
        }
        _ => {
            problems.push(
                Problem::new(
                    section.span(),
                    "`link` names one thing that tells of the link",
                )
                .label("what tells?")
                .help(
                    "write `link = { interface = \"wwan0\" }`, or `link = { peer = \"NAME\" }` \
                         with the name of a peer that is probed, or `link = { dlep = \"NAME\" }` \
                         with that of a `[[dlep]]`",
                ),
            );
            None
        }
    }
}

fn while_gone(field: Field<'_>) -> Result<WhileGone, Problem> {
    match field.text("\"wait\", \"refuse\" or \"route\"", "\"wait\"")? {
        "wait" => Ok(WhileGone::Wait),
        "refuse" => Ok(WhileGone::Refuse),
        "route" => Ok(WhileGone::Route),
        other => Err(field.malformed(
            other,
            "what becomes of new connections",
            "write \"wait\", \"refuse\" or \"route\"",
        )),
    }
}

/// Reads the name of an interface: what the kernel takes for one (dev_valid_name, net/core/dev.c).
pub(super) fn interface(field: Field<'_>) -> Result<String, Problem> {
    let text = field.text("the name of an interface", "\"wwan0\"")?;
    let legal = |c: char| !c.is_whitespace() && c != '/' && c != ':';
    if (1..=bounds::INTERFACE).contains(&text.len())
        && text.chars().all(legal)
        && text != "."
        && text != ".."
    {
        return Ok(text.to_owned());
    }
    let help = format!(
        "write it as `ip link` does, in 1 to {} bytes",
        bounds::INTERFACE
    );
    Err(field.malformed(text, "the name of an interface", help))
}

/// Notes a problem for every leg whose link is a peer that there is not, or one of those that are not
/// probed, and so tell nothing.
pub(super) fn links_have_peers(
    root: &Section<'_>,
    peers: &[&str],
    unprobed: &[&str],
    problems: &mut Problems,
) {
    let Some(legs) = root.field("leg").and_then(|field| field.value().as_table()) else {
        return;
    };
    for (_, item) in entries(legs) {
        let field = Field::new("leg", item);
        let link = field.value().as_table().and_then(|leg| leg.get("link"));
        let link = link.and_then(|link| link.get_ref().as_table());
        let Some(peer) = link.and_then(|link| link.get("peer")) else {
            continue;
        };
        let field = Field::new("peer", peer);
        let Some(name) = field.value().as_str() else {
            continue;
        };
        if unprobed.contains(&name) {
            problems.push(
                field
                    .problem(format!("the peer `{}` is not probed", shown(name)))
                    .label("it would never be heard of")
                    .help(
                        "give that peer a `probe`, such as `probe = \"1s\"`, or name an interface",
                    ),
            );
        }
        if peers.contains(&name) {
            continue;
        }
        let help = match nearest(name, peers.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if peers.is_empty() => "the file has no peer; name an interface".to_owned(),
            None => format!("the peers are: {}", listed(peers.iter().copied())),
        };
        problems.push(
            field
                .problem(format!("there is no peer named `{}`", shown(name)))
                .label("not known")
                .help(help),
        );
    }
}
