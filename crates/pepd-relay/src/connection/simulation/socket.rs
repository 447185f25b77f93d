//! A TCP socket as the kernel keeps it, and what the runtime has seen of it.

use std::io;

use libc::{ENOTCONN, EPIPE, EWOULDBLOCK};
use tokio::io::Ready;

use crate::connection::recovery::{Figures, Stage};

/// One leg's socket. Its streams are told by their offsets: the byte at an offset is
/// [`byte_at`], so that what was sent can be held against what had arrived.
#[derive(Debug)]
pub(super) struct SimSocket {
    /// Bytes that have arrived.
    pub(super) arrived: u64,
    /// Bytes of these that have been read.
    pub(super) read: u64,
    /// The place of the urgent byte that has not been read; it may be still to arrive.
    pub(super) mark: Option<u64>,
    /// The places of urgent bytes when they were read.
    pub(super) urgent_read: Vec<u64>,
    /// Whether the peer's FIN has arrived.
    pub(super) fin: bool,
    /// Bytes that have been sent.
    pub(super) sent: u64,
    /// The places in them of urgent ones.
    pub(super) urgent_sent: Vec<u64>,
    /// Whether the FIN has been sent after them.
    pub(super) fin_sent: bool,
    /// Whether the connection is no more.
    pub(super) reset: bool,
    /// Bytes that can be sent.
    room: u64,
    /// Whether somebody is to be woken when there is room (SOCK_NOSPACE).
    awaits_room: bool,
    /// The error that waits to be taken (sk_err).
    error: Option<i32>,
    /// Whether a reset is to come in the middle of the next splice(2).
    cuts_splice: bool,
    /// Whether there is something new for the runtime to see.
    woken: bool,
    /// The readiness that the runtime has seen, and no call has cleared.
    pub(super) ready: Ready,
}

/// An event that happens to a socket from outside.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Bytes arrive.
    Data(u32),
    /// A header announces an urgent byte so many bytes ahead of what has arrived.
    Urgent(u8),
    /// The peer's FIN arrives.
    Fin,
    /// The connection is reset, or given up.
    Reset(i32),
    /// It is reset while a splice(2) into it is under way, the next one of at least two bytes.
    ResetInSplice,
    /// So many bytes more can be sent.
    Room(u32),
}

/// Returns the byte at an offset of any stream.
pub(super) fn byte_at(offset: u64) -> u8 {
    (offset % 251) as u8
}

impl SimSocket {
    pub(super) fn new(room: u64) -> Self {
        Self {
            arrived: 0,
            read: 0,
            mark: None,
            urgent_read: Vec::new(),
            fin: false,
            sent: 0,
            urgent_sent: Vec::new(),
            fin_sent: false,
            reset: false,
            room,
            awaits_room: false,
            error: None,
            cuts_splice: false,
            woken: true,
            ready: Ready::EMPTY,
        }
    }

    pub(super) fn apply(&mut self, event: Event) {
        match event {
            Event::Data(len) if !self.reset && !self.fin => self.arrived += u64::from(len),
            Event::Urgent(ahead) if !self.reset && !self.fin => {
                // tcp_check_urg: only one that is ahead of the last counts, which is an ordinary
                // byte from now on.
                let mark = self.arrived + u64::from(ahead);
                self.mark = self.mark.max(Some(mark));
                return;
            }
            Event::Fin if !self.reset => self.fin = true,
            Event::Reset(errno) if !self.reset => {
                self.reset = true;
                self.error = Some(errno);
            }
            Event::ResetInSplice => {
                self.cuts_splice = true;
                return;
            }
            Event::Room(len) => {
                self.room += u64::from(len);
                if !std::mem::take(&mut self.awaits_room) {
                    return;
                }
            }
            _ => return,
        }
        self.woken = true;
    }

    /// Brings everything under way to its end: the urgent byte that was announced arrives, without
    /// which a newer announcement may leave a byte unnoticed, and all that was sent is
    /// acknowledged.
    pub(super) fn conclude(&mut self) {
        if let Some(mark) = self.mark.filter(|mark| *mark >= self.arrived) {
            let missing = u32::try_from(mark + 1 - self.arrived).unwrap_or(u32::MAX);
            self.apply(Event::Data(missing));
        }
        self.apply(Event::Room(u32::MAX));
    }

    /// Lets the runtime see what is new, as epoll(7) tells it (EPOLLET).
    pub(super) fn show(&mut self) {
        if std::mem::take(&mut self.woken) {
            let seen = self.poll();
            self.ready |= seen;
        }
    }

    fn poll(&mut self) -> Ready {
        let mut mask = Ready::EMPTY;
        let mut set = |bit, is_set: bool| mask |= if is_set { bit } else { Ready::EMPTY };
        let ended = self.fin || self.reset;
        set(Ready::READABLE, self.arrived > self.read || ended);
        set(Ready::READ_CLOSED, ended);
        set(Ready::WRITABLE, self.room > 0 || self.reset);
        set(Ready::WRITE_CLOSED, self.reset);
        set(
            Ready::PRIORITY,
            self.mark.is_some_and(|mark| mark < self.arrived),
        );
        set(Ready::ERROR, self.error.is_some());
        self.awaits_room |= self.room == 0;
        mask
    }

    /// Returns whether the urgent byte is the next one to read (SIOCATMARK); it may be still to
    /// arrive.
    pub(super) fn is_at_mark(&self) -> bool {
        self.mark == Some(self.read)
    }

    /// Acts as splice(2) out of the socket: up to the mark.
    pub(super) fn splice_out(&mut self, most: u64) -> io::Result<u64> {
        let there = self
            .mark
            .map_or(self.arrived, |mark| self.arrived.min(mark))
            - self.read;
        self.take(there.min(most))
    }

    /// Acts as recv(2): up to the mark, or past it where it starts there (SO_OOBINLINE).
    pub(super) fn receive(&mut self, most: u64) -> io::Result<u64> {
        let there = self.peek(most)?;
        self.take(there)
    }

    /// Acts as [`Self::receive`], and leaves the bytes where they are (MSG_PEEK).
    pub(super) fn peek(&mut self, most: u64) -> io::Result<u64> {
        let end = match self.mark {
            Some(mark) if mark > self.read => self.arrived.min(mark),
            _ => self.arrived,
        };
        match (end - self.read).min(most) {
            0 => self.end_of_data().map(|()| 0),
            there => Ok(there),
        }
    }

    fn take(&mut self, len: u64) -> io::Result<u64> {
        if len == 0 {
            return self.end_of_data().map(|()| 0);
        }
        if let Some(mark) = self.mark.filter(|mark| *mark < self.read + len) {
            self.urgent_read.push(mark);
            self.mark = None;
        }
        self.read += len;
        Ok(len)
    }

    /// Returns the end: the kernel checks for the FIN first (SOCK_DONE), then for an error, which
    /// it gives once.
    fn end_of_data(&mut self) -> io::Result<()> {
        match self.error {
            _ if self.fin => Ok(()),
            Some(errno) => {
                self.error = None;
                Err(io::Error::from_raw_os_error(errno))
            }
            None if self.reset => Ok(()),
            None => Err(io::Error::from_raw_os_error(EWOULDBLOCK)),
        }
    }

    /// Acts as splice(2) into the socket of `len` bytes that begin at `offset`, of which it takes
    /// `share` if it can.
    pub(super) fn splice_in(&mut self, offset: u64, len: u64, share: u64) -> io::Result<u64> {
        let cut = self.cuts_splice && len > 1 && !self.reset;
        let share = if cut { share.min(len - 1) } else { share };
        let sent = self.send(offset, share)?;
        if cut {
            // A length, and the error is gone: the next write says EPIPE.
            self.reset = true;
            self.woken = true;
        }
        Ok(sent)
    }

    /// Acts as send(2) of `len` bytes that begin at `offset`.
    pub(super) fn send(&mut self, offset: u64, len: u64) -> io::Result<u64> {
        assert!(!self.fin_sent, "bytes after the FIN");
        if let Some(errno) = self.error.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if self.reset {
            return Err(io::Error::from_raw_os_error(EPIPE));
        }
        if self.room == 0 {
            self.awaits_room = true;
            return Err(io::Error::from_raw_os_error(EWOULDBLOCK));
        }
        assert_eq!(offset, self.sent, "bytes lost, repeated or out of order");
        let sent = len.min(self.room);
        self.room -= sent;
        self.sent += sent;
        Ok(sent)
    }

    /// Acts as send(2) of one byte with MSG_OOB.
    pub(super) fn send_urgent(&mut self) -> io::Result<u64> {
        let offset = self.sent;
        let sent = self.send(offset, 1)?;
        self.urgent_sent.push(offset);
        Ok(sent)
    }

    /// Acts as shutdown(2) for writing.
    pub(super) fn shut_down(&mut self) -> io::Result<u64> {
        if self.is_closed() {
            return Err(io::Error::from_raw_os_error(ENOTCONN));
        }
        self.fin_sent = true;
        Ok(0)
    }

    /// Returns whether the connection is over: reset, or both FINs have come and gone.
    fn is_closed(&self) -> bool {
        self.reset || self.fin && self.fin_sent
    }

    /// Has another process register it: epoll(7) tells it all that there is.
    pub(super) fn is_found(&mut self) {
        self.ready = Ready::EMPTY;
        self.woken = true;
    }

    /// Returns what the kernel tells of it, and of `early` bytes that it had before.
    pub(super) fn figures(&self, early: u64) -> Figures {
        Figures {
            stage: match self.is_closed() {
                true => Stage::Closed,
                false => Stage::Connected {
                    fin_sent: self.fin_sent,
                    fin_received: self.fin,
                },
            },
            error_waits: self.error.is_some(),
            written: early + self.sent + u64::from(self.fin_sent),
            unacknowledged: 0,
            read: early + self.read + u64::from(self.fin),
            unread: 0,
        }
    }

    /// Returns the bytes that the peer has not taken yet, more or less.
    pub(super) fn unsent(&self) -> u64 {
        self.sent % 3
    }
}
