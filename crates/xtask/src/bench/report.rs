//! The results as a table for the terminal, for the README, and as JSON.

use std::fmt;

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};

use super::contender::Contender;
use super::lineup::Ratio;
use super::load::idle;
use super::machine::Machine;
use super::results::{Bulk, Measure, Results, Summary};
use super::takeover::{self, Takeovers};

/// The version of the JSON's layout.
const SCHEMA: u32 = 1;

/// What a reader needs to know of every number.
const NOTES: &str = "\
Medians over the rounds, and in brackets the smallest and the largest. A number with × is a \
ratio to plain forwarding, and the last columns are ratios of those that they name, always within \
the same round. Two workers (threads) each; cubic everywhere; IPv4; client, box and server on one \
machine, joined by veth pairs.";

const CPU_NOTE: &str = "\
CPU time is the proxy's own (utime and stime of all its threads). The kernel's packet work in \
softirq is not in it but for what interrupts the proxy's own system calls.";

const MEMORY_NOTE: &str = "\
Memory is the growth per connection with 1,000 open that have carried a byte each way: the \
proxy's resident memory, and the kernel's objects for its sockets, descriptors and epoll \
(slabinfo, less those that plain forwarding's hosts need in the same round).";

const ADMIN_NOTE: &str = "\
Admin API: round trips of one byte while 1,000 clients ask for the list of flows as fast as they \
are answered, and while nobody asks. The clients run on the hosts' cores and cost round trips \
time there by themselves: what they cost plain forwarding stands beside.";

const HANDSHAKE_NOTE: &str = "\
Handshakes: a rate is that of 16 clients at once, each of which opens a connection, asks, reads \
1 KiB and closes; a time to first byte is from before connect() to the first byte of the answer, \
one connection after another.";

/// Returns the report for a terminal.
pub fn terminal(results: &Results) -> String {
    let sections = sections(results).map(|rows| rows.map(|rows| drawn(&rows)));
    let mut text = match results.rounds() {
        // Take-overs only.
        0 => String::new(),
        rounds => format!("{rounds} rounds; {}.", results.setup()),
    };
    for part in sections.into_iter().flatten() {
        text.push('\n');
        text.push_str(&part);
    }
    for note in notes(results) {
        text.push('\n');
        text.push_str(&note);
    }
    text
}

/// Returns a header and its rows, with lines around.
fn drawn(lines: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(lines.first().cloned().unwrap_or_default());
    for row in lines.iter().skip(1) {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Returns the report for the README.
pub fn markdown(results: &Results, machine: &Machine) -> String {
    let mut text = format!(
        "{machine}; {} rounds of `cargo xtask bench`; {}.\n\n",
        results.rounds(),
        results.setup()
    );
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    for lines in sections(results).into_iter().flatten() {
        let rule = |at| if at == 0 { "---" } else { "---:" }.to_owned();
        for (at, cells) in lines.iter().enumerate() {
            text.push_str(&line(cells));
            if at == 0 {
                let rule: Vec<String> = (0..cells.len()).map(rule).collect();
                text.push_str(&line(&rule));
            }
        }
        text.push('\n');
    }
    text.push_str(&notes(results).join("\n\n"));
    text.push('\n');
    text
}

/// Returns what is said below the tables.
fn notes(results: &Results) -> Vec<String> {
    let mut notes = match results.all() {
        [] => Vec::new(),
        _ => [NOTES, CPU_NOTE, MEMORY_NOTE].map(str::to_owned).to_vec(),
    };
    if !handshake_rows(results).is_empty() {
        notes.push(HANDSHAKE_NOTE.to_owned());
    }
    if !admin_rows(results).is_empty() {
        notes.push(ADMIN_NOTE.to_owned());
    }
    if !results.takeovers().is_empty() {
        notes.push(takeover::NOTE.to_owned());
    }
    notes.extend(failures(results));
    notes
}

/// Returns the tables, each with its header, as far as there is something in them.
fn sections(results: &Results) -> [Option<Vec<Vec<String>>>; 4] {
    let lineup = results.lineup();
    let section = |header, rows: Vec<Vec<String>>| {
        let lines = std::iter::once(header).chain(rows.clone()).collect();
        (!rows.is_empty()).then_some(lines)
    };
    [
        section(header(lineup.main(), lineup.main_ratios()), rows(results)),
        section(
            header(lineup.handshake(), lineup.handshake_ratios()),
            handshake_rows(results),
        ),
        section(
            header(lineup.admin(), lineup.admin_ratios()),
            admin_rows(results),
        ),
        takeover::rows(results.takeovers()),
    ]
}

/// Returns every single number, and what they come to.
///
/// # Errors
/// None in practice: there are only numbers and strings.
pub fn json(results: &Results, machine: &Machine) -> Result<String> {
    let measurements: Vec<Value> = results
        .all()
        .iter()
        .map(|m| {
            let (measure, unit) = key(m.measure);
            json!({
                "round": m.round + 1,
                "measure": measure,
                "contender": m.contender.key(),
                "value": m.value,
                "unit": unit,
            })
        })
        .collect();
    let takeovers: Result<Vec<Value>> = results.takeovers().iter().map(Takeovers::json).collect();
    let mut text = serde_json::to_string_pretty(&json!({
        "schema": SCHEMA,
        "machine": machine.json(),
        "setup": results.setup(),
        "rounds": results.rounds(),
        "measurements": measurements,
        "takeovers": takeovers?,
    }))?;
    text.push('\n');
    Ok(text)
}

/// Returns the head of a table: a column each, then one for each ratio.
fn header(contenders: &[Contender], ratios: &[Ratio]) -> Vec<String> {
    let columns = contenders.iter().map(|who| who.title().to_owned());
    let ratios = ratios
        .iter()
        .map(|(of, to)| format!("{} ÷ {}", of.title(), to.title()));
    std::iter::once(String::new())
        .chain(columns)
        .chain(ratios)
        .collect()
}

fn handshake_rows(results: &Results) -> Vec<Vec<String>> {
    let lineup = results.lineup();
    let (contenders, ratios) = (lineup.handshake(), lineup.handshake_ratios());
    group_rows(results, Group::Handshake, contenders, ratios)
}

fn admin_rows(results: &Results) -> Vec<Vec<String>> {
    let lineup = results.lineup();
    group_rows(results, Group::Admin, lineup.admin(), lineup.admin_ratios())
}

/// Returns a row for each measure of a group.
fn group_rows(
    results: &Results,
    group: Group,
    contenders: &[Contender],
    ratios: &[Ratio],
) -> Vec<Vec<String>> {
    let measures = results.measures().into_iter();
    measures
        .filter(|measure| Group::of(*measure) == group)
        .map(|measure| {
            let shown = Shown::of(measure);
            let cells = contenders.iter();
            let cells = cells.map(|&who| cell(results, measure, &shown, who));
            let ratios = ratios.iter().map(|&(of, to)| match measure {
                // What the ends need would be in both.
                Measure::IdleKernel => "–".to_owned(),
                _ => spread(results.ratio(measure, of, to), 2, "×"),
            });
            let title = std::iter::once(shown.title.clone());
            title.chain(cells).chain(ratios).collect()
        })
        .collect()
}

/// The place where a measure stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Main,
    Handshake,
    Admin,
    /// A sentence below, where it is not zero.
    Failures,
}

impl Group {
    fn of(measure: Measure) -> Self {
        match measure {
            Measure::ShortFailed | Measure::HandshakesFailed => Self::Failures,
            Measure::Handshakes | Measure::FirstByteMedian | Measure::FirstByteTail => {
                Self::Handshake
            }
            Measure::AdminMedian | Measure::AdminTail | Measure::AdminAnswers => Self::Admin,
            _ => Self::Main,
        }
    }
}

fn rows(results: &Results) -> Vec<Vec<String>> {
    let lineup = results.lineup();
    group_rows(results, Group::Main, lineup.main(), lineup.main_ratios())
}

fn cell(results: &Results, measure: Measure, shown: &Shown, contender: Contender) -> String {
    let absolute = |summary: Option<Summary>| {
        let summary = summary.map(|summary| summary.times(shown.factor));
        spread(summary, shown.digits, "")
    };
    match (measure, contender) {
        (Measure::IdleKernel, Contender::Plain) => "–".to_owned(),
        (Measure::IdleKernel, _) => absolute(results.above_plain(measure, contender)),
        (_, Contender::Plain) => absolute(results.summary(measure, contender)),
        _ if shown.to_plain => spread(results.ratio(measure, contender, Contender::Plain), 2, "×"),
        _ => absolute(results.summary(measure, contender)),
    }
}

fn spread(summary: Option<Summary>, digits: usize, sign: &str) -> String {
    summary.map_or_else(
        || "–".to_owned(),
        |Summary { median, min, max }| {
            format!("{median:.digits$}{sign} ({min:.digits$}–{max:.digits$})")
        },
    )
}

/// Says so where connections failed: the rate is then not that of a proxy that works.
fn failures(results: &Results) -> Option<String> {
    let measures = [Measure::ShortFailed, Measure::HandshakesFailed];
    let pairs = measures.into_iter().flat_map(|measure| {
        let contenders = match measure {
            Measure::HandshakesFailed => results.lineup().handshake(),
            _ => results.lineup().main(),
        };
        contenders
            .iter()
            .map(move |&contender| (measure, contender))
    });
    let failed: Vec<String> = pairs
        .filter_map(|(measure, contender)| {
            let share = results.summary(measure, contender)?.max;
            (share > 0.0).then(|| format!("{} up to {:.3} %", contender.title(), share * 100.0))
        })
        .collect();
    (!failed.is_empty()).then(|| format!("Short connections that failed: {}.", failed.join(", ")))
}

/// The way in which a measure is shown.
struct Shown {
    title: String,
    /// The factor from the unit it was measured in to the one that is shown.
    factor: f64,
    digits: usize,
    /// Whether it is shown as a ratio to plain forwarding.
    to_plain: bool,
}

impl Shown {
    fn of(measure: Measure) -> Self {
        let shown = |title: String, factor, digits, to_plain| Self {
            title,
            factor,
            digits,
            to_plain,
        };
        match measure {
            Measure::Bulk(bulk) => shown(format!("{bulk}: Gbit/s"), 1e-9, 1, true),
            Measure::CpuPerGigabyte(bulk) => shown(format!("{bulk}: CPU s per GB"), 1.0, 2, false),
            Measure::PingPongMedian => shown("ping-pong, p50: µs".to_owned(), 1e6, 0, true),
            Measure::PingPongTail => shown("ping-pong, p99: µs".to_owned(), 1e6, 0, true),
            Measure::Short | Measure::ShortFailed => {
                shown("short connections per second".to_owned(), 1.0, 0, true)
            }
            Measure::CpuPerShort => shown("short connection: CPU µs".to_owned(), 1e6, 0, false),
            Measure::Handshakes | Measure::HandshakesFailed => {
                shown("connections per second".to_owned(), 1.0, 0, true)
            }
            Measure::FirstByteMedian => shown("first byte, p50: µs".to_owned(), 1e6, 0, true),
            Measure::FirstByteTail => shown("first byte, p99: µs".to_owned(), 1e6, 0, true),
            Measure::AdminMedian => shown("ping-pong, p50: µs".to_owned(), 1e6, 0, false),
            Measure::AdminTail => shown("ping-pong, p99: µs".to_owned(), 1e6, 0, false),
            Measure::AdminAnswers => shown("answers per second".to_owned(), 1.0, 0, false),
            Measure::IdleResident => shown(idle_title("resident"), 1.0 / 1024.0, 1, false),
            Measure::IdleKernel => shown(idle_title("kernel"), 1.0 / 1024.0, 1, false),
        }
    }
}

fn idle_title(memory: &str) -> String {
    format!("idle connection of {}: {memory} KiB", idle::CONNECTIONS)
}

/// Returns the name and unit in the JSON.
fn key(measure: Measure) -> (String, &'static str) {
    let setting = |bulk: Bulk| {
        let offloads = if bulk.without_offloads { "off" } else { "on" };
        format!("flows-{}-offloads-{offloads}", bulk.flows)
    };
    match measure {
        Measure::Bulk(bulk) => (format!("bulk-{}", setting(bulk)), "bit/s"),
        Measure::CpuPerGigabyte(bulk) => (format!("bulk-cpu-{}", setting(bulk)), "s/GB"),
        Measure::PingPongMedian => ("ping-pong-p50".to_owned(), "s"),
        Measure::PingPongTail => ("ping-pong-p99".to_owned(), "s"),
        Measure::Short => ("short-connections".to_owned(), "1/s"),
        Measure::CpuPerShort => ("short-connection-cpu".to_owned(), "s"),
        Measure::ShortFailed => ("short-connections-failed".to_owned(), "share"),
        Measure::Handshakes => ("handshakes".to_owned(), "1/s"),
        Measure::HandshakesFailed => ("handshakes-failed".to_owned(), "share"),
        Measure::FirstByteMedian => ("first-byte-p50".to_owned(), "s"),
        Measure::FirstByteTail => ("first-byte-p99".to_owned(), "s"),
        Measure::AdminMedian => ("admin-ping-pong-p50".to_owned(), "s"),
        Measure::AdminTail => ("admin-ping-pong-p99".to_owned(), "s"),
        Measure::AdminAnswers => ("admin-answers".to_owned(), "1/s"),
        Measure::IdleResident => ("idle-connection-resident".to_owned(), "B"),
        Measure::IdleKernel => ("idle-connection-kernel-with-ends".to_owned(), "B"),
    }
}

impl fmt::Display for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = if self.flows == 1 { "flow" } else { "flows" };
        write!(f, "{} {flows}", self.flows)?;
        if self.without_offloads {
            f.write_str(", no GSO")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lineup::Lineup;
    use crate::bench::results::Measurement;

    fn results() -> Results {
        let mut results = Results::new("somehow".to_owned(), Lineup::Haproxy);
        let bulk = Bulk::ALL[0];
        let kernel = Measure::IdleKernel;
        let numbers = [
            (0, Measure::Bulk(bulk), Contender::Plain, 40e9),
            (0, Measure::Bulk(bulk), Contender::Pepd, 30e9),
            (0, Measure::Bulk(bulk), Contender::HaproxyAuto, 20e9),
            (1, Measure::Bulk(bulk), Contender::Plain, 4e9),
            (1, Measure::Bulk(bulk), Contender::Pepd, 4e9),
            (0, Measure::CpuPerGigabyte(bulk), Contender::Pepd, 0.25),
            (0, kernel, Contender::Plain, 6144.0),
            (0, kernel, Contender::Pepd, 14336.0),
            (0, Measure::ShortFailed, Contender::Pepd, 0.001),
        ];
        for (round, measure, contender, value) in numbers {
            results.add(Measurement {
                round,
                measure,
                contender,
                value,
            });
        }
        results
    }

    #[test]
    fn each_measure_is_shown_in_its_own_way() {
        let rows: Vec<String> = rows(&results()).iter().map(|row| row.join(" | ")).collect();
        assert_eq!(
            rows,
            [
                "1 flow: Gbit/s | 22.0 (4.0–40.0) | 0.88× (0.75–1.00) | 0.50× (0.50–0.50) | – \
                 | 1.50× (1.50–1.50) | –",
                "1 flow: CPU s per GB | – | 0.25 (0.25–0.25) | – | – | – | –",
                // What plain forwarding's hosts need is taken off.
                "idle connection of 1000: kernel KiB | – | 8.0 (8.0–8.0) | – | – | – | –",
            ]
        );
    }

    #[test]
    fn failed_connections_are_named() {
        let failed = failures(&results()).unwrap();
        assert_eq!(failed, "Short connections that failed: pepd up to 0.100 %.");
        assert_eq!(
            failures(&Results::new(String::new(), Lineup::Haproxy)),
            None
        );
    }
}
