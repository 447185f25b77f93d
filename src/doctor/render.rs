//! The findings as text for people and as JSON for programs.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use textwrap::Options;

use super::finding::{Advice, Cure, Finding, Level, worst};

/// Columns that the text keeps to; commands are never broken.
const WIDTH: usize = 80;

/// The indent of a finding's lines after its first.
const INDENT: &str = "      ";

/// The indent within a finding's reason or advice.
const HANGING: &str = "           ";

/// The version of the JSON. It changes when something is removed or means something else.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    node: &'a str,
    level: Level,
    findings: &'a [Finding],
}

/// Renders one JSON object and a newline.
pub fn json(node: &str, findings: &[Finding]) -> Result<String, serde_json::Error> {
    let report = Report {
        schema: SCHEMA,
        node,
        level: worst(findings),
        findings,
    };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

/// Renders the text: what matters most comes first.
pub fn text(node: &str, findings: &[Finding], coloured: bool) -> String {
    let mut out = String::new();
    for level in Level::ALL {
        let of_level = || findings.iter().filter(|finding| finding.level == level);
        for finding in of_level() {
            block(&mut out, finding, coloured);
        }
        if of_level().next().is_some() {
            out.push('\n');
        }
    }
    let sysctl = |finding: &Finding| matches!(finding.cure, Some(Cure::Sysctl(_)));
    if findings.iter().any(sysctl) {
        paragraph(
            &mut out,
            "",
            "",
            "What sysctl sets lasts until the next start of the host: put the same name = value \
             into /etc/sysctl.d/pepd.conf as well.",
        );
        out.push('\n');
    }
    paragraph(&mut out, "", "", &summary(node, findings));
    out
}

fn summary(node: &str, findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let counts: Vec<_> = Level::ALL
        .iter()
        .map(|&level| format!("{} {}", count(level), level.word()))
        .collect();
    let verdict = match worst(findings) {
        Level::Stop => "as it is, pepd does not start here or connections come to nothing",
        Level::Slow => "pepd works here, and could do better",
        Level::Note | Level::Ok => "pepd has what it needs here",
    };
    format!("{node}: {verdict} ({}).", counts.join(", "))
}

fn block(out: &mut String, finding: &Finding, coloured: bool) {
    let style = style(finding.level, coloured);
    let word = finding.level.word();
    let subject = finding
        .subject
        .as_deref()
        .map_or(String::new(), |s| format!(" {s}"));
    let head = format!("{}{subject}: {}", finding.id, finding.found);
    // Styled after it is wrapped, so that codes take no columns.
    let mut lines = String::new();
    paragraph(&mut lines, &format!("{word:<6}"), INDENT, &head);
    let styled = format!("{style}{word}{style:#}");
    out.push_str(&lines.replacen(word, &styled, 1));
    if let Some(why) = &finding.why {
        let why = format!("Why: {why}.");
        paragraph(out, INDENT, HANGING, &why);
    }
    if let Some(cure) = &finding.cure {
        let _ = writeln!(out, "{INDENT}Cure: {cure}");
    }
    if let Some(advice) = &finding.advice {
        let (label, advice) = match (advice, &finding.cure) {
            (Advice::InsteadOfCure(text), _) => ("Or", text),
            (Advice::Words(text), Some(_)) => ("Note", text),
            (Advice::Words(text), None) => ("Cure", text),
        };
        paragraph(out, INDENT, HANGING, &format!("{label}: {advice}."));
    }
}

fn paragraph(out: &mut String, first: &str, rest: &str, text: &str) {
    let options = Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(rest)
        .break_words(false);
    for line in textwrap::wrap(text, options) {
        let _ = writeln!(out, "{line}");
    }
}

fn style(level: Level, coloured: bool) -> Style {
    let colour = match level {
        Level::Stop => AnsiColor::Red,
        Level::Slow => AnsiColor::Yellow,
        Level::Note => AnsiColor::Cyan,
        Level::Ok => AnsiColor::Green,
    };
    if coloured {
        Style::new().fg_color(Some(colour.into())).bold()
    } else {
        Style::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::sysctl;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("nft", "the kernel takes pepd's table"),
            Finding::stop(
                "forwarding.ipv4",
                "net.ipv4.ip_forward is 0: this host forwards nothing",
            )
            .because("what pepd does not split is routed by the kernel; without it it ends here")
            .cure(sysctl::set("net/ipv4/ip_forward", 1)),
            Finding::slow(
                "buffer.receive",
                "grows up to 256KiB (tcp_rmem): fills 100Mbit/s up to a round trip of 10 ms",
            )
            .about("leg satellite")
            .because("a connection has no more in flight than its buffer holds")
            .cure(sysctl::set("net/ipv4/tcp_rmem", "4096 131072 33554432"))
            .otherwise("give the leg a `buffer` of its own in [leg.satellite]"),
        ]
    }

    #[test]
    fn the_text() {
        insta::assert_snapshot!(text("hb-a", &findings(), false));
    }

    #[test]
    fn the_json() {
        insta::assert_snapshot!(json("hb-a", &findings()).unwrap());
    }

    #[test]
    fn only_commands_are_longer_than_a_terminal_is_wide() {
        let long = "word ".repeat(60);
        let finding = Finding::stop("id", &long)
            .because(&long)
            .cure(long.as_str())
            .advice(&long);
        for line in text("hb-a", &[finding], false).lines() {
            assert!(
                line.contains("Cure: ") || line.chars().count() <= WIDTH,
                "{line}"
            );
        }
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        assert!(text("hb-a", &findings(), true).contains('\u{1b}'));
        assert!(!text("hb-a", &findings(), false).contains('\u{1b}'));
    }
}
