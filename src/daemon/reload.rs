//! Reading the configuration again while connections live on.

use pepd_config::Config;

use crate::config_file;
use crate::daemon::{Daemon, prepare, resources};
use crate::exit::Result;

impl Daemon {
    /// Reads the configuration again. Where that is refused nothing changes.
    ///
    /// # Errors
    ///
    /// The reason, as the log and the admin API give it.
    pub(super) async fn reload(&mut self) -> std::result::Result<(), String> {
        self.keeper.notifier.reloading();
        let result = self.try_reload().await.map_err(|why| why.to_string());
        match &result {
            Ok(()) => tracing::info!("reloaded"),
            Err(message) => tracing::error!("reload refused, nothing has changed:\n{message}"),
        }
        self.renew_gate().await;
        self.keeper.notifier.ready();
        result
    }

    async fn try_reload(&mut self) -> Result {
        let mut config = config_file::read_again(&self.file)?;
        self.keep_start_only_keys(&mut config);
        let descriptors = resources::shares(&config, self.workers, self.descriptors.limit);
        let settings = prepare::settings(&config, &self.controls, descriptors)?;
        let prepared = self.keeper.relay.prepare(settings)?;
        let backend = resources::queue_backend(&config);
        let backend = self.keeper.renew_during(backend).await?;
        let plan = prepare::plan(&config, &prepared, self.workers, backend);
        let replaced = self.installed.replace(&plan);
        self.keeper.renew_during(replaced).await?;
        self.keeper.relay.reload(prepared, descriptors.pipes);
        self.view.set_config(&config);
        self.keeper.probes.follow(&config);
        self.config = config;
        self.descriptors = descriptors;
        self.plan = plan;
        Ok(())
    }

    /// Keeps what only a start can change as it is, and says so in the log.
    fn keep_start_only_keys(&self, config: &mut Config) {
        let running = &self.config;
        let keys = [
            ("[admin]", config.admin != running.admin),
            (
                "[node] workers",
                config.node.workers != running.node.workers,
            ),
            ("[node] user", config.node.user != running.node.user),
            ("[log] format", config.log.format != running.log.format),
        ];
        for (key, _) in keys.iter().filter(|(_, differs)| *differs) {
            tracing::warn!("{key} takes effect at the next start");
        }
        config.admin = running.admin.clone();
        config.node.workers = running.node.workers;
        config.node.user.clone_from(&running.node.user);
        config.log.format = running.log.format;
    }
}
