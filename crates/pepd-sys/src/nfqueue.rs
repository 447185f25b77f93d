//! A reader of one NFQUEUE: packets that the kernel holds until they get a verdict.
//!
//! Verdicts may be given in any order and from any thread, which no crate that was tried
//! allows: a held SYN waits for an answer from afar while others come and go. The protocol is
//! two message types on netlink-sys' socket.

mod message;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

pub use message::{Hook, Packet, packets};

use pepd_packet::{PacketMark, QueueNumber};

use crate::sockopt;

/// The bytes that [`Queue::receive`] may need for one packet: what is copied of it, and the
/// attributes around it.
pub const MESSAGE_BYTES: usize = COPIED_BYTES as usize + 512;

/// What is copied of a packet: a SYN with the longest headers and its Fast Open data, or an
/// ICMP error with what it quotes.
const COPIED_BYTES: u32 = 2048;

/// Packets that the kernel holds for one queue before it lets them pass unread.
const MAX_PACKETS: u32 = 16_384;

/// The socket's buffer, for about a thousand packets that have not been read.
const BUFFER_BYTES: i32 = 2 * 1024 * 1024;

/// A bound queue.
///
/// It lets packets pass (fails open) when it is full or its reader is too slow. When the
/// last handle is dropped the kernel drops the packets it still holds
/// (nfqnl_rcv_nl_event, net/netfilter/nfnetlink_queue.c).
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: QueueNumber,
}

/// What becomes of a held packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on to the next chain, with this packet mark (all 32 bits).
    Accept(PacketMark),
    /// It is dropped, and its sender told nothing.
    Drop,
}

impl Queue {
    /// Binds the queue and starts to receive.
    ///
    /// # Errors
    /// EBUSY: another program reads this queue. EPERM: CAP_NET_ADMIN is missing. EPROTONOSUPPORT
    /// or EINVAL: the kernel has no nfnetlink_queue.
    pub fn open(number: QueueNumber) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_cap_ack(true)?;
        socket.set_non_blocking(true)?;
        // What did not fit has passed unread; there is nothing to be done about it here.
        socket.set_no_enobufs(true)?;
        // A small buffer only means that packets pass unread earlier.
        let _ = sockopt::set_receive_buffer(socket.as_fd(), BUFFER_BYTES);
        let queue = Self { socket, number };
        let request = message::configure(number, COPIED_BYTES, MAX_PACKETS);
        queue.send(&request)?;
        let mut answer = [0; 512];
        // The kernel answers within send(2).
        let len = queue.receive(&mut answer)?;
        message::acknowledged(&answer[..len])?;
        Ok(queue)
    }

    /// Its number.
    pub fn number(&self) -> QueueNumber {
        self.number
    }

    /// Reads one datagram, for [`packets`], into `buffer` of [`MESSAGE_BYTES`] or more.
    ///
    /// # Errors
    /// EAGAIN where there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = buffer.len();
        let mut rest = buffer;
        let len = self.socket.recv(&mut rest, libc::MSG_DONTWAIT)?;
        Ok(len.min(size))
    }

    /// Packets that found the socket's buffer full since the queue was opened, and passed unread.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn overflowed(&self) -> io::Result<u32> {
        sockopt::drops(self.socket.as_fd())
    }

    /// Gives a packet's verdict. That there is no such packet any more shows later, as a message
    /// that [`packets`] passes over.
    pub fn decide(&self, packet: u32, verdict: Verdict) -> io::Result<()> {
        self.send(&message::decide(self.number, packet, verdict))
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match self.socket.send(bytes, 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
