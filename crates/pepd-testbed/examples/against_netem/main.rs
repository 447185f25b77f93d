//! The emulated link against the kernel's `netem`, on the same paths: see docs/guest.md.
//!
//!     cargo build --release -p pepd-testbed --example against_netem
//!     cargo xtask vm --virtual-time --copy ip --copy tc --copy ethtool \
//!         -- target/release/examples/against_netem [--brief] [flows | losses]
//!
//! In the guest, because few kernels have `netem`, and in virtual time, because a busy machine
//! would blur the figures. Ends with status 1 if the two disagree.

mod compare;

use std::process::ExitCode;

use anyhow::{Result, bail};
use compare::path::Emulator;
use compare::table::{Case, losses};
use pepd_testbed::link::Seed;

/// Over the columns of a row.
const HEADER: &str = "   rate     RTT   loss  flow   | goodput, Mbit/s          | RTT, ms
                                |  netem    link  differ   |   netem     link  differ";

fn main() -> Result<ExitCode> {
    let (mut brief, mut flows, mut statistics) = (false, true, true);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--brief" => brief = true,
            "flows" => statistics = false,
            "losses" => flows = false,
            other => bail!("`{other}` is neither `--brief` nor `flows` nor `losses`"),
        }
    }
    let mut agree = true;
    if statistics {
        println!("losses of numbered packets, 99 % limits");
        let emulators = [
            ("netem", Emulator::Netem),
            ("link", Emulator::Link(Seed(1))),
        ];
        for line in losses(&emulators)? {
            agree &= line.passes();
            println!("{line}");
        }
        println!();
    }
    if flows {
        println!("{}", HEADER);
        for case in all() {
            let case = if brief { case.brief() } else { case };
            let row = case.compare()?;
            agree &= row.passes();
            println!("{row}");
        }
    }
    println!("\n{}", if agree { "they agree" } else { "THEY DISAGREE" });
    Ok(if agree {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Lists the cases: 10 and 100 Mbit/s, 20 and 200 ms, without loss and with 2 %, cubic and bbr.
fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for loss in [0.0, 0.02] {
        for congestion in ["cubic", "bbr"] {
            for (mbit, rtt) in [(10, 20), (10, 200), (100, 20), (100, 200)] {
                cases.push(Case::new(mbit, rtt, loss, congestion));
            }
        }
    }
    cases
}
