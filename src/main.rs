//! The `pepd` command: parse, dispatch, exit with a code that means something.

#![forbid(unsafe_code)]

mod admin;
mod check;
mod cli;
mod client;
mod daemon;
mod doctor;
mod doorkeeper;
mod down;
mod exit;
mod fixed_rate;
mod flow;
mod flows;
mod host;
mod humane;
mod life;
mod log;
mod manual;
mod observatory;
mod orders;
mod peers;
mod privileges;
mod run;
mod show;
mod source;
mod status;
mod table;
mod top;
mod translate;

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
        Command::Doctor(options) => match doctor::doctor(&options) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Status(args) => status::status(&args),
        Command::Flows(args) => flows::flows(&args),
        Command::Flow(args) => flow::flow(&args),
        Command::Top(target) => top::top(&target),
        Command::Reload(target) => orders::reload(&target),
        Command::Drain(target) => orders::drain(&target),
        Command::Completions { shell } => cli::print_completions(shell),
        Command::Man => manual::print_manual(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            cli::eprint(&failure);
            failure.code()
        }
    }
}
