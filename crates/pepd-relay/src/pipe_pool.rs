//! Pipes that are lent to a direction while it has data under way.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pepd_sys::pipe::Pipe;
use pepd_telemetry::Throttle;

use crate::sync::{Mutex, MutexGuard};

/// The bytes that a pipe may hold: of 64 KiB to 1 MiB, 256 KiB was best by a little.
pub const PIPE_BYTES: usize = 256 * 1024;

/// The least that a pipe has to hold to be of use, of [`PIPE_BYTES`] that are asked for. A user's
/// pipes beyond `pipe-user-pages-soft` have room for two pieces of data (pipe(7)): each step then
/// moves so little that a byte costs several times what copying does.
const FEWEST_BYTES: usize = 64 * 1024;

/// The time for which no pipe is asked for after the kernel has given none that is of use.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The bytes that a scratch pipe is asked to hold: the kernel's default.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    /// A worker's pipe by which it looks into the others (tee(2)), made when it is first needed.
    static SCRATCH: RefCell<Option<Pipe>> = const { RefCell::new(None) };
}

/// A pool of pipes, as a direction sees it.
pub(crate) trait LendPipes {
    /// The pipe that it lends.
    type Lent: LentPipe;

    /// Lends an empty pipe; where none is available, the caller copies.
    fn lend(&self) -> Option<Self::Lent>;
}

/// A pipe that a direction has borrowed. Dropping it closes the pipe, because bytes may be in it.
pub(crate) trait LentPipe {
    /// The pipe itself, as a leg fills and drains it.
    type Pipe;

    /// Gives the pipe to fill or to drain.
    fn pipe(&self) -> &Self::Pipe;

    /// Copies the first bytes that the pipe holds, and leaves them in it.
    ///
    /// # Errors
    /// As tee(2) and read(2).
    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Takes bytes that the pipe holds out of it, without splice(2).
    ///
    /// # Errors
    /// As read(2); nothing has been taken then.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Gives the pipe, which must be empty, back for the next transfer.
    fn give_back(self);
}

/// One worker's pipes. An idle connection has none: a pipe costs two descriptors.
#[derive(Debug)]
pub(crate) struct PipePool {
    state: Mutex<State>,
    shortage: Throttle,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Pipe>,
    lent: usize,
    /// The most pipes there may be, lent or not.
    most: usize,
    /// When the kernel last gave none that is of use.
    refused: Option<Instant>,
}

impl State {
    /// Returns whether another pipe may be made.
    fn has_room(&self) -> bool {
        self.lent < self.most
            && self
                .refused
                .is_none_or(|refused| refused.elapsed() >= REFUSED_FOR)
    }
}

/// The reason and the cures, for a user whose pipes take more than the kernel allows.
const TOO_SMALL: &str = "this user's pipes have reached fs.pipe-user-pages-soft; \
                         set it to 0, or give pepd's service CAP_SYS_RESOURCE";

/// Idle pipes kept for the next transfer; more than these are closed when they come back.
const KEPT_IDLE: usize = 64;

impl PipePool {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            state: Mutex::new(State {
                most,
                ..State::default()
            }),
            shortage: Throttle::new(Duration::from_secs(60)),
        }
    }

    /// Takes another share. Where more are lent already, they stay so until they come back.
    pub(crate) fn set_most(&self, most: usize) {
        let mut state = self.lock();
        state.most = most;
        let room = most.saturating_sub(state.lent);
        state.idle.truncate(room);
    }

    /// Returns how many are lent, and how many may be.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let state = self.lock();
        (state.lent, state.most)
    }

    /// Takes a pipe that another process had lent, with what is in it.
    pub(crate) fn lend_again(self: &Arc<Self>, pipe: Pipe) -> Loan {
        self.lock().lent += 1;
        Loan {
            pipe,
            place: Place {
                pool: Arc::clone(self),
            },
        }
    }

    /// Makes a pipe; none, and a line in the log, where the kernel has none that is of use.
    fn make(&self, state: &mut State) -> Option<Pipe> {
        let reason = match Pipe::new(PIPE_BYTES) {
            Ok(pipe) if pipe.capacity() >= FEWEST_BYTES => {
                state.refused = None;
                return Some(pipe);
            }
            Ok(_) => TOO_SMALL.to_owned(),
            Err(error) => error.to_string(),
        };
        let now = Instant::now();
        state.refused = Some(now);
        if let Some(held_back) = self.shortage.admit(now) {
            tracing::warn!(
                error = reason,
                held_back,
                "no pipe to be had: copying instead"
            );
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held leaves at worst a pipe too few.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LendPipes for Arc<PipePool> {
    type Lent = Loan;

    /// Lends a pipe; none where the pool's share or the descriptors have run out.
    fn lend(&self) -> Option<Loan> {
        let mut state = self.lock();
        let pipe = match state.idle.pop() {
            Some(pipe) => pipe,
            None if state.has_room() => self.make(&mut state)?,
            None => return None,
        };
        state.lent += 1;
        Some(Loan {
            pipe,
            place: Place {
                pool: Arc::clone(self),
            },
        })
    }
}

/// One of the pool's pipes, lent.
#[derive(Debug)]
pub(crate) struct Loan {
    pipe: Pipe,
    place: Place,
}

impl Loan {
    /// Copies all that the pipe holds, and leaves it in it; fewer bytes where the kernel has no pipe of that
    /// size for it.
    pub(crate) fn copy(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let scratch = Pipe::new(self.pipe.capacity())?;
        self.pipe.peek(&scratch, buffer)
    }

    /// Gives the pipe away, with what is in it: the pool has it no longer.
    pub(crate) fn into_pipe(self) -> Pipe {
        self.pipe
    }
}

impl LentPipe for Loan {
    type Pipe = Pipe;

    fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let pipe = match scratch.take() {
                Some(pipe) => pipe,
                None => Pipe::new(SCRATCH_BYTES)?,
            };
            let len = self.pipe.peek(&pipe, buffer)?;
            *scratch = Some(pipe);
            Ok(len)
        })
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.pipe.read(buffer)
    }

    fn give_back(self) {
        let Self { pipe, place } = self;
        let mut state = place.pool.lock();
        // Its own place is free in a moment.
        if state.idle.len() < KEPT_IDLE && state.idle.len() + state.lent <= state.most {
            state.idle.push(pipe);
        }
    }
}

/// One of the pool's places, free again when dropped.
#[derive(Debug)]
struct Place {
    pool: Arc<PipePool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.lent = state.lent.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_kept_and_pipes_come_back() {
        let pool = Arc::new(PipePool::new(2));
        let first = pool.lend().unwrap();
        let second = pool.lend().unwrap();
        assert!(pool.lend().is_none());
        first.give_back();
        assert_eq!(pool.lock().idle.len(), 1);
        let again = pool.lend().unwrap();
        assert!(pool.lend().is_none());
        drop((again, second));
        assert_eq!(pool.lock().idle.len(), 0, "a dropped pipe may hold bytes");
        assert!(pool.lend().is_some());
    }

    #[test]
    fn a_smaller_share_holds_as_pipes_come_back() {
        let pool = Arc::new(PipePool::new(3));
        let lent = [(); 3].map(|()| pool.lend().unwrap());
        pool.set_most(1);
        assert_eq!(pool.usage(), (3, 1));
        for loan in lent {
            loan.give_back();
        }
        assert_eq!(pool.lock().idle.len(), 1);
        let only = pool.lend().unwrap();
        assert!(pool.lend().is_none());
        pool.set_most(2);
        assert!(pool.lend().is_some());
        only.give_back();
        pool.set_most(0);
        assert_eq!(pool.lock().idle.len(), 0);
    }
}
