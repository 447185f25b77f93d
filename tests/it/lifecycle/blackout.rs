//! What makes every split connection fail while the daemon is well: it is noticed, named, and new
//! connections are routed until it is gone.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::forge::{Flood, Forger, Segment, flag, stranger};
use pepd_testbed::traffic::connect;
use pepd_testbed::{Family, Stage, Via, World, require, run, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

/// What is loaded while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// A firewall as many have it, which knows nothing of pepd.
    InputPolicy,
    /// A rule that drops what comes to this host, in a chain that a chain of `input` jumps to.
    InputRule,
    /// A firewall that lets nothing out but ICMP.
    OutputPolicy,
    /// Policy routing that comes before pepd's.
    RuleBefore,
    /// The kernel validates marked packets' sources against pepd's table.
    SourceValidMark,
}

impl Weather {
    fn load(self) -> &'static str {
        match self {
            Self::InputPolicy => {
                "nft 'add table inet late; add chain inet late input { type filter hook input \
                 priority 0; policy drop; }; add rule inet late input ct state \
                 established,related accept; add rule inet late input iif lo accept; \
                 add rule inet late input meta l4proto { icmp, icmpv6 } accept'"
            }
            Self::InputRule => {
                "nft 'add table inet late; add chain inet late strangers; add rule inet late \
                 strangers counter drop; add chain inet late input { type filter hook input \
                 priority 0; }; add rule inet late input ct state untracked jump strangers'"
            }
            Self::OutputPolicy => {
                "nft 'add table inet late; add chain inet late output { type filter hook output \
                 priority 0; policy drop; }; add rule inet late output oif lo accept; \
                 add rule inet late output meta l4proto { icmp, icmpv6 } accept'"
            }
            Self::RuleBefore => {
                "ip -4 rule add preference 10 lookup main; ip -6 rule add preference 10 lookup main"
            }
            Self::SourceValidMark => "sysctl -qw net.ipv4.conf.all.src_valid_mark=1",
        }
    }

    fn end(self) -> &'static str {
        match self {
            Self::InputPolicy | Self::InputRule | Self::OutputPolicy => {
                "nft delete table inet late"
            }
            Self::RuleBefore => "ip -4 rule del preference 10; ip -6 rule del preference 10",
            Self::SourceValidMark => "sysctl -qw net.ipv4.conf.all.src_valid_mark=0",
        }
    }

    /// Gives the cause's name, what the alarm says, and the cure.
    fn named(self) -> [&'static str; 3] {
        match self {
            Self::InputPolicy => [
                "input",
                "chain inet late input, policy drop",
                "nft insert rule inet late input meta mark and 0x70000000 == 0x70000000 accept",
            ],
            Self::InputRule => [
                "input",
                "of strangers",
                "nft insert rule inet late input meta mark and 0x70000000 == 0x70000000 accept",
            ],
            Self::OutputPolicy => [
                "output",
                "chain inet late output, policy drop",
                "nft insert rule inet late output meta mark and 0x70000000 != 0x00000000 accept",
            ],
            Self::RuleBefore => ["routing", "preference 10", "preference above 100"],
            Self::SourceValidMark => [
                "source_validation",
                "src_valid_mark is 1",
                "sysctl -w net.ipv4.conf.all.src_valid_mark=0",
            ],
        }
    }
}

/// A daemon that can be asked.
pub(super) fn open(via: Via) -> Result<Stage> {
    open_in(World::standard()?, via)
}

fn open_in(world: World, via: Via) -> Result<Stage> {
    let config = match via {
        Via::Early => World::early_config(),
        Via::Pepd | Via::Routing => World::config(),
    };
    // Its namespace is a network of its own: a port of every test's is free.
    let config = format!("{config}\n[admin]\nmetrics = \"127.0.0.1:9730\"\n");
    Stage::in_world(world, via, PEPD, &config)
}

fn ask(stage: &Stage, path: &str) -> Result<String> {
    let mut command = stage.world.hb().command("curl");
    command.args(["-sS", &format!("http://127.0.0.1:9730{path}")]);
    run(&mut command, LIMIT)?.success()
}

fn status(stage: &Stage) -> Result<serde_json::Value> {
    Ok(serde_json::from_str(&ask(stage, "/v1/status")?)?)
}

/// Returns the daemon's state, and its alarms as JSON.
fn state(stage: &Stage) -> Result<(String, String)> {
    let status = status(stage)?;
    let state = status["state"].as_str().unwrap_or_default().to_owned();
    Ok((state, status["alarms"].to_string()))
}

pub(super) fn wait_for_state(stage: &Stage, expected: &str) -> Result<()> {
    wait_until(LIMIT, &format!("the daemon says {expected}"), || {
        state(stage).is_ok_and(|(state, _)| state == expected)
    })
}

/// Connects as the client that finds out: it tries again by itself, and is routed then. The server
/// may have a connection of the box's before.
fn find_out(world: &World, family: Family) -> Result<()> {
    let listener = world.listen(family)?;
    connect(world.client(), listener.local_addr()?)?;
    Ok(())
}

#[rstest]
fn what_stops_split_connections_is_noticed_and_they_are_routed(
    #[values(
        Weather::InputPolicy,
        Weather::InputRule,
        Weather::OutputPolicy,
        Weather::RuleBefore,
        Weather::SourceValidMark
    )]
    weather: Weather,
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    if (weather, family) == (Weather::SourceValidMark, Family::V6) {
        // There is no such parameter.
        return Ok(());
    }
    let stage = open(via)?;
    let world = &stage.world;
    assert!(world.probe(family)?.1);
    world.hb().sh(weather.load())?;
    find_out(world, family)?;
    wait_for_state(&stage, "blocked")?;
    let (pair, split) = world.probe(family)?;
    assert!(!split);
    pair.exchange(10_000)?;
    let [cause, what, cure] = weather.named();
    let alarms = state(&stage)?.1;
    assert!(alarms.contains(what) && alarms.contains(cure), "{alarms}");
    let metrics = ask(&stage, "/metrics")?;
    let metric = format!("pepd_alarm{{cause=\"{cause}\"}} 1");
    assert!(metrics.contains(&metric), "{metrics}");
    let pepd = stage.pepd.as_ref().unwrap();
    wait_until(LIMIT, "the log says so", || pepd.log().contains(what))?;
    let said = "no split connection comes through";
    assert_eq!(pepd.log().matches(said).count(), 1, "once");

    world.hb().sh(weather.end())?;
    // A trial ends with a connection that has come through since it began.
    wait_until(LIMIT, "connections are split again", || {
        world.probe(family).is_ok_and(|(_, split)| split)
            && state(&stage).is_ok_and(|(state, _)| state == "splitting")
    })?;
    assert_eq!(state(&stage)?.1, "[]");
    assert!(world.probe(family)?.1);
    stage.finish()
}

/// What nft does not list is noticed by what it does, and so is what depends on the packet: that it
/// stops them all is not known beforehand.
#[rstest]
#[case::it_depends(
    "nft 'add table inet late; add chain inet late input { type filter hook input \
     priority 0; }; add rule inet late input iifname != lo tcp dport 1-65535 drop'",
    "nft delete table inet late"
)]
#[case::of_the_older_iptables(
    "iptables-legacy -A INPUT ! -s 127.0.0.0/8 -p tcp -j DROP",
    "iptables-legacy -D INPUT ! -s 127.0.0.0/8 -p tcp -j DROP"
)]
fn a_cause_that_nobody_finds_is_noticed(
    #[case] load: &str,
    #[case] end: &str,
    #[values(Via::Pepd, Via::Early)] via: Via,
) -> Result<()> {
    require!(
        root,
        program("nft"),
        program("curl"),
        program("iptables-legacy")
    );
    let stage = open(via)?;
    let world = &stage.world;
    assert!(world.probe(Family::V4)?.1);
    world.hb().sh(load)?;
    std::thread::scope(|scope| {
        let attempts: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| find_out(world, Family::V4)))
            .collect();
        attempts
            .into_iter()
            .try_for_each(|attempt| attempt.join().unwrap())
    })?;
    // A trial follows soon, and ends with the next who tries.
    wait_until(LIMIT, "it is noticed", || {
        state(&stage).is_ok_and(|(state, _)| ["blocked", "trial"].contains(&state.as_str()))
    })?;
    world.hb().sh(end)?;
    wait_until(LIMIT, "connections are split again", || {
        world.probe(Family::V4).is_ok_and(|(_, split)| split)
    })?;
    stage.finish()
}

/// In a trial new connections are split, and whoever asks is told that it is one: until somebody
/// connects it is not known whether they come through.
#[rstest]
fn a_trial_is_said_to_be_one(#[values(Via::Pepd, Via::Early)] via: Via) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let world = World::standard()?;
    world.hb().sh(Weather::InputPolicy.load())?;
    // Nobody has begun a handshake that would end the trial.
    let stage = open_in(world, via)?;
    let world = &stage.world;
    wait_for_state(&stage, "blocked")?;
    world.hb().sh(Weather::InputPolicy.end())?;
    wait_for_state(&stage, "trial")?;
    assert!(ask(&stage, "/metrics")?.contains("pepd_state{state=\"trial\"} 1"));
    let (pair, split) = world.probe(Family::V4)?;
    assert!(split, "the gate is open");
    pair.exchange(1000)?;
    wait_for_state(&stage, "splitting")?;
    stage.finish()
}

/// Where no connection can be tracked any more, routing would not help: the gate stays as it is.
#[test]
fn a_full_table_of_tracked_connections_is_named() -> Result<()> {
    require!(root, program("nft"), program("curl"));
    const SAID: &str = "the table of tracked connections is full";
    let stage = open(Via::Pepd)?;
    let world = &stage.world;
    // Without a rule that asks for it nothing is tracked.
    world.hb().sh(
        "nft 'add table inet late; add chain inet late forward { type filter hook forward \
         priority 0; }; add rule inet late forward ct state invalid drop'",
    )?;
    // Nobody is there; so the kernel keeps each for two minutes.
    let nobody = SocketAddr::from(([10, 9, 0, 77], 9));
    let sources = move |number| stranger(number, nobody.ip());
    let flood = Flood::of_syns(world.client(), 400_000, sources, nobody)?;
    wait_until(LIMIT, "it is named", || {
        state(&stage).is_ok_and(|(_, alarms)| alarms.contains(SAID))
    })?;
    flood.stop()?;
    let metrics = ask(&stage, "/metrics")?;
    let metric = "pepd_alarm{cause=\"conntrack\"} 1";
    assert!(metrics.contains(metric), "{metrics}");
    assert_eq!(state(&stage)?.0, "splitting");
    stage.finish()
}

/// A connection is split where it would be forwarded, so on a host that does not forward nothing is
/// split and nothing is routed. What is split already goes on.
#[test]
fn a_host_that_does_not_forward_is_named_and_splits_again_once_it_does() -> Result<()> {
    require!(root, program("nft"), program("curl"));
    const SAID: &str = "IPv4 forwarding is off";
    let stage = open(Via::Pepd)?;
    let world = &stage.world;
    let (before, split) = world.probe(Family::V4)?;
    assert!(split);
    let metric = |value: u8| format!("pepd_alarm{{cause=\"forwarding\"}} {value}");
    assert!(ask(&stage, "/metrics")?.contains(&metric(0)));
    world.hb().sysctl("net.ipv4.ip_forward", "0")?;
    wait_until(LIMIT, "it is named", || {
        state(&stage).is_ok_and(|(_, alarms)| alarms.contains(SAID))
    })?;
    let alarms = state(&stage)?.1;
    assert!(
        alarms.contains("sysctl -w net.ipv4.ip_forward=1"),
        "{alarms}"
    );
    let metrics = ask(&stage, "/metrics")?;
    assert!(metrics.contains(&metric(1)), "{metrics}");
    let pepd = stage.pepd.as_ref().unwrap();
    wait_until(LIMIT, "the log says so", || pepd.log().contains(SAID))?;
    let listener = world.listen(Family::V4)?;
    let to = listener.local_addr()?;
    let attempt = world
        .client()
        .run(|| Ok(TcpStream::connect_timeout(&to, Duration::from_secs(3))?));
    assert!(attempt.is_err(), "neither split nor routed");
    before.exchange(10_000)?;
    // Routing would not help, so the gate stays as it is.
    assert_eq!(state(&stage)?.0, "splitting");

    world.hb().sysctl("net.ipv4.ip_forward", "1")?;
    wait_until(LIMIT, "it is mended", || {
        state(&stage).is_ok_and(|(_, alarms)| alarms == "[]")
    })?;
    assert!(ask(&stage, "/metrics")?.contains(&metric(0)));
    assert!(world.probe(Family::V4)?.1);
    stage.finish()
}

/// Of a flood of forged SYNs none comes through either, and nothing is to follow from that.
#[rstest]
fn forged_syns_close_nothing(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    const SYNS: u64 = 4000;
    let stage = open(via)?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let victim: SocketAddr = listener.local_addr()?;
    let to = victim.ip();
    let flood = Flood::of_syns(world.client(), 1000, move |host| stranger(host, to), victim)?;
    wait_until(LIMIT, "the flood has come", || flood.sent() >= SYNS)?;
    assert_ne!(state(&stage)?.0, "blocked");
    flood.stop()?;
    wait_until(LIMIT, "connections are split", || {
        world.probe(family).is_ok_and(|(_, split)| split)
    })?;
    let log = stage.pepd.as_ref().unwrap().log();
    assert!(!log.contains("no split connection comes through"), "{log}");
    stage.finish()
}

/// A firewall that was there before the daemon costs no client anything: the first one is routed,
/// though the copy of its SYN, which comes by the loopback device, would be let in.
#[rstest]
fn a_firewall_that_was_there_before_costs_nobody_a_connection(
    #[values(Weather::InputPolicy, Weather::OutputPolicy)] weather: Weather,
    #[values(Via::Pepd, Via::Early)] via: Via,
) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let world = World::standard()?;
    world.hb().sh(weather.load())?;
    let stage = open_in(world, via)?;
    let world = &stage.world;
    for family in Family::BOTH {
        let (pair, split) = world.probe(family)?;
        assert!(!split);
        pair.exchange(10_000)?;
    }
    let (state, alarms) = state(&stage)?;
    let [_, what, cure] = weather.named();
    assert_eq!(state, "blocked");
    assert!(alarms.contains(what) && alarms.contains(cure), "{alarms}");
    world.hb().sh(weather.end())?;
    wait_until(LIMIT, "connections are split", || {
        world.probe(Family::V4).is_ok_and(|(_, split)| split)
            && self::state(&stage).is_ok_and(|(state, _)| state == "splitting")
    })?;
    // Loaded again while it runs, it costs nobody a connection either.
    world.hb().sh(weather.load())?;
    wait_for_state(&stage, "blocked")?;
    assert!(!world.probe(Family::V4)?.1);
    stage.finish()
}

/// Who has a connection, and sends SYN-ACKs in its server's name from elsewhere, makes nobody believe
/// that answers do not come through, though a filter of the operator's drops just these.
#[rstest]
fn answers_that_are_forged_close_nothing(#[values(Via::Pepd, Via::Early)] via: Via) -> Result<()> {
    require!(root, program("nft"), program("curl"));
    let stage = open(via)?;
    let world = &stage.world;
    world.hb().sh(
        "nft 'add table inet late; add chain inet late input { type filter hook input \
         priority 0; }; add rule inet late input iif lo accept; \
         add rule inet late input fib saddr . iif oif missing counter drop'",
    )?;
    let listener = world.listen(Family::V4)?;
    let from = listener.local_addr()?;
    let mine = connect(world.client(), from)?;
    let answer = Segment::new(flag::SYN | flag::ACK, from, mine.local_addr()?, 1);
    let forger = Forger::new(world.sibling())?;
    let uptime = || status(&stage).map(|status| status["uptime"].as_f64().unwrap_or_default());
    // The daemon looks once a second, and believes two looks.
    let end = uptime()? + 5.0;
    while uptime()? < end {
        for _ in 0..100 {
            forger.send(&answer)?;
        }
        assert_eq!(state(&stage)?.0, "splitting");
    }
    let dropped = world.hb().sh("nft list chain inet late input")?;
    assert!(!dropped.contains("packets 0 "), "{dropped}");
    assert!(world.probe(Family::V4)?.1);
    stage.finish()
}

/// Whoever runs `pepd status` sees it first.
#[test]
fn the_command_names_the_cause_and_the_cure() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let socket = world.admin_socket();
    let config = format!("{}\n{}", World::config(), world.admin());
    let stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
    assert!(stage.world.probe(Family::V4)?.1);
    stage.world.hb().sh(Weather::InputPolicy.load())?;
    find_out(&stage.world, Family::V4)?;
    let mut said = String::new();
    wait_until(LIMIT, "the command says so", || {
        let mut command = Command::new(PEPD);
        command.arg("status").arg("--socket").arg(&socket);
        said = run(&mut command, LIMIT)
            .and_then(pepd_testbed::Finished::success)
            .unwrap_or_default();
        said.contains("SPLIT CONNECTIONS DO NOT COME THROUGH")
    })?;
    assert!(said.contains("ALARM:") && said.contains("cure:"), "{said}");
    stage.finish()
}
