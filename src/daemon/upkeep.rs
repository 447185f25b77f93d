//! The upkeep of the gate and of the kernel state that it stands in.

use std::time::Instant;

use pepd_net::{Drift, VerifyError};

use crate::daemon::Daemon;
use crate::daemon::fitness::Trouble;
use crate::daemon::gate_keeper::report_error;
use crate::daemon::requests::GivenUp;

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
        let trouble = match self.verify_or_repair().await {
            Ok(trouble) => trouble,
            Err(GivenUp::Ending) => return,
            Err(why @ GivenUp::TimedOut) => Some(Trouble::Unseen(why.to_string())),
        };
        let why = trouble.as_ref().map(|trouble| match trouble {
            Trouble::Broken(why) | Trouble::Unseen(why) => why.clone(),
        });
        if let Some(why) = &why {
            report_error(why);
        }
        self.keeper.fitness.set_trouble(trouble);
        self.view.set_trouble(why);
    }

    /// Gives what is the matter with the kernel state and could not be mended.
    async fn verify_or_repair(&mut self) -> Result<Option<Trouble>, GivenUp> {
        let verified = self.installed.verify();
        match self.requests.during(&mut self.keeper, verified).await? {
            Ok(counts) => {
                self.view.set_kernel_counts(counts);
                return Ok(None);
            }
            // The cure that the error names comes next.
            Err(VerifyError::Drift(Drift { what })) => tracing::warn!("{what}; putting it back"),
            Err(error) => return Ok(Some(Trouble::Unseen(error.to_string()))),
        }
        let replaced = self.installed.replace(&self.plan);
        let replaced = self.requests.during(&mut self.keeper, replaced).await;
        // Whatever has come of it: some of the tables may be new, and the next look finds nothing amiss.
        self.moving.renewed();
        match replaced {
            Ok(Ok(())) => {
                self.keeper.health.repaired();
                if !self.requests.to_end() {
                    self.keeper.reopen();
                }
                tracing::warn!("pepd's kernel state was not as it should be; it is there again");
                Ok(None)
            }
            Ok(Err(error)) => Ok(Some(Trouble::Broken(error.to_string()))),
            Err(why @ GivenUp::TimedOut) => Ok(Some(Trouble::Broken(why.to_string()))),
            Err(GivenUp::Ending) => Err(GivenUp::Ending),
        }
    }

    /// Has the copies of the host's routes follow them.
    pub(super) async fn follow_routes(&mut self) {
        let followed = self.installed.follow();
        let followed = self.requests.during(&mut self.keeper, followed).await;
        if let Ok(Err(error)) = followed {
            report_error(&error);
        }
    }

    /// Has the tunnels' MTUs follow those of their paths.
    pub(super) async fn follow_paths(&mut self) {
        let followed = self.installed.follow_paths();
        let followed = self.requests.during(&mut self.keeper, followed).await;
        if let Ok(Err(error)) = followed {
            tracing::warn!(%error, "follow the tunnels' paths");
        }
    }
}
