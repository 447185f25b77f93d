//! `pepd upgrade`: this program takes over from a running daemon.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pepd_admin::wire::{Status, Survival, Takeover};

use crate::cli::{Target, UpgradeArgs};
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::config_file;
use crate::exit::{Failure, Result};
use crate::keeper::board::Board;
use crate::ui::format;
use crate::ui::output::print;

/// The time within which the daemon is to be up again: as long as the other program has, and some for
/// the one before.
const LIMIT: Duration = Duration::from_secs(120);

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(50);

/// Has the running daemon become the program that is now at its path, and says what has come of it.
pub fn upgrade(args: &UpgradeArgs) -> Result {
    if let Some(layout) = args.takes_over {
        return takes_over(&args.target, layout);
    }
    let client = Client::new(&args.target)?;
    let before = survival(&client)?;
    ask(&before, args.target.config.as_deref())?;
    let keeper = i32::try_from(before.keeper).unwrap_or(0);
    if keeper <= 1 {
        return Err(Failure::unavailable(
            "the running pepd does not say which process its keeper is",
        ));
    }
    kill(Pid::from_raw(keeper), Signal::SIGUSR2).map_err(|error| match error {
        Errno::EPERM => Failure::not_permitted(
            "only root, or the user that pepd was started as, may upgrade it",
        ),
        error => Failure::internal("tell the keeper", error),
    })?;
    let last = await_end(&client, before.count())?;
    if last.cause != "upgrade" {
        return Err(Failure::internal("upgrade", last.why));
    }
    let said = format!(
        "upgraded: {} connections went on after {}, {} were reset\n",
        last.connections,
        format::seconds(last.pause),
        last.lost
    );
    print(said.as_bytes())
}

/// Says whether this program can take over from a daemon of this layout, with this file.
fn takes_over(target: &Target, layout: u64) -> Result {
    if let Some(path) = &target.config {
        config_file::read(&target.file(path))?;
    }
    if layout == Board::layout() {
        return Ok(());
    }
    Err(Failure::unavailable(
        "the running pepd keeps its notes in another way than this one, which cannot go on with its \
         connections; `systemctl restart pepd` replaces it, and cuts them",
    ))
}

/// Asks the program that is to take over whether it can: it says why not by itself.
fn ask(running: &Survival, config: Option<&Path>) -> Result {
    let mut program = Command::new(&running.program);
    program.args(["upgrade", "--takes-over", &running.layout.to_string()]);
    if let Some(config) = config {
        program.arg("-c").arg(config);
    }
    match program.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::unavailable(format!(
            "{} cannot take over ({status}); the old one goes on",
            running.program
        ))),
        Err(error) => Err(Failure::unavailable(format!(
            "{}, which is to take over, cannot be started: {error}; the old one goes on",
            running.program
        ))),
    }
}

fn survival(client: &Client) -> Result<Survival> {
    let status: Status = client.get(endpoint::STATUS)?;
    status.survival.ok_or_else(|| {
        Failure::unavailable("the running pepd is of a version that cannot be upgraded; restart it")
    })
}

/// Waits until there is another process; of an upgrade that fails there are two.
fn await_end(client: &Client, before: u64) -> Result<Takeover> {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        // In between nobody answers.
        if let Ok(now) = survival(client)
            && now.count() > before
            && let Some(last) = now.last
        {
            return Ok(last);
        }
        thread::park_timeout(PAUSE);
    }
    Err(Failure::temporary(format!(
        "the daemon has not answered for {} s; its log says why",
        LIMIT.as_secs()
    )))
}
