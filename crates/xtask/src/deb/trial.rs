//! A trial of the package, in copies of this Debian of which nothing is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use pepd_testbed::{Family, Process, World, run, wait_until};

use crate::directories::source_directory;
use crate::packages::{self, Need};
use crate::tool::succeed;

/// The time that one command may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The programs that it takes beside those of [`packages::NETWORK`].
const NEEDS: &[Need] = &[
    Need::new("unshare", "util-linux"),
    Need::new("nsenter", "util-linux"),
    Need::new("systemd-analyze", "systemd"),
];

/// Installs the package, uses it, installs it over itself, removes and purges it; and goes through what README
/// says of it, from the package to a split connection.
///
/// # Errors
/// When something is missing, or not as it should be.
pub fn run_all(package: &Path) -> Result<()> {
    packages::provide(packages::NETWORK)?;
    packages::provide(NEEDS)?;
    let mut trial = Command::new("unshare");
    trial
        .args(["--mount", "--pid", "--fork", "--net", "sh", "-euc"])
        .args([include_str!("trial.sh"), "sh"])
        .arg(package);
    succeed(&mut trial)?;
    println!("it has been installed, upgraded, removed and purged");
    the_first_day(package)?;
    after_one_without_a_package(package)
}

/// Runs README's commands on a router that nobody has prepared but for forwarding, and has it split.
fn the_first_day(package: &Path) -> Result<()> {
    let machine = Machine::boot(package)?;
    // Who sits at the editor: the users' prefixes, as World has them.
    machine.write(
        "/usr/local/bin/nano",
        "#!/bin/sh\nsed -i 's|\"192.0.2.0/24\", \"2001:db8:a::/48\"|\"10.1.0.0/16\", \"fd00:a::/48\"|' \"$1\"\n",
    )?;
    let began = Instant::now();
    for command in commands_of_readme(package)? {
        println!("# {command}");
        print!("{}", machine.run(&format!("cd /root; {command}"))?);
    }
    for family in Family::BOTH {
        let (pair, split) = machine.world.probe(family)?;
        ensure!(split, "{family} is not split");
        pair.exchange(100_000)?;
    }
    println!(
        "connections were split {:.1} s after the first of these commands",
        began.elapsed().as_secs_f64()
    );
    // A new version takes over, and whoever purges it has it end.
    let (pair, _) = machine.world.probe(Family::V4)?;
    let said = machine.run("dpkg --install /root/*.deb 2>&1")?;
    ensure!(said.contains("upgraded: "), "{said}");
    ensure!(!said.contains("warning"), "{said}");
    pair.exchange(100_000)?;
    drop(pair);
    machine.run("DEBIAN_FRONTEND=noninteractive dpkg --purge pepd")?;
    ensure!(
        !machine.world.kernel_state()?.contains("pepd"),
        "it has left something"
    );
    println!("a new version took over; purged, it left no trace");
    Ok(())
}

/// Installs the package where pepd was installed from its sources and runs: what hides the package is named,
/// and does not end.
fn after_one_without_a_package(package: &Path) -> Result<()> {
    let machine = Machine::boot(package)?;
    let unit = fs::read_to_string(source_directory()?.join("config/pepd.service"))?;
    machine.write("/etc/systemd/system/pepd.service", &unit)?;
    machine.write("/etc/pepd/pepd.toml", &World::config())?;
    machine.run(
        "dpkg-deb --fsys-tarfile /root/*.deb | tar -xO ./usr/bin/pepd > /usr/local/bin/pepd
         chmod 755 /usr/local/bin/pepd; systemctl daemon-reload; systemctl start pepd",
    )?;
    let (pair, split) = machine.world.probe(Family::V4)?;
    ensure!(split, "not split");
    let said = machine.run("dpkg --force-confold --install /root/*.deb 2>&1")?;
    for hint in [
        "rm /usr/local/bin/pepd",
        "rm /etc/systemd/system/pepd.service",
        "the running pepd is /usr/local/bin/pepd and goes on",
    ] {
        ensure!(said.contains(hint), "not said: {hint}\n{said}");
    }
    pair.exchange(100_000)?;
    drop(pair);
    // As it has been told.
    let running = machine.run(
        "rm /usr/local/bin/pepd /etc/systemd/system/pepd.service; systemctl daemon-reload
         systemctl restart pepd; readlink /proc/$(systemctl show -p MainPID --value pepd)/exe",
    )?;
    ensure!(running.trim() == "/usr/bin/pepd", "{running} runs");
    println!("what hides the package's program and unit was named, and went on");
    Ok(())
}

/// The commands that README gives for the package.
fn commands_of_readme(package: &Path) -> Result<Vec<String>> {
    let readme = fs::read_to_string(source_directory()?.join("README.md"))?;
    let name = package.file_name().context("a package has a name")?;
    let first = format!("apt install ./{}", name.display());
    let at = readme.find(&first);
    let at = at.with_context(|| format!("README.md has no `{first}`"))?;
    let block = readme[at..].lines().take_while(|line| *line != "```");
    let commands = block.map(|line| line.split('#').next().unwrap_or_default());
    let commands: Vec<_> = commands.map(|line| line.trim().to_owned()).collect();
    ensure!(commands.len() == 5, "README.md promises five: {commands:?}");
    Ok(commands)
}

/// A copy of this Debian with a systemd of its own, which is a router between two campuses.
struct Machine {
    first: Pid,
    // In this order: what runs in a control group or a network ends first.
    _process: Process,
    _group: Group,
    world: World,
}

impl Machine {
    fn boot(package: &Path) -> Result<Self> {
        let world = World::standard()?;
        let group = Group::new()?;
        let inside = world.hb().command("sh");
        // The control group first: `ip netns exec` hides where they are.
        let mut command = Command::new("sh");
        command
            .args([
                "-ec",
                "echo $$ > \"$1/cgroup.procs\"; shift; exec \"$@\"",
                "sh",
            ])
            .arg(&group.0)
            .arg(inside.get_program())
            .args(inside.get_args())
            .args(["-ec", include_str!("boot.sh"), "sh"])
            .arg(package);
        let process = Process::spawn(&mut command)?;
        wait_until(LIMIT, "there is a first process", || {
            child_of(process.pid()).is_ok()
        })
        .with_context(|| process.log())?;
        let machine = Self {
            first: child_of(process.pid())?,
            _process: process,
            _group: group,
            world,
        };
        wait_until(LIMIT, "systemd has booted", || {
            let said = machine.run("systemctl is-system-running || true");
            said.is_ok_and(|said| ["running", "degraded"].contains(&said.trim()))
        })
        .with_context(|| machine._process.log())?;
        Ok(machine)
    }

    /// Runs a shell's script beside systemd, and gives what it prints. `pepd doctor` may say that something
    /// would be better.
    fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.first.to_string()])
            .args(["--pid", "--mount", "--net", "--cgroup", "--root"])
            .args([
                "env",
                "-i",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            ])
            .args(["sh", "-ec", script]);
        run(&mut command, LIMIT)?.success()
    }

    /// Writes a file, which may be executed.
    fn write(&self, path: &str, text: &str) -> Result<()> {
        let root = PathBuf::from(format!("/proc/{}/root", self.first));
        let path = root.join(path.trim_start_matches('/'));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        Ok(fs::set_permissions(&path, mode)?)
    }
}

fn child_of(parent: Pid) -> Result<Pid> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let first = listed.split_whitespace().next().context("no child")?;
    Ok(Pid::from_raw(first.parse()?))
}

/// A control group below this process's own, whose processes have ended when it is dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut mounts = mounts.lines().map(|line| line.split(' '));
        let place = mounts.find_map(|mut words| {
            let (place, kind) = (words.nth(1)?, words.next()?);
            (kind == "cgroup2").then_some(place)
        });
        let place =
            place.context("systemd takes control groups of version 2 (mount -t cgroup2)")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let folder = Path::new(place)
            .join(own.context("this process is in no control group")?)
            .join(format!("pepd-trial-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment for the last of them to be gone.
        let _ = wait_until(LIMIT, "the control group is empty", || {
            remove(&self.0).is_ok()
        });
    }
}

/// Removes a control group and those below it: the kernel's files in them go along.
fn remove(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
