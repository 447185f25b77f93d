//! What pepd takes of its host: cores for its workers, what holds SYNs, descriptors.

use std::num::NonZeroUsize;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pepd_config::{AdminSocket, Config, Size};
use pepd_net::{QueueBackend, QueueBackendError};

use crate::daemon::moving;
use crate::exit::{Failure, Result};
use crate::runtime;

/// Gives the number of workers: one per core, if the file does not say.
pub fn workers(config: &Config) -> NonZeroUsize {
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    config.node.workers.unwrap_or_else(cores)
}

/// Returns whether packets are held in queues: SYNs, or what hosts send while a link is away.
pub fn holds(config: &Config) -> bool {
    config.holds_syns() || config.holds_acks()
}

/// Finds what holds packets on this host; none where none are held, in which case the kernel is not
/// asked. What comes for connections on their way here is held where that can be, and dropped elsewhere.
pub async fn queue_backend(config: &Config) -> Result<Option<QueueBackend>> {
    if holds(config) {
        Ok(Some(pepd_net::find_queue_backend().await?))
    } else if config.moves.may_take() {
        Ok(pepd_net::find_queue_backend().await.ok())
    } else {
        Ok(None)
    }
}

/// Returns why packets cannot be held on this host, where they are to be; none where that cannot be found out,
/// as without CAP_NET_ADMIN.
pub fn refused_here(config: &Config) -> Option<QueueBackendError> {
    if !holds(config) {
        return None;
    }
    let runtime = runtime::one_thread();
    let found = runtime.ok()?.block_on(pepd_net::find_queue_backend());
    found
        .err()
        .filter(|error| matches!(error, QueueBackendError::None { .. }))
}

/// The shares of the process's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The most descriptors that the process may have.
    pub limit: u64,
    /// The most connections, of two sockets each.
    pub connections: u32,
    /// The most pipes, of two descriptors each, once the connections have theirs.
    pub pipes: usize,
}

/// Descriptors for everything that is neither a connection nor a worker's: the main runtime,
/// netlink, the log, the lock, and an nft with its pipes.
const OWN: u64 = 64;

/// The descriptors of a worker's runtime: epoll twice, an eventfd and one to spare; and the sockets
/// for the next upstream leg, one per address family.
const PER_WORKER: u64 = 6;

/// Listeners of a leg in each worker: one per address family.
const LISTENERS_PER_LEG: u64 = 2;

/// Pipes without which nothing goes through splice.
const FEWEST_PIPES: u64 = 16;

/// Raises the limit of open files as far as it goes and shares it out: the connections that the
/// file wants, if they fit beside the listening sockets of each of the `workers`.
pub fn share_descriptors(config: &Config, workers: NonZeroUsize) -> Result<Descriptors> {
    Ok(shares(config, workers, raise_descriptor_limit()?, 0))
}

/// Raises the limit of open files as far as it goes, and gives it.
pub fn raise_descriptor_limit() -> Result<u64> {
    let failed = |error| Failure::internal("read or raise the limit of open files", error);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(failed)?;
    Ok(hard)
}

/// Computes how a limit of `files` open ones would be shared out. The listeners of a configuration
/// with `legs_before` legs may still be there beside this one's.
pub fn shares(
    config: &Config,
    workers: NonZeroUsize,
    files: u64,
    legs_before: usize,
) -> Descriptors {
    let workers = workers.get() as u64;
    let listeners = LISTENERS_PER_LEG * config.legs.len().max(legs_before) as u64;
    let mut own = OWN;
    if config.holds_syns() {
        // A queue takes two. What is pending in a flood may take what pipes would use.
        own += 2 * workers + u64::from(config.limits.pending).min(files / 8);
    }
    if config.holds_acks() {
        // A queue, the runtime of the thread that reads it, and the socket by which the kernel is told
        // that a link is away.
        own += 2 + 4 + 2;
    }
    if config.measured().is_some() {
        // A socket, twice, the runtime of the thread that reads it, and the socket by which the kernel is told what
        // is routed.
        own += 2 + 4 + 1;
    }
    if !config.moves.neighbors.is_empty() {
        // A runtime, the sockets by which the kernel is told and asked, the listener, its sessions, and one more.
        own += 4 + 2 + 1 + moving::sessions(config.moves.neighbors.len()) as u64 + 1;
    }
    for _ in [
        config.admin.socket != AdminSocket::Off,
        config.admin.metrics.is_some(),
    ]
    .into_iter()
    .filter(|asked| *asked)
    {
        // A runtime, the listener twice, its lock, and a client who waits for room.
        own += 4 + 4 + pepd_admin::api::Limits::STANDARD.connections as u64;
    }
    let wanted = config.limits.connections;
    let mut shared = share(files, own, wanted, workers, listeners);
    if let Some(memory) = config.limits.memory {
        shared.pipes = shared.pipes.min(pipes_within(memory));
    }
    shared
}

/// Returns the pipes that may take an eighth of what connections may hold: what is without one copies,
/// and holds nothing.
fn pipes_within(memory: Size) -> usize {
    let pipes = memory.0 / 8 / pepd_relay::PIPE_BYTES as u64;
    usize::try_from(pipes).unwrap_or(usize::MAX)
}

/// Returns from how many bytes on the kernel shrinks everybody's windows: the second number of
/// net.ipv4.tcp_mem, or what the kernel makes it by itself (tcp_init_mem, net/ipv4/tcp.c), where that
/// is not shown: it is the same for all network namespaces, and seen in the first.
pub fn tcp_memory() -> Size {
    const PAGE: u64 = 4096;
    const OF_THE_HOST: u64 = 16;
    if let Some([_, pressure, _]) = triple("tcp_mem") {
        return Size(pressure.saturating_mul(PAGE));
    }
    // Where not even this is known, as much as a router of 1 GiB has.
    let host = nix::sys::sysinfo::sysinfo().map_or(1 << 30, |info| info.ram_total());
    Size(host / OF_THE_HOST)
}

/// Returns what the kernel makes of buffers by itself; its own defaults where it does not say.
pub fn kernel_buffers() -> pepd_relay::KernelBuffers {
    let most = |name, default| triple(name).map_or(default, |[.., most]| most);
    pepd_relay::KernelBuffers {
        send: most("tcp_wmem", 4 << 20),
        receive: most("tcp_rmem", 6 << 20),
    }
}

fn triple(name: &str) -> Option<[u64; 3]> {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|it| it.parse().ok()).collect();
    numbers?.try_into().ok()
}

fn share(limit: u64, own: u64, wanted: u32, workers: u64, listeners: u64) -> Descriptors {
    // A reload opens its listeners beside those in force, and those before go on for a while.
    let listening = listeners * pepd_relay::LISTENER_SETS as u64;
    let free = limit.saturating_sub(own + workers * (PER_WORKER + listening));
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
                pipes: 1924
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
                connections: 58,
                pipes: 16
            }
        );
        assert_eq!(share(10, OWN, 8_000, 2, 4).connections, 1);
    }
}
