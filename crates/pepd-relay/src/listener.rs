//! The TPROXY listeners: one per leg, address family and worker.

use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use libc::{EADDRINUSE, EAFNOSUPPORT};
use pepd_packet::QueueNumber;
use pepd_sys::{sockopt, tcp_info};
use socket2::{Domain, Socket};

use crate::call::Call;
use crate::chosen::ChosenControl;
use crate::fast_open::Key;
use crate::remains::Remains;
use crate::settings::{Dscp, Leg, ListenerAddress, Settings};
use crate::shortage::is_shortage;
use crate::sockopts::{self, SocketError, SocketOption};

/// Connections that may wait to be accepted, and handshakes that may be under way, cut by the kernel
/// to net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// The room in a queue of which nothing is known: the oldest kernels' net.core.somaxconn.
const SMALLEST_QUEUE: u32 = 128;

/// The times that a SYN-ACK is sent again.
const SYN_ACK_RETRIES: i32 = 3;

/// The time for which a listener keeps a handshake that its client does not end: so many
/// retransmissions, the first after a second and each after twice the time of the one before (RFC
/// 6298; reqsk_timer_handler, net/ipv4/inet_connection_sock.c).
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs((2 << SYN_ACK_RETRIES) - 1);

/// Fast Open requests that may be unfinished at once (RFC 7413, section 5.1).
const FAST_OPEN_QUEUE: i32 = 1024;

/// The reasons why the listeners could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program has the port, or pepd runs already.
    #[error(
        "listen on port {port}: in use by another program; choose another [capture] port, or \
         see who has it: ss -ltnp 'sport = :{port}'"
    )]
    InUse {
        /// The port.
        port: u16,
    },
    /// Something else failed.
    #[error("listen on {address}: {source}")]
    Other {
        /// The address of the listener.
        address: SocketAddr,
        /// The call that failed.
        source: SocketError,
    },
    /// Another program reads the queue.
    #[error(
        "read NFQUEUE {number}: another program does so already; see /proc/net/netfilter/\
         nfnetlink_queue, or write `handshake = \"early\"`, which holds no SYNs"
    )]
    QueueInUse {
        /// Its number.
        number: QueueNumber,
    },
    /// SYNs cannot be held on this kernel.
    #[error(
        "read NFQUEUE {number}: {source}; the end-to-end handshake needs the kernel module \
         nfnetlink_queue (modprobe nfnetlink_queue) and CAP_NET_ADMIN; \
         `handshake = \"early\"` does without"
    )]
    NoQueue {
        /// Its number.
        number: QueueNumber,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// No randomness is available.
    #[error("make a key for Fast Open: {0}")]
    NoKey(#[source] std::io::Error),
    /// More legs than listeners can be told apart.
    #[error("{0} legs are more than the 250 that listeners can be told apart for")]
    TooManyLegs(usize),
}

impl ListenError {
    /// Returns whether the kernel lacked descriptors or memory: it may have them in a moment.
    pub fn is_shortage(&self) -> bool {
        let errno = match self {
            Self::Other { source, .. } => source.errno(),
            Self::NoQueue { source, .. } | Self::NoKey(source) => source.raw_os_error(),
            Self::InUse { .. } | Self::QueueInUse { .. } | Self::TooManyLegs(_) => None,
        };
        errno.is_some_and(is_shortage)
    }
}

/// A listener with the leg whose clients it serves.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) domain: Domain,
    pub(crate) dscp: Dscp,
    /// What those have as their congestion control that it accepts, where that is chosen again and again.
    pub(crate) chosen: Option<ChosenControl>,
}

/// Opens the listeners of all legs, for each worker a set.
///
/// A host without IPv6 gets IPv4 listeners only. Those that a process before this one has left are
/// taken first.
pub(crate) fn open_all(
    settings: &Settings,
    workers: NonZeroUsize,
    generation: u8,
    key: &Key,
    remains: &mut Option<Remains>,
) -> Result<Vec<Vec<Listener>>, ListenError> {
    let addresses = addresses(settings, generation)?;
    let domains = domains(settings.port)?;
    (0..workers.get())
        .map(|_| {
            let mut set = Vec::new();
            for (leg, address) in settings.legs.iter().zip(&addresses) {
                for &domain in domains {
                    let address = address.of(domain, settings.port);
                    let left = remains.as_mut().and_then(|it| it.take_listener(address));
                    let socket = left.map_or_else(|| open(leg, address, domain, key), Ok)?;
                    set.push(Listener {
                        socket,
                        domain,
                        dscp: leg.dscp,
                        chosen: leg.chosen.clone(),
                    });
                }
            }
            Ok(set)
        })
        .collect()
}

/// Returns the number of handshakes that may be under way at these listeners, whoever of them has
/// them: a part of the room in the queues of one leg's. A client's addresses and ports choose among
/// the workers' (SO_REUSEPORT), in a way that it cannot know.
pub(crate) fn room(sets: &[Vec<Listener>]) -> usize {
    let queue = |listener: &Listener| queue_room(listener.socket.as_fd());
    let smallest = sets.iter().flatten().map(queue).min();
    (smallest.unwrap_or(0).saturating_mul(sets.len()) / 4 * 3).max(1)
}

/// Returns the number of handshakes that may be under way at a listener before it answers with
/// cookies or, where they are off, not at all (tcp_conn_request, net/ipv4/tcp_input.c).
fn queue_room(listener: BorrowedFd<'_>) -> usize {
    let backlog = tcp_info::backlog(listener).unwrap_or(SMALLEST_QUEUE);
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let uncookied = number("tcp_syncookies")
        .filter(|cookies| *cookies == 0)
        .and_then(|_| number("tcp_max_syn_backlog"))
        .map_or(u32::MAX, |most| most / 4 * 3);
    usize::try_from(backlog.min(uncookied)).unwrap_or(usize::MAX)
}

/// Returns the listener address of each leg, in the order of the legs.
pub(crate) fn addresses(
    settings: &Settings,
    generation: u8,
) -> Result<Vec<ListenerAddress>, ListenError> {
    let count = settings.legs.len();
    match u8::try_from(count) {
        Ok(count @ 0..=250) => Ok((1..=count)
            .map(|leg| ListenerAddress::new(generation, leg))
            .collect()),
        _ => Err(ListenError::TooManyLegs(count)),
    }
}

/// Returns the address families that this host has. That a socket cannot be had now says nothing
/// about them: whoever went on without IPv6 would not serve it, and nobody would know.
fn domains(port: u16) -> Result<&'static [Domain], ListenError> {
    match sockopts::new_socket(Domain::IPV6) {
        Ok(_) => Ok(&[Domain::IPV4, Domain::IPV6]),
        Err(error) if error.raw_os_error() == Some(EAFNOSUPPORT) => Ok(&[Domain::IPV4]),
        Err(source) => Err(ListenError::Other {
            address: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
            source: SocketError::Call {
                call: Call::Socket,
                source,
            },
        }),
    }
}

fn open(leg: &Leg, address: SocketAddr, domain: Domain, key: &Key) -> Result<Socket, ListenError> {
    listen(leg, address, domain, key).map_err(|source| match source.errno() {
        Some(EADDRINUSE) => ListenError::InUse {
            port: address.port(),
        },
        _ => ListenError::Other { address, source },
    })
}

fn listen(
    leg: &Leg,
    address: SocketAddr,
    domain: Domain,
    key: &Key,
) -> Result<Socket, SocketError> {
    let called = |call| move |source| SocketError::Call { call, source };
    let socket = sockopts::new_socket(domain).map_err(called(Call::Socket))?;
    let fd = socket.as_fd();
    sockopts::set_transparent(&socket, domain)?;
    sockopts::set(SocketOption::ReusePort, socket.set_reuse_port(true))?;
    if domain == Domain::IPV6 {
        sockopts::set(SocketOption::OnlyV6, socket.set_only_v6(true))?;
    }
    sockopts::apply(&socket, domain, leg, leg.client_mark)?;
    // Even where this leg has a DSCP of its own: the upstream leg may copy the client's.
    sockopt::set_save_syn(fd, 1)?;
    socket.bind(&address.into()).map_err(called(Call::Bind))?;
    sockopt::set_syn_count(fd, SYN_ACK_RETRIES)?;
    socket.listen(BACKLOG).map_err(called(Call::Listen))?;
    if leg.fast_open {
        sockopt::set_fast_open_key(fd, key.bytes())?;
        sockopt::set_fast_open(fd, FAST_OPEN_QUEUE)?;
    }
    Ok(socket)
}
