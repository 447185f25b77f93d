//! The system's clocks.

use std::io;
use std::mem;
use std::time::Duration;

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

/// Gives a time as the kernel takes it; one longer than 68 years as 68 years.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    /// What the seconds of every C library have room for.
    const LONGEST: i32 = i32::MAX;
    libc::timespec {
        tv_sec: i32::try_from(time.as_secs()).unwrap_or(LONGEST).into(),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Returns the time of the clock that only goes forward, which is the same for all processes
/// (CLOCK_MONOTONIC, clock_gettime(2)).
pub fn monotonic() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes into the structure, which lives until the call has returned. It fails
    // for no clock that is there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
