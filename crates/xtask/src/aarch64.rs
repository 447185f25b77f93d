//! `cargo xtask aarch64`: pepd for that processor, as far as another one can tell.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cross::Target;

/// Compile for aarch64 all that ships, and run the tests of the crates that take no kernel of their own.
///
/// Not linked, which `cargo xtask dist` does; the tests are emulated on another processor (Debian's
/// qemu-user-static). Rust's standard library for aarch64 is added by rustup where it is missing.
#[derive(clap::Args)]
pub struct Args {}

/// What reads bytes and computes. Of pepd-sys, what QEMU's user mode has the system calls for.
const TESTED: [&str; 7] = [
    "pepd-config",
    "pepd-dlep",
    "pepd-hold",
    "pepd-model",
    "pepd-packet",
    "pepd-sys",
    "pepd-worth",
];

/// The tests of what the user mode of QEMU (7.2) does not know: it answers TCP_INFO with less than there is, and seccomp,
/// TCP_REPAIR, SO_MAX_PACING_RATE and SO_PEERNAME with an error.
const NOT_EMULATED: [&str; 7] = [
    "repair::tests::what_is_not_acknowledged_is_told",
    "seccomp::tests::",
    "sockopt::tests::what_is_set_is_read_back",
    "stream::tests::it_says_who_its_peer_was",
    "tcp_info::tests::a_",
    "tcp_info::tests::the_kernels_figures_of_a_transfer",
    "tcp_info::tests::what_was_written_and_read_follows_from_the_kernels_counts",
];

/// Compiles it, and runs the tests.
///
/// # Errors
/// When something is missing, does not compile, or fails.
pub fn run() -> Result<()> {
    let target = Target::Aarch64;
    target.provide()?;
    target.provide_emulator()?;
    let mut check = target.cargo()?;
    check.args(["check", "--locked", "--package", "pepd", "--bin", "pepd"]);
    succeed(check.args(["--target", target.triple()]))?;
    let mut test = target.cargo()?;
    test.args(["test", "--locked", "--lib", "--target", target.triple()]);
    for name in TESTED {
        test.args(["--package", name]);
    }
    test.arg("--");
    if !target.is_native() {
        for filter in NOT_EMULATED {
            test.args(["--skip", filter]);
        }
    }
    succeed(&mut test)
}

fn succeed(cargo: &mut Command) -> Result<()> {
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(status.success(), "{cargo:?}: {status}");
    Ok(())
}
