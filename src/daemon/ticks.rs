//! Periodic work.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

/// Makes ticks that do not pile up while the daemon was paused.
pub fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}
