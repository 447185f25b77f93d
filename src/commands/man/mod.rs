//! The manual pages: one for pepd and all its commands, one for its configuration.

mod commented;
mod file;

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{Cli, ManualPage};
use crate::exit::{self, Failure, Result};
use crate::ui::output::print;

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGHUP",
        "The daemon reads its configuration again, as pepd reload has it do.",
    ),
    (
        "SIGTERM, SIGINT",
        "The daemon routes new connections, gives those that there are the time [node] drain to \
         finish, removes its kernel state and ends, as pepd drain has it do. A second one ends it \
         at once.",
    ),
    (
        "SIGUSR2",
        "The keeper, the first of the daemon's two processes, becomes the program that is now in the \
         place of its own, as pepd upgrade has it do once it has asked that program.",
    ),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "PEPD_LOG",
        "Which lines pepd run logs: a level (error, warn, info, debug), or a filter as tracing's \
         EnvFilter takes it. The default is info.",
    ),
    (
        "NO_COLOR",
        "Where it is set, and not empty, nothing is coloured.",
    ),
    (
        "RUNTIME_DIRECTORY",
        "The directory of the admin socket and the lock, instead of /run/pepd, as systemd sets it \
         (RuntimeDirectory=).",
    ),
];

const FILES: &[(&str, &str)] = &[
    (
        "/etc/pepd/pepd.toml",
        "The configuration, where -c does not name another: pepd.toml(5).",
    ),
    (
        "/run/pepd/admin.sock",
        "The socket at which a daemon is asked, where neither -c nor --socket names another.",
    ),
    (
        "/run/pepd/net-*.lock",
        "Held by the daemon of a network namespace, of which there is one at most.",
    ),
];

/// Prints a manual page.
pub fn print_manual(page: ManualPage) -> Result {
    if page == ManualPage::PepdToml {
        return print(file::page().as_bytes());
    }
    let mut text = Vec::new();
    let mut command = Cli::command();
    command.build();
    render(&command, &mut text).map_err(|error| Failure::internal("write", error))?;
    print(&text)
}

fn render(command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    // Without the commit and the target that --version says: the page is the same in all archives.
    let source = concat!("pepd ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).manual("pepd").source(source);
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    page.render_options_section(text)?;
    heading("COMMANDS", text)?;
    for subcommand in command.get_subcommands() {
        if subcommand.get_name() != "help" {
            render_command(subcommand, text)?;
        }
    }
    heading("EXIT STATUS", text)?;
    for (code, meaning) in exit::CODES {
        item(&code.to_string(), meaning, text)?;
    }
    for (title, items) in [
        ("SIGNALS", SIGNALS),
        ("ENVIRONMENT", ENVIRONMENT),
        ("FILES", FILES),
    ] {
        heading(title, text)?;
        for (name, meaning) in items {
            item(name, meaning, text)?;
        }
    }
    heading("SEE ALSO", text)?;
    let others = "pepd.toml(5), nft(8), ip-rule(8), ip-route(8), ss(8), sysctl(8), systemd(1)";
    Roff::new().text([roman(others)]).to_writer(text)
}

/// Renders a command as a part of the page, in clap_mangen's sections, which would have pages of
/// their own.
fn render_command(command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    let page = Man::new(command.clone());
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    Roff::new().control("SS", [name]).to_writer(text)?;
    text.extend(untitled(|part| page.render_synopsis_section(part))?);
    writeln!(text, ".PP")?;
    text.extend(untitled(|part| page.render_description_section(part))?);
    text.extend(untitled(|part| page.render_options_section(part))?);
    Ok(())
}

/// Renders a section without its heading.
fn untitled(section: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    section(&mut part)?;
    let lines = part.split_inclusive(|byte| *byte == b'\n');
    Ok(lines
        .filter(|line| !line.starts_with(b".SH"))
        .flatten()
        .copied()
        .collect())
}

fn heading(title: &str, text: &mut Vec<u8>) -> io::Result<()> {
    Roff::new().control("SH", [title]).to_writer(text)
}

fn item(name: &str, meaning: &str, text: &mut Vec<u8>) -> io::Result<()> {
    Roff::new()
        .control("TP", [])
        .text([bold(name)])
        .text([roman(meaning)])
        .to_writer(text)
}
