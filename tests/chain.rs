//! Three helper boxes in a row, joined by tunnels: campus a – box a – a long path – box i – a
//! short path – box b – campus b. The router on each path knows nothing of the campuses.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::time::Duration;

use anyhow::Result;
use pepd_testbed::{Family, Fleet, Nginx, Pepd, Process, accepted, require, run, wait_until};

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const LIMIT: Duration = Duration::from_secs(120);
const BOXES: [&str; 3] = ["a", "i", "b"];

/// The boxes of a fleet, each with its daemon.
struct Running {
    fleet: Fleet,
    daemons: Vec<Pepd>,
}

impl Running {
    fn start(fleet: Fleet, outer: Family, inner: &[Family]) -> Result<Self> {
        let mut daemons = Vec::new();
        for name in BOXES {
            let config = fleet.config(name, outer, inner)?;
            daemons.push(Pepd::start(PEPD, fleet.helper(name), &config)?);
        }
        Ok(Self { fleet, daemons })
    }

    /// How many connections each box has split.
    fn split(&self) -> Result<Vec<u64>> {
        BOXES
            .iter()
            .map(|name| accepted(self.fleet.helper(name)))
            .collect()
    }

    fn finish(mut self) -> Result<()> {
        for daemon in &mut self.daemons {
            assert!(daemon.runs(), "{}", daemon.log());
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for daemon in &self.daemons {
            println!("---- a daemon's log ----\n{}----", daemon.log());
        }
    }
}

#[test]
fn curl_both_ways_through_three_boxes() -> Result<()> {
    require!(
        root,
        tunnels,
        program("nginx"),
        program("curl"),
        program("tcpdump")
    );
    let running = Running::start(Fleet::chain()?, Family::V4, &[Family::V4])?;
    let fleet = &running.fleet;
    let mut tcpdump = Process::spawn(
        fleet
            .path(0)
            .command("tcpdump")
            .args(["-ni", "to-box-i", "-Ul", "ip"]),
    )?;
    wait_until(LIMIT, "tcpdump listens", || {
        tcpdump.log().contains("listening on")
    })?;
    let (one, other) = ("a", "b");
    let content: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    for (client, server) in [(one, other), (other, one)] {
        let nginx = Nginx::start(fleet.host(server))?;
        nginx.put_file("file", &content)?;
        let before = running.split()?;
        let url = nginx.url(fleet.address(server, Family::V4)?, "file");
        let mut curl = fleet.host(client).command("sh");
        curl.args(["-c", &format!("curl -sSgf {url} | sha256sum")]);
        let got = run(&mut curl, LIMIT)?.success()?;
        let mut sum = std::process::Command::new("sha256sum");
        let expected = run(sum.arg(nginx.files().join("file")), LIMIT)?.success()?;
        assert_eq!(
            got.split_whitespace().next(),
            expected.split_whitespace().next()
        );
        let logged = nginx.logged("file")?;
        let address = fleet.address(client, Family::V4)?.to_string();
        assert!(logged.starts_with(&address), "{logged}");
        let after = running.split()?;
        let split: Vec<u64> = before.iter().zip(&after).map(|(b, a)| a - b).collect();
        assert_eq!(split, [1, 1, 1]);
    }
    tcpdump.signal(nix::sys::signal::Signal::SIGINT)?;
    tcpdump.wait(LIMIT)?;
    let seen = tcpdump.log();
    println!("{}", seen.lines().take(30).collect::<Vec<_>>().join("\n"));
    running.finish()
}
