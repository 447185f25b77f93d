//! What a relay has left whose process has died: connections, listeners, clients that it had accepted
//! a moment before, and upstream legs whose clients it had not accepted yet.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pepd_packet::FourTuple;
use pepd_sys::descriptors::Left;
use pepd_sys::{repair, stream, tcp_info};
use socket2::{Domain, SockRef, Socket};

use crate::settings::ListenerAddress;
use crate::slots::found::{Found, FoundConnection, LostConnection, figures};
use crate::slots::{Former, Slots};

/// What a relay has left. What of it nobody takes stays open when this is dropped, and noted: this process
/// has failed before it could go on, and the next one finds it again.
#[derive(Debug)]
pub struct Remains {
    connections: Vec<FoundConnection>,
    lost: Vec<LostConnection>,
    listeners: Vec<(SocketAddr, Socket)>,
    /// Clients that wait to be served.
    clients: Vec<OwnedFd>,
    /// Upstream legs whose clients have not been accepted.
    legs: HashMap<FourTuple, OwnedFd>,
    /// The legs whose links were gone.
    gone: HashSet<Arc<str>>,
    pub(crate) former: Option<Former>,
}

impl Remains {
    /// Takes everything that is a relay's out of what its process has `left`. If that died `of` something
    /// that it did itself, the connections that it had in hand may be the cause.
    pub fn take(slots: &Arc<Slots>, left: &mut Left, of_itself: bool) -> Self {
        let Found {
            mut connections,
            lost,
        } = slots.find(left, of_itself);
        // Most of thousands are idle: those that are not go on before them, and what has little to say before
        // what has much.
        connections.sort_by_key(|connection| match connection.waiting {
            0 => u64::MAX,
            waiting => waiting,
        });
        let mut remains = Self {
            connections,
            lost,
            listeners: Vec::new(),
            gone: HashSet::new(),
            clients: Vec::new(),
            legs: HashMap::new(),
            former: slots.former(),
        };
        let numbers: Vec<_> = left.numbers().collect();
        let mut clients = Vec::new();
        for number in numbers {
            match left.get(number).map(kind) {
                Some(Kind::Listener(address)) => {
                    let socket = left.take(number).map(Socket::from);
                    remains
                        .listeners
                        .extend(socket.map(|socket| (address, socket)));
                }
                Some(Kind::Client { flow, read }) => {
                    clients.extend(left.take(number).map(|client| (flow, read, client)));
                }
                Some(Kind::Upstream(flow)) => {
                    remains
                        .legs
                        .extend(left.take(number).map(|leg| (flow, leg)));
                }
                Some(Kind::Other) | None => {}
            }
        }
        // What has been read of a client has gone out with the SYN of its leg: without that it is reset.
        let legs = &remains.legs;
        let served = clients.into_iter();
        let served = served.filter(|(flow, read, _)| *read == 0 || legs.contains_key(flow));
        remains.clients.extend(served.map(|(.., client)| client));
        remains
    }

    /// Returns how many connections go on.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns how many clients wait to be served.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Has what an outage may have left of sockets put right: there has been one while the process lived.
    pub fn after_an_outage(&mut self) {
        for connection in &mut self.connections {
            connection.after_an_outage = true;
        }
    }

    /// Takes what is to be told of the connections that cannot go on.
    pub fn take_lost(&mut self) -> Vec<LostConnection> {
        std::mem::take(&mut self.lost)
    }

    /// Takes the upstream legs whose clients have not been accepted.
    pub(crate) fn take_legs(&mut self) -> HashMap<FourTuple, OwnedFd> {
        std::mem::take(&mut self.legs)
    }

    /// Notes that the links under these legs were gone: what ends before it is heard of them waits for them.
    pub fn without_links(&mut self, legs: impl IntoIterator<Item = Arc<str>>) {
        self.gone.extend(legs);
    }

    /// Takes the legs whose links were gone.
    pub(crate) fn take_gone(&mut self) -> HashSet<Arc<str>> {
        std::mem::take(&mut self.gone)
    }

    /// Takes a listener at this address, if there is one left.
    pub(crate) fn take_listener(&mut self, address: SocketAddr) -> Option<Socket> {
        let at = self.listeners.iter().position(|(it, _)| *it == address)?;
        Some(self.listeners.swap_remove(at).1)
    }

    /// Closes the listeners that nobody has taken; whoever waits there to be accepted is served.
    pub(crate) fn close_listeners(&mut self) {
        for (_, listener) in std::mem::take(&mut self.listeners) {
            while let Ok((client, _)) = stream::accept(listener.as_fd()) {
                self.clients.push(client);
            }
        }
    }

    /// Takes a share of the connections and clients, for one of `workers` that have none yet.
    pub(crate) fn take_share(&mut self, workers: usize) -> Share {
        Share {
            connections: deal(&mut self.connections, workers),
            clients: deal(&mut self.clients, workers),
        }
    }
}

/// Takes every so many'th, in their order.
fn deal<T>(all: &mut Vec<T>, workers: usize) -> Vec<T> {
    let mut place = 0..;
    all.extract_if(.., |_| place.next().unwrap_or(0) % workers.max(1) == 0)
        .collect()
}

impl Drop for Remains {
    fn drop(&mut self) {
        drop(self.take_share(1));
        std::mem::forget(std::mem::take(&mut self.listeners));
        std::mem::forget(std::mem::take(&mut self.legs));
    }
}

/// What one worker goes on with. Where there is no worker for it, it stays open when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    pub(crate) connections: Vec<FoundConnection>,
    pub(crate) clients: Vec<OwnedFd>,
}

impl Drop for Share {
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.connections));
        std::mem::forget(std::mem::take(&mut self.clients));
    }
}

/// What a descriptor that no notes speak of is.
enum Kind {
    /// One of a relay's listeners, at this address.
    Listener(SocketAddr),
    /// A client that was accepted, of which at most what goes out with a SYN has been read.
    Client {
        flow: FourTuple,
        read: u64,
    },
    /// An upstream leg that is or was connected, or may be as soon as its SYN arrives, since data went
    /// with that; and to which nothing else has been written.
    Upstream(FourTuple),
    Other,
}

fn kind(fd: BorrowedFd<'_>) -> Kind {
    let socket = SockRef::from(&fd);
    let address = || socket.local_addr().ok()?.as_socket();
    match socket.is_listener() {
        Ok(true) => match address() {
            Some(address) if ListenerAddress::is_one(address.ip()) => Kind::Listener(address),
            _ => Kind::Other,
        },
        Ok(false) => untouched(fd).unwrap_or(Kind::Other),
        // No socket.
        Err(_) => Kind::Other,
    }
}

/// How long an upstream leg has waited for its client at most that is kept for it once more: those that were kept
/// by a process before may be in the way of a client whose SYN was routed meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(6);

/// Tells what a transparent socket is that is connected, and from which nothing has been read, nor
/// anything written to it, but for what goes with a SYN (RFC 7413).
fn untouched(fd: BorrowedFd<'_>) -> std::io::Result<Kind> {
    // include/net/tcp_states.h
    const ESTABLISHED: u8 = 1;
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    // Of a connection that another box may serve: it closes without a word.
    if repair::is_on(fd) {
        return Ok(Kind::Other);
    }
    // Fails for what is no TCP socket.
    let info = tcp_info::tcp_info(fd)?;
    let socket = SockRef::from(&fd);
    let is_transparent = match socket.domain()? {
        Domain::IPV4 => socket.ip_transparent_v4()?,
        Domain::IPV6 => socket.ip_transparent_v6()?,
        _ => false,
    };
    if !is_transparent {
        return Ok(Kind::Other);
    }
    // Fails for what has never connected.
    let peer = stream::peer_ever(fd)?;
    let Some(own) = socket.local_addr()?.as_socket() else {
        return Ok(Kind::Other);
    };
    let connected = FourTuple {
        client: own,
        server: peer,
    };
    let accepted = FourTuple {
        client: peer,
        server: own,
    };
    let figures = figures(fd, false)?;
    let read = figures
        .read
        .saturating_sub(u64::from(info.state == CLOSE_WAIT));
    Ok(match (info.state, figures.written) {
        // Its destination may serve it already. Others are connected anew: their SYN may have been for a
        // link that is gone.
        (SYN_SENT, _) if info.sent_bytes.is_some_and(|sent| sent > 0) => Kind::Upstream(connected),
        // Its destination has reset it: so is its client, who may not have been accepted yet.
        (CLOSE, _) => Kind::Upstream(connected),
        (SYN_RECV | ESTABLISHED | CLOSE_WAIT, 0) => Kind::Client {
            flow: accepted,
            read,
        },
        // The kernel counts the SYN of a socket that has connected.
        (ESTABLISHED | CLOSE_WAIT, _) if read == 0 && info.since_sending < LONGEST_WAIT => {
            Kind::Upstream(connected)
        }
        _ => Kind::Other,
    })
}
