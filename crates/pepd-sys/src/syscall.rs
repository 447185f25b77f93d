//! The results of system calls.

use std::io;

/// Turns the return value of a system call into a result, keeping errno.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes a system call as often as a signal interrupts it (EINTR): nothing has happened then, and
/// the same call does it.
///
/// # Errors
/// As the call, but for EINTR.
pub fn retry_on_intr<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Turns the return value of a system call that returns a length into a result, keeping errno.
pub(crate) fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
