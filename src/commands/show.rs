//! `pepd show`: the kernel state that `run` would install.

use crate::cli::File;
use crate::config_file;
use crate::daemon::controls::Controls;
use crate::daemon::resources;
use crate::daemon::wiring;
use crate::exit::Result;
use crate::runtime;
use crate::ui::output::{eprint, print};

/// Prints the plan, and touches nothing.
pub fn show(file: &File) -> Result {
    let config = config_file::read(file)?;
    let listeners =
        pepd_relay::listener_addresses(&wiring::settings(&config, &Controls::default()))?;
    let workers = resources::workers(&config);
    let runtime = runtime::one_thread()?;
    let backend = runtime
        .block_on(resources::queue_backend(&config))
        .unwrap_or_else(|failure| {
            eprint(format_args!(
                "{failure}\npepd: shown is what would be installed if nft could hold packets"
            ));
            Some(pepd_net::QueueBackend::Nft)
        });
    let request = wiring::request(&config, &listeners, workers, backend);
    let plan = pepd_net::Plan::new(&request);
    print(plan.to_string().as_bytes())
}
