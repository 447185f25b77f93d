//! pepd's development commands.

#![forbid(unsafe_code)]

mod vm;

use std::process::ExitCode;

use clap::Parser;

/// pepd's development commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Vm(vm::Args),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Vm(args) => vm::run(&args),
    }
}
