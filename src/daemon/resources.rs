//! What pepd needs of its host: the lock against a second pepd, and descriptors.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pepd_config::Config;
use pepd_net::Holder;

use crate::daemon::wiring;
use crate::exit::{Failure, Result};

/// Held while a pepd runs in this network namespace; the kernel releases it when the process
/// ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says who has it.
    pub fn acquire() -> Result<Self> {
        let path = lock_path()?;
        let failed = |error| Failure::internal(&format!("open {}", path.display()), error);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Who it is only makes the message better.
                let _ = file.read_to_string(&mut pid);
                return Err(Failure::unavailable(format!(
                    "pepd runs already in this network namespace (process {}); end it first",
                    pid.trim()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write().map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// Where the lock of this network namespace is.
fn lock_path() -> Result<PathBuf> {
    let namespace = fs::read_link("/proc/self/ns/net")
        .map_err(|error| Failure::internal("read /proc/self/ns/net", error))?;
    let directory = std::env::var_os("RUNTIME_DIRECTORY")
        .map_or_else(|| PathBuf::from("/run/pepd"), PathBuf::from);
    let number: String = namespace
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    Ok(directory.join(format!("net-{number}.lock")))
}

/// Whether a pepd runs in this network namespace; changes nothing.
pub fn is_locked() -> bool {
    let file = lock_path().ok().and_then(|path| File::open(path).ok());
    file.is_some_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The number of workers: one per core, if the file does not say.
pub fn workers(config: &Config) -> NonZeroUsize {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    config.node.workers.unwrap_or_else(cores)
}

/// What can hold SYNs on this host; nobody asks where none are held.
pub async fn holder(config: &Config) -> Result<Holder> {
    if wiring::holds(config) {
        Ok(pepd_net::find_holder().await?)
    } else {
        Ok(Holder::Nft)
    }
}

/// How the descriptors of the process are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// How many there may be.
    pub limit: u64,
    /// The most connections, of two sockets each.
    pub connections: u32,
    /// The most pipes, of two descriptors each, once the connections have theirs.
    pub pipes: usize,
}

/// Descriptors for everything that is neither a connection nor a worker's: the main runtime,
/// netlink, the log, the lock, and an nft with its pipes.
const OWN: u64 = 64;

/// A worker's runtime: epoll twice, an eventfd and one to spare.
const PER_WORKER: u64 = 4;

/// Pipes without which nothing goes through splice.
const FEWEST_PIPES: u64 = 16;

/// Raises the limit of open files as far as it goes and shares it out: the connections that the
/// file wants, if they fit beside the `listeners` listening sockets of each of the `workers`.
pub fn share_descriptors(config: &Config, workers: usize, listeners: usize) -> Result<Descriptors> {
    let failed = |error| Failure::internal("read or raise the limit of open files", error);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed)?;
    Ok(shares(config, workers, listeners, hard))
}

/// How a limit of `files` open ones would be shared out.
pub fn shares(config: &Config, workers: usize, listeners: usize, files: u64) -> Descriptors {
    let mut own = OWN;
    if wiring::holds(config) {
        // A queue is two. What is pending in a flood may have what pipes would use.
        own += 2 * workers as u64 + u64::from(config.limits.pending).min(files / 8);
    }
    for _ in [
        config.admin.socket.is_some(),
        config.admin.metrics.is_some(),
    ]
    .into_iter()
    .filter(|asked| *asked)
    {
        // The listener twice, its lock, and a client who waits for room.
        own += PER_WORKER + 4 + pepd_admin::api::Limits::STANDARD.connections as u64;
    }
    let wanted = config.limits.connections;
    share(files, own, wanted, workers as u64, listeners as u64)
}

fn share(limit: u64, own: u64, wanted: u32, workers: u64, listeners: u64) -> Descriptors {
    // A listener keeps a socket for the next upstream leg at hand.
    let free = limit.saturating_sub(own + workers * (PER_WORKER + 2 * listeners));
    let room = free.saturating_sub(2 * FEWEST_PIPES) / 2;
    let connections = wanted.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1);
    let pipes = free.saturating_sub(2 * u64::from(connections)) / 2;
    Descriptors {
        limit,
        connections,
        pipes: usize::try_from(pipes).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_come_first_and_pipes_have_the_rest() {
        let shared = share(20_000, OWN, 8_000, 4, 4);
        assert_eq!(
            shared,
            Descriptors {
                limit: 20_000,
                connections: 8_000,
                pipes: 1944
            }
        );
    }

    #[test]
    fn few_descriptors_mean_fewer_connections() {
        let shared = share(256, OWN, 8_000, 2, 4);
        assert_eq!(
            shared,
            Descriptors {
                limit: 256,
                connections: 68,
                pipes: 16
            }
        );
        assert_eq!(share(10, OWN, 8_000, 2, 4).connections, 1);
    }
}
