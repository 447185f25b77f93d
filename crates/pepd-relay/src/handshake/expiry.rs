//! Upstream legs whose clients do not come, and SYNs whose clients have given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::evicted::let_go;
use crate::shared::Context;

/// The interval at which upstream legs without a client are looked for.
const EXPIRY: Duration = Duration::from_secs(1);

/// A worker that has not looked for so long was paused.
const PAUSED: Duration = EXPIRY.saturating_mul(2);

/// The time after a pause in which nobody is said to have given up: what has come meanwhile, the
/// clients' SYNs and their destinations' answers, is read first.
const AFTER_PAUSE: Duration = Duration::from_secs(3);

/// Expires upstream legs without a client, for as long as the worker lives.
pub(crate) async fn run(context: Arc<Context>) {
    let mut interval = tokio::time::interval(EXPIRY);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut from) = (Instant::now(), Instant::now());
    loop {
        interval.tick().await;
        let now = Instant::now();
        if now.saturating_duration_since(std::mem::replace(&mut before, now)) > PAUSED {
            from = now + AFTER_PAUSE;
        }
        if now < from {
            continue;
        }
        let shared = &context.shared;
        let_go(shared, shared.handshakes.expire(now));
        shared.left_legs.expire(now);
        shared.note_pending();
    }
}
