//! The gate when descriptors have run out. Alone in its process, whose limit it lowers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::fs::File;
use std::time::Duration;

use common::{Netns, privileged, request};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pepd_net::Gate;

#[test]
fn renewing_and_closing_need_no_descriptor() {
    if !privileged() {
        return;
    }
    let netns = Netns::new();
    let gate = netns.run(|| Gate::open().unwrap());
    let _installed = netns.install(&request()).unwrap();
    let elements = || netns.nft("list set inet pepd gate").contains("elements");

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(256), hard).unwrap();
    let ttl = Duration::from_secs(600);
    let (exhausted, renewed) = exhausted(|| gate.renew(ttl));
    assert_eq!(exhausted.raw_os_error(), Some(libc::EMFILE));
    renewed.unwrap();
    assert!(elements());
    self::exhausted(|| gate.close()).1.unwrap();
    assert!(!elements());
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
