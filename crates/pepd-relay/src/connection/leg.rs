//! A leg as a direction sees it: what it asks of one, and what it learns from the answers.

use std::io;

use libc::{EINTR, EIO, ENOBUFS, ENOMEM};
use pepd_packet::snapshot::Snapshot;

/// The calls with which a [`Direction`](super::direction::Direction) moves bytes from one leg
/// to another.
///
/// None of them waits. A socket implements it ([`LegSocket`](super::leg_socket::LegSocket)), and
/// in tests a simulation of one.
pub(crate) trait LegIo {
    /// The pipe that bytes pass through on their way to the other leg.
    type Pipe;

    /// Moves what there is into an empty pipe, up to the urgent mark.
    ///
    /// `force_read` tries even when the runtime has seen no event since the socket was last empty.
    fn fill(&mut self, pipe: &Self::Pipe, force_read: bool) -> Input;

    /// Moves `len` bytes, which the pipe holds, out of it.
    fn drain(&mut self, pipe: &Self::Pipe, len: usize) -> Output;

    /// Copies what there is into `buffer` and leaves it in the socket. It starts at the urgent mark
    /// as it does anywhere else.
    fn peek(&mut self, buffer: &mut [u8], force_read: bool) -> Input;

    /// Takes `len` bytes away that have been peeked at.
    fn discard(&mut self, len: usize) -> Input;

    /// Sends as many of `bytes` as there is room for.
    fn send(&mut self, bytes: &[u8]) -> Output;

    /// Returns whether urgent data has been announced that has not been taken. An announcement that
    /// is still under way wakes whoever waits for data.
    fn urgent_announced(&self) -> bool;

    /// Looks for the urgent byte, where it is the next one to read and has arrived, and leaves it
    /// there. It is in line (SO_OOBINLINE). An end comes again with the next read, and an error is
    /// remembered.
    fn look_for_urgent(&mut self) -> Urgent;

    /// Takes it away; false where the call is to be made again, which begins by looking.
    fn take_urgent(&mut self) -> bool;

    /// Sends `byte` as urgent data.
    fn send_urgent(&mut self, byte: u8) -> Output;

    /// Sends the FIN.
    fn shut_down(&mut self) -> Output;

    /// Returns the number of bytes written that have not been sent once.
    fn unsent(&self) -> u64;

    /// Returns whether it has failed; what came before may still be there to be read.
    fn has_failed(&self) -> bool;

    /// Returns what it has failed with, as far as a call has given it.
    fn known_failure(&self) -> Option<Failure>;
}

/// The errno that a leg has failed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) i32);

impl Failure {
    fn of(error: &io::Error) -> Self {
        // Every error here is a system call's; EIO stands in for one without errno.
        Self(error.raw_os_error().unwrap_or(EIO))
    }

    /// Gives the error as the system call gave it.
    pub(crate) fn as_error(self) -> io::Error {
        io::Error::from_raw_os_error(self.0)
    }
}

/// What has become of a leg's socket, as another process has left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    /// The error that has been taken from it.
    pub(crate) taken: Option<Failure>,
    /// Whether an error waits there to be taken.
    pub(crate) waits: bool,
    /// Whether its peer had sent its FIN before it came here: the socket does not know that.
    pub(crate) ended: bool,
}

impl Fate {
    /// Returns that of a leg of another box.
    pub(crate) fn moved(leg: &Snapshot) -> Self {
        Self {
            ended: leg.receiving.ended,
            ..Self::default()
        }
    }
}

/// The result of reading from a leg.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Empty,
    /// Nothing was read: the kernel lacked memory, and the same call may succeed in a moment.
    Retry,
    /// Everything the peer sent has been read, and it sent a FIN.
    End,
    /// The leg failed; what came before that has been read.
    Failed,
}

/// The result of writing to a leg.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// So many bytes taken.
    Bytes(usize),
    /// No room.
    Full,
    /// Nothing was written: the kernel lacked memory, and the same call may succeed in a moment.
    Retry,
    /// The leg failed; nothing more can be delivered.
    Failed,
}

/// The result of looking for the urgent byte.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Urgent {
    /// The byte.
    Byte(u8),
    /// It is not next, or has not arrived.
    Absent,
    /// It may be next: a call failed, and may succeed in a moment.
    Retry,
}

/// The state of a leg as its calls and events have shown it.
#[derive(Debug, Default)]
pub(crate) struct LegState {
    failure: Option<Failure>,
    /// Whether urgent data has been announced (EPOLLPRI) that has not been taken.
    urgent_announced: bool,
    /// An error has been announced (EPOLLERR), and no call has taken it from the socket yet. As
    /// long as it is there, a read tells whether a FIN came before it: the kernel looks for the FIN
    /// first (SOCK_DONE in tcp_recvmsg_locked and tcp_splice_read, net/ipv4/tcp.c).
    error_waits: bool,
    /// The error of a call that lacked memory while another error waited. If nothing else is found
    /// at the end, it was that one, which the kernel gives only once.
    doubtful: Option<Failure>,
    /// Whether nothing comes after what is there.
    ended: bool,
    /// Whether the last write lacked memory: the one before it may have taken an error along, which
    /// the next one shows.
    write_is_due: bool,
}

impl LegState {
    /// Goes on with a socket as another process has left it.
    pub(crate) fn found(as_it_is: Fate) -> Self {
        Self {
            failure: as_it_is.taken,
            error_waits: as_it_is.waits && as_it_is.taken.is_none(),
            ended: as_it_is.ended,
            ..Self::default()
        }
    }

    /// Returns whether an error has been announced or taken.
    pub(crate) fn has_failed(&self) -> bool {
        self.error_waits || self.failure.is_some()
    }

    /// Returns whether nothing comes after what is there, without the socket saying so.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the error that has been taken.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns whether urgent data has been announced that has not been taken.
    pub(crate) fn urgent_announced(&self) -> bool {
        self.urgent_announced
    }

    /// Notes that urgent data has been announced.
    pub(crate) fn announce_urgent(&mut self) {
        self.urgent_announced = true;
    }

    /// Notes that the urgent data has been taken.
    pub(crate) fn urgent_is_taken(&mut self) {
        self.urgent_announced = false;
    }

    /// Notes that an error waits in the socket, unless one has been taken from it.
    pub(crate) fn announce_error(&mut self) {
        self.error_waits = self.failure.is_none();
    }

    /// Returns whether an error waits to be taken; whoever asks takes it.
    pub(crate) fn take_error_waits(&mut self) -> bool {
        std::mem::take(&mut self.error_waits)
    }

    /// Notes the error that a call has given, and so taken. The first one counts.
    pub(crate) fn fail(&mut self, error: &io::Error) {
        self.error_waits = false;
        self.failure.get_or_insert(Failure::of(error));
    }

    /// Says what the result of a read means.
    pub(crate) fn input(&mut self, result: io::Result<usize>) -> Input {
        match result {
            // Once the error is taken, an end looks the same with a FIN and without one. EPIPE is
            // no proof of one: a splice(2) that is cut short by a RST gives a length and takes
            // ECONNRESET along, and the next write says EPIPE.
            Ok(0) if self.write_is_due && !self.has_failed() => Input::Retry,
            Ok(0) => {
                self.failure = self.failure.or(self.doubtful);
                match self.failure {
                    Some(_) => Input::Failed,
                    None => Input::End,
                }
            }
            Ok(len) => Input::Bytes(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.failure {
                Some(_) => Input::Failed,
                None if self.ended && !self.error_waits => Input::End,
                None => {
                    // A read would have given the error, had there been one.
                    self.error_waits = false;
                    self.doubtful = None;
                    Input::Empty
                }
            },
            Err(error) if self.is_passing(&error) => Input::Retry,
            Err(error) => {
                self.fail(&error);
                Input::Failed
            }
        }
    }

    /// Says what the result of a write means.
    pub(crate) fn output(&mut self, result: io::Result<usize>) -> Output {
        self.write_is_due = false;
        match result {
            Ok(len) => Output::Bytes(len),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Output::Full,
            Err(error) if self.is_passing(&error) => {
                self.write_is_due = true;
                Output::Retry
            }
            Err(error) => {
                self.fail(&error);
                Output::Failed
            }
        }
    }

    /// Returns whether an error is the call's and not the connection's: it lacked memory, or was
    /// interrupted, and has moved nothing.
    fn is_passing(&mut self, error: &io::Error) -> bool {
        let is_passing = matches!(error.raw_os_error(), Some(ENOMEM | ENOBUFS | EINTR));
        if is_passing && self.error_waits {
            self.doubtful = Some(Failure::of(error));
        }
        is_passing
    }
}
