//! Starting, draining, ending, being killed, being paused: what happens to existing connections, to
//! new ones, and to the kernel's state.

use std::fs;
use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{End, Pair, Pattern, accept, await_event, connect, listen, receive};
use pepd_testbed::{Family, Pepd, Stage, Via, World, install, require, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

/// CAP_NET_BIND_SERVICE and CAP_NET_ADMIN (capabilities(7)): what the daemon may keep.
const MAY_KEEP: u64 = 1 << 10 | 1 << 12;

/// State of an operator's own, some of it close to pepd's.
const OPERATOR: &str = "
    nft add table inet operator
    nft 'add chain inet operator prerouting { type filter hook prerouting priority mangle; }'
    nft 'add rule inet operator prerouting tcp dport 9999 meta mark set meta mark or 0x1'
    nft add table netdev pepd
    nft add table ip pepd-operator
    for family in -4 -6; do
        ip $family rule add fwmark 0x1/0xff lookup 100 priority 1000
        ip $family route add unreachable default table 100
    done
    ip route add local 127.99.0.0/16 dev lo table 100
";

#[test]
fn sigterm_leaves_everything_as_it_was() -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    stage.world.hb().sh(OPERATOR)?;
    let before = stage.world.kernel_state()?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &World::config())?);
    assert_ne!(stage.world.kernel_state()?, before);
    for family in Family::BOTH {
        stage.world.pair(family)?.exchange(1000)?;
    }
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(stage.world.kernel_state()?, before, "{log}");
    for family in Family::BOTH {
        assert!(!stage.world.probe(family)?.1, "{family} still split");
    }
    Ok(())
}

#[test]
fn down_removes_what_a_crash_left_and_nothing_else() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    world.hb().sh(OPERATOR)?;
    let before = world.kernel_state()?;
    Pepd::start(PEPD, world.hb(), &World::config())?.kill()?;
    assert_ne!(
        world.kernel_state()?,
        before,
        "a killed daemon leaves its state"
    );
    let said = down(&world)?;
    assert!(said.contains("removed nft table inet pepd"), "{said}");
    assert_eq!(world.kernel_state()?, before);
    // A second time there is nothing to do, and that is no error.
    assert_eq!(down(&world)?, "nothing of pepd's is here\n");
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

#[test]
fn down_refuses_while_the_daemon_runs() -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let before = stage.world.steady_state()?;
    let hb = stage.world.hb();
    let refused = stage.pepd.as_ref().unwrap().subcommand(hb, "down")?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        refused.stderr.contains("runs already"),
        "{}",
        refused.stderr
    );
    assert_eq!(stage.world.steady_state()?, before);
    assert!(stage.world.probe(Family::V4)?.1);
    assert!(stage.pepd()?.runs());
    stage.finish()
}

#[rstest]
fn a_killed_daemon_leaves_new_connections_to_routing_and_the_next_one_adopts(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let before = stage.world.kernel_state()?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &World::config())?);
    let (old, split) = stage.world.probe(family)?;
    assert!(split);
    old.exchange(1000)?;
    stage.pepd.take().unwrap().kill()?;
    // At once, not after a time.
    let (routed, split) = stage.world.probe(family)?;
    assert!(!split);
    routed.exchange(100_000)?;

    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &World::config())?);
    routed.exchange(100_000)?;
    let (new, split) = stage.world.probe(family)?;
    assert!(
        split,
        "the daemon that was started after the crash splits nothing"
    );
    new.exchange(100_000)?;
    drop((old, routed, new));
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(stage.world.kernel_state()?, before, "{log}");
    Ok(())
}

/// Both ends of a connection that was split by a daemon that is killed learn of it.
#[rstest]
fn a_killed_daemon_does_not_leave_its_connections_hanging(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let Pair { client, mut server } = stage.world.pair(family)?;
    // A byte unread in the daemon, or on the way there, cannot be told from one that never came; so
    // there is none.
    stage.pepd.take().unwrap().kill()?;
    let (bytes, _) = receive(&client, &Pattern::new(0), 0)?;
    assert_eq!(bytes, 0);
    wait_until(LIMIT, "the server's writes fail", || {
        server.write(&[0; 1000]).is_err()
    })
}

#[rstest]
fn a_paused_daemon_leaves_new_connections_to_routing(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let (live, split) = stage.world.probe(family)?;
    assert!(split);
    let pepd = stage.pepd.as_ref().unwrap();
    pepd.pause()?;
    let server = SocketAddr::new(World::server_address(family), 0);
    let listener = listen(stage.world.server(), server)?;
    // Until the gate expires, new connections still wait in the paused daemon's backlog: the
    // clients' side of them is up, and the server does not hear of them.
    let mut waiting = Vec::new();
    let routed = loop {
        ensure!(waiting.len() < 100, "no connection is routed");
        let client = connect(stage.world.client(), listener.local_addr()?)?;
        if await_event(&listener, PollFlags::POLLIN, Duration::from_secs(1))? {
            break client;
        }
        waiting.push(client);
    };
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, routed.local_addr()?);
    Pair {
        client: routed,
        server,
    }
    .exchange(10_000)?;
    pepd.resume()?;
    live.exchange(10_000)?;
    // What had waited is served now.
    for client in waiting {
        let (server, _) = accept(&listener)?;
        drop((client, server));
    }
    wait_until(LIMIT, "new connections are split again", || {
        stage.world.probe(family).unwrap().1
    })?;
    stage.finish()
}

#[test]
fn starting_twice_is_an_error_and_disturbs_nothing() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let (live, _) = stage.world.probe(Family::V4)?;
    let before = stage.world.steady_state()?;
    let (status, log) = Pepd::builder(PEPD).fails(stage.world.hb(), &World::config())?;
    assert_eq!(status.code(), Some(75));
    assert!(log.contains("runs already"), "{log}");
    let pid = stage.pepd()?.process().pid().to_string();
    assert!(log.contains(&pid), "{log} does not name process {pid}");
    assert_eq!(stage.world.steady_state()?, before);
    live.exchange(10_000)?;
    assert!(stage.world.probe(Family::V6)?.1);
    stage.finish()
}

#[test]
fn privileges_that_are_not_needed_are_given_up() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(Family::V4)?.exchange(10_000)?;
    let pid = stage.pepd()?.daemon()?;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap();
            line.trim_start_matches(':').trim().to_owned()
        };
        for set in ["CapEff", "CapPrm", "CapBnd", "CapAmb"] {
            let held = u64::from_str_radix(&field(set), 16)?;
            assert_eq!(held & !MAY_KEEP, 0, "{set} {held:x}");
        }
        assert_eq!(field("NoNewPrivs"), "1");
    }
    stage.finish()
}

#[test]
fn the_service_manager_is_told_how_it_stands() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(Family::V6)?;
    let pepd = stage.pepd()?;
    // More than once: it goes on.
    pepd.says("WATCHDOG=1")?;
    pepd.says("WATCHDOG=1")?;
    pepd.reload(&World::config())?;
    let mut pepd = stage.pepd.take().unwrap();
    pepd.signal(Signal::SIGTERM)?;
    pepd.says("STOPPING=1")?;
    assert!(pepd.wait()?.0.success());
    Ok(())
}

#[rstest]
fn connections_older_than_the_daemon_go_on(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let old = stage.world.pair(family)?;
    old.exchange(100_000)?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &World::config())?);
    old.exchange(100_000)?;
    let (new, split) = stage.world.probe(family)?;
    assert!(split);
    new.exchange(100_000)?;
    old.exchange(100_000)?;
    drop(new);
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert!(status.success(), "{log}");
    old.exchange(100_000)?;
    old.client.shutdown(Shutdown::Write)?;
    assert_eq!(receive(&old.server, &Pattern::new(0), 0)?, (0, End::Fin));
    Ok(())
}

#[rstest]
fn sigterm_lets_live_connections_finish(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", "drain = \"10min\"");
    let mut stage = Stage::with_config(PEPD, &config)?;
    let live = stage.world.pair(family)?;
    live.exchange(10_000)?;
    let pepd = stage.pepd.take().unwrap();
    pepd.signal(Signal::SIGTERM)?;
    wait_until(LIMIT, "new connections are routed", || {
        !stage.world.probe(family).unwrap().1
    })?;
    live.exchange(100_000)?;
    live.client.shutdown(Shutdown::Write)?;
    assert_eq!(receive(&live.server, &Pattern::new(0), 0)?, (0, End::Fin));
    drop(live);
    // Long before the ten minutes are over.
    let (status, log) = pepd.wait()?;
    assert_eq!(status.code(), Some(0), "{log}");
    Ok(())
}

#[rstest]
#[case::the_drain_time_is_over("1s", 1)]
#[case::a_second_sigterm("10min", 2)]
fn the_end_does_not_wait_for_ever(#[case] drain: &str, #[case] signals: usize) -> Result<()> {
    require!(root);
    let config = World::config().replace("drain = \"5s\"", &format!("drain = \"{drain}\""));
    let mut stage = Stage::open(Via::Routing, PEPD)?;
    let before = stage.world.kernel_state()?;
    stage.pepd = Some(Pepd::start(PEPD, stage.world.hb(), &config)?);
    let live = stage.world.pair(Family::V4)?;
    let pepd = stage.pepd.take().unwrap();
    for count in 1..=signals {
        pepd.signal(Signal::SIGTERM)?;
        if count < signals {
            wait_until(LIMIT, "the first SIGTERM has been heard", || {
                pepd.log().contains("ending")
            })?;
        }
    }
    let (status, log) = pepd.wait()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(stage.world.kernel_state()?, before, "{log}");
    // Cut off in the middle is an error at both ends, never a clean FIN.
    for end in [&live.client, &live.server] {
        assert_eq!(receive(end, &Pattern::new(0), 0)?, (0, End::RESET));
    }
    Ok(())
}

/// Gives what it says.
fn down(world: &World) -> Result<String> {
    let directory = tempfile::TempDir::new()?;
    let file = directory.path().join("pepd.toml");
    fs::write(&file, World::config())?;
    let mut command = world.hb().command(PEPD);
    pepd_testbed::run(command.args(["down", "-c"]).arg(&file), LIMIT)?.success()
}

/// An operator's ruleset may be so large, or a host so slow, that a look at the kernel state takes
/// longer than the gate stays open by itself.
#[test]
fn a_slow_look_at_the_kernel_state_leaves_the_gate_open() -> Result<()> {
    require!(root, program("nft"));
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let slow = path("slow");
    let real = std::env::var("PATH")?;
    fs::write(
        path("script"),
        format!(
            "#!/bin/sh\nPATH={real}\n\
             while [ -e {slow} ]; do sleep 0.1; done\n\
             exec nft \"$@\"\n"
        ),
    )?;
    install(path("script").as_ref(), path("nft").as_ref())?;
    let world = World::standard()?;
    let search = format!("PATH={}:{real}", folder.path().display());
    let mut pepd = Pepd::builder(PEPD)
        .wrapper(&["env", &search])
        .start(world.hb(), &World::config())?;

    fs::write(&slow, "")?;
    // The daemon may not write anything that would say so.
    let nft = path("nft");
    wait_until(LIMIT, "it looks at the kernel state", || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut words = processes.map(|process| fs::read(process.path().join("cmdline")));
        let is_nft = |words: Vec<u8>| words.split(|byte| *byte == 0).any(|w| w == nft.as_bytes());
        words.any(|words| words.is_ok_and(is_nft))
    })?;
    // Without renewals it goes after five seconds; every other one is of another set.
    let (mut renewals, mut left) = (0, Duration::MAX);
    wait_until(LIMIT, "the gate is renewed, or gone", || {
        let now = gate_expires(&world);
        renewals += u32::from(now.is_some_and(|now| now > left));
        left = now.unwrap_or_default();
        renewals >= 4 || now.is_none()
    })?;
    assert!(
        gate_expires(&world).is_some(),
        "closed; {renewals} renewals"
    );
    assert!(world.probe(Family::V4)?.1);
    fs::remove_file(&slow)?;
    ensure!(pepd.runs(), "{}", pepd.log());
    Ok(())
}

/// Returns the time until the gate closes by itself; none if it is closed.
fn gate_expires(world: &World) -> Option<Duration> {
    let set = world.hb().sh("nft list set inet pepd gate").unwrap();
    let (_, text) = set.split_once("expires ")?;
    let text = text.split_whitespace().next()?;
    Some(humantime::parse_duration(text).unwrap())
}
