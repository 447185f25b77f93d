//! What the kernel lacks for a moment, and how long it is waited for.

use std::time::Duration;

use libc::{EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC};

/// Returns whether a call lacked memory, a descriptor or a place among those that epoll watches:
/// nothing is wrong with what it was made for, and it may succeed in a moment.
pub(crate) fn is_shortage(errno: i32) -> bool {
    matches!(errno, EMFILE | ENFILE | ENOBUFS | ENOMEM | ENOSPC)
}

/// Gives the pauses before the attempts that follow the first, where a client would lose its
/// connection otherwise: it has been answered, and can no longer be routed. Some seconds in all.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    const MILLISECONDS: [u64; 8] = [1, 3, 10, 30, 100, 300, 1000, 2000];
    MILLISECONDS.into_iter().map(Duration::from_millis)
}
