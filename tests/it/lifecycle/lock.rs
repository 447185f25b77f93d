//! The lock against a second daemon is nobody's but the daemon's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Result;
use pepd_testbed::{Family, Netns, Pepd, Process, World, require, run, wait_until};
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// What runs a program as a user who is nobody.
const NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// A directory for the lock, and the lock's file in it.
struct Place {
    directory: TempDir,
    lock: PathBuf,
}

impl Place {
    fn new(netns: &Netns, mode: u32) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-lock-")?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode))?;
        let inode = netns.sh("stat --dereference --format %i /proc/self/ns/net")?;
        let lock = directory.path().join(format!("net-{}.lock", inode.trim()));
        Ok(Self { directory, lock })
    }

    fn runtime_directory(&self) -> String {
        format!("RUNTIME_DIRECTORY={}", self.directory.path().display())
    }

    fn start(&self, world: &World) -> Result<Pepd> {
        Pepd::builder(PEPD)
            .wrapper(&["env", &self.runtime_directory()])
            .start(world.hb(), &World::config())
    }

    /// Starts one that ends by itself; gives its exit code and its log.
    fn fails(&self, world: &World) -> Result<(Option<i32>, String)> {
        let (status, log) = Pepd::builder(PEPD)
            .wrapper(&["env", &self.runtime_directory()])
            .fails(world.hb(), &World::config())?;
        Ok((status.code(), log))
    }

    /// Makes the file as daemons of earlier versions have left it, and has nobody lock it.
    fn locked_by_nobody(&self) -> Result<Process> {
        fs::write(&self.lock, "1\n")?;
        fs::set_permissions(&self.lock, fs::Permissions::from_mode(0o644))?;
        let taken = self.directory.path().join("taken");
        fs::write(&taken, "")?;
        fs::set_permissions(&taken, fs::Permissions::from_mode(0o666))?;
        let script = format!("echo yes > {}; read never", taken.display());
        let mut command = std::process::Command::new(NOBODY[0]);
        command.args(&NOBODY[1..]).args(["flock", "-s"]);
        command.arg(&self.lock).args(["sh", "-c", &script]);
        // Its standard input is a pipe that nobody writes.
        command.stdin(std::process::Stdio::piped());
        let process = Process::spawn_with_stdin(&mut command)?;
        wait_until(LIMIT, "nobody has the lock", || {
            fs::read_to_string(&taken).is_ok_and(|said| said == "yes\n")
        })?;
        Ok(process)
    }
}

#[test]
fn nobody_else_can_take_it() -> Result<()> {
    require!(root, program("setpriv"), program("flock"));
    let world = World::standard()?;
    let place = Place::new(world.hb(), 0o755)?;
    let pepd = place.start(&world)?;
    assert_eq!(
        fs::metadata(&place.lock)?.permissions().mode() & 0o777,
        0o600
    );
    let mut attempt = std::process::Command::new(NOBODY[0]);
    attempt.args(&NOBODY[1..]).args(["flock", "-n", "-s"]);
    let refused = run(attempt.arg(&place.lock).arg("true"), LIMIT)?;
    assert!(refused.stderr.contains("Permission denied"), "{refused:?}");

    // The one that has it keeps a second one out, which may be tried again later.
    let (code, log) = place.fails(&world)?;
    assert_eq!(code, Some(75), "{log}");
    assert!(log.contains("runs already"), "{log}");
    let unit = include_str!("../../../config/pepd.service");
    let never = unit
        .lines()
        .find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    assert!(never.is_some_and(|codes| !codes.contains("75")));
    // And `doctor` sees it without touching it.
    let file = pepd.config_file();
    let mut doctor = world.hb().command("env");
    doctor.args([&place.runtime_directory(), PEPD, "doctor", "-c"]);
    let said = run(doctor.arg(file), LIMIT)?;
    assert!(said.stdout.contains("a pepd runs here"), "{said:?}");
    pepd.stop()?;
    Ok(())
}

#[test]
fn a_lock_that_nobody_holds_by_an_older_file_keeps_no_daemon_from_starting() -> Result<()> {
    require!(root, program("setpriv"), program("flock"));
    let world = World::standard()?;
    let place = Place::new(world.hb(), 0o755)?;
    // Process 1 lives, and is root's: who wrote the file last cannot be told from that.
    let mut nobody = place.locked_by_nobody()?;
    let (code, log) = place.fails(&world)?;
    assert_eq!(code, Some(75), "{log}");
    // A daemon that has ended left the file.
    fs::write(&place.lock, "4194305\n")?;
    let pepd = place.start(&world)?;
    assert!(world.probe(Family::V4)?.1);
    assert_eq!(
        fs::metadata(&place.lock)?.permissions().mode() & 0o777,
        0o600
    );
    assert!(nobody.try_wait()?.is_none(), "it still holds what it held");
    pepd.stop()?;
    place.start(&world)?.stop()?;
    Ok(())
}

/// A daemon that is killed while it starts a program leaves a copy of itself, with all that it had
/// open, until that executes the program.
#[test]
fn a_lock_that_outlives_its_daemon_for_a_moment_is_waited_for() -> Result<()> {
    require!(root, program("nft"));
    let world = World::standard()?;
    let place = Place::new(world.hb(), 0o755)?;
    // More than any process's number.
    fs::write(&place.lock, "4194305\n")?;
    fs::set_permissions(&place.lock, fs::Permissions::from_mode(0o600))?;
    let held = fs::File::open(&place.lock)?;
    held.try_lock()?;
    std::thread::scope(|scope| {
        let started = scope.spawn(|| place.start(&world));
        wait_until(LIMIT, "it asks for the lock", || is_open(&place.lock))?;
        drop(held);
        started.join().unwrap()?.stop()?;
        Ok(())
    })
}

/// Returns whether another process than this has a file open.
fn is_open(file: &Path) -> bool {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| process.file_name() != *own)
        .filter_map(|process| fs::read_dir(process.path().join("fd")).ok())
        .flat_map(|descriptors| descriptors.flatten())
        .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|path| path == file))
}

#[test]
fn a_link_is_not_followed_and_a_directory_of_everybodys_is_refused() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let place = Place::new(world.hb(), 0o755)?;
    let other = place.directory.path().join("other");
    fs::write(&other, "an operator's\n")?;
    symlink(&other, &place.lock)?;
    let (code, log) = place.fails(&world)?;
    assert_eq!(code, Some(69), "{log}");
    assert!(log.contains("symbolic link"), "{log}");
    assert_eq!(fs::read_to_string(&other)?, "an operator's\n");

    let place = Place::new(world.hb(), 0o1777)?;
    let (code, log) = place.fails(&world)?;
    assert_eq!(code, Some(69), "{log}");
    assert!(log.contains("chmod o-w"), "{log}");
    Ok(())
}
