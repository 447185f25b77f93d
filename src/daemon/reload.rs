//! Reading the configuration again while connections live on.

use pepd_admin::wire::ReloadState;

use crate::config_file;
use crate::daemon::prepare::Notes;
use crate::daemon::requests::GivenUp;
use crate::daemon::{Daemon, choosing, prepare, resources};
use crate::exit::{Failure, Result};

impl Daemon {
    /// Reads the configuration again, and tells the log, the status and whoever waits for it what
    /// has become of it. Where it is refused nothing changes.
    pub(super) async fn reload(&mut self) {
        let waiting = self.requests.begin_reload();
        self.keeper.notifier.reloading();
        self.view.set_reload(ReloadState::Underway, None);
        let result = self.try_reload().await.map_err(|why| why.to_string());
        match &result {
            Ok(_) => {
                tracing::info!("reloaded");
                self.view.set_reload(ReloadState::Done, None);
            }
            Err(message) => {
                tracing::error!("reload refused, nothing has changed:\n{message}");
                self.view
                    .set_reload(ReloadState::Refused, Some(message.as_str()));
            }
        }
        for answer in waiting {
            // Whoever made the request may have gone since.
            _ = answer.send(result.clone());
        }
        if !self.requests.to_end() {
            self.renew_gate().await;
            self.keeper.notifier.ready();
        }
    }

    /// Gives what whoever has asked should know beside.
    async fn try_reload(&mut self) -> Result<Vec<String>> {
        let mut notes = Notes::default();
        let read = config_file::read_again(&self.file);
        let (mut config, text) = self.requests.during(&mut self.keeper, read).await??;
        prepare::keep_start_only_keys(&mut config, &self.config, &mut notes);
        let descriptors = resources::shares(
            &config,
            self.workers,
            self.descriptors.limit,
            self.config.legs.len(),
        );
        let settings = prepare::settings(&config, &self.controls, descriptors, &mut notes)?;
        let probed = prepare::probe(&settings, &mut notes);
        self.requests.during(&mut self.keeper, probed).await??;
        let has_bbr = choosing::has_bbr(&config);
        let has_bbr = self.requests.during(&mut self.keeper, has_bbr).await?;
        let prepared = self.keeper.relay.prepare(settings)?;
        let opened = self.holding.prepare(&config)?;
        let measured = self.measuring.prepare(&config)?;
        let backend = resources::queue_backend(&config);
        let backend = self.requests.during(&mut self.keeper, backend).await??;
        let live = self.keeper.relay.observer();
        let addresses = prepared.addresses();
        let plan = prepare::plan(&config, addresses, self.workers, backend, Some(&live));
        let replaced = self.installed.replace(&plan);
        self.requests.during(&mut self.keeper, replaced).await??;
        self.keeper.relay.reload(prepared, descriptors.pipes);
        self.board.set_text(&text);
        self.holding.follow(&config, opened);
        self.measuring.follow(&config, &plan, measured);
        self.view.set_config(&config);
        self.keeper.probes.follow(&config);
        self.keeper.health.follow(&plan);
        self.keeper.fitness.follow(&config);
        self.links.follow(&config);
        self.controls.follow(&config);
        self.choosing.follow(&config, &self.controls, has_bbr);
        self.config = config;
        self.descriptors = descriptors;
        self.plan = plan;
        Ok(notes.0)
    }
}

impl From<GivenUp> for Failure {
    fn from(why: GivenUp) -> Self {
        Self::temporary(why)
    }
}
