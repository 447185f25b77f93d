//! The gate when descriptors have run out.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pepd_net::Gate;
use pepd_testbed::require;

use super::netns::{Netns, request};
use crate::harness::has_own_process;

#[test]
fn renewing_and_closing_need_no_descriptor() -> Result<()> {
    require!(root);
    // It lowers its process's limit, and uses it up.
    if !has_own_process("kernel::gate_descriptors::renewing_and_closing_need_no_descriptor")? {
        return Ok(());
    }
    let netns = Netns::new();
    let gate = netns.run(|| Gate::open().unwrap());
    let _installed = netns.install(&request()).unwrap();
    let elements = || netns.nft("list set inet pepd gate").contains("elements");

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(256), hard).unwrap();
    let ttl = Duration::from_secs(600);
    let (exhausted, renewed) = exhausted(|| gate.renew(ttl));
    assert_eq!(exhausted.raw_os_error(), Some(Errno::EMFILE as i32));
    renewed.unwrap();
    assert!(elements());
    self::exhausted(|| gate.close()).1.unwrap();
    assert!(!elements());
    Ok(())
}

/// Does `work` while no descriptor is left; also gives the error that says so.
fn exhausted<T>(work: impl FnOnce() -> T) -> (std::io::Error, T) {
    let mut hoard = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => hoard.push(file),
            Err(error) => break error,
        }
    };
    let done = work();
    drop(hoard);
    (error, done)
}
