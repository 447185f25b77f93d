//! Registering descriptors with tokio's reactor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a non-blocking descriptor with the reactor of the current runtime, which watches
/// it for `interest` until the value is dropped.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the reactor needs the descriptor to stay open, and the same, until it is
    // deregistered. An OwnedFd stays open until it is dropped, gives the same number each
    // time, and `AsyncFd` deregisters before it drops it. For types other than this one
    // nothing of the kind is promised, which is why tokio has no safe constructor.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(Into::into)
}
