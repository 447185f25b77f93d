//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time in seconds since the Unix epoch; 0 on a host whose clock is before that.
pub fn unix_time() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}
