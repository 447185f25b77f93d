//! What config/pepd.service gives the daemon is enough for it, with the lines for a fixed rate and
//! without.

use std::fs;

use anyhow::Result;
use pepd_testbed::{require, run};

use crate::harness::LIMIT;

/// Returns the unit as it is after its lines for a fixed rate have been uncommented.
fn unit_for_a_fixed_rate() -> String {
    let unit = include_str!("../../../config/pepd.service");
    let mut of_fixed_rate = false;
    let lines = unit.lines().map(|line| {
        match line.strip_prefix('#') {
            Some(text) if of_fixed_rate && !text.starts_with(' ') => return text,
            Some(text) => of_fixed_rate |= text.contains("fixed-rate"),
            None => of_fixed_rate = false,
        }
        line
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Returns what a key of the unit's lists, all its lines taken together.
pub(super) fn listed<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let values = unit
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).collect()
}

#[test]
fn a_fixed_rate_takes_two_capabilities_and_a_system_call_more() -> Result<()> {
    require!(program("systemd-analyze"));
    let (before, after) = (
        include_str!("../../../config/pepd.service"),
        unit_for_a_fixed_rate(),
    );
    for (key, more) in [
        ("AmbientCapabilities", &["CAP_BPF", "CAP_PERFMON"][..]),
        ("CapabilityBoundingSet", &["CAP_BPF", "CAP_PERFMON"]),
        ("SystemCallFilter", &["bpf"]),
    ] {
        // The system call comes last: what is taken away before it does not take it along.
        let expected = [&listed(before, key), more].concat();
        assert_eq!(listed(&after, key), expected, "{key}");
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pepd.service");
    fs::write(&file, &after)?;
    let mut command = std::process::Command::new("systemd-analyze");
    let verified = run(command.arg("verify").arg(&file), LIMIT)?;
    let said = verified.stderr.clone();
    verified.success()?;
    assert_eq!(said, "", "a warning is a mistake, too");
    Ok(())
}

mod as_a_service {
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;

    use anyhow::{Context, ensure};
    use nix::sys::signal::Signal;
    use pepd_testbed::{Family, Netns, Process, World, daemon_of, install, wait_until};
    use tempfile::TempDir;

    use super::*;

    /// The daemon as a user without a name, with the capabilities that a unit lists.
    struct Service {
        directory: TempDir,
        unit: String,
    }

    impl Service {
        fn new(unit: String) -> Result<Self> {
            let directory = tempfile::tempdir()?;
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
            chown(directory.path(), Some(65534), Some(65534))?;
            let config = World::config().replace(
                "congestion = \"cubic\"\n",
                "congestion = \"fixed-rate\"\nrate = \"20Mbit\"\n",
            );
            fs::write(directory.path().join("pepd.toml"), config)?;
            install(
                env!("CARGO_BIN_EXE_pepd").as_ref(),
                &directory.path().join("pepd"),
            )?;
            Ok(Self { directory, unit })
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.directory.path().join(name)
        }

        fn start(&self, netns: &Netns) -> Result<Process> {
            let set = |key| capabilities(&listed(&self.unit, key));
            let ambient = set("AmbientCapabilities")?;
            let mut command = netns.command("setpriv");
            command
                .args([
                    "--reuid=65534",
                    "--regid=65534",
                    "--clear-groups",
                    "--no-new-privs",
                ])
                .args([
                    format!("--inh-caps={ambient}"),
                    format!("--ambient-caps={ambient}"),
                ])
                .arg(format!("--bounding-set={}", set("CapabilityBoundingSet")?))
                .arg(self.path("pepd"))
                .args(["run", "-c"])
                .arg(self.path("pepd.toml"))
                .env("RUNTIME_DIRECTORY", self.directory.path());
            Process::spawn(&mut command)
        }
    }

    /// As setpriv(1) wants them, without those that not even root has here.
    fn capabilities(names: &[&str]) -> Result<String> {
        let set = caps::read(None, caps::CapSet::Permitted)?;
        let there = names.iter().filter(|name| {
            name.parse()
                .is_ok_and(|capability| set.contains(&capability))
        });
        let kept: Vec<String> = there
            .map(|name| name.replace("CAP_", "+").to_lowercase())
            .collect();
        ensure!(kept.iter().any(|name| name == "+net_admin"), "{kept:?}");
        Ok(format!("-all,{}", kept.join(",")))
    }

    fn permitted(pid: impl std::fmt::Display) -> Result<u64> {
        let status = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
        let field = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
        Ok(u64::from_str_radix(
            field.context("no such field")?.trim(),
            16,
        )?)
    }

    /// Returns the controls of the daemon in `netns` (docs/fixed-rate.md).
    fn registered(netns: &Netns) -> Result<usize> {
        let inode = netns.sh("stat --dereference --format %i /proc/self/ns/net")?;
        let prefix = format!("pepd{:x}_", inode.trim().parse::<u32>()?);
        let names = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
        Ok(names
            .split_whitespace()
            .filter(|name| name.starts_with(&prefix))
            .count())
    }

    #[test]
    fn what_the_unit_gives_is_enough_for_a_fixed_rate() -> Result<()> {
        require!(root, program("setpriv"), program("nft"));
        // CAP_PERFMON is 38, CAP_BPF 39 (linux/capability.h).
        const FOR_BPF: u64 = 1 << 38 | 1 << 39;
        let world = World::standard()?;
        let service = Service::new(unit_for_a_fixed_rate())?;
        let mut pepd = service.start(world.hb())?;
        wait_until(LIMIT, "the gate is open", || {
            pepd.log().contains("new connections are split")
        })
        .inspect_err(|_| println!("{}", pepd.log()))?;
        assert_eq!(registered(world.hb())?, 1);
        assert_eq!(permitted(daemon_of(pepd.pid())?)? & FOR_BPF, 0, "given up");
        for family in Family::BOTH {
            let (pair, split) = world.probe(family)?;
            assert!(split);
            pair.exchange(100_000)?;
            let legs = world.hb().sh("ss -tinOH state established")?;
            assert!(legs.contains(" pepd"), "{legs}");
        }
        pepd.signal(Signal::SIGTERM)?;
        assert!(pepd.wait(LIMIT)?.success(), "{}", pepd.log());
        assert_eq!(registered(world.hb())?, 0);
        assert!(!world.kernel_state()?.contains("pepd"), "it cleaned up");
        Ok(())
    }

    /// The lines are there for a reason, and the daemon says for which one.
    #[test]
    fn without_its_lines_for_a_fixed_rate_it_is_not() -> Result<()> {
        require!(root, program("setpriv"), program("nft"));
        let world = World::standard()?;
        let service = Service::new(include_str!("../../../config/pepd.service").to_owned())?;
        let mut pepd = service.start(world.hb())?;
        let status = pepd.wait(LIMIT)?;
        assert_eq!(status.code(), Some(77), "{}", pepd.log());
        assert!(pepd.log().contains("CAP_BPF"), "{}", pepd.log());
        // systemd does not try again.
        assert!(listed(&service.unit, "RestartPreventExitStatus").contains(&"77"));
        Ok(())
    }
}
