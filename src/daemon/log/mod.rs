//! Log lines: text or JSON on standard error, or systemd's journal with a field for each figure.

mod journal;

use std::io::{Write, stderr};
use std::os::unix::fs::MetadataExt;
use std::panic::{self, AssertUnwindSafe};

use pepd_config::LogFormat;
use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::FromEnvError;
use tracing_subscriber::fmt::SubscriberBuilder;
use tracing_subscriber::fmt::format::{DefaultFields, Format};

use self::journal::{Journal, JournalFormat};
use crate::exit::{Failure, Result};
use crate::ui::output::has_colours;

/// Starts the log in this format, or in the one that suits what standard error leads to. `PEPD_LOG`
/// chooses the lines (`PEPD_LOG=debug` for more about single connections).
///
/// A thread writes them: a reader that has stopped, the journal included, must not stop the
/// relay. What does not fit into its queue meanwhile is lost. The lines in the queue are
/// written when the guard that is returned is dropped.
///
/// # Errors
///
/// If there is no thread to be had.
pub fn start(format: Option<LogFormat>) -> Result<WorkerGuard> {
    let wanted = format.unwrap_or(if leads_to_journal() {
        LogFormat::Journal
    } else {
        LogFormat::Text
    });
    let journal = match wanted {
        LogFormat::Journal => Journal::open(),
        LogFormat::Text | LogFormat::Json => None,
    };
    let guard = match (wanted, journal) {
        (_, Some(journal)) => {
            let (writer, guard) = non_blocking(journal)?;
            to(writer).event_format(JournalFormat).init();
            guard
        }
        (LogFormat::Json, None) => {
            let (writer, guard) = non_blocking(stderr())?;
            to(writer).json().flatten_event(true).init();
            guard
        }
        (LogFormat::Text | LogFormat::Journal, None) => {
            let (writer, guard) = non_blocking(stderr())?;
            let log = to(writer).with_ansi(has_colours(&stderr()));
            // The journal has its own clock.
            if std::env::var_os("JOURNAL_STREAM").is_some() {
                log.without_time().init();
            } else {
                log.init();
            }
            guard
        }
    };
    if let Err(error) = filter()
        && let Some(asked) = std::env::var_os(VARIABLE)
    {
        tracing::warn!(%error, ?asked, "{VARIABLE} is no filter; the level is info");
    }
    Ok(guard)
}

/// Starts the thread. The library panics where it gets none, which is caught, and said in words.
fn non_blocking(writer: impl Write + Send + 'static) -> Result<(NonBlocking, WorkerGuard)> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let started = panic::catch_unwind(AssertUnwindSafe(|| tracing_appender::non_blocking(writer)));
    panic::set_hook(hook);
    started.map_err(|_| {
        Failure::temporary(
            "start the log: this host has no thread for it now (TasksMax=, ulimit -u)",
        )
    })
}

/// The environment variable that chooses the lines.
const VARIABLE: &str = "PEPD_LOG";

/// Reads the filter that the variable asks for; it is an error, too, if that is not set.
fn filter() -> std::result::Result<EnvFilter, FromEnvError> {
    EnvFilter::try_from_env(VARIABLE)
}

type Builder = SubscriberBuilder<DefaultFields, Format, EnvFilter, NonBlocking>;

fn to(writer: NonBlocking) -> Builder {
    let filter = filter().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        // It would report to standard error that standard error takes no more, and so panic.
        .log_internal_errors(false)
        .with_writer(writer)
}

/// Tells whether standard error is the journal (systemd.exec(5), `JOURNAL_STREAM`): the variable is
/// inherited by those whose standard error is something else.
fn leads_to_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|file| named == format!("{}:{}", file.dev(), file.ino()))
}
