//! A box that a routing daemon announces while it is fit: config/pepd-announce with the real BIRD and the real
//! FRR on the box. The router beside it sees by the metric what the box says of itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::{Netns, Pepd, Process, ask, require, run, wait_until};
use rstest::rstest;

use super::ground::{
    Bird, Ground, Side, adapted, announce, box_config, pepd_config, router_config, socket,
};
use crate::harness::{LIMIT, PEPD};

/// The routing daemon on the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Daemon {
    Bird,
    Frr,
}

/// Where Debian has the daemons of FRR, and those that config/frr-box.conf needs.
const FRR: (&str, [&str; 3]) = ("/usr/lib/frr", ["zebra", "bfdd", "bgpd"]);

/// Keeps the routing daemon alive.
#[allow(dead_code, reason = "what it has is dropped")]
enum Speaker {
    Bird(Bird),
    Frr([Process; 3]),
}

impl Speaker {
    fn start(netns: &Netns, daemon: Daemon, directory: &Path) -> Result<Self> {
        match daemon {
            Daemon::Bird => {
                let config = box_config(1, directory)?;
                Ok(Self::Bird(Bird::start(netns, &config, directory)?))
            }
            Daemon::Frr => Ok(Self::Frr(frr(netns, directory)?)),
        }
    }
}

/// Starts FRR's daemons with config/frr-box.conf, as a package would.
fn frr(netns: &Netns, directory: &Path) -> Result<[Process; 3]> {
    run(Command::new("chown").arg("frr:frr").arg(directory), LIMIT)?.success()?;
    let at = |name: &str| directory.join(name);
    let start = |name: &str| -> Result<Process> {
        let mut command = netns.command(&format!("{}/{name}", FRR.0));
        command
            .args([
                "-u",
                "frr",
                "-g",
                "frr",
                "-A",
                "127.0.0.1",
                "--log",
                "stdout",
                "-z",
            ])
            .arg(at("zserv"))
            .arg("-i")
            .arg(at(&format!("{name}.pid")))
            .arg("--vty_socket")
            .arg(directory);
        if name == "bfdd" {
            command.arg("--bfdctl").arg(at("bfdd.sock"));
        }
        // One that was killed has left its own.
        let _ = fs::remove_file(at(&format!("{name}.vty")));
        let process = Process::spawn(&mut command)?;
        wait_until(LIMIT, "it listens", || at(&format!("{name}.vty")).exists())
            .with_context(|| format!("{name}: {}", process.log()))?;
        Ok(process)
    };
    let [zebra, bfdd, bgpd] = FRR.1.map(start);
    let daemons = [zebra?, bfdd?, bgpd?];
    // As the routers of the tests have it.
    let slower = [
        ("-interval 300", "-interval 1000"),
        ("multiplier 3", "multiplier 10"),
    ];
    fs::write(at("frr.conf"), adapted("frr-box.conf", &slower)?)?;
    let mut vtysh = Command::new("vtysh");
    vtysh
        .arg("--vty_socket")
        .arg(directory)
        .arg("-f")
        .arg(at("frr.conf"));
    run(&mut vtysh, LIMIT)?.success()?;
    Ok(daemons)
}

#[rstest]
#[case::by_bird(Daemon::Bird)]
#[case::by_frr(Daemon::Frr)]
fn a_box_steps_back_while_it_is_not_fit(#[case] daemon: Daemon) -> Result<()> {
    require!(root, program("bird"));
    if daemon == Daemon::Frr {
        require!(program("vtysh"));
    }
    let ground = Ground::new(1)?;
    let hb = &ground.boxes[0];
    let places = [tempfile::tempdir()?, tempfile::tempdir()?];
    let [left, right] = [
        (&ground.left, Side::Left, 0),
        (&ground.right, Side::Right, 1),
    ]
    .map(|(netns, side, place)| Bird::start(netns, &router_config(side)?, places[place].path()));
    let (left, _right) = (left?, right?);
    let config = pepd_config(hb);
    let mut pepd = Pepd::start(PEPD, hb, &config)?;

    // Before the routing daemon is there nobody hears, and nothing is lost by that.
    let directory = tempfile::tempdir()?;
    let name = match daemon {
        Daemon::Bird => "bird",
        Daemon::Frr => "frr",
    };
    let mut announcer = announce(hb, name, directory.path())?;
    let speaker = Speaker::start(hb, daemon, directory.path())?;
    let is = |metric: &str| {
        let said = left.ask("show route 10.2.0.0/24 all").unwrap_or_default();
        said.contains(&format!("BGP.med: {metric}\n"))
    };
    let becomes = |metric: &str, what: &str, announcer: &Process| {
        wait_until(LIMIT, what, || is(metric)).with_context(|| {
            let said = left.ask("show route all").unwrap_or_default();
            format!("{said}\n{}", announcer.log())
        })
    };
    becomes("0", "it is fit", &announcer)?;
    ask(&socket(hb), "POST /v1/link/gone?leg=wan")?;
    becomes("1000", "its link is gone", &announcer)?;
    ask(&socket(hb), "POST /v1/link/up?leg=wan")?;
    becomes("0", "it is fit again", &announcer)?;
    ensure!(pepd.runs(), "{}", pepd.log());
    pepd.kill()?;
    becomes("1000", "nobody answers", &announcer)?;
    // It steps back, and not out: what is routed is routed by it.
    ground.open()?.exchange(1000)?;
    pepd = Pepd::start(PEPD, hb, &config)?;
    becomes("0", "there is another one", &announcer)?;
    // One that is started anew is told as well.
    drop(speaker);
    wait_until(LIMIT, "it is gone", || !is("0"))?;
    let _speaker = Speaker::start(hb, daemon, directory.path())?;
    becomes("0", "it is known there, too", &announcer)?;
    // Whoever ends it has the box step back.
    announcer.signal(Signal::SIGTERM)?;
    let status = announcer.wait(LIMIT)?;
    ensure!(status.success(), "{}", announcer.log());
    becomes("1000", "nobody says that it is fit", &announcer)?;
    ensure!(pepd.runs(), "{}", pepd.log());
    Ok(())
}
