//! Network namespaces that do not outlive their process.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::process::run;

/// The directory where `ip netns` keeps its names (iproute2, `NETNS_RUN_DIR`).
const NAMES: &str = "/run/netns";
/// The first part of every name made here: only these does the sweep consider.
const PREFIX: &str = "pepdtest";
/// No `ip` command takes this long unless the machine is in trouble.
const IP_LIMIT: Duration = Duration::from_secs(120);

/// A named network namespace of this process, removed with everything in it on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
    runtime_directory: TempDir,
}

impl Netns {
    /// Makes a namespace with its loopback device up. `role` is part of its name, so that
    /// `ip netns` tells an onlooker what it is.
    ///
    /// # Errors
    /// Without root, or without `ip`.
    pub fn new(role: &str) -> Result<Self> {
        let netns = Self::with_lo_down(role)?;
        run(
            Command::new("ip").args(["-n", &netns.name, "link", "set", "lo", "up"]),
            IP_LIMIT,
        )?
        .success()?;
        Ok(netns)
    }

    /// Makes a namespace as the kernel does, for who sets up all its devices at once.
    pub(crate) fn with_lo_down(role: &str) -> Result<Self> {
        static SWEPT: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        SWEPT.call_once(sweep);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{count}-{role}", Owner::this()?.tag());
        run(Command::new("ip").args(["netns", "add", &name]), IP_LIMIT)?
            .success()
            .context("cannot make a network namespace: this needs root")?;
        let runtime_directory = TempDir::with_prefix("pepd-run-")?;
        fs::set_permissions(runtime_directory.path(), Permissions::from_mode(0o755))?;
        let netns = Self {
            name,
            runtime_directory,
        };
        netns.prepare()?;
        Ok(netns)
    }

    /// Returns the name `ip netns` knows it by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what `/run/pepd` is for a daemon inside.
    #[must_use]
    pub fn runtime_directory(&self) -> &Path {
        self.runtime_directory.path()
    }

    /// Returns the command `program`, to be run inside.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        // What /run/pepd is on a host of its own: pepd's lock is in it.
        command.env("RUNTIME_DIRECTORY", self.runtime_directory.path());
        command
    }

    /// Runs a shell script inside and returns its standard output.
    ///
    /// # Errors
    /// When it fails or takes longer than two minutes.
    pub fn sh(&self, script: &str) -> Result<String> {
        run(self.command("sh").args(["-ec", script]), IP_LIMIT)?.success()
    }

    /// Returns its nft ruleset, policy rules and routes, both families.
    ///
    /// # Errors
    /// When `nft` or `ip` fails.
    pub fn kernel_state(&self) -> Result<String> {
        let state = self.sh("nft list ruleset; \
             for family in -4 -6; do ip $family rule; ip $family route show table all; done")?;
        // A link that has just been made may not have its carrier yet.
        Ok(state.replace(" linkdown", ""))
    }

    /// Runs `work` inside, on a thread of its own, and returns its result. Sockets it makes
    /// stay in this namespace wherever they are used later.
    ///
    /// # Errors
    /// Those of `work`, or that the namespace cannot be entered.
    ///
    /// # Panics
    /// When `work` does: the panic goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = self.open()?;
        let outcome = thread::scope(|scope| scope.spawn(move || inside(&file, work)).join());
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `work` inside, on a thread that goes on by itself.
    ///
    /// # Errors
    /// When the namespace cannot be opened.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let file = self.open()?;
        Ok(thread::spawn(move || inside(&file, work)))
    }

    /// Writes a sysctl of this namespace, named as `sysctl(8)` does with dots.
    ///
    /// # Errors
    /// When the kernel has no such sysctl or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = PathBuf::from("/proc/sys").join(key.replace('.', "/"));
        self.run(|| fs::write(&path, value).with_context(|| format!("sysctl {key}={value}")))
    }

    fn prepare(&self) -> Result<()> {
        // A duplicate address cannot exist here, and detecting it costs each address a second.
        for scope in ["all", "default"] {
            self.sysctl(&format!("net.ipv6.conf.{scope}.accept_dad"), "0")?;
            self.sysctl(&format!("net.ipv6.conf.{scope}.dad_transmits"), "0")?;
            self.sysctl(&format!("net.ipv6.conf.{scope}.accept_ra"), "0")?;
        }
        Ok(())
    }

    fn open(&self) -> Result<File> {
        let path = PathBuf::from(NAMES).join(&self.name);
        File::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn inside<T>(netns: &File, work: impl FnOnce() -> Result<T>) -> Result<T> {
    setns(netns, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")?;
    work()
}

/// Ends what still runs in a namespace of ours (a program that left its process group, as
/// sshd's sessions do) and removes it, as `ip netns delete` does: every program that a test starts
/// costs an emulated machine a third of a second.
fn remove(name: &str) {
    let path = PathBuf::from(NAMES).join(name);
    if let Ok(netns) = fs::metadata(&path) {
        for pid in processes_in(netns.ino()).filter(|pid| *pid != Pid::this()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
}

/// Lists the processes whose main thread is in the network namespace with this inode number.
fn processes_in(netns: u64) -> impl Iterator<Item = Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let its_own = fs::metadata(process.path().join("ns/net")).ok()?;
        (its_own.ino() == netns).then_some(Pid::from_raw(pid))
    })
}

/// Removes the namespaces of processes that no longer exist: having been killed, they could not do
/// it.
fn sweep() {
    for entry in fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if Owner::of(&name).is_some_and(|owner| !owner.lives()) {
            remove(&name);
        }
    }
}

/// The process that a namespace belongs to. Its start time is part of it because process ids are
/// used again.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    pid: u32,
    start: u64,
}

impl Owner {
    fn this() -> Result<Self> {
        let pid = std::process::id();
        let start = start_time(pid).context("/proc/self/stat has no start time")?;
        Ok(Self { pid, start })
    }

    fn of(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-').next()?.split('.');
        Some(Self {
            pid: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
        })
    }

    fn tag(&self) -> String {
        format!("{PREFIX}{}.{}", self.pid, self.start)
    }

    fn lives(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

/// Reads field 22 of proc_pid_stat(5): clock ticks since boot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2 may hold spaces and parentheses, so count from the last one.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::Owner;

    #[test]
    fn a_namespace_names_its_owner() {
        let this = Owner::this().unwrap();
        assert_eq!(
            Owner::of(&format!("{}-7-client", this.tag())).as_ref(),
            Some(&this)
        );
        assert!(this.lives());
        assert!(
            !Owner {
                start: this.start + 1,
                ..this
            }
            .lives()
        );
    }

    #[test]
    fn what_others_made_has_no_owner_here() {
        assert_eq!(Owner::of("cni-1234"), None);
        assert_eq!(Owner::of("pepdtestbed"), None);
    }
}
