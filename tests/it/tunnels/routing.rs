//! Three helper boxes in a row whose routes are a routing daemon's (`via = "routing"`): BIRD
//! speaks OSPF with its neighbours through the tunnels.

use std::fs;

use anyhow::{Context, Result};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Fleet, Process, require, run, wait_until};
use rstest::rstest;
use tempfile::TempDir;

use super::running::{BOXES, Running};
use crate::harness::LIMIT;

/// BIRD on one box.
struct Bird {
    folder: TempDir,
    process: Process,
}

impl Bird {
    fn start(fleet: &Fleet, name: &str) -> Result<Self> {
        let number = BOXES.iter().position(|it| *it == name);
        let mut config = format!(
            "log stderr all;\nrouter id 198.51.100.{};\nprotocol device {{}}\n",
            number.context("no such box")? + 1
        );
        for (version, family) in [("v2", "ipv4"), ("v3", "ipv6")] {
            config += &format!(
                "protocol ospf {version} {{
                   {family} {{ import all; export none; }};
                   area 0 {{
                     interface \"pepd-*\" {{ type ptp; hello 1; dead count 20; }};
                     interface \"to-?\" {{ stub; }};
                   }};
                 }}
                 protocol kernel {{ {family} {{ export where source = RTS_OSPF; }}; }}\n"
            );
        }
        let folder = tempfile::tempdir()?;
        let [file, socket] = ["bird.conf", "bird.ctl"].map(|it| folder.path().join(it));
        fs::write(&file, config)?;
        let mut bird = fleet.helper(name).command("bird");
        bird.arg("-fc").arg(&file).arg("-s").arg(&socket);
        let process = Process::spawn(&mut bird)?;
        Ok(Self { folder, process })
    }

    /// Returns what it knows, for a failure's sake.
    fn state(&self) -> Result<String> {
        let mut birdc = std::process::Command::new("birdc");
        let socket = self.folder.path().join("bird.ctl");
        birdc
            .arg("-s")
            .arg(socket)
            .args(["show", "ospf", "neighbors"]);
        let neighbors = run(&mut birdc, LIMIT)?.success()?;
        Ok(format!("{neighbors}\n{}", self.process.log()))
    }
}

/// Leaves the way to other boxes' campuses to the routing daemon, and gives both ends of each
/// tunnel an address.
fn left_to_routing(config: String) -> String {
    let node = config.lines().nth(1).map(str::to_owned);
    let mut is_peer = false;
    let edited = config.lines().map(|line| {
        if line.starts_with('[') {
            is_peer = line == "[[peer]]";
        }
        let inside = match (node.as_deref(), line) {
            (Some("name = \"a\""), "name = \"i\"") => "10.255.0.0/31",
            (Some("name = \"i\""), "name = \"a\"") => "10.255.0.1/31",
            (Some("name = \"i\""), "name = \"b\"") => "10.255.0.2/31",
            (Some("name = \"b\""), "name = \"i\"") => "10.255.0.3/31",
            _ => "",
        };
        match line {
            _ if is_peer && !inside.is_empty() => format!("{line}\ninside = [\"{inside}\"]\n"),
            _ if line.starts_with("via = ") && line != "via = \"local\"" => {
                "via = \"routing\"\n".to_owned()
            }
            _ => format!("{line}\n"),
        }
    });
    edited.collect()
}

#[rstest]
#[case::over_ipv4(Family::V4)]
#[case::over_ipv6(Family::V6)]
fn a_routing_daemon_decides(#[case] outer: Family) -> Result<()> {
    require!(root, tunnels, program("bird"));
    let fleet = Fleet::chain()?;
    let before = fleet.kernel_state("i")?;
    let mut running = Running::edited(fleet, outer, &Family::BOTH, left_to_routing)?;
    let birds: Vec<Bird> = BOXES
        .iter()
        .map(|name| Bird::start(&running.fleet, name))
        .collect::<Result<_>>()?;
    for family in Family::BOTH {
        for (from, to) in [("a", "b"), ("b", "a")] {
            let fleet = &running.fleet;
            let address = fleet.address(to, family)?;
            let learnt = || {
                ["a", "i", "b"].iter().all(|name| {
                    let route = fleet.helper(name).sh(&format!("ip route get {address}"));
                    *name == to || route.is_ok_and(|it| it.contains(" dev pepd-"))
                })
            };
            wait_until(LIMIT, "routes to the campus", learnt).with_context(|| {
                let states = birds.iter().map(|bird| bird.state().unwrap_or_default());
                states.collect::<Vec<_>>().join("\n")
            })?;
            let before = running.split()?;
            Pair::open(fleet.host(from), fleet.host(to), address)?.exchange(2000)?;
            let split = running.split_since(&before)?;
            let counters = || BOXES.map(|name| fleet.helper(name).sh("nft list counters").unwrap());
            assert_eq!(split, [true; 3], "{from} to {to}: {:#?}", counters());
        }
    }
    // The tunnels' own addresses can be asked.
    let box_a = running.fleet.helper("a");
    box_a.sh("ping -c 1 -W 20 10.255.0.1")?;
    drop(birds);
    running.take("i").stop()?;
    let state = || running.fleet.kernel_state("i").unwrap_or_default();
    assert_eq!(state(), before);
    running.finish()
}
