//! `pepd-lab`: the papers' experiments, repeated with pepd, beside the numbers they printed.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod failure;
mod measure;
mod paper;
mod path;
mod report;
mod results;
mod run;
mod stats;
mod traffic;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use pepd_testbed::vm;

use cli::{Cli, Command};
use failure::Failure;

/// EX_SOFTWARE.
const INTERNAL: u8 = 70;

fn main() -> ExitCode {
    match dispatch(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read it has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pepd-lab: {error:#}");
            let unable = error.downcast_ref().map(vm::Error::exit_code);
            let failed = error.downcast_ref().map(|failure: &Failure| failure.status);
            ExitCode::from(unable.or(failed).unwrap_or(INTERNAL))
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error: Option<&io::Error> = error.downcast_ref();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn dispatch(command: &Command) -> Result<()> {
    match command {
        Command::List => commands::list(),
        Command::Run(args) => commands::run(args),
        Command::Report(args) => commands::report(args),
        Command::Measure(args) => run::measure(args),
    }
}
