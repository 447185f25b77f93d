//! A bound queue.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pepd_packet::QueueNumber;

use super::message::{self, Verdict};
use crate::nfnetlink::Socket;
use crate::sockopt;

/// The bytes that [`Queue::receive`] may need for one packet: what is copied of it, and the
/// attributes around it.
pub const MESSAGE_BYTES: usize = COPIED_BYTES as usize + 512;

/// The bytes that are copied of a packet: a SYN with the longest headers and its Fast Open data, or
/// an ICMP error with what it quotes.
const COPIED_BYTES: u32 = 2048;

/// Packets that the kernel holds for one queue before it lets them pass unread.
const MAX_PACKETS: u32 = 16_384;

/// The socket's buffer, for about a thousand packets that have not been read.
const BUFFER_BYTES: i32 = 2 * 1024 * 1024;

/// How much a queue takes, and how much of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The bytes that are copied of a packet, at most [`MESSAGE_BYTES`] less what is around it.
    pub copied: u32,
    /// The packets that the kernel holds at most.
    pub packets: u32,
    /// The buffer of the socket, in bytes, for packets that have not been read.
    pub buffer: i32,
    /// What is held, and what becomes of what there is no room for.
    pub kind: Kind,
}

/// What a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Packets as they were sent. What there is no room for passes unread.
    Single,
    /// Packets as the host has them, several segments of a connection in one perhaps (GRO). What there is no room
    /// for is dropped.
    Merged,
}

impl Room {
    /// The room for SYNs.
    pub const SYNS: Self = Self {
        copied: COPIED_BYTES,
        packets: MAX_PACKETS,
        buffer: BUFFER_BYTES,
        kind: Kind::Single,
    };
}

/// The attempts to give what is due when the queue is closed. The kernel drops the rest, and the
/// clients repeat it.
const LAST_ATTEMPTS: u32 = 32;

/// Whom an accepted packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// Whoever routing finds: the verdict is good at any time.
    Anybody,
    /// A socket of whoever reads the queue: once it no longer reads, the packet is dropped.
    Reader,
}

/// A verdict that is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    packet: u32,
    verdict: Verdict,
    recipient: Recipient,
}

/// A bound queue.
///
/// When it is full, or its reader is too slow, it lets packets pass or drops them, as its [`Kind`] says. When the
/// last handle is dropped the kernel drops the packets it still holds
/// (nfqnl_rcv_nl_event, net/netfilter/nfnetlink_queue.c).
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: QueueNumber,
    /// Verdicts that could not be sent, the oldest first, at most as many as it holds packets: without
    /// them the kernel would keep the packets for as long as the queue is open.
    due: Mutex<VecDeque<Due>>,
    room: Room,
}

impl Queue {
    /// Binds the queue and starts to receive.
    ///
    /// # Errors
    /// EBUSY: another program reads this queue. EPERM: CAP_NET_ADMIN is missing. EPROTONOSUPPORT
    /// or EINVAL: the kernel has no nfnetlink_queue.
    pub fn open(number: QueueNumber, room: Room) -> io::Result<Self> {
        let mut socket = Socket::open()?;
        socket.set_non_blocking()?;
        // What did not fit has passed unread; there is nothing to be done about it here.
        socket.ignore_overflow()?;
        // A small buffer only means that packets pass unread earlier.
        let _ = sockopt::set_receive_buffer(socket.as_fd(), room.buffer);
        socket.request(&message::configure(number, room))?;
        Ok(Self {
            socket,
            number,
            due: Mutex::default(),
            room,
        })
    }

    /// Returns its number.
    pub fn number(&self) -> QueueNumber {
        self.number
    }

    /// Reads one datagram, for [`packets`](super::packets), into `buffer` of [`MESSAGE_BYTES`]
    /// or more.
    ///
    /// # Errors
    /// EAGAIN where there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.receive(buffer)
    }

    /// Packets that found the socket's buffer full since the queue was opened, and passed unread.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn overflowed(&self) -> io::Result<u32> {
        sockopt::drops(self.socket.as_fd())
    }

    /// Gives a packet's verdict, after those that are due. Where the kernel does not take it now
    /// (ENOBUFS, ENOMEM), it is due until [`retry`](Self::retry) gives it. If there is no such
    /// packet any more, that shows later, as a message that [`packets`](super::packets) passes over.
    ///
    /// # Errors
    /// As send(2), where more are due already than the kernel can hold packets: this one's stays
    /// there until the queue is closed.
    pub fn decide(&self, packet: u32, verdict: Verdict, recipient: Recipient) -> io::Result<()> {
        let mut due = self.due();
        let sent = match due.is_empty() {
            true => self.send(packet, verdict),
            false => self
                .send_due(&mut due)
                .and_then(|()| self.send(packet, verdict)),
        };
        match sent {
            Err(_) if due.len() < self.room.packets as usize => due.push_back(Due {
                packet,
                verdict,
                recipient,
            }),
            sent => return sent,
        }
        Ok(())
    }

    /// Takes back what is due and was for the reader, who no longer reads: its packets are dropped,
    /// so that what repeats them finds another way.
    pub fn withdraw(&self) {
        for due in self.due().iter_mut() {
            if due.recipient == Recipient::Reader {
                due.verdict = Verdict::Drop;
            }
        }
    }

    /// Gives the verdicts that are due, the oldest first, up to the first one that the kernel does
    /// not take; returns how many are left.
    pub fn retry(&self) -> usize {
        let mut due = self.due();
        // Why it takes none is not to be known: whatever it is, the next call tries again.
        let _ = self.send_due(&mut due);
        due.len()
    }

    fn send_due(&self, due: &mut VecDeque<Due>) -> io::Result<()> {
        while let Some(first) = due.front() {
            self.send(first.packet, first.verdict)?;
            due.pop_front();
        }
        Ok(())
    }

    fn send(&self, packet: u32, verdict: Verdict) -> io::Result<()> {
        self.socket
            .send(&message::decide(self.number, packet, verdict))
    }

    fn due(&self) -> MutexGuard<'_, VecDeque<Due>> {
        // A panic while the lock is held leaves at worst a verdict that is given twice.
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.withdraw();
        for _ in 0..LAST_ATTEMPTS {
            if self.retry() == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
