//! The upkeep of the gate and of the kernel state that it stands in.

use std::time::Instant;

use pepd_net::{Drift, VerifyError};

use crate::daemon::Daemon;
use crate::daemon::gate_keeper::report_error;

impl Daemon {
    /// Renews the gate, and the kernel state that it stands in if that is gone.
    pub(super) async fn renew_gate(&mut self) {
        if let Err(error) = self.keeper.renew() {
            report_error(&error);
            self.verify_kernel_state().await;
        } else if self.keeper.health.wants_verification(Instant::now()) {
            self.verify_kernel_state().await;
        }
    }

    /// Reads the kernel's counters, and installs its state again where it is gone. `nft flush
    /// ruleset`, with which a reload of the operator's own firewall often begins, takes pepd's
    /// table along, and a restart of systemd-networkd takes the rules; then even the packets of
    /// live connections no longer reach their sockets.
    pub(super) async fn verify_kernel_state(&mut self) {
        match self.keeper.renew_during(self.installed.verify()).await {
            Ok(counts) => return self.view.set_kernel_counts(counts),
            // The cure that the error names comes next.
            Err(VerifyError::Drift(Drift { what })) => tracing::warn!("{what}; putting it back"),
            Err(error) => return report_error(&error),
        }
        let replaced = self.installed.replace(&self.plan);
        match self.keeper.renew_during(replaced).await {
            Ok(()) => {
                self.keeper.reopen();
                tracing::warn!("somebody removed pepd's kernel state; it is there again");
            }
            Err(error) => report_error(&error),
        }
    }

    /// Has the tunnels' MTUs follow those of their paths.
    pub(super) async fn follow_paths(&mut self) {
        let followed = self.installed.follow_paths();
        if let Err(error) = self.keeper.renew_during(followed).await {
            tracing::warn!(%error, "follow the tunnels' paths");
        }
    }
}
