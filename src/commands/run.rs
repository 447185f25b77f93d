//! `pepd run`: from the configuration file to a running daemon.

use std::sync::Arc;

use pepd_config::AdminSocket;
use pepd_relay::Injector;

use crate::cli::File;
use crate::config_file;
use crate::daemon::admin::{Page, Socket};
use crate::daemon::controls::Controls;
use crate::daemon::lock::Lock;
use crate::daemon::privileges::Needs;
use crate::daemon::{Daemon, Made, Privileged, log, privileges};
use crate::exit::{Failure, Result};

/// Runs the daemon until a signal or a control request ends it.
pub fn run(file: &File) -> Result {
    let config = config_file::read(file)?;
    privileges::require()?;
    let account = privileges::user::wanted(&config)?;
    let _lock = Lock::acquire()?;
    let mut lacks = Vec::new();
    let socket = match Socket::bind(&config.admin, account.as_ref()) {
        // Nobody has asked for it: another daemon of this host, in another network namespace, may have it.
        Err(failure) if config.admin.socket == AdminSocket::Usual => {
            lacks.push(failure.to_string());
            None
        }
        bound => bound?,
    };
    let page = Page::bind(&config, &mut lacks)?;
    let controls = Controls::register(&config)?;
    // Without the capability that it takes, legs wait for the kernel's timers.
    let injector = Injector::open().ok().map(Arc::new);
    // Everything after this, threads and programs, has only what is needed.
    let needs = Needs {
        config: &config,
        has_controls: controls.need_bpf(),
    };
    let in_force = privileges::confine(account.as_ref(), &needs)?;
    let privileged = Privileged {
        made: Made {
            socket,
            page,
            injector,
            lacks,
            resume: controls.resume(),
        },
        controls,
        in_force,
    };
    let _flushed = log::start(config.log.format)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("start the runtime", error))?;
    let result = runtime.block_on(async {
        match Daemon::start(file.clone(), config, privileged).await? {
            Some(daemon) => daemon.run().await,
            None => Ok(()),
        }
    });
    // What still waits for something ends with the process.
    runtime.shutdown_background();
    result
}
