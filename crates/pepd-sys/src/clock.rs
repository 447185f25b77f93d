//! The system clock.

use std::io;
use std::mem;

use crate::syscall::check;

/// Tells whether something keeps the system clock in step with the world (adjtimex(2),
/// STA_UNSYNC), and changes nothing.
pub fn synchronised() -> io::Result<bool> {
    // SAFETY: `timex` is a plain C structure for which all zeros are a value; no mode asks the
    // kernel to change nothing.
    let mut time: libc::timex = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes into the structure, which lives until the call has returned.
    check(unsafe { libc::adjtimex(&raw mut time) })?;
    Ok(time.status & libc::STA_UNSYNC == 0)
}
