//! Whether a box is fit whose campuses are behind tunnels, as its peers answer or do not.

use std::path::PathBuf;

use anyhow::Result;
use pepd_testbed::{Family, Fleet, require, wait_until};
use serde_json::Value;

use super::is_ready;
use crate::harness::LIMIT;
use crate::tunnels::running::Running;

/// A hub with a campus of its own, and two more behind a peer each.
fn hub() -> Result<(Running, PathBuf)> {
    let fleet = Fleet::describe()
        .helper("h")
        .helper("x")
        .helper("y")
        .path("h", "x")
        .path("h", "y")
        .campus("h", "h")
        .campus("x", "x")
        .campus("y", "y")
        .build()?;
    let often = |config: String| config.replace("[[peer]]\n", "[[peer]]\nprobe = \"500ms\"\n");
    let running = Running::with_boxes(fleet, &["h", "x", "y"], Family::V4, &Family::BOTH, often)?;
    let socket = running
        .fleet
        .helper("h")
        .runtime_directory()
        .join("admin.sock");
    Ok((running, socket))
}

fn becomes(socket: &std::path::Path, words: &[&str], fit: bool) -> Result<String> {
    let mut said = String::new();
    wait_until(LIMIT, &format!("ready {words:?}: {fit}"), || {
        let Ok((is, line)) = is_ready(socket, words) else {
            return false;
        };
        said = line;
        is == fit
    })?;
    Ok(said)
}

/// One silent peer is that campus, all of them are the box: it has nothing left to join.
#[test]
fn a_silent_peer_takes_its_campus_along_and_the_last_one_the_box() -> Result<()> {
    require!(root, tunnels);
    let (running, socket) = hub()?;
    becomes(&socket, &[], true)?;
    for campus in ["h", "x", "y"] {
        becomes(&socket, &["--campus", campus], true)?;
    }
    let cut = |index: usize, state: &str| {
        let router = running.fleet.path(index);
        router.sh(&format!("ip link set to-box-h {state}"))
    };
    cut(0, "down")?;
    let said = becomes(&socket, &["--campus", "x"], false)?;
    assert!(said.contains("the peer x is silent"), "{said}");
    let (fit, said) = is_ready(&socket, &[])?;
    assert!(fit && said.contains("but not for campus x"), "{said}");
    assert!(is_ready(&socket, &["--campus", "y"])?.0);
    cut(1, "down")?;
    let said = becomes(&socket, &[], false)?;
    assert!(said.contains("campus y: the peer y is silent"), "{said}");
    // Nothing waits for them: those that there are are no better off here.
    assert!(!is_ready(&socket, &["--live"])?.0);
    cut(0, "up")?;
    cut(1, "up")?;
    becomes(&socket, &[], true)?;
    running.finish()
}

/// Before a peer has answered, nobody is to be led there.
#[test]
fn a_box_that_starts_waits_for_its_peers() -> Result<()> {
    require!(root, tunnels);
    let (mut running, socket) = hub()?;
    becomes(&socket, &[], true)?;
    running.take("h").stop()?;
    for index in [0, 1] {
        running.fleet.path(index).sh("ip link set to-box-h down")?;
    }
    running.restart("h")?;
    let (fit, said) = is_ready(&socket, &[])?;
    assert!(!fit, "{said}");
    running.finish()
}

/// A box that stands by for another one, which has the tunnels' address: it is as fit as it can be, and
/// stays so when the address comes to it.
#[test]
fn a_tunnel_whose_address_is_elsewhere_is_no_reason() -> Result<()> {
    require!(root, tunnels);
    let (mut running, socket) = hub()?;
    becomes(&socket, &[], true)?;
    running.take("h").stop()?;
    let hub = |script: &str| running.fleet.helper("h").sh(script);
    let [x, y] = ["x", "y"].map(|to| running.fleet.end("h", to, Family::V4));
    let (x, y) = (x?, y?);
    hub(&format!(
        "ip addr del {x}/24 dev to-path-0; ip addr del {y}/24 dev to-path-1"
    ))?;
    running.restart("h")?;
    becomes(&socket, &[], true)?;
    let peers = || -> Result<Value> {
        let said = pepd_testbed::ask(&socket, "GET /v1/peers")?;
        Ok(serde_json::from_str(&said)?)
    };
    let all = |field: &str, value: Value| {
        let peers = peers().unwrap_or_default();
        let peers = peers["peers"].as_array();
        peers.is_some_and(|peers| peers.len() == 2 && peers.iter().all(|it| it[field] == value))
    };
    assert!(all("elsewhere", Value::Bool(true)), "{:?}", peers());
    let hub = |script: &str| running.fleet.helper("h").sh(script);
    hub(&format!(
        "ip addr add {x}/24 dev to-path-0; ip addr add {y}/24 dev to-path-1
         for n in 0 1; do ip route replace 198.18.$((2 * n + 1)).0/24 via 198.18.$((2 * n)).2; done"
    ))?;
    wait_until(LIMIT, "the peers answer", || {
        assert!(is_ready(&socket, &[]).unwrap().0);
        all("liveness", Value::String("answering".to_owned()))
    })?;
    running.finish()
}
