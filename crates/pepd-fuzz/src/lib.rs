//! What pepd reads from outside, under a fuzzer: a target for each kind of input, as a function of
//! bytes that panics where something does not hold.
//!
//! The inputs that are kept, `corpus/TARGET/`, are real ones, and those that have found a defect.
//! The tests mutate them, so many times for each target and the same way each time. For longer, and
//! guided by what the mutations reach, `cargo xtask fuzz` has libFuzzer do it.
//!
//! The modules in the order of what comes first: `packet`, `probe`, `dlep`, `held` and `moves` are
//! the network's, `netlink`, `kernel` and `nft` the host's, `config` the operator's, and `api` and
//! `answers` of whoever may reach the admin API.

#![forbid(unsafe_code)]

mod answers;
mod api;
mod config;
#[allow(dead_code, reason = "what wiring.rs takes of it")]
mod daemon;
mod dlep;
mod held;
mod kernel;
mod moves;
mod netlink;
mod nft;
mod packet;
mod probe;

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Something that reads bytes from outside.
#[derive(Debug)]
pub struct Target {
    /// Its name, and its folder's in `corpus/`.
    pub name: &'static str,
    /// Reads an input.
    pub run: fn(&[u8]),
    /// A folder of the repository whose files are inputs as well.
    also: Option<&'static str>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    target("packet", packet::run),
    target("probe", probe::run),
    target("dlep", dlep::run),
    target("held", held::run),
    target("moves", moves::run),
    target("netlink", netlink::run),
    target("kernel", kernel::run),
    target("rtnetlink", kernel::route),
    target("nft", nft::table),
    target("firewall", nft::firewall),
    target("iptables", nft::iptables),
    Target {
        also: Some("config"),
        ..target("config", config::run)
    },
    target("api", api::run),
    target("answers", answers::run),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target {
        name,
        run,
        also: None,
    }
}

impl Target {
    /// Finds a target.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Returns the folder of the inputs that are kept.
    pub fn corpus(&self) -> PathBuf {
        here().join("corpus").join(self.name)
    }

    /// Returns the folders of all inputs to begin with.
    pub fn seeds(&self) -> Vec<PathBuf> {
        let also = self.also.map(|folder| here().join("../..").join(folder));
        [self.corpus()].into_iter().chain(also).collect()
    }

    /// Reads all inputs to begin with, in the order of their names.
    ///
    /// # Errors
    /// When a folder cannot be read.
    pub fn inputs(&self) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut inputs = Vec::new();
        for folder in self.seeds() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                let bytes = fs::read(&path)?;
                inputs.push((path, bytes));
            }
        }
        inputs.sort();
        Ok(inputs)
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs what takes a text, if it is one.
fn text(input: &[u8], run: impl FnOnce(&str)) {
    if let Ok(text) = std::str::from_utf8(input) {
        run(text);
    }
}
