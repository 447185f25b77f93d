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

/// A connected, non-blocking socket of one leg.
///
/// It lingers for zero seconds (SO_LINGER) from the start: however it is closed, by a panic or
/// by the kernel when the process is killed, its peer sees a RST and never a clean end that
/// is short. Only [`LegSocket::close`] takes that back.
#[derive(Debug)]
pub(crate) struct LegSocket {
    /// Shared with nobody for good: see [`LegSocket::watch`].
    fd: Arc<AsyncFd<OwnedFd>>,
    failure: Option<Failure>,
    /// Whether urgent data has been announced (EPOLLPRI) that has not been taken.
    urgent_announced: bool,
    /// An error has been announced (EPOLLERR), and no call has taken it from the socket yet. As
    /// long as it is there a read tells a FIN that came before it from none: the kernel looks
    /// for the FIN first (SOCK_DONE in tcp_recvmsg_locked and tcp_splice_read, net/ipv4/tcp.c).
    error_waits: bool,
}

/// Why a leg is no more, by errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) i32);

impl Failure {
    fn of(error: &io::Error) -> Self {
        // Every error here is a system call's; EIO stands in for one without errno.
        const EIO: i32 = 5;
        Self(error.raw_os_error().unwrap_or(EIO))
    }

    pub(crate) fn as_error(self) -> io::Error {
        io::Error::from_raw_os_error(self.0)
    }
}

/// What reading from a leg came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Empty,
    /// Everything the peer sent has been read, and it sent a FIN.
    End,
    /// The leg failed; what came before that has been read.
    Failed,
}

/// What writing to a leg came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// So many bytes taken.
    Bytes(usize),
    /// No room.
    Full,
    /// The leg failed; nothing more can be delivered.
    Failed,
}

impl LegSocket {
    /// Registers a connected or connecting socket with the worker's runtime.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let interest =
            Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY | Interest::ERROR;
        Ok(Self {
            fd: Arc::new(reactor::register(fd, interest)?),
            failure: None,
            urgent_announced: false,
            error_waits: false,
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// The descriptor, no longer registered with this worker's runtime.
    #[allow(
        clippy::expect_used,
        reason = "whoever watches a socket holds it only for a call, on this worker's own thread"
    )]
    pub(crate) fn into_fd(self) -> OwnedFd {
        let fd = Arc::into_inner(self.fd).expect("the only owner");
        fd.into_inner()
    }

    /// For looking at the socket while it is open. Nothing but the worker's own thread may
    /// upgrade it, and that for a call only: so the socket closes when this value is dropped.
    pub(crate) fn watch(&self) -> Weak<Socket> {
        let fd: Arc<Socket> = Arc::clone(&self.fd) as Arc<Socket>;
        Arc::downgrade(&fd)
    }

    /// Bytes written that have not been sent once.
    pub(crate) fn unsent(&self) -> u64 {
        stream::unsent(self.as_fd()).unwrap_or(0) as u64
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error_waits || self.failure.is_some()
    }

    /// What went wrong. An error that waits in the socket is taken from it: to be asked only
    /// when nothing more will be read.
    pub(crate) fn failure(&mut self) -> Option<Failure> {
        if std::mem::take(&mut self.error_waits)
            && let Ok(Some(error)) | Err(error) = SockRef::from(self.fd.get_ref()).take_error()
        {
            self.fail(&error);
        }
        self.failure
    }

    fn fail(&mut self, error: &io::Error) {
        // The call that failed has taken the error.
        self.error_waits = false;
        self.failure.get_or_insert(Failure::of(error));
    }

    /// Moves what there is into an empty pipe.
    ///
    /// `sure` tries even when the runtime has seen no event since the socket was last empty.
    pub(crate) fn fill(&mut self, pipe: &Pipe, sure: bool) -> Input {
        let result = self.read(sure, |fd| pipe.fill(fd, pipe.capacity()));
        self.input(result)
    }

    /// Copies what there is into `buffer` and leaves it in the socket.
    pub(crate) fn peek(&mut self, buffer: &mut [u8], sure: bool) -> Input {
        let result = self.read(sure, |fd| stream::peek(fd, buffer));
        self.input(result)
    }

    fn read(
        &self,
        sure: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        // A failed leg has no more events to wait for: all that it ever gets is there.
        if sure || self.has_failed() {
            call(self.as_fd())
        } else {
            self.fd.try_io(Interest::READABLE, |fd| call(fd.as_fd()))
        }
    }

    /// Takes `len` bytes away that have been peeked at.
    pub(crate) fn discard(&mut self, len: usize) -> Input {
        let result = stream::discard(self.as_fd(), len);
        self.input(result)
    }

    /// Whether the urgent byte is the next one to read.
    pub(crate) fn has_urgent(&self) -> bool {
        stream::at_urgent_mark(self.as_fd()).unwrap_or(false)
    }

    /// Whether urgent data has been announced that has not been taken. An announcement that
    /// is still under way wakes [`LegSocket::ready`].
    pub(crate) fn urgent_announced(&self) -> bool {
        self.urgent_announced
    }

    /// The urgent byte, where it is the next one to read and has arrived. It is in line
    /// (SO_OOBINLINE). An end comes again with the next read, and an error is remembered.
    pub(crate) fn take_urgent(&mut self) -> Option<u8> {
        if !self.has_urgent() {
            return None;
        }
        let mut byte = [0];
        let result = stream::receive(self.as_fd(), &mut byte);
        if self.input(result) != Input::Bytes(1) {
            return None;
        }
        self.urgent_announced = false;
        Some(byte[0])
    }

    /// Moves `len` bytes out of the pipe.
    pub(crate) fn drain(&mut self, pipe: &Pipe, len: usize) -> Output {
        let result = self
            .fd
            .try_io(Interest::WRITABLE, |fd| pipe.drain(fd.as_fd(), len));
        self.output(result)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Output {
        let result = self
            .fd
            .try_io(Interest::WRITABLE, |fd| stream::send(fd.as_fd(), bytes));
        self.output(result)
    }

    pub(crate) fn send_urgent(&mut self, byte: u8) -> Output {
        let result = self.fd.try_io(Interest::WRITABLE, |fd| {
            stream::send_urgent(fd.as_fd(), byte)
        });
        self.output(result.map(|_| 1))
    }

    /// Sends the FIN.
    pub(crate) fn shut_down(&mut self) -> Output {
        let result = SockRef::from(self.fd.get_ref()).shutdown(std::net::Shutdown::Write);
        self.output(result.map(|()| 0))
    }

    fn input(&mut self, result: io::Result<usize>) -> Input {
        match result {
            // Once the error is taken an end looks the same with a FIN and without. EPIPE is no
            // proof of one: a splice(2) that is cut short by a RST gives a length and takes
            // ECONNRESET along, and the next write says EPIPE.
            Ok(0) => match self.failure {
                Some(_) => Input::Failed,
                None => Input::End,
            },
            Ok(len) => Input::Bytes(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.failure {
                Some(_) => Input::Failed,
                None => {
                    // A read would have given the error, had there been one.
                    self.error_waits = false;
                    Input::Empty
                }
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Input::Empty,
            Err(error) => {
                self.fail(&error);
                Input::Failed
            }
        }
    }

    fn output(&mut self, result: io::Result<usize>) -> Output {
        match result {
            Ok(len) => Output::Bytes(len),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Output::Full
            }
            Err(error) => {
                self.fail(&error);
                Output::Failed
            }
        }
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
                    self.urgent_announced = true;
                }
                if guard.ready().is_error() {
                    guard.clear_ready_matching(Ready::ERROR);
                    self.error_waits = self.failure.is_none();
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Waits until the peer's kernel has acknowledged everything but for a FIN.
    ///
    /// Closing earlier would leave the rest to the kernel as an orphan, which has fewer
    /// retransmissions and a limit on how many there may be (tcp_orphan_retries,
    /// tcp_max_orphans): bytes that we have accepted could get lost unnoticed.
    /// Ends early when the leg fails, or when nothing is acknowledged for `patience`.
    pub(crate) async fn acknowledged(&mut self, fin_sent: bool, patience: Option<Duration>) {
        const SHORTEST: Duration = Duration::from_millis(1);
        const LONGEST: Duration = Duration::from_millis(500);
        let mut pause = SHORTEST;
        let mut still = Duration::ZERO;
        let mut before = usize::MAX;
        while !self.has_failed() {
            let now = stream::unacknowledged(self.as_fd()).unwrap_or(0);
            if now <= usize::from(fin_sent) {
                return;
            }
            still = if now < before {
                Duration::ZERO
            } else {
                still + pause
            };
            if patience.is_some_and(|patience| still >= patience) {
                return;
            }
            before = now;
            tokio::select! {
                () = self.ready(None) => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = LONGEST.min(pause * 2);
        }
    }

    /// Closes without a RST: both directions have ended with a FIN.
    pub(crate) fn close(self) {
        // Where the socket is gone already there is nothing left to linger for.
        let _ = SockRef::from(self.fd.get_ref()).set_linger(None);
    }
}
