//! The daemon's process of `pepd run`: from the configuration file to a running daemon, or on from
//! where the process before it has died.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use pepd_config::{AdminSocket, Config};
use pepd_relay::{Injector, Remains, Slots};
use pepd_sys::descriptors::Left;

use crate::cli::File;
use crate::config_file;
use crate::daemon::admin::{Page, Socket};
use crate::daemon::controls::Controls;
use crate::daemon::lock::Lock;
use crate::daemon::moving::Keys;
use crate::daemon::prepare::{self, Notes};
use crate::daemon::privileges::Needs;
use crate::daemon::remembered::Remembered;
use crate::daemon::{Daemon, Made, Privileged, Survival, log, privileges};
use crate::exit::{Failure, Result};
use crate::keeper::board::Board;
use crate::keeper::{self, Before};
use crate::runtime;

/// Runs the daemon until a signal or a control request ends it; `board` is that of the keeper, which has
/// made this process.
pub fn run(file: &File, board: Board, before: Before) -> Result {
    let keeper = before.keeper;
    let Begun {
        config,
        survival,
        resume,
        account,
    } = begin(file, board, before)?;
    let mut lacks = Vec::new();
    // Connections that are there do not depend on what shows them.
    let goes_on = survival.remains.is_some();
    // Nobody has asked for it: another daemon of this host, in another network namespace, may have it.
    let is_usual = config.admin.socket == AdminSocket::Usual;
    let socket = Socket::bind(&config.admin, account.as_ref());
    let socket = or_without(socket, goes_on || is_usual, &mut lacks)?;
    let page = Page::bind(&config, &mut lacks);
    let page = or_without(page, goes_on, &mut lacks)?;
    let remembered = remembered(&config, &mut lacks);
    let keys = or_without(Keys::read(&config), goes_on, &mut lacks)?;
    let controls = Controls::register(&config, resume)?;
    let program = pepd_bpf::resume_program();
    survival.board.set_resume(controls.resume_link(), program);
    // Without the capability that it takes, legs wait for the kernel's timers.
    let injector = Injector::open().ok().map(Arc::new);
    // Everything after this, threads and programs, has only what is needed.
    let needs = Needs {
        config: &config,
        has_controls: controls.need_bpf(),
    };
    let in_force = privileges::confine(account.as_ref(), &needs)?;
    // To become another user takes it back.
    keeper::end_with(keeper)?;
    let privileged = Privileged {
        made: Made {
            socket,
            page,
            injector,
            lacks,
            resume: controls.resume(),
            remembered,
            keys,
        },
        controls,
        in_force,
        survival,
    };
    let _flushed = log::start(config.log.format)?;
    let runtime = runtime::one_thread()?;
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

/// Goes without what could not be made, where it `may`: that is noted.
fn or_without<T>(made: Result<Option<T>>, may: bool, lacks: &mut Vec<String>) -> Result<Option<T>> {
    match made {
        Err(failure) if may => {
            lacks.push(failure.to_string());
            Ok(None)
        }
        made => made,
    }
}

/// Opens the file of what was learned of the legs' paths, if the configuration names one.
fn remembered(config: &Config, lacks: &mut Vec<String>) -> Option<Remembered> {
    let opened = Remembered::open(config.node.state.as_deref()?);
    opened.map_err(|why| lacks.push(why)).ok()
}

/// What a daemon begins with.
struct Begun {
    config: Config,
    survival: Survival,
    /// What opens windows after an outage, of a daemon before this one.
    resume: Option<OwnedFd>,
    account: Option<privileges::user::Account>,
}

/// Gives the configuration that the daemon before this one had in force, with what only a start changes
/// as it was then. This comes from the keeper: the other one could not become a user that it was not
/// started as, and so can none that follows it.
fn in_force(file: &File, board: &Board, started: Option<String>) -> Result<Config> {
    let text = board.text();
    let (started, started_text) = match started {
        Some(text) => (config_file::understand(file, &text)?, text),
        // The one before had not come so far.
        None => config_file::read_with_text(file)?,
    };
    board.set_started(&started_text);
    let mut config = match text {
        Some(text) => config_file::understand(file, &text)?,
        None => started.clone(),
    };
    prepare::keep_start_only_keys(&mut config, &started, &mut Notes::default());
    Ok(config)
}

/// Reads the file and takes the lock; or, where a daemon before this one has died, takes over its
/// configuration, its lock and what it has left, and closes the rest.
fn begin(file: &File, board: Board, before: Before) -> Result<Begun> {
    let Before {
        keeper,
        kept,
        started,
    } = before;
    let board = Arc::new(board);
    let slots = Slots::new(board.slots());
    let on_trial = kept.is_some();
    let (mut resume, mut to_close) = (None, None);
    let (config, lock, remains) = match board.last_death() {
        None => {
            let (config, text) = config_file::read_with_text(file)?;
            board.set_text(&text);
            board.set_started(&text);
            (config, None, None)
        }
        Some((death, _)) => {
            // First of all: what is open now is what the other has left.
            let kept: Vec<_> = kept.into_iter().chain([(*board).as_fd()]).collect();
            let mut left =
                Left::find(&kept).map_err(|error| Failure::internal("find what is open", error))?;
            let lock = board.lock().and_then(|fd| left.take(fd)).map(Lock::from);
            let mut remains = Remains::take(&slots, &mut left, death.is_of_itself());
            if board.links().is_some() {
                remains.after_an_outage();
            }
            resume = board
                .take_resume(pepd_bpf::resume_program())
                .and_then(|fd| left.take(fd));
            left.close_but_for_epoll();
            to_close = Some(left);
            let config = in_force(file, &board, started)?;
            (config, lock, Some(remains))
        }
    };
    privileges::require()?;
    let account = privileges::user::wanted(&config)?;
    let lock = match lock {
        Some(lock) => lock,
        None => Lock::acquire(keeper)?,
    };
    board.set_lock(lock.as_raw_fd());
    Ok(Begun {
        config,
        survival: Survival {
            board,
            slots,
            remains,
            to_close,
            on_trial,
        },
        resume,
        account,
    })
}
