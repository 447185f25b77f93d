//! What tunnels between helper boxes cost, and what splitting in them does.
//!
//!     cargo build --release --bin pepd --example tunnel_cost
//!     cargo xtask vm -- target/release/examples/tunnel_cost
//!
//! Two campuses, three boxes, two clean paths without delay: what is measured is processor time.
//! In every round each way of going through the boxes has its turn, and what counts is its ratio
//! to plain forwarding in the same round. The table is in docs/tunnels.md.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::{Family, Fleet, Iperf3, Pepd, run};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: usize = 5;
const SECONDS: u32 = 5;
const FLOWS: [u32; 2] = [1, 8];

fn main() -> Result<()> {
    let pepd = std::env::args().nth(1);
    let pepd = PathBuf::from(pepd.unwrap_or_else(|| "target/release/pepd".to_owned()));
    ensure!(pepd.exists(), "no {}: build it first", pepd.display());
    for flows in FLOWS {
        let mut ratios = [const { Vec::new() }; 2];
        let mut plain = Vec::new();
        for _ in 0..ROUNDS {
            let forwarded = Way::Plain.goodput(&pepd, flows)?;
            plain.push(forwarded / 1e6);
            for (way, ratios) in [Way::Tunnelled, Way::Split].iter().zip(&mut ratios) {
                ratios.push(way.goodput(&pepd, flows)? / forwarded);
            }
        }
        let [tunnelled, split] = &mut ratios;
        println!(
            "{flows} flow(s): plain forwarding {} Mbit/s; tunnels, unsplit {}; tunnels, split {}",
            spread(&mut plain, 0),
            spread(tunnelled, 2),
            spread(split, 2),
        );
    }
    Ok(())
}

/// The way in which traffic goes through the boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Routes, without pepd.
    Plain,
    /// Pepd's tunnels, every connection bypassed.
    Tunnelled,
    /// Pepd's tunnels, every connection split at each box.
    Split,
}

impl Way {
    /// Measures the payload received, in bits per second.
    fn goodput(self, pepd: &Path, flows: u32) -> Result<f64> {
        let fleet = Fleet::chain()?;
        let mut daemons = Vec::new();
        if self == Self::Plain {
            route(&fleet)?;
        } else {
            for name in ["a", "i", "b"] {
                let mut config = fleet.config(name, Family::V4, &[Family::V4])?;
                if self == Self::Tunnelled {
                    config += "[[rule]]\naction = \"bypass\"\n";
                }
                daemons.push(Pepd::start(pepd, fleet.helper(name), &config)?);
            }
        }
        let _server = Iperf3::start(fleet.host("b"))?;
        let mut iperf3 = fleet.host("a").command("iperf3");
        iperf3.args(["--json", "-c", &fleet.address("b", Family::V4)?.to_string()]);
        iperf3.args(["-t", &SECONDS.to_string(), "-P", &flows.to_string()]);
        let report: Value = serde_json::from_str(&run(&mut iperf3, LIMIT)?.success()?)?;
        report["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .context("iperf3 gives no rate")
    }
}

/// Routes between the two campuses, hop by hop.
fn route(fleet: &Fleet) -> Result<()> {
    for (from, to, there) in [("a", "b", "10.2.0.0/16"), ("b", "a", "10.1.0.0/16")] {
        let way = fleet.way(from, to)?;
        for hop in way.windows(2) {
            let [here, next] = hop else { continue };
            let next = fleet.end(next, here, Family::V4)?;
            // To a box beyond a router: by the router that leads to the box's address.
            let found = fleet.helper(here).sh(&format!("ip route get {next}"))?;
            let router = found
                .split_whitespace()
                .skip_while(|word| *word != "via")
                .nth(1)
                .context("no way to the next box")?;
            fleet
                .helper(here)
                .sh(&format!("ip route add {there} via {router}"))?;
            let index = ["a", "i", "b"]
                .windows(2)
                .position(|pair| {
                    pair.contains(&here.as_str())
                        && hop.iter().all(|it| pair.contains(&it.as_str()))
                })
                .context("no path between them")?;
            fleet
                .path(index)
                .sh(&format!("ip route add {there} via {next}"))?;
        }
    }
    Ok(())
}

/// Returns the median, and in brackets the least and the most.
fn spread(values: &mut [f64], digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let (least, most) = (values[0], values[values.len() - 1]);
    let median = values[values.len() / 2];
    format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
}
