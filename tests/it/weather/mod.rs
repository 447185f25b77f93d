//! Bad weather: system calls that fail, and thousands of connections while the daemon is reloaded,
//! paused, killed and flooded.

#[cfg(target_arch = "x86_64")]
mod faults;
mod soak;
