//! pepd's development commands.

#![forbid(unsafe_code)]

mod aarch64;
#[cfg(test)]
mod arrows;
mod bench;
mod bpf;
mod ci;
mod cross;
mod deb;
mod demo;
mod deny;
mod directories;
mod dist;
mod docs;
#[cfg(target_arch = "x86_64")]
mod faults;
mod fuzz;
mod miri;
mod packages;
mod shipped;
mod sizing;
mod soak;
mod test;
mod tool;
mod vm;

use std::process::ExitCode;

use clap::Parser;

/// pepd's development commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Aarch64(aarch64::Args),
    Bench(bench::Args),
    Bpf(bpf::Args),
    Ci(ci::Args),
    Deb(deb::Args),
    Demo(demo::Args),
    Deny(deny::Args),
    Dist(dist::Args),
    Docs(docs::Args),
    #[cfg(target_arch = "x86_64")]
    Faults(faults::Args),
    Fuzz(fuzz::Args),
    Miri(miri::Args),
    Sizing(sizing::Args),
    Soak(soak::Args),
    Test(test::Args),
    Vm(vm::Args),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Aarch64(_) => report(aarch64::run()),
        Command::Bench(args) => report(bench::run(&args)),
        Command::Bpf(args) => report(bpf::run(&args)),
        Command::Ci(_) => report(ci::run()),
        Command::Deb(args) => report(deb::run(&args)),
        Command::Demo(args) => demo::run(&args),
        Command::Deny(_) => report(deny::run()),
        Command::Dist(args) => report(dist::run(&args)),
        Command::Docs(args) => report(docs::run(&args)),
        #[cfg(target_arch = "x86_64")]
        Command::Faults(args) => report(faults::run(&args)),
        Command::Fuzz(args) => report(fuzz::run(&args)),
        Command::Miri(_) => report(miri::run()),
        Command::Sizing(args) => report(sizing::run(&args)),
        Command::Soak(args) => report(soak::run(&args)),
        Command::Test(args) => report(test::run(&args)),
        Command::Vm(args) => vm::run(&args),
    }
}

fn report(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
