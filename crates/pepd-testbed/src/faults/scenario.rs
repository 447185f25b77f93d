//! A start, connections, a reload and an end, with one call that fails; and what must hold.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::poll::PollFlags;
use nix::sys::signal::Signal;

use super::daemon::{Daemon, Part};
use super::fault::Fault;
use super::tracer::{Census, Ended};
use crate::sockets::splits;
use crate::traffic::{
    End, PATIENCE, Pair, Pattern, accept, await_event, connect, kind, receive, send,
};
use crate::wait::wait_until;
use crate::world::{Family, World};

/// Whatever happens, nothing takes longer than this.
const LIMIT: Duration = Duration::from_secs(60);

/// The bytes that each connection carries each way: more than a pipe takes.
const LENGTH: u64 = 600_000;

/// A port of the server's that nobody listens on.
const CLOSED: u16 = 4999;

/// The exit codes of a daemon that could not start (docs of `pepd run`).
const CODES: [i32; 5] = [69, 70, 75, 77, 78];

/// The exit code of a Rust program whose main thread has panicked.
const PANICKED: i32 = 101;

/// What became of a run.
#[derive(Debug)]
pub struct Course {
    /// The calls that were made.
    pub census: Census,
    /// The fault was there.
    pub fired: bool,
    /// What the daemon did about it.
    pub outcome: Outcome,
}

/// What the daemon did about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It served on, and ended with 0.
    Served,
    /// It did not start, and said so.
    RefusedToStart(i32),
    /// It served on, and ended with a code that says that its end was not in order.
    EndedWith(i32),
    /// It had no memory and was aborted.
    Aborted,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served => f.write_str("served on, and ended in order"),
            Self::RefusedToStart(code) => write!(f, "did not start, and said why (exit {code})"),
            Self::EndedWith(code) => write!(f, "served on, and ended with exit {code}"),
            Self::Aborted => f.write_str("no memory: aborted, and the box failed open"),
        }
    }
}

/// The world of one run after another.
pub struct Ground {
    world: World,
    binary: PathBuf,
    config: String,
    before: String,
}

impl Ground {
    /// Makes one for the daemon from the file `binary`.
    ///
    /// # Errors
    /// Without root.
    pub fn new(binary: PathBuf, early: bool) -> Result<Self> {
        let world = World::standard()?;
        let config = if early {
            World::early_config()
        } else {
            World::config()
        };
        let config = config
            .replacen("[node]", "[node]\nworkers = 1", 1)
            .replacen("\"5s\"", "\"300ms\"", 1);
        let before = world.steady_state()?;
        Ok(Self {
            world,
            binary,
            config,
            before,
        })
    }

    /// Runs the scenario once.
    ///
    /// # Errors
    /// What does not hold, with the daemon's log.
    pub fn run(&mut self, fault: Option<Fault>) -> Result<Course> {
        let mut daemon = Daemon::start(&self.binary, self.world.hb(), &self.config, fault)?;
        let outcome = self.play(&mut daemon, fault).and_then(|outcome| {
            judge_log(&daemon, fault)?;
            Ok(outcome)
        });
        let course = outcome.map(|outcome| Course {
            census: daemon.census(),
            fired: daemon.has_failed(),
            outcome,
        });
        let course =
            course.map_err(|error| anyhow!("{error:#}\nthe daemon's log:\n{}", daemon.log()));
        if course.is_ok() {
            daemon.finish()?;
        } else {
            drop(daemon);
            // The next run has a new one: what is left of this must not be held against it.
            self.world = World::standard()?;
        }
        course
    }

    fn play(&self, daemon: &mut Daemon, fault: Option<Fault>) -> Result<Outcome> {
        let started = daemon.await_ready(1, &["new connections are split"], LIMIT)?;
        if let Some(ended) = started {
            if no_memory(ended, fault) {
                return self.judge_abort(daemon);
            }
            return self.judge_start(daemon, ended);
        }
        daemon.enter(Part::Connection);
        let mut lasting = self.serve(daemon).context("at first")?;
        daemon.enter(Part::Reload);
        if daemon.ended().is_none() {
            // Whatever takes a moment is still under way now.
            let config = self.config.replacen("\"reno\"", "\"cubic\"", 1);
            daemon.reload(&config)?;
            daemon.await_ready(2, &["reloaded", "reload refused"], LIMIT)?;
            if let Some(pair) = lasting.take() {
                tolerate(daemon, pair.exchange(1000)).context("across a reload")?;
            }
            self.serve(daemon).context("after a reload")?;
            self.splits_again(daemon)?;
        }
        daemon.enter(Part::End);
        if daemon.ended().is_none() {
            daemon.signal(Signal::SIGTERM)?;
        }
        let ended = daemon.await_end(LIMIT)?;
        if no_memory(ended, fault) {
            return self.judge_abort(daemon);
        }
        self.judge_end(daemon, ended)
    }

    /// Has connections of both families, of which one stays.
    fn serve(&self, daemon: &Daemon) -> Result<Option<Pair>> {
        for family in Family::BOTH {
            tolerate(daemon, self.converse(family)).with_context(|| family.to_string())?;
            let closed = SocketAddr::new(World::server_address(family), CLOSED);
            self.refuses(daemon, closed)?;
        }
        tolerate(daemon, self.open(Family::V4)).context("one that is to last")
    }

    /// Opens a connection, has bytes go through it both ways, and closes it, client first.
    fn converse(&self, family: Family) -> Result<()> {
        let Pair { client, server } = self.open(family)?;
        let (question, answer) = (Pattern::new(11), Pattern::new(12));
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let asked = complete(&server, &question);
                let served = asked.and_then(|()| {
                    send(&server, &answer, 0, LENGTH)?;
                    Ok(server.shutdown(Shutdown::Write)?)
                });
                // What failed here is over there, too.
                if served.is_err() {
                    let _ = server.shutdown(Shutdown::Both);
                }
                served
            });
            let asked = send(&client, &question, 0, LENGTH)
                .and_then(|()| Ok(client.shutdown(Shutdown::Write)?))
                .and_then(|()| complete(&client, &answer));
            if asked.is_err() {
                let _ = client.shutdown(Shutdown::Both);
            }
            let served = serving.join();
            let served = served.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (asked, served) {
                // The other side's error came of it.
                (Err(worst), _) if worst.is::<Corrupt>() => Err(worst),
                (_, Err(worst)) if worst.is::<Corrupt>() => Err(worst),
                (asked, served) => asked.and(served),
            }
        })
    }

    /// Opens a connection. A client that was answered early may learn later that it has failed.
    fn open(&self, family: Family) -> Result<Pair> {
        let listener = self.world.listen(family)?;
        let client = connect(self.world.client(), listener.local_addr()?)?;
        listener.set_nonblocking(true)?;
        client.set_nonblocking(true)?;
        let (mut accepted, mut failed) = (false, None);
        wait_until(
            PATIENCE,
            "the server has it, or the client an error",
            || {
                accepted = poll(&listener);
                failed = match client.peek(&mut [0]) {
                    Ok(_) => Some(ErrorKind::ConnectionReset.into()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                    Err(error) => Some(error),
                };
                accepted || failed.is_some()
            },
        )?;
        if let Some(error) = failed.filter(|_| !accepted) {
            return Err(error.into());
        }
        client.set_nonblocking(false)?;
        let (server, _) = accept(&listener)?;
        Ok(Pair { client, server })
    }

    fn refuses(&self, daemon: &Daemon, closed: SocketAddr) -> Result<()> {
        let refused = match connect(self.world.client(), closed) {
            // Answered early, and then told.
            Ok(stream) => receive(&stream, &Pattern::new(1), 0).map(|(_, end)| end),
            Err(error) => match kind(&error) {
                Some(kind) => Ok(End::Error(kind)),
                None => Err(error),
            },
        }?;
        match refused {
            End::Error(ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset) => Ok(()),
            End::Error(_) if daemon.has_failed() => Ok(()),
            other => bail!("a closed port gave {other:?}"),
        }
    }

    /// Waits until a new connection is split again, after a fault.
    fn splits_again(&self, daemon: &Daemon) -> Result<()> {
        wait_until(LIMIT, "new connections are split again", || {
            let probe = || splits(self.world.hb(), || self.open(Family::V4));
            daemon.ended().is_some() || probe().is_ok_and(|(_, split)| split)
        })
    }

    fn judge_start(&self, daemon: &Daemon, ended: Ended) -> Result<Outcome> {
        match ended {
            Ended::Code(code) if CODES.contains(&code) => {
                let said = daemon.log();
                ensure!(
                    said.contains("pepd: ") || said.contains("error"),
                    "no message"
                );
                self.is_clean()
                    .context("a start that failed left something")?;
                Ok(Outcome::RefusedToStart(code))
            }
            other => bail!("it ended with {other:?} at its start"),
        }
    }

    fn judge_end(&self, daemon: &Daemon, ended: Ended) -> Result<Outcome> {
        match ended {
            Ended::Code(0) => {
                self.is_clean().context("an end in order left something")?;
                Ok(Outcome::Served)
            }
            Ended::Code(code) if CODES.contains(&code) => {
                let said = daemon.log();
                ensure!(said.contains("ending: "), "it ended by itself with {code}");
                ensure!(said.contains("pepd: "), "no message");
                self.cleans_up(daemon)?;
                Ok(Outcome::EndedWith(code))
            }
            other => bail!("it ended with {other:?}"),
        }
    }

    /// An allocation that fails ends the process: then its box fails open, and `pepd down` cleans
    /// up.
    fn judge_abort(&self, daemon: &Daemon) -> Result<Outcome> {
        let said = daemon.log();
        let explained = said.contains("memory allocation of") || said.contains("panicked");
        ensure!(explained, "no message");
        wait_until(LIMIT, "the box fails open", || {
            self.open(Family::V4)
                .and_then(|pair| pair.exchange(1000))
                .is_ok()
        })?;
        self.cleans_up(daemon)?;
        Ok(Outcome::Aborted)
    }

    fn cleans_up(&self, daemon: &Daemon) -> Result<()> {
        daemon.down(self.world.hb(), LIMIT)?.success()?;
        self.is_clean().context("pepd down left something")
    }

    fn is_clean(&self) -> Result<()> {
        let now = self.world.steady_state()?;
        ensure!(
            now == self.before,
            "{now}, and before it was {}",
            self.before
        );
        Ok(())
    }
}

/// Judges the log. For want of memory the standard library panics in a thread that has just begun.
fn judge_log(daemon: &Daemon, fault: Option<Fault>) -> Result<()> {
    let memory = fault.is_some_and(|fault| fault.call.allocates());
    ensure!(memory || !daemon.log().contains("panicked"), "a panic");
    Ok(())
}

/// Returns whether the process ended for want of memory: aborted, or by a panic where a thread could
/// not be had.
fn no_memory(ended: Ended, fault: Option<Fault>) -> bool {
    let ends = [Ended::Signal(Signal::SIGABRT), Ended::Code(PANICKED)];
    ends.contains(&ended) && fault.is_some_and(|fault| fault.call.allocates())
}

/// Reads the whole stream.
///
/// # Errors
/// When an error comes instead. And what no fault excuses ([`Corrupt`]): a byte is wrong, nothing
/// comes, or the end is clean and bytes are missing.
fn complete(stream: &TcpStream, pattern: &Pattern) -> Result<()> {
    match receive(stream, pattern, 0).map_err(Corrupt)? {
        (LENGTH, End::Fin) => Ok(()),
        (_, End::Error(kind)) => Err(io::Error::from(kind).into()),
        (length, End::Fin) => {
            Err(Corrupt(anyhow!("a clean end after {length} of {LENGTH} bytes")).into())
        }
    }
}

/// Returns whether a listener has a connection to give.
fn poll(listener: &TcpListener) -> bool {
    await_event(listener, PollFlags::POLLIN, Duration::ZERO).unwrap_or_default()
}

/// What no fault excuses.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct Corrupt(anyhow::Error);

/// Lets an error pass that a fault may have caused: a connection that breaks, and none that hangs
/// or lies.
fn tolerate<T>(daemon: &Daemon, result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if !daemon.has_failed() && daemon.ended().is_none() => {
            Err(error.context("and nothing has failed yet"))
        }
        Err(error) => {
            let hung = matches!(
                kind(&error),
                Some(ErrorKind::WouldBlock | ErrorKind::TimedOut)
            );
            ensure!(!hung && !error.is::<Corrupt>(), "{error:#}");
            let excused = daemon.excuses_a_break() || daemon.ended().is_some();
            ensure!(
                excused,
                "{error:#}, for a call that could have been made again"
            );
            Ok(None)
        }
    }
}
