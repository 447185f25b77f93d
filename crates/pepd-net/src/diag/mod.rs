//! The relay's sockets that nobody has open and the kernel keeps, and how to end them.
//!
//! A leg that ends in order leaves a socket in TIME_WAIT, for a minute, with the address of a
//! client or a server of others. While pepd's table is there its chain `own` copes with that. Once
//! it is gone nobody does: early demultiplexing finds the socket for what is to be forwarded, and
//! the kernel drops a packet that it forwards and that has a socket (ip_forward,
//! net/ipv4/ip_forward.c; ip6_forward, net/ipv6/ip6_output.c). The next connection with the same
//! addresses and ports would not get through.
//!
//! A handshake that a listener has answered leaves one, too, until the client has finished it. Where
//! a firewall drops what the client sends, it never does, and waits with a connection that nobody
//! has: what it sends is delivered here for as long. Without the socket it is routed, and reset by a
//! server that knows nothing of it.
//!
//! They are told from everybody else's by their marks, and ended by `SOCK_DESTROY` (sock_diag(7),
//! `CONFIG_INET_DIAG_DESTROY`).

mod codec;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

use std::io;
use std::thread;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use pepd_sys::retry_on_intr;
use tokio::sync::oneshot;

use self::codec::{Found, Reply, States, replies};
use crate::netlink::NetlinkError;
use crate::plan::Plan;
use crate::prefix::Family;
use crate::request::Mark;

/// The times that the list is read again because it changed meanwhile, at most.
const MOST_ROUNDS: usize = 4;

/// What has become of the sockets that the kernel still keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// So many were there, and none is any more.
    All(usize),
    /// Their marks do not tell them from another program's: the mask has one bit.
    Unmarked,
    /// The kernel has no `SOCK_DESTROY`.
    Unsupported,
}

/// Ends the sockets with the relay's marks that nobody has open any more.
pub(crate) async fn end_closing(mark: Mark) -> Result<Ended, NetlinkError> {
    on_a_thread(mark, States::Closing)
        .await
        .map_err(|source| NetlinkError::new("cannot end sockets in TIME_WAIT (ss -K)", source))
}

/// Ends the handshakes of clients that a listener has answered and that nobody has finished: their
/// next packets are routed. Gives how many there were, or none where the kernel cannot, or where
/// they cannot be told from another program's.
///
/// # Errors
///
/// [`NetlinkError`] if the kernel does not list or end them.
pub async fn end_half_open(plan: &Plan) -> Result<Option<usize>, NetlinkError> {
    let ended = on_a_thread(plan.mark, States::HalfOpen)
        .await
        .map_err(|source| NetlinkError::new("cannot end unfinished handshakes (ss -K)", source))?;
    Ok(match ended {
        Ended::All(count) => Some(count),
        Ended::Unmarked | Ended::Unsupported => None,
    })
}

/// There may be many: what is on the runtime goes on meanwhile. Not on a thread of the runtime's own,
/// which panics where it gets none.
async fn on_a_thread(mark: Mark, states: States) -> io::Result<Ended> {
    let (result, done) = oneshot::channel();
    thread::Builder::new()
        .name("diag".to_owned())
        .spawn(move || {
            // Nobody may be waiting any more.
            _ = result.send(end_all(mark, states));
        })?;
    done.await
        .map_err(|error| io::Error::new(io::ErrorKind::Interrupted, error))?
}

fn end_all(mark: Mark, states: States) -> io::Result<Ended> {
    let Some(marks) = mark.sockets() else {
        return Ok(Ended::Unmarked);
    };
    let mut diag = Diag::open()?;
    let mut ended = 0;
    for _ in 0..MOST_ROUNDS {
        let mut found = Vec::new();
        for family in Family::ALL {
            for value in [marks.client, marks.upstream] {
                found.extend(diag.list(states, family, Mark { value, ..mark })?);
            }
        }
        if found.is_empty() {
            break;
        }
        for socket in &found {
            match diag.end(socket) {
                Ok(()) => ended += 1,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EOPNOTSUPP) => return Ok(Ended::Unsupported),
                    // It has gone by itself, or another is in its place.
                    Some(libc::ENOENT | libc::ESTALE) => {}
                    _ => return Err(error),
                },
            }
        }
    }
    Ok(Ended::All(ended))
}

/// A socket to the kernel's sock_diag.
struct Diag {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// What is read at once: the kernel fills at most so much (netlink_dump, net/netlink/af_netlink.c).
const BUFFER_BYTES: usize = 32 << 10;

impl Diag {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel answers within the call: what is not there does not come.
        socket.set_non_blocking(true)?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Lists the sockets in these states that have this mark.
    fn list(&mut self, states: States, family: Family, mark: Mark) -> io::Result<Vec<Found>> {
        self.sequence += 1;
        let request = codec::list(self.sequence, states, family, mark);
        self.send(&request)?;
        let mut found = Vec::new();
        loop {
            for reply in self.receive()? {
                match reply {
                    Reply::Socket(socket) => found.push(socket),
                    Reply::Done(0) => return Ok(found),
                    // No such family: there are none of it.
                    Reply::Done(libc::ENOENT | libc::EAFNOSUPPORT) => return Ok(Vec::new()),
                    Reply::Done(errno) => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }

    fn end(&mut self, socket: &Found) -> io::Result<()> {
        self.sequence += 1;
        self.send(&codec::end(self.sequence, socket))?;
        loop {
            for reply in self.receive()? {
                match reply {
                    Reply::Done(0) => return Ok(()),
                    Reply::Done(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    Reply::Socket(_) => {}
                }
            }
        }
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        retry_on_intr(|| self.socket.send(request, 0)).map(drop)
    }

    fn receive(&mut self) -> io::Result<Vec<Reply>> {
        let length = retry_on_intr(|| {
            let mut rest = self.buffer.as_mut_slice();
            self.socket.recv(&mut rest, 0)
        })?;
        let bytes = self.buffer.get(..length).unwrap_or_default();
        Ok(replies(bytes, self.sequence).collect())
    }
}
