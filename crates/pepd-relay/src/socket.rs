//! One leg's socket while it is relayed: readiness, and what went wrong with it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pepd_sys::pipe::Pipe;
use pepd_sys::{reactor, stream};
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
    fd: AsyncFd<OwnedFd>,
    failure: Option<Failure>,
    /// Whether urgent data has been announced (EPOLLPRI) that has not been taken.
    urgent_announced: bool,
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

    /// Whether the peer had sent a FIN before its RST: what it sent is complete then.
    /// The kernel says EPIPE in that case and ECONNRESET otherwise (tcp_reset in
    /// net/ipv4/tcp_input.c).
    fn after_fin(self) -> bool {
        self.as_error().kind() == io::ErrorKind::BrokenPipe
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
            fd: reactor::register(fd, interest)?,
            failure: None,
            urgent_announced: false,
        })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }

    /// The descriptor, no longer registered with this worker's runtime.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd.into_inner()
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure
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
        if sure {
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

    /// Reads one byte, and in doing so steps over an urgent byte already taken.
    pub(crate) fn step_over_mark(&mut self) -> (Input, u8) {
        let mut byte = [0];
        let result = stream::receive(self.as_fd(), &mut byte);
        (self.input(result), byte[0])
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

    /// The urgent byte, where it is the next one to read and has arrived.
    pub(crate) fn take_urgent(&mut self) -> Option<u8> {
        if !self.has_urgent() {
            return None;
        }
        let byte = stream::receive_urgent(self.as_fd()).ok()?;
        self.urgent_announced = false;
        Some(byte)
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
            Ok(0) => match self.failure {
                Some(failure) if !failure.after_fin() => Input::Failed,
                _ => Input::End,
            },
            Ok(len) => Input::Bytes(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.failure {
                Some(_) => Input::Failed,
                None => Input::Empty,
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Input::Empty,
            Err(error) => {
                self.failure.get_or_insert(Failure::of(&error));
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
                self.failure.get_or_insert(Failure::of(&error));
                Output::Failed
            }
        }
    }

    /// Waits until the socket is ready for `interest`, or fails.
    ///
    /// An error is taken from the socket here (SO_ERROR) and remembered: after that, reading
    /// gives what had arrived and then an end that must not pass for a FIN.
    pub(crate) async fn ready(&mut self, interest: Option<Interest>) {
        let wanted = match (interest, self.failure) {
            (Some(interest), None) => interest | Interest::ERROR,
            (Some(interest), Some(_)) => interest,
            (None, None) => Interest::ERROR,
            (None, Some(_)) => return std::future::pending().await,
        };
        let error = match self.fd.ready(wanted).await {
            Ok(mut guard) => {
                if guard.ready().is_priority() {
                    guard.clear_ready_matching(Ready::PRIORITY);
                    self.urgent_announced = true;
                }
                if !guard.ready().is_error() {
                    return;
                }
                guard.clear_ready_matching(Ready::ERROR);
                SockRef::from(self.fd.get_ref()).take_error()
            }
            Err(error) => Ok(Some(error)),
        };
        if let Ok(Some(error)) | Err(error) = error {
            self.failure.get_or_insert(Failure::of(&error));
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
        while self.failure.is_none() {
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
