//! Bad weather: system calls that fail, and thousands of connections while the daemon is reloaded,
//! paused, killed and flooded; links that go away and come back.

#[cfg(target_arch = "x86_64")]
mod faults;
mod outage_times;
mod outages;
mod soak;
