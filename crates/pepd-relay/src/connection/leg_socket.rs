//! One leg's socket while it is relayed: readiness, and what went wrong with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pepd_sys::pipe::Pipe;
use pepd_sys::{reactor, stream};
use pepd_telemetry::Socket;
use socket2::SockRef;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};

use crate::connection::leg::{Failure, Fate, Input, LegIo, LegState, Output, Urgent};
use crate::shortage::{self, is_shortage};

/// A connected, non-blocking socket of one leg.
///
/// It lingers for zero seconds (SO_LINGER) from the start: however it is closed, by a panic or
/// by the kernel when the process is killed, its peer sees a RST and never a clean end that
/// is short. Only [`LegSocket::will_close`] takes that back.
#[derive(Debug)]
pub(crate) struct LegSocket {
    /// Shared with nobody for good: see [`LegSocket::watch`].
    fd: Arc<AsyncFd<OwnedFd>>,
    state: LegState,
}

impl LegSocket {
    /// Registers a connected or connecting socket with the worker's runtime; where the kernel lacks
    /// memory for it, again and again for some seconds.
    pub(crate) async fn register(fd: OwnedFd) -> io::Result<Self> {
        Self::register_found(fd, Fate::default()).await
    }

    /// The same, of one with which another process has begun, and which may have failed since.
    pub(crate) async fn register_found(mut fd: OwnedFd, as_it_is: Fate) -> io::Result<Self> {
        let interest =
            Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY | Interest::ERROR;
        let mut pauses = shortage::pauses();
        loop {
            let refused = match reactor::register(fd, interest) {
                Ok(registered) => {
                    return Ok(Self {
                        fd: Arc::new(registered),
                        state: LegState::found(as_it_is),
                    });
                }
                Err(refused) => refused,
            };
            let passes = refused.error.raw_os_error().is_some_and(is_shortage);
            let Some(pause) = pauses.next().filter(|_| passes) else {
                return Err(refused.error);
            };
            fd = refused.fd;
            tokio::time::sleep(pause).await;
        }
    }

    /// Borrows the descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// Gives up the descriptor, no longer registered with this worker's runtime.
    #[allow(
        clippy::expect_used,
        reason = "whoever watches a socket holds it only for a call, on this worker's own thread"
    )]
    pub(crate) fn into_fd(self) -> OwnedFd {
        let fd = Arc::into_inner(self.fd).expect("the only owner");
        fd.into_inner()
    }

    /// Gives a handle for samples of the socket while it is open. Only the worker's own thread may
    /// upgrade it, and for a single call only: so the socket closes when this value is dropped.
    pub(crate) fn watch(&self) -> Weak<Socket> {
        let fd: Arc<Socket> = Arc::clone(&self.fd) as Arc<Socket>;
        Arc::downgrade(&fd)
    }

    /// Returns whether its peer had sent its FIN before it came here.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.has_ended()
    }

    /// Returns whether the urgent byte is the next one to read.
    pub(crate) fn has_urgent(&self) -> bool {
        stream::at_urgent_mark(self.as_fd()).unwrap_or(false)
    }

    /// Says what went wrong. An error that waits in the socket is taken from it: to be asked only
    /// when nothing more will be read.
    pub(crate) fn failure(&mut self) -> Option<Failure> {
        if self.state.take_error_waits()
            && let Ok(Some(error)) | Err(error) = SockRef::from(self.fd.get_ref()).take_error()
        {
            self.state.fail(&error);
        }
        self.state.failure()
    }

    /// Reads if the runtime has seen an event, or is forced to.
    fn read(
        &self,
        force: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // A leg that has failed, or ended, has no more events to wait for: all that it ever gets is there.
        if force || self.state.has_failed() || self.state.has_ended() {
            call(self.as_fd())
        } else {
            self.fd.try_io(Interest::READABLE, |fd| call(fd.as_fd()))
        }
    }

    /// Writes if the runtime has seen room.
    fn write(&self, call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>) -> io::Result<usize> {
        self.fd.try_io(Interest::WRITABLE, |fd| call(fd.as_fd()))
    }

    /// Waits until the socket is ready for `interest`, or fails.
    pub(crate) async fn ready(&mut self, interest: Option<Interest>) {
        let wanted = match (interest, self.has_failed()) {
            (Some(interest), false) => interest | Interest::ERROR,
            (Some(interest), true) => interest,
            (None, false) => Interest::ERROR,
            (None, true) => return std::future::pending().await,
        };
        match self.fd.ready(wanted).await {
            Ok(mut guard) => {
                if guard.ready().is_priority() {
                    guard.clear_ready_matching(Ready::PRIORITY);
                    self.state.announce_urgent();
                }
                if guard.ready().is_error() {
                    guard.clear_ready_matching(Ready::ERROR);
                    self.state.announce_error();
                }
            }
            Err(error) => self.state.fail(&error),
        }
    }

    /// Waits until the peer's kernel has acknowledged everything but for a FIN.
    ///
    /// Closing earlier would leave the rest to the kernel as an orphan, which has fewer
    /// retransmissions and a limit on how many there may be (tcp_orphan_retries,
    /// tcp_max_orphans): bytes that we have accepted could get lost unnoticed.
    /// Ends early when the leg fails, or when nothing is acknowledged for `patience`. Gives the
    /// number of bytes that are not acknowledged then; a FIN counts as one.
    pub(crate) async fn acknowledged(
        &mut self,
        fin_sent: bool,
        patience: Option<Duration>,
    ) -> usize {
        const SHORTEST: Duration = Duration::from_millis(1);
        const LONGEST: Duration = Duration::from_millis(500);
        let mut pause = SHORTEST;
        let mut still = Duration::ZERO;
        let mut left = usize::MAX;
        while !self.has_failed() {
            // Where it cannot be asked it is asked again.
            let before = left;
            left = stream::unacknowledged(self.as_fd()).unwrap_or(before);
            if left <= usize::from(fin_sent) {
                break;
            }
            still = if left < before {
                Duration::ZERO
            } else {
                still + pause
            };
            if patience.is_some_and(|patience| still >= patience) {
                break;
            }
            tokio::select! {
                () = self.ready(None) => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = LONGEST.min(pause * 2);
        }
        left
    }

    /// Has it close without a RST: both directions have ended with a FIN, and of this one
    /// `unacknowledged` is not acknowledged. Where that is nothing, the connection is over for the
    /// kernel, too, which then sends none (tcp_need_reset, net/ipv4/tcp.c).
    pub(crate) fn will_close(&self, unacknowledged: usize) {
        // A socket that does not know of its peer's FIN waits for it, and would say RST.
        if unacknowledged > 0 || self.state.has_ended() {
            // Where the socket is already gone there is nothing left to linger for.
            let _ = SockRef::from(self.fd.get_ref()).set_linger(None);
        }
    }
}

impl LegIo for LegSocket {
    type Pipe = Pipe;

    fn fill(&mut self, pipe: &Pipe, force_read: bool) -> Input {
        let result = self.read(force_read, |fd| pipe.fill(fd, pipe.capacity()));
        self.state.input(result)
    }

    fn drain(&mut self, pipe: &Pipe, len: usize) -> Output {
        let result = self.write(|fd| pipe.drain(fd, len));
        self.state.output(result)
    }

    fn peek(&mut self, buffer: &mut [u8], force_read: bool) -> Input {
        let result = self.read(force_read, |fd| stream::peek(fd, buffer));
        self.state.input(result)
    }

    fn discard(&mut self, len: usize) -> Input {
        let result = stream::discard(self.as_fd(), len);
        self.state.input(result)
    }

    fn send(&mut self, bytes: &[u8]) -> Output {
        let result = self.write(|fd| stream::send(fd, bytes));
        self.state.output(result)
    }

    fn urgent_announced(&self) -> bool {
        self.state.urgent_announced()
    }

    fn look_for_urgent(&mut self) -> Urgent {
        match stream::at_urgent_mark(self.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Urgent::Absent,
            Err(_) => return Urgent::Retry,
        }
        let mut byte = [0];
        let result = stream::peek(self.as_fd(), &mut byte);
        match self.state.input(result) {
            Input::Bytes(1) => Urgent::Byte(byte[0]),
            Input::Retry => Urgent::Retry,
            _ => Urgent::Absent,
        }
    }

    fn take_urgent(&mut self) -> bool {
        let taken = self.discard(1) == Input::Bytes(1);
        if taken {
            self.state.urgent_is_taken();
        }
        taken
    }

    fn send_urgent(&mut self, byte: u8) -> Output {
        let result = self.write(|fd| stream::send_urgent(fd, byte));
        self.state.output(result.map(|_| 1))
    }

    fn shut_down(&mut self) -> Output {
        let result = SockRef::from(self.fd.get_ref()).shutdown(std::net::Shutdown::Write);
        self.state.output(result.map(|()| 0))
    }

    fn unsent(&self) -> u64 {
        stream::unsent(self.as_fd()).unwrap_or(0) as u64
    }

    fn has_failed(&self) -> bool {
        self.state.has_failed()
    }

    fn known_failure(&self) -> Option<Failure> {
        self.state.failure()
    }
}
