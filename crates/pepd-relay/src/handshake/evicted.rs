//! What has had to leave the table, and the ends of attempts.

use std::time::{Duration, Instant};

use pepd_packet::FourTuple;
use tokio::task::AbortHandle;

/// What is no longer in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Evicted<P, U> {
    /// SYNs that still wait for their verdict.
    pub(crate) packets: Vec<P>,
    /// Flows whose SYN waits for more: for the attempt's end.
    pub(crate) leaving: Vec<Leaving>,
    /// Upstream legs that nobody came for.
    pub(crate) upstreams: Vec<U>,
}

impl<P, U> Default for Evicted<P, U> {
    fn default() -> Self {
        Self {
            packets: Vec::new(),
            leaving: Vec::new(),
            upstreams: Vec::new(),
        }
    }
}

/// A flow whose attempt has been told to end, so that its SYN can be routed.
///
/// An attempt's socket has its client's address and port until it has ended. To such a socket the
/// destination's answer to the client's own SYN is wrong, and it resets what that has opened (RFC
/// 9293, section 3.10.7.3). So no SYN is routed before its attempt has ended, nor is one that repeats
/// it.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) flow: FourTuple,
    pub(crate) attempt: AbortHandle,
}

impl PartialEq for Leaving {
    fn eq(&self, other: &Self) -> bool {
        (self.flow, self.attempt.id()) == (other.flow, other.attempt.id())
    }
}

impl Eq for Leaving {}

/// Waits until an attempt that has been told to end is gone, on whichever worker it was: not for long,
/// but where that worker has no processor to run on.
pub(crate) async fn ended(attempt: &AbortHandle) {
    const PATIENCE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);
    // One of this worker's own ends here.
    tokio::task::yield_now().await;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    while !attempt.is_finished() && Instant::now() < deadline {
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(2 * pause);
    }
}
