//! The end of a dial, which others wait for.

use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::table::Dial;

impl Dial for AbortHandle {
    fn stop(&self) {
        self.abort();
    }
}

/// Waits until a dial that has been told to end is gone, on whichever worker it was: not for long,
/// unless that worker has no processor to run on.
pub(crate) async fn ended(dial: &AbortHandle) {
    const PATIENCE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);
    // One of this worker's own ends here.
    tokio::task::yield_now().await;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    while !dial.is_finished() && Instant::now() < deadline {
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}
