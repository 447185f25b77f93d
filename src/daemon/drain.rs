//! The end: new connections are routed, live ones may finish, and all kernel state is removed.

use std::time::{Duration, Instant};

use pepd_admin::api::ControlRequest;

use crate::daemon::signals::Signalled;
use crate::daemon::{Daemon, ticks};
use crate::exit::Result;

/// The interval at which systemd hears that the daemon is still draining.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which the number of live connections is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time for which the drain waits at least for handshakes that were under way when the gate
/// closed.
const LAST_HANDSHAKES: Duration = Duration::from_millis(500);

impl Daemon {
    /// Routes new connections, lets live ones finish within `[node] drain`, and removes all kernel
    /// state. A second signal ends the wait.
    pub(super) async fn drain(mut self) -> Result {
        let drain = self.config.node.drain;
        self.keeper.notifier.stopping(drain);
        self.keeper.close();
        self.view.set_draining();
        let live = self.keeper.relay.admission().live();
        tracing::info!(live, ?drain, "ending: new connections are routed");
        let deadline = Instant::now() + drain;
        let mut status = ticks::interval(STATUS_INTERVAL);
        let mut poll = ticks::interval(POLL_INTERVAL);
        let handshakes = Instant::now() + LAST_HANDSHAKES.min(drain);
        loop {
            let now = Instant::now();
            let live = self.keeper.relay.admission().live();
            if now >= deadline || (live == 0 && now >= handshakes) {
                break;
            }
            tokio::select! {
                _ = status.tick() => {
                    self.keeper.renew_readers();
                    self.keeper.notifier.alive(self.keeper.status_line());
                }
                _ = poll.tick() => {}
                signalled = self.signals.next() => if signalled == Signalled::End { break },
                request = self.admin.next_request() => match request {
                    ControlRequest::Reload(answer) => {
                        _ = answer.send(Err("pepd: the daemon is draining".to_owned()));
                    }
                    ControlRequest::Drain(answer) => _ = answer.send(()),
                },
            }
        }
        let cut = self.keeper.relay.admission().live();
        self.keeper.relay.stop();
        let removed = self.installed.remove().await;
        tracing::info!(cut, "ended: {}", self.counters);
        Ok(removed?)
    }
}
