//! `congestion = "fixed-rate"` and `"find-rate"`: the control is there with the daemon, carries every
//! byte over a path that loses a fifth, and is gone when the daemon is, however that ended.
//!
//! How fast it is, and how fairly flows share, is measured in virtual time: `pepd-lab`.

use std::fs;

use anyhow::Result;
use pepd_testbed::{Finished, Netns, World, require, run};

use crate::harness::{LIMIT, PEPD};

/// What is wrong without a rate is reported with its place.
#[test]
fn it_needs_a_rate() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let finished = pepd(
        world.hb(),
        "check",
        &config().replace("rate = \"20Mbit\"\n", ""),
    )?;
    assert_eq!(finished.status.code(), Some(78), "{finished:?}");
    let said = &finished.stderr;
    assert!(
        said.contains("pepd.toml:") && said.contains("needs a `rate`"),
        "{said}"
    );
    Ok(())
}

mod with {
    use std::time::Duration;

    use pepd_testbed::link::{Loss, Rate, Shape};
    use pepd_testbed::{Family, Nginx, Pepd, Stage, Via, wait_until};
    use rstest::rstest;

    use super::*;

    /// curl, nginx, and a path between them: the half on which pepd sends loses a fifth, both ways.
    #[rstest]
    fn a_transfer_over_a_path_that_loses_a_fifth(
        #[values(false, true)] upload: bool,
        #[values(FIXED, FIND)] control: &str,
    ) -> Result<()> {
        require!(root, program("curl"), program("nginx"), program("ss"));
        let world = lossy_path(upload)?;
        let server = World::server_address(Family::V4);
        let nginx = Nginx::start(world.server())?;
        let hb = world.hb();
        let config = if upload {
            control_of(control)
        } else {
            towards_the_client(control)
        };
        let mut daemon = Pepd::start(PEPD, hb, &config)?;
        let name = only(&registered(hb)?);

        let content: Vec<u8> = (0..1_500_000_u32).flat_map(u32::to_le_bytes).collect();
        nginx.put_file("down", &content)?;
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("content");
        fs::write(&file, &content)?;
        let client = world.client();
        let mut curl = client.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "600"]);
        if upload {
            curl.arg("--upload-file")
                .arg(&file)
                .arg(nginx.url(server, "up"));
        } else {
            curl.arg(nginx.url(server, "down"))
                .arg("--output")
                .arg(&file);
        }
        let seen = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| run(&mut curl, 5 * LIMIT)?.success());
            let mut legs = (String::new(), String::new());
            wait_until(LIMIT, "both legs in ss", || {
                let table = hb.sh("ss -tinOH state established").unwrap_or_default();
                let leg = |peer: &str| {
                    let line = table.lines().find(|line| {
                        line.split_whitespace()
                            .nth(3)
                            .is_some_and(|word| word.starts_with(peer))
                    });
                    line.unwrap_or_default().to_owned()
                };
                legs = (leg("10.1.0.2:"), leg("10.2.0.2:"));
                (!legs.0.is_empty() && !legs.1.is_empty()) || transfer.is_finished()
            })?;
            transfer.join().unwrap()?;
            anyhow::Ok(legs)
        })?;
        let (client_leg, far_leg) = seen;
        let has = |line: &str, wanted: &str| line.split_whitespace().any(|word| word == wanted);
        assert_eq!(has(&far_leg, &name), upload, "{far_leg}");
        assert_eq!(has(&client_leg, &name), !upload, "{client_leg}");
        let arrived = if upload {
            nginx.files().join("up")
        } else {
            file
        };
        assert!(fs::read(arrived)? == content, "other bytes than were sent");

        assert!(daemon.runs(), "{}", daemon.log());
        let (status, log) = daemon.stop()?;
        assert_eq!(status.code(), Some(0), "{log}");
        assert_eq!(registered(hb)?, Vec::<String>::new());
        Ok(())
    }

    /// All connections of a leg have its control, whoever opened them, and `pepd flows` calls it by
    /// the file's name for it.
    #[test]
    fn flows_shows_it_by_its_own_name() -> Result<()> {
        require!(root, program("nft"));
        let world = World::standard()?;
        let config = format!("{}{}", config(), world.admin());
        let stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
        let pairs = [Family::V4, Family::V6].map(|family| stage.world.pair(family).unwrap());
        for pair in &pairs {
            pair.exchange(100_000)?;
        }
        let mut said = String::new();
        wait_until(LIMIT, "fixed-rate in pepd flows", || {
            let daemon = stage.pepd.as_ref().unwrap();
            let mut flows = stage.world.hb().command(PEPD);
            flows
                .args(["flows", "--json", "-c"])
                .arg(daemon.config_file());
            let finished = run(&mut flows, LIMIT);
            said = finished.map(|finished| finished.stdout).unwrap_or_default();
            said.matches("fixed-rate").count() == 2
        })
        .inspect_err(|_| println!("{said}"))?;
        stage.finish()
    }

    /// Invariant 4, for the three ways to end.
    #[rstest]
    fn killed_and_started_again(
        #[values(true, false)] down: bool,
        #[values(FIXED, FIND)] control: &str,
    ) -> Result<()> {
        require!(root, program("nft"));
        let config = || control_of(control);
        let mut stage = Stage::with_config(PEPD, &config())?;
        let hb = stage.world.hb();
        let name = only(&registered(hb)?);
        stage.world.pair(Family::V4)?.exchange(10_000)?;
        stage.pepd.take().unwrap().kill()?;
        if down {
            let finished = pepd(hb, "down", &config())?;
            assert_eq!(finished.status.code(), Some(0), "{finished:?}");
        } else {
            let mut next = Pepd::start(PEPD, hb, &config())?;
            assert_eq!(only(&registered(hb)?), name);
            stage.world.pair(Family::V4)?.exchange(10_000)?;
            assert!(next.runs());
            let (status, log) = next.stop()?;
            assert_eq!(status.code(), Some(0), "{log}");
            assert!(!log.contains("serves on"), "adopted, not replaced: {log}");
        }
        assert_eq!(registered(hb)?, Vec::<String>::new());
        Ok(())
    }

    /// Each has a control of its own, and takes only that one along.
    #[test]
    fn two_daemons_on_a_host() -> Result<()> {
        require!(root, program("nft"));
        let mut one = Stage::with_config(PEPD, &config())?;
        let two = Stage::with_config(PEPD, &config())?;
        let [first, second] =
            [&one, &two].map(|stage| only(&registered(stage.world.hb()).unwrap()));
        assert_ne!(first, second);
        for stage in [&one, &two] {
            stage.world.pair(Family::V4)?.exchange(10_000)?;
        }
        one.pepd.take().unwrap().stop()?;
        assert_eq!(registered(one.world.hb())?, Vec::<String>::new());
        assert_eq!(only(&registered(two.world.hb())?), second);
        two.world.pair(Family::V4)?.exchange(10_000)?;
        two.finish()
    }

    /// A reload may change the rate, and take the control from a leg; another leg's takes
    /// privileges that are gone.
    #[test]
    fn a_reload_cannot_add_it_to_another_leg() -> Result<()> {
        require!(root, program("nft"));
        let mut stage = Stage::with_config(PEPD, &config())?;
        let daemon = stage.pepd()?;
        daemon.reload(&config().replace("20Mbit", "30Mbit"))?;
        let both = config().replace(
            "congestion = \"reno\"",
            "congestion = \"fixed-rate\"\nrate = \"1Gbit\"",
        );
        daemon.reload(&both)?;
        // The log is written by a thread of its own.
        wait_until(LIMIT, "the refusal in the log", || {
            let log = daemon.log();
            log.contains("leg \"lan\"") && log.contains("restart pepd")
        })?;
        assert_eq!(daemon.log().matches("reload refused").count(), 1);
        let pair = stage.world.pair(Family::V4)?;
        pair.exchange(10_000)?;
        let table = stage.world.hb().sh("ss -tinOH state established")?;
        assert!(table.contains("/30000000bps"), "{table}");
        let daemon = stage.pepd()?;
        daemon.reload(&config())?;
        daemon.reload(&control_of(FIND))?;
        wait_until(LIMIT, "another refusal in the log", || {
            daemon.log().matches("restart pepd").count() == 2
        })?;
        stage.finish()
    }

    /// Without the capabilities it says which are missing; nothing is left.
    #[test]
    fn without_the_capabilities_it_does_not_start() -> Result<()> {
        require!(root, program("setpriv"), program("nft"));
        let stage = Stage::open(Via::Routing, PEPD)?;
        let before = tables_and_rules(stage.world.hb())?;
        let keep = "-all,+net_admin,+net_raw,+net_bind_service,+setuid,+setgid";
        let (status, log) = Pepd::builder(PEPD)
            .wrapper(&["setpriv", "--bounding-set", keep, "--inh-caps", keep])
            .fails(stage.world.hb(), &config())?;
        assert_eq!(status.code(), Some(77), "{log}");
        assert!(
            log.contains("CAP_BPF") && log.contains("congestion = \"bbr\""),
            "{log}"
        );
        assert_eq!(tables_and_rules(stage.world.hb())?, before);
        Ok(())
    }

    /// With what an unprivileged service is given, and the control goes with it even so.
    #[rstest]
    fn with_the_capabilities_alone(#[values(FIXED, FIND)] control: &str) -> Result<()> {
        require!(root, program("setpriv"), program("nft"));
        let config = || control_of(control);
        let stage = Stage::open(Via::Routing, PEPD)?;
        let hb = stage.world.hb();
        let keep = "-all,+net_admin,+net_raw,+net_bind_service,+setuid,+setgid,+bpf,+perfmon";
        let daemon = Pepd::builder(PEPD)
            .wrapper(&["setpriv", "--bounding-set", keep, "--inh-caps", keep])
            .start(hb, &config())?;
        assert_eq!(registered(hb)?.len(), 1);
        stage.world.pair(Family::V4)?.exchange(10_000)?;
        let (status, log) = daemon.stop()?;
        assert_eq!(status.code(), Some(0), "{log}");
        assert_eq!(registered(hb)?, Vec::<String>::new());
        Ok(())
    }

    /// A killed service without CAP_SYS_ADMIN, started again: where its control goes with the
    /// process it is a new one, and on kernels before 6.4 the old one, or one beside it where the rate is
    /// found. `down` removes what is left.
    #[rstest]
    fn a_killed_service_starts_again(#[values(FIXED, FIND)] control: &str) -> Result<()> {
        require!(root, program("setpriv"), program("nft"));
        let config = || control_of(control);
        let mut stage = Stage::open(Via::Routing, PEPD)?;
        let keep = "-all,+net_admin,+net_raw,+net_bind_service,+setuid,+setgid,+bpf,+perfmon";
        let start = |netns: &Netns| {
            Pepd::builder(PEPD)
                .wrapper(&["setpriv", "--bounding-set", keep, "--inh-caps", keep])
                .start(netns, &config())
        };
        let adopts = control == FIXED;
        start(stage.world.hb())?.kill()?;
        let left = registered(stage.world.hb())?;
        stage.pepd = Some(start(stage.world.hb())?);
        let hb = stage.world.hb();
        let beside = if adopts { 0 } else { left.len() };
        assert_eq!(registered(hb)?.len(), 1 + beside);
        stage.world.pair(Family::V4)?.exchange(10_000)?;
        let (status, log) = stage.pepd.take().unwrap().stop()?;
        assert_eq!(status.code(), Some(0), "{log}");
        assert_eq!(
            log.contains("serves on"),
            adopts && !left.is_empty(),
            "{log}"
        );
        assert_eq!(registered(hb)?, left);
        let finished = pepd(hb, "down", &config())?;
        assert_eq!(finished.status.code(), Some(0), "{finished:?}");
        for name in &left {
            let line = format!("removed congestion control {name}");
            assert!(finished.stdout.contains(&line), "{finished:?}");
        }
        assert_eq!(registered(hb)?, Vec::<String>::new());
        Ok(())
    }

    #[test]
    fn the_doctor_tries_it_and_leaves_nothing() -> Result<()> {
        require!(root);
        let world = World::standard()?;
        let finished = pepd(world.hb(), "doctor", &config())?;
        assert!(
            finished.stdout.contains("this kernel takes the program"),
            "{finished:?}"
        );
        assert_eq!(registered(world.hb())?, Vec::<String>::new());
        Ok(())
    }

    /// One half with losses.
    fn lossy_path(to_server: bool) -> Result<World> {
        let clean = Shape::new(Duration::from_millis(10), Rate::mbit(40));
        let lossy = Shape {
            loss: Loss::independent(0.2),
            ..Shape::new(Duration::from_millis(5), Rate::mbit(20))
        };
        match to_server {
            true => World::emulated(clean, lossy),
            false => World::emulated(lossy, clean),
        }
    }

    /// As [`control_of`], for the other leg.
    fn towards_the_client(lines: &str) -> String {
        World::config().replace("congestion = \"reno\"\n", lines)
    }

    /// Returns the controls that are registered for the daemon in `netns`, whose inode their names
    /// have.
    fn registered(netns: &Netns) -> Result<Vec<String>> {
        let inode = netns.sh("stat --dereference --format %i /proc/self/ns/net")?;
        let prefix = format!("pepd{:x}", inode.trim().parse::<u32>()?);
        // Before the number of the leg; no hexadecimal digit.
        let is_separator = |it: char| it == '_' || ('g'..='z').contains(&it);
        let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let names = fs::read_to_string(path)?;
        let names = names.split_whitespace().filter(|name| {
            name.strip_prefix(&prefix)
                .is_some_and(|it| it.starts_with(is_separator))
        });
        Ok(names.map(str::to_owned).collect())
    }

    fn only(names: &[String]) -> String {
        let [name] = names else {
            panic!("one control expected: {names:?}")
        };
        name.clone()
    }
}

/// Returns the standard configuration, with a fixed rate to the server.
fn config() -> String {
    control_of(FIXED)
}

/// The lines that give a leg such a control.
const FIXED: &str = "congestion = \"fixed-rate\"\nrate = \"20Mbit\"\n";
pub(super) const FIND: &str = "congestion = \"find-rate\"\n";

/// Returns the standard configuration, with such lines for the leg to the server.
pub(super) fn control_of(lines: &str) -> String {
    World::config().replace("congestion = \"cubic\"\n", lines)
}

/// Returns what pepd would leave. (Routes come by themselves while addresses are new.)
fn tables_and_rules(netns: &Netns) -> Result<String> {
    netns.sh("nft list ruleset; ip -4 rule; ip -6 rule")
}

/// Runs a subcommand with a configuration file.
fn pepd(netns: &Netns, subcommand: &str, config: &str) -> Result<Finished> {
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("pepd.toml");
    fs::write(&file, config)?;
    run(
        netns.command(PEPD).args([subcommand, "-c"]).arg(file),
        LIMIT,
    )
}
