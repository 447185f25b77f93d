//! The daemon's loop: waits for what is next, and hands it on.

use std::time::Duration;

use pepd_admin::api::ControlRequest;

use crate::daemon::gate_keeper::report_error;
use crate::daemon::signals::Signalled;
use crate::daemon::{Daemon, ticks};
use crate::exit::Result;

/// The interval at which the kernel state is verified, beyond the table that each renewal of the
/// gate needs.
const INSPECTION_INTERVAL: Duration = Duration::from_secs(10);

impl Daemon {
    /// Runs until a signal or a control request ends it, and removes all kernel state.
    pub async fn run(mut self) -> Result {
        let mut inspection = ticks::interval(INSPECTION_INTERVAL);
        // The first renewal opens the gate, and only then is pepd ready.
        inspection.tick().await;
        self.keeper.renewal_due().await;
        self.renew_gate().await;
        self.keeper.notifier.ready();
        loop {
            tokio::select! {
                () = self.keeper.renewal_due() => self.renew_gate().await,
                _ = inspection.tick() => {
                    self.verify_kernel_state().await;
                    self.follow_paths().await;
                }
                () = self.installed.routes_changed() => {
                    let followed = self.keeper.renew_during(self.installed.follow()).await;
                    if let Err(error) = followed {
                        report_error(&error);
                    }
                }
                signalled = self.signals.next() => match signalled {
                    Signalled::Reload => _ = self.reload().await,
                    Signalled::End => break,
                },
                request = self.admin.next_request() => match request {
                    // Whoever made the request may have gone since.
                    ControlRequest::Reload(answer) => _ = answer.send(self.reload().await),
                    ControlRequest::Drain(answer) => {
                        _ = answer.send(());
                        break;
                    }
                },
            }
        }
        self.drain().await
    }
}
