//! A bound group.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use pepd_packet::LogGroup;

use super::message::{self, COPIED_BYTES};
use crate::nfnetlink::Socket;
use crate::sockopt;

/// The bytes that [`Log::receive`] may need for one packet: what is copied of it, and the attributes around
/// it.
pub const MESSAGE_BYTES: usize = COPIED_BYTES as usize + 512;

/// The socket's buffer, for a few thousand packets that have not been read.
const BUFFER_BYTES: i32 = 2 * 1024 * 1024;

/// A bound group. The kernel stops passing packets on when it is dropped.
#[derive(Debug)]
pub struct Log(Socket);

impl Log {
    /// Binds the group and starts to receive.
    ///
    /// # Errors
    /// EBUSY: another program reads this group. EPERM: CAP_NET_ADMIN is missing. EPROTONOSUPPORT or
    /// EINVAL: the kernel has no nfnetlink_log.
    pub fn open(group: LogGroup) -> io::Result<Self> {
        let mut socket = Socket::open()?;
        socket.set_non_blocking()?;
        socket.ignore_overflow()?;
        // A small buffer only means that more is lost.
        let _ = sockopt::set_receive_buffer(socket.as_fd(), BUFFER_BYTES);
        for request in message::configure(group) {
            socket.request(&request)?;
        }
        Ok(Self(socket))
    }

    /// Reads one datagram, for [`packets`](super::packets), into `buffer` of [`MESSAGE_BYTES`] or more.
    ///
    /// # Errors
    /// EAGAIN where there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(buffer)
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
