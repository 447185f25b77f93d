//! `pepd doctor`: what is wrong is found, and the command that it prints puts it right.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pepd_testbed::{Family, Finished, Netns, Pepd, World, require, run, traffic, wait_until};
use rstest::rstest;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// What the doctor said.
struct Said {
    code: Option<i32>,
    report: Value,
}

impl Said {
    /// Returns the finding with this id, of this subject if one is given.
    fn finding(&self, id: &str, subject: Option<&str>) -> Option<&Value> {
        self.report["findings"].as_array()?.iter().find(|finding| {
            finding["id"] == id && subject.is_none_or(|subject| finding["subject"] == subject)
        })
    }

    fn level(&self, id: &str, subject: Option<&str>) -> Option<&str> {
        self.finding(id, subject)?["level"].as_str()
    }
}

fn doctor(netns: &Netns, config: &str, arguments: &[&str]) -> Result<Finished> {
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, config)?;
    let mut command = netns.command(PEPD);
    command.args(["doctor", "-c"]).arg(&file).args(arguments);
    run(&mut command, LIMIT)
}

fn ask(netns: &Netns, config: &str) -> Result<Said> {
    let finished = doctor(netns, config, &["--json"])?;
    let report = serde_json::from_str(&finished.stdout).with_context(|| format!("{finished:?}"))?;
    Ok(Said {
        code: finished.status.code(),
        report,
    })
}

/// A router on which nothing would stop pepd: exit 0, and nothing is touched.
#[test]
fn a_router_that_is_right_has_no_stop() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let said = ask(world.hb(), &World::config())?;
    assert_eq!(said.code, Some(0), "{}", said.report);
    assert_eq!(said.report["schema"], 1);
    assert_eq!(said.report["node"], "hb");
    for id in [
        "nft",
        "port",
        "forwarding.ipv4",
        "forwarding.ipv6",
        "src-valid-mark",
        "route",
    ] {
        assert_eq!(said.level(id, None), Some("ok"), "{id} in {}", said.report);
    }
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

/// Each is made wrong, found with its level, and gone once the printed command has run.
#[rstest]
#[case::forwarding("sysctl -w net.ipv4.ip_forward=0", "forwarding.ipv4", None, "stop")]
#[case::forwarding_6(
    "sysctl -w net.ipv6.conf.all.forwarding=0",
    "forwarding.ipv6",
    None,
    "stop"
)]
#[case::forwarding_of_one(
    "sysctl -w net.ipv4.conf.to-server.forwarding=0",
    "forwarding.interface",
    Some("to-server"),
    "stop"
)]
#[case::valid_mark(
    "sysctl -w net.ipv4.conf.all.src_valid_mark=1",
    "src-valid-mark",
    Some("all"),
    "stop"
)]
#[case::valid_mark_of_one(
    "sysctl -w net.ipv4.conf.to-client.src_valid_mark=1",
    "src-valid-mark",
    Some("to-client"),
    "stop"
)]
#[case::valid_mark_to_come(
    "sysctl -w net.ipv4.conf.default.src_valid_mark=1",
    "src-valid-mark",
    Some("default"),
    "note"
)]
#[case::strict(
    "sysctl -w net.ipv4.conf.to-server.rp_filter=1",
    "rp-filter",
    Some("to-server"),
    "note"
)]
#[case::receive_buffer(
    "sysctl -w net.ipv4.tcp_rmem='4096 65536 131072'",
    "buffer.receive",
    Some("leg wan"),
    "slow"
)]
#[case::send_buffer(
    "sysctl -w net.ipv4.tcp_wmem='4096 16384 131072'",
    "buffer.send",
    Some("leg lan"),
    "slow"
)]
#[case::autotuning(
    "sysctl -w net.ipv4.tcp_moderate_rcvbuf=0",
    "buffer.autotuning",
    Some("leg lan"),
    "slow"
)]
#[case::window_scaling(
    "sysctl -w net.ipv4.tcp_window_scaling=0",
    "tcp.window-scaling",
    None,
    "slow"
)]
#[case::sack("sysctl -w net.ipv4.tcp_sack=0", "tcp.sack", None, "slow")]
#[case::timestamps("sysctl -w net.ipv4.tcp_timestamps=0", "tcp.timestamps", None, "slow")]
#[case::accept_queue("sysctl -w net.core.somaxconn=128", "tcp.accept-queue", None, "slow")]
#[case::syn_queue(
    "sysctl -w net.ipv4.tcp_max_syn_backlog=64",
    "tcp.syn-queue",
    None,
    "note"
)]
#[case::idle(
    "sysctl -w net.ipv4.tcp_slow_start_after_idle=1",
    "tcp.idle",
    None,
    "note"
)]
#[case::fast_open("sysctl -w net.ipv4.tcp_fastopen=1", "tcp.fast-open", None, "slow")]
#[case::ipv6_too_small("ip link set to-server mtu 1200", "mtu", Some("to-server"), "stop")]
#[case::segmentation(
    "ethtool -K to-server gro on gso off",
    "offload.segments",
    Some("to-server"),
    "slow"
)]
#[case::an_input_policy(
    "nft add table inet filter; \
     nft add chain inet filter input '{ type filter hook input priority 0; policy drop; }'",
    "firewall.input",
    None,
    "stop"
)]
fn what_is_wrong_is_found_and_the_cure_cures(
    #[case] wrong: &str,
    #[case] id: &str,
    #[case] subject: Option<&str>,
    #[case] level: &str,
) -> Result<()> {
    require!(root, program("nft"), program("sysctl"), program("ethtool"));
    let world = World::standard()?;
    let config = World::config().replace("[leg.wan]", "[leg.wan]\nfast_open = true");
    world.hb().sh("sysctl -w net.ipv4.tcp_fastopen=3")?;
    world.hb().sh(wrong)?;
    let said = ask(world.hb(), &config)?;
    assert_eq!(said.level(id, subject), Some(level), "{}", said.report);
    assert_eq!(
        said.code,
        Some(i32::from(level == "stop")),
        "{}",
        said.report
    );
    let cure = said.finding(id, subject).unwrap()["cure"].clone();
    world.hb().sh(cure.as_str().context("no command")?)?;
    let said = ask(world.hb(), &config)?;
    assert!(
        matches!(said.level(id, subject), None | Some("ok")),
        "{cure} did not help: {}",
        said.report
    );
    Ok(())
}

#[test]
fn an_interface_without_a_carrier_is_named() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    world.server().sh("ip link set to-hb down")?;
    let named = |said: &Said| said.level("interface", Some("to-server")) == Some("note");
    // The kernel tells of a carrier in its own time.
    wait_until(LIMIT, "the carrier is lost", || {
        ask(world.hb(), &World::config()).is_ok_and(|said| named(&said))
    })
}

#[test]
fn another_transparent_proxy_is_named() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    world.hb().sh("nft add table ip other; \
         nft add chain ip other divert '{ type filter hook prerouting priority -150; }'; \
         nft add rule ip other divert tcp dport 80 tproxy to :3129")?;
    let said = ask(world.hb(), &World::config())?;
    let finding = said.finding("firewall.proxy", None).context("no finding")?;
    assert!(
        finding["found"].to_string().contains("ip other divert"),
        "{finding}"
    );
    Ok(())
}

/// What `run` refuses, the doctor finds, and the other way round.
#[rstest]
#[case::valid_mark("sysctl -w net.ipv4.conf.all.src_valid_mark=1", "", "src-valid-mark")]
#[case::somebody_elses_rule("ip rule add fwmark 0x70000000/0x70000000 lookup 99", "", "routing")]
#[case::somebody_elses_routes("ip route add 10.7.0.0/16 dev lo table 7300", "", "routing")]
#[case::a_congestion_control_that_is_not_there("true", "nonesuch", "congestion")]
fn what_stops_run_is_a_stop(
    #[case] wrong: &str,
    #[case] congestion: &str,
    #[case] id: &str,
) -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    world.hb().sh(wrong)?;
    let mut config = World::config();
    if !congestion.is_empty() {
        config = config.replace("\"cubic\"", &format!("\"{congestion}\""));
    }
    let said = ask(world.hb(), &config)?;
    assert_eq!(said.code, Some(1), "{}", said.report);
    let stops: Vec<_> = said.report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["level"] == "stop")
        .collect();
    assert_eq!(stops.len(), 1, "{stops:?}");
    assert_eq!(stops[0]["id"], id);
    let (status, log) = Pepd::builder(PEPD).fails(world.hb(), &config)?;
    assert_eq!(status.code(), Some(69), "{log}");
    Ok(())
}

#[test]
fn a_port_that_is_taken_is_a_stop_but_not_by_pepd_itself() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let taken = traffic::listen(world.hb(), Family::V6.any(7300))?;
    let said = ask(world.hb(), &World::config())?;
    assert_eq!(said.level("port", None), Some("stop"), "{}", said.report);
    drop(taken);
    // What another test is about to execute may have the socket for a moment yet.
    let mut pepd = Err(anyhow::anyhow!("not tried"));
    wait_until(LIMIT, "the port is free", || {
        pepd = Pepd::start(PEPD, world.hb(), &World::config());
        pepd.is_ok()
    })?;
    let pepd = pepd?;
    let finished = pepd.subcommand(world.hb(), "doctor")?;
    ensure!(finished.status.code() == Some(0), "{finished:?}");
    ensure!(finished.stdout.contains("a pepd runs here"), "{finished:?}");
    // It has changed nothing that the daemon looks after.
    let (pair, split) = world.probe(Family::V4)?;
    pair.exchange(1000)?;
    assert!(split);
    pepd.stop()?;
    Ok(())
}

#[test]
fn without_cap_net_admin_it_says_so() -> Result<()> {
    require!(root, program("setpriv"));
    let world = World::standard()?;
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, World::config())?;
    let mut command = world.hb().command("setpriv");
    command
        .args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", PEPD])
        .args(["doctor", "-c"])
        .arg(&file);
    let finished = run(&mut command, LIMIT)?;
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert!(
        finished.stdout.contains("CAP_NET_ADMIN is missing"),
        "{finished:?}"
    );
    // A module is not what it lacks.
    assert!(!finished.stdout.contains("modprobe"), "{finished:?}");
    Ok(())
}

#[test]
fn without_nft_it_names_the_package() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let directory = TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, World::config())?;
    // `ip netns exec` has given it a mount namespace of its own.
    let hide = "mount -t tmpfs none /usr/sbin && mount -t tmpfs none /usr/local && exec \"$@\"";
    let mut command = world.hb().command("sh");
    command
        .args(["-c", hide, "sh", PEPD, "doctor", "--json", "-c"])
        .arg(&file);
    let finished = run(&mut command, LIMIT)?;
    let report: Value = serde_json::from_str(&finished.stdout)?;
    let said = Said {
        code: finished.status.code(),
        report,
    };
    assert_eq!(said.code, Some(1));
    let nft = said.finding("nft", None).unwrap();
    assert_eq!(nft["cure"], "apt-get install nftables", "{nft}");
    assert!(said.finding("hold", None).is_none(), "it asks nft");
    Ok(())
}

/// The text is for a terminal 80 columns wide; commands are not broken.
#[test]
fn the_text_fits_a_terminal() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    world.hb().sh("sysctl -w net.ipv4.ip_forward=0")?;
    let finished = doctor(world.hb(), &World::config(), &[])?;
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert!(
        finished
            .stdout
            .contains("Cure: sysctl -w net.ipv4.ip_forward=1"),
        "{finished:?}"
    );
    assert!(!finished.stdout.contains('\u{1b}'), "{finished:?}");
    for line in finished.stdout.lines() {
        assert!(
            line.contains("Cure: ") || line.chars().count() <= 80,
            "{line}"
        );
    }
    Ok(())
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() -> Result<()> {
    let script = format!("{PEPD} doctor -c config/gateway.toml | head -c 10 >/dev/null");
    let finished = run(Command::new("sh").args(["-c", &script]), LIMIT)?;
    assert_eq!(finished.stderr, "", "{finished:?}");
    Ok(())
}
