//! The command line.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::exit::{Failure, Result};

/// A transparent TCP performance enhancing proxy for Linux routers.
///
/// pepd splits each TCP connection that crosses this router between two campuses into two legs,
/// each with a congestion control, buffers and timers of its own. Neither end host notices:
/// each still sees the other's address and port.
#[derive(Debug, Parser)]
#[command(version, after_long_help = EXIT_STATUS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_STATUS: &str = "Exit status: 0 all went well; 64 the command line was wrong; \
    69 the kernel or the host lacks something that is named; 70 an internal error; \
    77 a capability that is named is missing; 78 the configuration is wrong.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the helper box until SIGTERM or SIGINT.
    ///
    /// SIGHUP reads the file again: live connections stay as they are, and a file that is wrong
    /// changes nothing. SIGTERM takes no new connections, gives those that there are the time
    /// `[node] drain` to finish, and removes all kernel state; a second one ends at once.
    Run(File),
    /// Validate a configuration and print what it means: campus, prefixes, next box, leg.
    Check(Check),
    /// Print the kernel state that `run` would install, as nft and ip lines; touch nothing.
    Show(File),
    /// Remove whatever kernel state of pepd is left on this host, as after a crash.
    Down(File),
    /// Look at the kernel and the host, and say what would stop or slow a helper box.
    ///
    /// Each finding comes with the command that cures it. Nothing is changed. Exit status: 1 if
    /// something would stop `run` or end connections in nothing, otherwise 0.
    Doctor(Doctor),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, for `man -l -`.
    Man,
}

/// What `check` looks at.
#[derive(Debug, Args)]
pub struct Check {
    /// The configuration file.
    #[command(flatten)]
    pub file: File,
    /// Print what the file means for every box of the fleet, not only for this one.
    #[arg(long, conflicts_with = "node")]
    pub all: bool,
}

/// The configuration file.
#[derive(Debug, Clone, Args)]
pub struct File {
    /// The configuration file.
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        default_value = "/etc/pepd/pepd.toml"
    )]
    pub path: PathBuf,
    /// Which box of the fleet this is, if the file has `[[box]]` entries.
    ///
    /// Without it: `[node] name`, or else the host's name.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// What `doctor` is told.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The configuration file.
    #[command(flatten)]
    pub file: File,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints completions for `shell`.
pub fn print_completions(shell: Shell) -> Result {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pepd", &mut text);
    print(&text)
}

/// Prints the manual page of pepd and, after it, those of its subcommands.
pub fn print_manual() -> Result {
    let mut text = Vec::new();
    let mut command = Cli::command();
    command.build();
    render_manual(&command, &mut text).map_err(|error| Failure::internal("write", error))?;
    print(&text)
}

fn render_manual(command: &clap::Command, text: &mut Vec<u8>) -> io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    page.render(text)?;
    for subcommand in command.get_subcommands().filter(|c| c.get_name() != "help") {
        let page = clap_mangen::Man::new(subcommand.clone());
        writeln!(text, ".SH PEPD {}", subcommand.get_name().to_uppercase())?;
        page.render_synopsis_section(text)?;
        page.render_description_section(text)?;
        page.render_options_section(text)?;
    }
    Ok(())
}

/// Writes to standard output; a reader that has had enough is no error.
pub fn print(text: &[u8]) -> Result {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Failure::internal("write to standard output", error)),
    }
}
