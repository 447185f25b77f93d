//! The `pepd` command: parse, dispatch, exit with a code that means something.

#![forbid(unsafe_code)]

mod check;
mod cli;
mod daemon;
mod down;
mod exit;
mod host;
mod life;
mod log;
mod observatory;
mod privileges;
mod run;
mod show;
mod source;
mod translate;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        // The text of `--help`, too, comes as an error.
        Err(error) => {
            // Where the text cannot be written there is nobody to tell.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(exit::USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let result = match command {
        Command::Run(file) => run::run(&file),
        Command::Check(file) => check::check(&file),
        Command::Show(file) => show::show(&file),
        Command::Down(file) => down::down(&file),
        Command::Completions { shell } => cli::print_completions(shell),
        Command::Man => cli::print_manual(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Where the text cannot be written the exit code still says it; eprintln! would panic.
            let _ = writeln!(std::io::stderr(), "{failure}");
            failure.code()
        }
    }
}
