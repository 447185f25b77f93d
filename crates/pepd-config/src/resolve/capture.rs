//! `[capture]`.

use pepd_packet::{Mark, MarkMask, MarkValue};

use crate::bounds;
use crate::context::Context;
use crate::field::Field;
use crate::keys;
use crate::model::{Capture, Handshake, Rule, Split, Table, holds_acks, holds_syns};
use crate::report::{Problem, Problems, shown};
use crate::section::Section;
use crate::units;

const PORT: u16 = 7300;
const MARK: Mark = Mark {
    value: MarkValue(0x7000_0000),
    mask: MarkMask(0x7000_0000),
};
const TABLE: Table = Table(7300);

pub(super) fn capture(
    root: &Section<'_>,
    context: &Context,
    problems: &mut Problems,
) -> Option<Capture> {
    let section = root.table(problems, "capture", keys::CAPTURE);
    let section = section.as_ref();
    let port = match section.and_then(|section| section.field("port")) {
        Some(field) => problems.take(port(field, context))?,
        None => {
            let place = section.unwrap_or(root).span();
            problems.take(outside_ephemeral(PORT, context, || {
                Problem::new(place, format!("`port` is {PORT} if it is not given"))
            }))?
        }
    };
    let handshake = section.and_then(|it| it.optional(problems, "handshake", handshake));
    let split = section.and_then(|it| it.optional(problems, "split", split));
    let mark = section.and_then(|it| it.optional(problems, "mark", mark));
    let table = section.and_then(|it| it.optional(problems, "table", table));
    Some(Capture {
        port,
        split: split.unwrap_or(Split::Always),
        handshake: handshake.unwrap_or(Handshake::EndToEnd),
        mark: mark.unwrap_or(MARK),
        table: table.unwrap_or(TABLE),
    })
}

pub(super) fn handshake(field: Field<'_>) -> Result<Handshake, Problem> {
    match field.text("`end-to-end` or `early`, in quotes", "\"early\"")? {
        "end-to-end" => Ok(Handshake::EndToEnd),
        "early" => Ok(Handshake::Early),
        other => Err(field.malformed(
            other,
            "a handshake",
            "write \"end-to-end\" (the client's SYN waits for the destination) or \"early\" (it is \
             answered at once)",
        )),
    }
}

fn split(field: Field<'_>) -> Result<Split, Problem> {
    match field.text("`always` or `auto`, in quotes", "\"auto\"")? {
        "always" => Ok(Split::Always),
        "auto" => Ok(Split::Auto),
        other => Err(field.malformed(
            other,
            "a way to choose",
            "write \"always\" or \"auto\" (where it pays, which is found out)",
        )),
    }
}

fn port(field: Field<'_>, context: &Context) -> Result<u16, Problem> {
    let port = field.number(bounds::PORT)?;
    outside_ephemeral(port, context, || {
        field.problem(format!("`port`: `{port}` is in the ephemeral range"))
    })
}

/// Checks that outgoing connections leave the port alone: one that they may be using when pepd
/// starts is no port to listen on.
fn outside_ephemeral(
    port: u16,
    context: &Context,
    problem: impl FnOnce() -> Problem,
) -> Result<u16, Problem> {
    let range = &context.ephemeral_ports;
    if !range.contains(&port) {
        return Ok(port);
    }
    let (low, high) = (range.start(), range.end());
    let free = [PORT, 1024, 65_535]
        .into_iter()
        .find(|free| !range.contains(free));
    let cure = match free {
        Some(free) => format!("write `port = {free}`, or another outside {low} to {high}"),
        None => "narrow net.ipv4.ip_local_port_range with sysctl(8), and choose a port outside it"
            .to_owned(),
    };
    Err(problem()
        .label(format!(
            "the kernel gives {low} to {high} to outgoing connections"
        ))
        .help(cure))
}

fn mark(field: Field<'_>) -> Result<Mark, Problem> {
    const HELP: &str = "write `mark = \"0x70000000/0x70000000\"`: VALUE/MASK";
    let text = field.text("a mark and its mask in quotes", "\"0x70000000/0x70000000\"")?;
    let mark =
        units::mark(text).ok_or_else(|| field.malformed(text, "a mark and its mask", HELP))?;
    let (value, mask) = (mark.value.0, mark.mask.0);
    let wrong = if mask == 0 {
        "has an empty mask".to_owned()
    } else if value == 0 {
        "has the value 0, which every unmarked packet has".to_owned()
    } else if value & !mask != 0 {
        let inside = units::show_mark(Mark {
            value: mark.value,
            mask: MarkMask(value | mask),
        });
        return Err(field
            .problem(format!(
                "`mark`: `{}` has a value outside its mask",
                shown(text)
            ))
            .label(format!("the mask lacks {:#010x}", value & !mask))
            .help(format!(
                "write `mark = \"{inside}\"`, or a value within the mask"
            )));
    } else {
        return Ok(mark);
    };
    Err(field
        .problem(format!("`mark`: `{}` {wrong}", shown(text)))
        .label("marks no packet as pepd's")
        .help(HELP))
}

/// Checks that the mark has room: holding SYNs takes seven values of it, and so three bits. What
/// holds ACKs has one of these.
pub(super) fn mark_is_wide_enough(
    root: &Section<'_>,
    capture: &Capture,
    rules: &[Rule],
    problems: &mut Problems,
) {
    const BITS: u32 = 3;
    let bits = capture.mark.mask.0.count_ones();
    // Problems of the section have been found already.
    let section = root.table(&mut Problems::default(), "capture", keys::CAPTURE);
    let (what, label, or) = if holds_syns(capture, rules) {
        (
            "the end-to-end handshake needs",
            "too few to tell what becomes of a held SYN",
            "`handshake = \"early\"`",
        )
    } else if holds_acks(rules) {
        (
            "a rule with `hold-acks` needs",
            "too few to tell what is to be held",
            "`action = \"bypass\"` in that rule",
        )
    } else {
        return;
    };
    if let Some(field) = section.and_then(|section| section.field("mark"))
        && bits < BITS
    {
        problems.push(
            field
                .problem(format!(
                    "`mark`: the mask has {bits} of the {BITS} bits that {what}"
                ))
                .label(label)
                .help(format!(
                    "write a mask of {BITS} bits or more, such as `mark = \"{}\"`, or {or}",
                    units::show_mark(MARK)
                )),
        );
    }
}

fn table(field: Field<'_>) -> Result<Table, Problem> {
    let number = field.number(bounds::TABLE)?;
    let system = match number {
        0 => "unspec",
        253 => "default",
        254 => "main",
        255 => "local",
        _ => return Ok(Table(number)),
    };
    Err(field
        .problem(format!(
            "`table`: `{number}` is the kernel's own table `{system}`"
        ))
        .label("not free for pepd")
        .help(format!(
            "write `table = {}`, or another number but 0 and 253 to 255",
            TABLE.0
        )))
}
