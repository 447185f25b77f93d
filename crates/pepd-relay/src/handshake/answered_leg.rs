//! An upstream leg whose destination has answered.

use std::io;

use pepd_packet::Mark;
use pepd_sys::sockopt;
use socket2::SockRef;

use super::queued_packet::QueuedPacket;
use crate::connection::leg_socket::LegSocket;
use crate::limits::Coming;
use crate::sockopts::{self, SocketError, SocketOption};

/// An upstream leg whose destination has answered while the client's SYN was held.
///
/// Until the client comes, the destination does not hear that its answer has arrived: whoever sent
/// the SYN may have forged its address, and what a SYN alone opens at a server must be no more than
/// a handshake that has been begun (RFC 4987).
#[derive(Debug)]
pub(crate) struct AnsweredLeg {
    pub(crate) socket: LegSocket,
    /// The worker that has dialed it, and whose runtime knows it.
    pub(crate) worker: usize,
    /// The number of bytes of the client's first data that went out in the SYN.
    pub(crate) sent: usize,
    /// The mark that its packets have once its client has come. None where that had proved its
    /// address before, and nothing is withheld.
    pub(crate) claimed_mark: Option<Mark>,
    /// Says that its client is about to come. None where nobody asked whether it may.
    pub(crate) coming: Option<Coming>,
}

impl AnsweredLeg {
    /// Ends the destination's handshake, now that the client's has ended. `ack` is what would have
    /// ended it, if the leg has tried already.
    pub(crate) fn claim(&self, ack: Option<QueuedPacket>) {
        let Some(mark) = self.claimed_mark else {
            return;
        };
        // First: what it sends from here on is to leave at once.
        if let Err(error) = self.end_handshake(mark, ack.is_none()) {
            tracing::debug!(%error, "end a handshake");
        }
        if let Some(ack) = ack {
            ack.release_as(mark);
        }
    }

    /// Gives the leg to the connection, which is `worker`'s.
    pub(crate) async fn into_socket(self, worker: usize) -> io::Result<LegSocket> {
        if worker == self.worker {
            return Ok(self.socket);
        }
        LegSocket::register(self.socket.into_fd()).await
    }

    fn end_handshake(&self, mark: Mark, acknowledge: bool) -> Result<(), SocketError> {
        let fd = self.socket.as_fd();
        let marked = SockRef::from(&fd).set_mark(mark.value.0);
        sockopts::set(SocketOption::Mark, marked)?;
        if acknowledge {
            // It acknowledges what it has put off (tcp_cleanup_rbuf, net/ipv4/tcp.c).
            sockopt::set_quick_ack(fd, 1)?;
        }
        Ok(())
    }
}
