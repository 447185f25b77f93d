//! What the daemon says about a transfer on an emulated path about which everything is known: which
//! leg limits it, and what round-trip time and loss each leg has. All of it is about times, hence
//! on the guest's virtual clock.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::link::{Loss, QueueLimit, Rate, Shape};
use pepd_testbed::traffic::{Pair, Pattern, listen, receive_exactly, send};
use pepd_testbed::{Family, Pepd, World, require, run, wait_until};
use rstest::rstest;
use serde_json::Value;

use crate::harness::PEPD;

/// One way on the client leg and on the upstream leg.
const DELAYS: [u64; 2] = [20, 10];

#[rstest]
fn the_slow_leg_shows_in_the_phases(
    #[values(Flow::Download, Flow::Upload)] flow: Flow,
    #[values(Slow::Incoming, Slow::Outgoing, Slow::Neither)] slow: Slow,
) -> Result<()> {
    require!(root, virtual_time);
    // Neither: the incoming leg is faster by a little, so that the buffer soon holds more than the
    // outgoing leg can have in flight, grows all the time, and is never full.
    let (incoming, outgoing) = match slow {
        Slow::Incoming => (8, 40),
        Slow::Outgoing => (40, 8),
        Slow::Neither => (24, 20),
    };
    let (client, upstream) = match flow {
        Flow::Download => (outgoing, incoming),
        Flow::Upload => (incoming, outgoing),
    };
    // The paper's legs are of this kind (AIMD); bbr stops for 200 ms every ten seconds.
    let options = match slow {
        Slow::Neither => "congestion = \"cubic\"\nbuffer = \"16MiB\"",
        Slow::Incoming | Slow::Outgoing => "congestion = \"cubic\"",
    };
    // The start and the end are of other kinds and take up to 0.7 s, which have to be few among
    // these.
    let seconds = match slow {
        Slow::Neither => 12,
        Slow::Incoming | Slow::Outgoing => 24,
    };
    let bytes = seconds * incoming.min(outgoing) * 125_000;
    let shapes = [shape(DELAYS[0], client), shape(DELAYS[1], upstream)];
    let (line, Said { mut advice, rtts }) = transferred(shapes, options, flow, bytes)?;
    // Of a leg that fills its own queue it is said as well, whoever waits for whom.
    advice.retain(|sentence| sentence.contains("is the bottleneck"));
    let share = |phase: &str| figure(&line, &format!("{flow}_{phase}"));
    let expected = match slow {
        Slow::Incoming => "starved",
        Slow::Outgoing => "backpressured",
        Slow::Neither => "free",
    };
    assert!(share(expected)? >= 0.95, "{slow:?}: {line:#}");
    // The one that limits is the one that the other waits for.
    let named = match (slow, flow) {
        (Slow::Outgoing, Flow::Download) | (Slow::Incoming, Flow::Upload) => "near",
        (Slow::Outgoing, Flow::Upload) | (Slow::Incoming, Flow::Download) => "far",
        (Slow::Neither, _) => "",
    };
    if slow == Slow::Neither {
        assert_eq!(advice, Vec::<String>::new());
    } else {
        let [sentence] = &*advice else {
            panic!("{slow:?} {flow}: {advice:?}")
        };
        let wanted = format!("[leg.{named}] is the bottleneck");
        assert!(sentence.contains(&wanted), "{slow:?} {flow}: {sentence}");
    }
    // A leg that is not full has nothing in its queue: the delay both ways, and two packets.
    let idle = match (slow, flow) {
        (Slow::Incoming, Flow::Download) | (Slow::Outgoing, Flow::Upload) => {
            vec![("client", rtts[0], 0.04)]
        }
        (Slow::Outgoing, Flow::Download) | (Slow::Incoming, Flow::Upload) => {
            vec![("upstream", rtts[1], 0.02)]
        }
        (Slow::Neither, _) => vec![],
    };
    for (leg, seen, set) in idle {
        assert!((seen / set - 1.0).abs() < 0.1, "{leg} {seen} {set}");
    }
    Ok(())
}

#[rstest]
fn each_legs_loss_and_round_trip_are_seen(
    #[values(Flow::Download, Flow::Upload)] flow: Flow,
) -> Result<()> {
    require!(root, virtual_time);
    const LOSS: f64 = 0.05;
    // The daemon sends on the outgoing leg: there it sees what is lost.
    let lossy = |shape: Shape| Shape {
        loss: Loss::independent(LOSS),
        ..shape
    };
    let [client, upstream] =
        DELAYS.map(|delay| Shape::new(Duration::from_millis(delay), Rate::mbit(60)));
    let shapes = match flow {
        Flow::Download => [lossy(client), upstream],
        Flow::Upload => [client, lossy(upstream)],
    };
    const BYTES: u64 = 40_000_000;
    let options = "congestion = \"bbr\"\nbuffer = \"16MiB\"\nrate = \"30Mbit\"";
    let (line, Said { rtts, .. }) = transferred(shapes, options, flow, BYTES)?;
    let (leg, other) = match flow {
        Flow::Download => ("client", "upstream"),
        Flow::Upload => ("upstream", "client"),
    };
    let again = figure(&line, &format!("{leg}_retransmitted"))?;
    let share = again / (BYTES as f64 + again);
    assert!((share / LOSS - 1.0).abs() < 0.1, "{share}: {line:#}");
    assert!(figure(&line, &format!("{other}_retransmitted"))?.abs() < 1e-9);
    for (leg, seen, set) in [("client", rtts[0], 0.04), ("upstream", rtts[1], 0.02)] {
        assert!((seen / set - 1.0).abs() < 0.1, "{leg} {seen} {set}");
    }
    Ok(())
}

/// What the daemon says of a transfer while it lasts. (At its end the receiver's last
/// acknowledgement is a delayed one, and the round trip looks longer than the path is.)
#[derive(Debug, Default)]
struct Said {
    advice: Vec<String>,
    /// The round trips of the client leg and the upstream leg, in seconds.
    rtts: [f64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Download,
    Upload,
}

impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Download => "down",
            Self::Upload => "up",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Incoming,
    Outgoing,
    Neither,
}

/// Returns a link with a queue of one bandwidth-delay product.
fn shape(delay_ms: u64, mbit: u64) -> Shape {
    let queue = QueueLimit::Bytes(mbit * 125_000 * 2 * delay_ms / 1000);
    Shape {
        queue,
        ..Shape::new(Duration::from_millis(delay_ms), Rate::mbit(mbit))
    }
}

fn figure(line: &Value, name: &str) -> Result<f64> {
    line[name]
        .as_f64()
        .with_context(|| format!("no {name} in {line:#}"))
}

/// Transfers over a path of these two links. Gives the daemon's line about it, and the last that
/// it said of it meanwhile.
fn transferred(shapes: [Shape; 2], options: &str, flow: Flow, bytes: u64) -> Result<(Value, Said)> {
    let [client_leg, server_leg] = shapes;
    let world = World::emulated(client_leg, server_leg)?;
    world.hosts_use("cubic")?;
    let scratch = tempfile::tempdir()?;
    let socket = scratch.path().join("admin.sock");
    let config = config(options, &socket.display().to_string());
    let pepd = Pepd::start(PEPD, world.hb(), &config)?;
    let told = transfer(&world, &pepd, flow, bytes)?;
    for link in world.emulated_links() {
        // Otherwise it was not the path that was asked for.
        ensure!(!link.report()?.fell_behind(), "the link fell behind");
    }
    Ok(told)
}

fn config(options: &str, socket: &str) -> String {
    format!(
        r#"
[node]
name = "hb"

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]
leg = "near"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]
leg = "far"

[leg.near]
{options}

[leg.far]
{options}

[log]
format = "json"

[admin]
socket = "{socket}"
"#
    )
}

/// Sends `bytes` one way, asking for advice all the while, and waits for the daemon's line
/// about the connection.
fn transfer(world: &World, pepd: &Pepd, flow: Flow, bytes: u64) -> Result<(Value, Said)> {
    let (client, server) = (world.client(), world.server());
    let listener = listen(
        server,
        SocketAddr::new(World::server_address(Family::V4), 0),
    )?;
    let pair = Pair::through(&listener, client)?;
    let (from, to) = match flow {
        Flow::Download => (pair.server, pair.client),
        Flow::Upload => (pair.client, pair.server),
    };
    let pattern = Pattern::new(1);
    let said = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&from, &pattern, 0, bytes));
        let receiving = scope.spawn(|| receive_exactly(&to, &pattern, 0, bytes));
        let mut said = Said::default();
        while !receiving.is_finished() {
            said = status(world, pepd)?.unwrap_or(said);
            // Whether it finishes meanwhile or not.
            _ = wait_until(Duration::from_secs(2), "the end", || {
                receiving.is_finished()
            });
        }
        receiving.join().unwrap()?;
        sending.join().unwrap()?;
        anyhow::Ok(said)
    })?;
    drop((from, to));
    let mut line = None;
    wait_until(Duration::from_secs(60), "the line in the log", || {
        line = ended(&pepd.log()).into_iter().next();
        line.is_some()
    })?;
    let line = line.context("no line")?;
    let name = format!("bytes_{flow}");
    ensure!(line[&name].as_u64() == Some(bytes), "{line:#}");
    Ok((line, said))
}

/// Returns what `pepd status` says; nothing until the connection has been sampled.
fn status(world: &World, pepd: &Pepd) -> Result<Option<Said>> {
    let mut command = world.hb().command(PEPD);
    command.args(["status", "--json", "-c"]);
    command.arg(pepd.config_file());
    let status = run(&mut command, Duration::from_secs(60))?.success()?;
    let status: Value = serde_json::from_str(&status)?;
    let rtt = |leg: &str| status["pairs"][0][leg]["rtt"].as_f64();
    let (Some(client), Some(upstream)) = (rtt("client_leg"), rtt("upstream_leg")) else {
        return Ok(None);
    };
    Ok(Some(Said {
        advice: serde_json::from_value(status["advice"].clone())?,
        rtts: [client, upstream],
    }))
}

/// Returns the lines about connections that have ended.
fn ended(log: &str) -> Vec<Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["message"] == "connection ended")
        .collect()
}
