//! `pepd run`: from the configuration file to a running daemon.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::cli::File;
use crate::daemon::Daemon;
use crate::exit::{Failure, Result};
use crate::host::Lock;
use crate::{privileges, source};

/// Runs until a signal ends it.
pub fn run(file: &File) -> Result {
    let config = source::read(&file.path)?;
    privileges::require()?;
    let _lock = Lock::acquire()?;
    start_log();
    // Everything after this, threads and programs, has only what is needed.
    privileges::reduce()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("start the runtime", error))?;
    runtime.block_on(async { Daemon::start(file.path.clone(), config).await?.run().await })
}

/// Log lines go to standard error; `PEPD_LOG` chooses them (`PEPD_LOG=debug` for each
/// connection). The journal has its own clock.
fn start_log() {
    let filter = EnvFilter::try_from_env("PEPD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // It would report to standard error that standard error takes no more, and so panic.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
}
