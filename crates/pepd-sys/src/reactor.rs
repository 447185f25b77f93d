//! Registering descriptors with tokio's reactor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that could not be registered, and is still there.
#[derive(Debug)]
pub struct Refused {
    /// The descriptor.
    pub fd: OwnedFd,
    /// What epoll_ctl(2) said.
    pub error: io::Error,
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

/// Registers a non-blocking descriptor with the reactor of the current runtime, which watches
/// it for `interest` until the value is dropped.
///
/// # Errors
/// As epoll_ctl(2), with the descriptor.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn register(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, Refused> {
    // SAFETY: the reactor needs the descriptor to stay open, and the same, until it is
    // deregistered. An OwnedFd stays open until it is dropped, gives the same number each
    // time, and `AsyncFd` deregisters before it drops it. For types other than this one
    // nothing of the kind is promised, which is why tokio has no safe constructor.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(|refused| {
        let (fd, error) = refused.into_parts();
        Refused { fd, error }
    })
}
