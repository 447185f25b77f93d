//! The lock against a second pepd in the same network namespace.
//!
//! flock(2) works on a descriptor that only reads: whoever may open the file may keep every pepd
//! from starting. So nobody but its owner may, and a file that others could open, as earlier
//! versions made it, is replaced by another.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{Pid, geteuid};

use crate::exit::{Failure, Result};

/// The lock of this network namespace, held while a pepd runs in it; the kernel releases it when
/// the keeper ends, however it ends. Dropping this does not: a daemon that fails is followed by another one,
/// whose lock it is then.
#[derive(Debug)]
pub struct Lock {
    file: ManuallyDrop<File>,
}

/// The times that the file may have been replaced while it was locked.
const MOST_ATTEMPTS: usize = 16;

/// The times that a lock is asked for whose holder has ended, and the pause before the next.
const MOST_ENDED: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);

impl Lock {
    /// Takes the lock for `holder`, this process or its keeper; the failure says who has it.
    pub fn acquire(holder: Pid) -> Result<Self> {
        let path = lock_path()?;
        make_directory(&path)?;
        for _ in 0..MOST_ATTEMPTS {
            let file = attempt(&path)?;
            let lock = |error| Failure::internal(&format!("lock {}", path.display()), error);
            if let Some(mut file) = file {
                file.set_len(0).map_err(lock)?;
                writeln!(file, "{holder}").map_err(lock)?;
                return Ok(Self {
                    file: ManuallyDrop::new(file),
                });
            }
        }
        Err(Failure::temporary(format!(
            "{} is replaced again and again; who does that?",
            path.display()
        )))
    }
}

impl From<OwnedFd> for Lock {
    /// Goes on with the lock that a process has taken that has died.
    fn from(fd: OwnedFd) -> Self {
        Self {
            file: ManuallyDrop::new(fd.into()),
        }
    }
}

impl AsRawFd for Lock {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Takes the lock once; none if the file was replaced meanwhile.
fn attempt(path: &Path) -> Result<Option<File>> {
    let failed = |error| Failure::internal(&format!("lock {}", path.display()), error);
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)
        .map_err(|error| unopened(path, &error))?;
    let made = file.metadata().map_err(failed)?;
    if !made.is_file() {
        return Err(Failure::unavailable(format!(
            "{} is no regular file; remove it",
            path.display()
        )));
    }
    let others_may_lock = made.mode() & 0o077 != 0;
    let taken = if others_may_lock {
        file.try_lock()
    } else {
        take(&file)
    };
    match taken {
        // They may have it open already.
        Ok(()) if others_may_lock => replace(path).map_err(failed)?,
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Who it is only makes the message better.
            let _ = file.read_to_string(&mut pid);
            if !others_may_lock || is_a_pepd(pid.trim()) {
                return Err(Failure::temporary(format!(
                    "pepd runs already in this network namespace (process {}); end it first \
                     (pepd drain, or systemctl stop pepd)",
                    pid.trim()
                )));
            }
            replace(path).map_err(failed)?;
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let is_there =
        fs::symlink_metadata(path).is_ok_and(|there| is_same(&there, &made) && !others_may_lock);
    Ok(is_there.then_some(file))
}

/// Takes the lock. One that was held by a daemon that has ended is asked for again for some seconds:
/// a daemon that is killed while it starts a program leaves a copy of itself behind, which has all
/// that it had until it executes that program.
fn take(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..MOST_ENDED {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if has_ended(file) => thread::park_timeout(PAUSE),
            taken => return taken,
        }
    }
    file.try_lock()
}

/// Tells whether there is no process of the number that is written in the file.
fn has_ended(file: &File) -> bool {
    let mut text = [0; 16];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    let text = str::from_utf8(text.get(..read).unwrap_or_default()).unwrap_or_default();
    // Who has only just taken it has not written it yet.
    text.trim()
        .parse::<u32>()
        .is_ok_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

/// Removes the file, so that the next attempt makes another.
fn replace(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Tells whether the process that a file names can be the one that has written it: it lives, and
/// is root's or this user's. Asked only where somebody else may hold the lock.
fn is_a_pepd(pid: &str) -> bool {
    let Ok(pid) = pid.parse::<u32>() else {
        return false;
    };
    fs::metadata(format!("/proc/{pid}"))
        .is_ok_and(|process| process.uid() == 0 || process.uid() == geteuid().as_raw())
}

/// Makes the directory of the lock, and refuses one in which others may put a file of theirs.
fn make_directory(path: &Path) -> Result {
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    let failed = |error| Failure::internal(&format!("make {}", directory.display()), error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .map_err(failed)?;
    let there = fs::metadata(directory).map_err(failed)?;
    if there.mode() & 0o002 == 0 {
        return Ok(());
    }
    Err(Failure::unavailable(format!(
        "every user of this host may write {0}, and so keep pepd from starting; chmod o-w {0}",
        directory.display()
    )))
}

fn unopened(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ELOOP) => Failure::unavailable(format!(
            "{path} is a symbolic link, which pepd does not follow; remove it"
        )),
        Some(Errno::EACCES) => Failure::not_permitted(format!(
            "open {path}: {error}; it is another user's: run pepd as that user or as root, or \
             remove it"
        )),
        _ => Failure::internal(&format!("open {path}"), error),
    }
}

/// Gives the path of this network namespace's lock.
fn lock_path() -> Result<PathBuf> {
    let namespace = fs::read_link("/proc/self/ns/net")
        .map_err(|error| Failure::internal("read /proc/self/ns/net", error))?;
    let directory = runtime_directory();
    let number: String = namespace
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    Ok(directory.join(format!("net-{number}.lock")))
}

/// Gives the directory that is pepd's own while it runs (systemd.exec(5), `RuntimeDirectory=`).
pub fn runtime_directory() -> PathBuf {
    std::env::var_os("RUNTIME_DIRECTORY").map_or_else(|| PathBuf::from("/run/pepd"), PathBuf::from)
}

/// Tells whether a pepd runs in this network namespace. Takes no lock, not even for a moment: a
/// daemon that starts in that moment would find it taken.
pub fn is_locked() -> bool {
    let inode = lock_path()
        .ok()
        .and_then(|path| fs::symlink_metadata(path).ok())
        .map(|there| there.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    inode.is_some_and(|inode| is_listed(&locks, inode))
}

/// Tells whether the kernel's list of locks (proc_locks(5)) has one of flock(2) on this inode.
fn is_listed(locks: &str, inode: u64) -> bool {
    locks.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next();
        let file = words.nth(3).and_then(|file| file.rsplit(':').next());
        kind == Some("FLOCK") && file.and_then(|inode| inode.parse().ok()) == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_in_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 699 00:1a:1234 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 700 00:1a:5678 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 701 00:1a:9999 0 EOF\n";
        assert!(is_listed(locks, 5678));
        assert!(!is_listed(locks, 1234), "another kind of lock");
        assert!(!is_listed(locks, 9999), "somebody only waits for it");
        assert!(!is_listed("", 5678));
    }
}
