//! The `pepd` command: parse, dispatch, exit with a code that means something.

#![forbid(unsafe_code)]

mod cli;
mod clock;
mod commands;
mod config_file;
mod daemon;
mod doctor;
#[cfg(test)]
mod documentation;
mod exit;
mod keeper;
mod leg_spec;
mod runtime;
mod time_limit;
mod top;
mod ui;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        // The text of `--help` comes as an error, too.
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
        Command::Run(args) => match keeper::run(&args) {
            Ok(code) => return code,
            // Connections are to end with the keeper, whoever does not listen to it.
            Err(failure) => {
                ui::output::eprint_in_time(&failure);
                return ExitCode::from(failure.code());
            }
        },
        Command::Check(file) => commands::check::check(&file),
        Command::Show(file) => commands::show::show(&file),
        Command::Down(file) => commands::down::down(&file),
        Command::Doctor(options) => match doctor::doctor(&options) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Status(args) => commands::status::status(&args),
        Command::Ready(args) => match commands::ready::ready(&args) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        Command::Flows(args) => commands::flows::flows(&args),
        Command::Flow(args) => commands::flow::flow(&args),
        Command::Top(target) => top::top(&target),
        Command::Reload(target) => commands::control::reload(&target),
        Command::Drain(args) => commands::control::drain(&args),
        Command::Upgrade(args) => commands::upgrade::upgrade(&args),
        Command::Link(args) => commands::control::link(&args),
        Command::Move(args) => commands::move_away::move_away(&args),
        Command::Model(args) => commands::model::model(&args),
        Command::Completions { shell } => commands::completions::completions(shell),
        Command::Man { page } => commands::man::print_manual(page),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ExitCode::from(ui::output::tell(&failure)),
    }
}
