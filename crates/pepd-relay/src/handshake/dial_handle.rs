//! A dial under way, as those know it that have not begun it: it can be told to end and waited for,
//! and asked what its leg has sent.

use std::sync::Weak;
use std::time::{Duration, Instant};

use pepd_packet::SequenceNumber;
use pepd_sys::repair;
use pepd_telemetry::Socket;
use tokio::task::AbortHandle;

use super::table::Dial;

/// A dial under way.
#[derive(Debug)]
pub(crate) struct DialHandle {
    task: AbortHandle,
    leg: Option<DialedLeg>,
}

/// A leg that has sent its SYN.
#[derive(Clone)]
pub(crate) struct DialedLeg {
    /// The worker whose dial it is.
    worker: usize,
    /// As [`LegSocket::watch`](crate::connection::leg_socket::LegSocket::watch) gives it.
    socket: Weak<Socket>,
    /// The bytes of data in the SYN.
    sent: usize,
}

impl DialHandle {
    pub(crate) fn new(task: AbortHandle) -> Self {
        Self { task, leg: None }
    }
}

impl Dial for DialHandle {
    type Leg = DialedLeg;

    fn stop(&self) {
        self.task.abort();
    }

    fn leg_sent(&mut self, leg: DialedLeg) {
        self.leg = Some(leg);
    }

    fn leg(&self) -> Option<&DialedLeg> {
        self.leg.as_ref()
    }
}

impl DialedLeg {
    /// Takes the socket of a leg that `worker` dials, and how many bytes went out with its SYN.
    pub(super) fn new(worker: usize, socket: Weak<Socket>, sent: usize) -> Self {
        Self {
            worker,
            socket,
            sent,
        }
    }

    /// Returns whether a RST of this number resets an answer to the leg's SYN: it is that answer's
    /// acknowledgement (RFC 9293, section 3.10.7.3), which nobody knows who has not seen either. To
    /// be asked on `worker`, whose thread has the socket.
    pub(super) fn is_reset_by(&self, number: SequenceNumber, worker: usize) -> bool {
        if worker != self.worker {
            return false;
        }
        let Some(socket) = self.socket.upgrade() else {
            return false;
        };
        match repair::next_sequence(socket.as_fd()) {
            // What a SYN carries need not be acknowledged with it (RFC 7413, section 4.2.2).
            Ok(next) => next.wrapping_sub(number.0) as usize <= self.sent,
            Err(error) => {
                tracing::debug!(%error, "read a sequence number");
                false
            }
        }
    }
}

impl std::fmt::Debug for DialedLeg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DialedLeg")
            .field("worker", &self.worker)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

/// Waits until a dial that has been told to end is gone, on whichever worker it was: not for long,
/// unless that worker has no processor to run on.
pub(crate) async fn ended(dial: &DialHandle) {
    const PATIENCE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);
    // One of this worker's own ends here.
    tokio::task::yield_now().await;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    while !dial.task.is_finished() && Instant::now() < deadline {
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}
