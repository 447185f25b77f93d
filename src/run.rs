//! `pepd run`: from the configuration file to a running daemon.

use std::io::IsTerminal;

use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

use crate::admin::Socket;
use crate::cli::File;
use crate::daemon::Daemon;
use crate::exit::{Failure, Result};
use crate::host::Lock;
use crate::{privileges, source};

/// Runs until a signal ends it.
pub fn run(file: &File) -> Result {
    let config = source::read(file)?;
    privileges::require()?;
    let _lock = Lock::acquire()?;
    let socket = Socket::bind(&config.admin)?;
    // Everything after this, threads and programs, has only what is needed.
    privileges::reduce()?;
    let _flushed = start_log();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("start the runtime", error))?;
    runtime.block_on(async {
        Daemon::start(file.clone(), config, socket)
            .await?
            .run()
            .await
    })
}

/// Log lines go to standard error; `PEPD_LOG` chooses them (`PEPD_LOG=debug` for each
/// connection). The journal has its own clock.
///
/// A thread writes them: a reader that has stopped must not stop the relay. What does not fit
/// into its queue meanwhile is lost. The lines in the queue are written when the guard that
/// is returned is dropped.
fn start_log() -> WorkerGuard {
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let filter = EnvFilter::try_from_env("PEPD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // It would report to standard error that standard error takes no more, and so panic.
        .log_internal_errors(false)
        .with_writer(writer);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
    guard
}
