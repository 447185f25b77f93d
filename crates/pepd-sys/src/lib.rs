//! The system calls pepd needs and no crate offers safely.
//!
//! This is the only crate with `unsafe`. It has one rule: a function takes borrowed
//! descriptors and plain values, makes one call, and gives its result with errno kept.
//! What the calls are for is decided elsewhere.
//!
//! - [`sockopt`]: socket options that socket2 does not have, each a getter and a setter;
//! - [`stream`]: reading, peeking, discarding and urgent data on a connected socket;
//! - [`pipe`]: pipes and splice(2);
//! - [`tcp_info`]: what the kernel knows of a connection;
//! - [`nfnetlink`]: the messages of netfilter;
//! - [`nfqueue`]: packets that wait for a verdict;
//! - [`clock`]: whether the system clock is in step;
//! - [`reactor`]: registering descriptors with tokio.

pub mod clock;
pub mod nfnetlink;
pub mod nfqueue;
pub mod pipe;
pub mod reactor;
pub mod sockopt;
pub mod stream;
pub mod tcp_info;

use std::io;

/// Turns the return value of a system call into a result, keeping errno.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The same for the calls that return a length.
fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
