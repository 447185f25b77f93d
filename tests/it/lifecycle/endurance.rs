//! What happens to the box, not to a connection: kernel state that somebody removes, a pool
//! without pipes, a daemon that is not root, and the systemd unit.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use anyhow::{Context, Result, ensure};
use pepd_testbed::{
    Family, Pepd, Process, Stage, Via, World, established, install, require, run, wait_until,
};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

/// A reload of the operator's firewall begins with `nft flush ruleset`; systemd-networkd
/// removes rules that it does not know. Live connections and new ones survive both.
#[rstest]
#[case::the_table("nft flush ruleset")]
#[case::the_rules("ip -4 rule del pref 73; ip -6 rule del pref 73")]
#[case::the_routes("ip -4 route flush table 7300; ip -6 route flush table 7300")]
fn kernel_state_that_somebody_removed_is_put_back(
    #[case] removal: &str,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let live = stage.world.pair(family)?;
    live.exchange(1000)?;
    stage.world.hb().sh(removal)?;
    let pepd = stage.pepd()?;
    wait_until(LIMIT, "the state is back", || {
        pepd.log().contains("it is there again")
    })?;
    live.exchange(100_000)?;
    let (new, split) = stage.world.probe(family)?;
    assert!(split, "new connections are split again");
    new.exchange(1000)?;
    stage.finish()
}

/// More workers than the descriptors allow pipes: every byte is copied, and arrives.
#[rstest]
fn without_pipes_everything_is_copied_and_arrives(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("prlimit"));
    let config = World::early_config().replacen("[node]", "[node]\nworkers = 20", 1);
    let world = World::standard()?;
    // src/daemon/resources.rs: 64 are the process's own. Each of the 20 workers has 6, and two
    // listeners for each of two legs, four times (`LISTENER_SETS`): 22. That leaves 600 - 64 - 440 =
    // 96: 16 pipes, which is fewer than workers, and 32 connections.
    let pepd = Pepd::builder(PEPD)
        .wrapper(&["prlimit", "--nofile=600:600"])
        .start(world.hb(), &config)?;
    let pairs: Vec<_> = (0..4).map(|_| world.pair(family)).collect::<Result<_>>()?;
    std::thread::scope(|scope| {
        let flows: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| pair.exchange(3_000_000)))
            .collect();
        flows.into_iter().try_for_each(|flow| flow.join().unwrap())
    })?;
    let pipes = fs::read_dir(format!("/proc/{}/fd", pepd.daemon()?))?
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("pipe:"))
        .count();
    assert_eq!(established(world.hb())?, 8, "each of the four is split");
    // Standard output and standard error may be pipes.
    assert!(
        pipes <= 2,
        "{pipes} pipe ends: the test did not test copying"
    );
    pepd.stop()?;
    Ok(())
}

/// As under `config/pepd.service`: never root, three capabilities, and all else given up.
#[rstest]
fn a_user_with_two_capabilities_can_run_it(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("setpriv"));
    let world = World::standard()?;
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    chown(directory.path(), Some(65534), Some(65534))?;
    let file = directory.path().join("pepd.toml");
    let socket = directory.path().join("admin.sock");
    let admin = format!("[admin]\nsocket = \"{}\"\n", socket.display());
    fs::write(&file, World::config() + &admin)?;
    let binary = directory.path().join("pepd");
    install(PEPD.as_ref(), &binary)?;
    let kept = "-all,+net_admin,+net_bind_service";
    let mut command = world.hb().command("setpriv");
    command
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--no-new-privs",
        ])
        .args([
            format!("--inh-caps={kept}"),
            format!("--ambient-caps={kept}"),
        ])
        .arg(format!("--bounding-set={kept}"))
        .arg(&binary)
        .args(["run", "-c"])
        .arg(&file)
        .env("RUNTIME_DIRECTORY", directory.path());
    let mut pepd = Process::spawn(&mut command)?;
    wait_until(LIMIT, "the gate is open", || {
        pepd.log().contains("new connections are split")
    })?;
    let (pair, split) = world.probe(family)?;
    assert!(split);
    pair.exchange(100_000)?;
    // And root has it replaced.
    let mut upgrade = std::process::Command::new(&binary);
    upgrade.args(["upgrade", "--socket"]).arg(&socket);
    let said = run(&mut upgrade, LIMIT)?.success()?;
    ensure!(said.contains("upgraded: 1 connections went on"), "{said}");
    pair.exchange(100_000)?;
    pepd.signal(nix::sys::signal::Signal::SIGTERM)?;
    assert!(pepd.wait(LIMIT)?.success(), "{}", pepd.log());
    assert!(!world.kernel_state()?.contains("pepd"), "it cleaned up");
    Ok(())
}

/// The daemon keeps what it needs of root's capabilities and nothing else.
#[test]
fn root_gives_up_what_it_does_not_need() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(Family::V4)?.exchange(10)?;
    let pid = stage.pepd()?.daemon()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).context("no such field")
    };
    // CAP_NET_BIND_SERVICE is 10, CAP_NET_ADMIN 12 (linux/capability.h).
    let allowed = 1 << 10 | 1 << 12;
    for set in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:", "CapBnd:"] {
        let held = u64::from_str_radix(field(set)?, 16)?;
        assert_eq!(held & !allowed, 0, "{set} {held:x}");
        assert_ne!(held & 1 << 12, 0, "{set} {held:x}");
    }
    assert_eq!(field("NoNewPrivs:")?, "1");
    stage.finish()
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() -> Result<()> {
    require!(program("systemd-analyze"));
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/config/pepd.service");
    let mut command = std::process::Command::new("systemd-analyze");
    let verified = run(command.args(["verify", unit]), LIMIT)?;
    let said = verified.stderr.clone();
    verified.success()?;
    assert_eq!(said, "", "a warning is a mistake, too");
    Ok(())
}

/// The unit's command lines are ones that the binary has.
#[test]
fn the_units_commands_exist() -> Result<()> {
    let unit = include_str!("../../../config/pepd.service");
    let commands: Vec<_> = unit
        .lines()
        .filter_map(|line| line.split_once("/usr/bin/env pepd "))
        .map(|(_, words)| words.split(' ').next().unwrap_or_default())
        .collect();
    assert_eq!(commands, ["check", "run", "reload"]);
    for command in commands {
        run(
            std::process::Command::new(PEPD).args([command, "--help"]),
            LIMIT,
        )?
        .success()?;
    }
    Ok(())
}
