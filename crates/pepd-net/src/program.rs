//! Running the programs that change the kernel's state: one at a time, and none for ever.
//!
//! A program may hang: behind a lock that another one holds, a file system that does not answer, a
//! ruleset that is too large for it. Nothing here waits longer for it than [`LIMIT`], and whoever
//! no longer wants its result need only drop what it awaits. Either way the program is killed, and
//! the next one starts only when it has ended: two do not change the same thing.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// The time that a program may take. Listing a ruleset of a hundred thousand elements takes some
/// seconds on a slow and busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The time for which a program that has been killed is waited for. One that is in the kernel ends
/// when it comes back from there.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// A program to run.
#[derive(Debug)]
pub(crate) struct Program {
    /// The places where it is looked for, in this order.
    pub places: &'static [&'static str],
    pub args: Vec<String>,
    /// The text that it reads.
    pub input: String,
}

/// What a program has left.
#[derive(Debug)]
pub(crate) struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// A program that has not come to its end.
#[derive(Debug)]
pub(crate) enum ProgramError {
    /// It could not be started.
    Start(io::Error),
    /// It could not be spoken to.
    Io(io::Error),
    /// It took longer than [`LIMIT`], and was killed.
    TimedOut,
}

impl Program {
    /// Runs it to its end.
    pub(crate) async fn run(self) -> Result<Output, ProgramError> {
        let (result, done) = oneshot::channel();
        tokio::spawn(supervise(self, result));
        match done.await {
            Ok(result) => result,
            // The runtime ends.
            Err(error) => Err(ProgramError::Io(io::Error::new(
                io::ErrorKind::Interrupted,
                error,
            ))),
        }
    }

    fn start(&self) -> io::Result<Group> {
        let mut absent = io::Error::from(io::ErrorKind::NotFound);
        let mut refused = None;
        for place in self.places {
            let started = Command::new(place)
                .args(&self.args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                // What it starts itself is to end with it.
                .process_group(0)
                .spawn();
            match started {
                Ok(child) => return Ok(Group(child)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => absent = error,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = refused.or(is_there(place).then_some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.unwrap_or(absent))
    }
}

/// Returns whether a file has that path, or that name in a directory of PATH. Directories that this
/// user may not look into, such as root's own, are none: execve(2) says of them what it says of a
/// program that may not be executed.
fn is_there(place: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An absolute path takes the place of the directory.
    std::env::split_paths(&path).any(|directory| directory.join(place).exists())
}

/// A program with everything that it has started, which is killed with this value: also when the
/// runtime ends while it runs.
struct Group(Child);

impl Group {
    fn kill(&self) {
        let leader = self.0.id().and_then(|id| i32::try_from(id).ok());
        // It is not reaped yet, so its number is its own.
        if let Some(group) = leader.and_then(rustix::process::Pid::from_raw) {
            _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }

    /// Kills it, and waits for its end.
    async fn end(&mut self) {
        self.kill();
        if timeout(LAST_WAIT, self.0.wait()).await.is_err() {
            tracing::warn!("a program that was killed has not ended: it waits in the kernel");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a program as long as somebody waits for its result.
async fn supervise(program: Program, mut result: oneshot::Sender<Result<Output, ProgramError>>) {
    static TURN: Mutex<()> = Mutex::const_new(());
    let _turn = tokio::select! {
        turn = TURN.lock() => turn,
        () = result.closed() => return,
    };
    let mut child = match program.start() {
        Ok(child) => child,
        Err(error) => {
            _ = result.send(Err(ProgramError::Start(error)));
            return;
        }
    };
    let finished = tokio::select! {
        finished = timeout(LIMIT, finish(&mut child.0, program.input)) => match finished {
            Ok(finished) => finished.map_err(ProgramError::Io),
            Err(_) => Err(ProgramError::TimedOut),
        },
        () = result.closed() => Err(ProgramError::TimedOut),
    };
    if finished.is_err() {
        child.end().await;
    }
    // Whoever waited for it may have gone.
    _ = result.send(finished);
}

/// Talks with a program until it ends.
async fn finish(child: &mut Child, input: String) -> io::Result<Output> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (written, stdout, stderr) = tokio::join!(write(stdin, &input), read(stdout), read(stderr));
    let (stdout, stderr) = (stdout?, stderr?);
    let status = loop {
        match child.wait().await {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            waited => break waited?,
        }
    };
    let output = Output {
        status,
        stdout,
        stderr,
    };
    // Only now: a program that fails early stops reading, and its own words say more.
    if output.status.success() {
        written?;
    }
    Ok(output)
}

/// Writes all of a text, and closes what it is written to.
async fn write(to: Option<ChildStdin>, text: &str) -> io::Result<()> {
    let (Some(mut to), mut rest) = (to, text.as_bytes()) else {
        return Ok(());
    };
    while !rest.is_empty() {
        match to.write(rest).await {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => rest = rest.get(length..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads everything up to the end.
async fn read(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(mut from) = from else {
        return Ok(bytes);
    };
    loop {
        match from.read_to_end(&mut bytes).await {
            // What came before is there.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(|_| bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &str) -> Program {
        Program {
            places: &["no-such-program", "/bin/sh"],
            args: vec!["-c".to_owned(), script.to_owned()],
            input: input.to_owned(),
        }
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn more_than_a_pipe_holds_goes_both_ways() {
        let input = "x".repeat(1 << 20);
        let output = block_on(shell("cat; echo no >&2; exit 3", &input).run()).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout.len(), input.len());
        assert_eq!(output.stderr, b"no\n");
    }

    #[test]
    fn a_program_that_is_not_there_is_no_error_of_anything_else() {
        let program = Program {
            places: &["no-such-program"],
            args: Vec::new(),
            input: String::new(),
        };
        let error = block_on(program.run()).unwrap_err();
        assert!(
            matches!(&error, ProgramError::Start(error) if error.kind() == io::ErrorKind::NotFound),
            "{error:?}"
        );
    }

    #[test]
    fn a_program_that_may_not_be_executed_is_passed_over_and_named_if_there_is_no_other() {
        let places = &["/etc/passwd", "/bin/true"];
        let program = |places| Program {
            places,
            args: Vec::new(),
            input: String::new(),
        };
        let output = block_on(program(places).run()).unwrap();
        assert!(output.status.success());
        let error = block_on(program(&places[..1]).run()).unwrap_err();
        assert!(
            matches!(&error, ProgramError::Start(error) if error.kind() == io::ErrorKind::PermissionDenied),
            "{error:?}"
        );
    }

    /// The next one does not start before it has ended: the test would wait for its time limit.
    #[test]
    fn a_program_that_nobody_waits_for_is_killed_with_what_it_started() {
        let scratch = std::env::temp_dir().join(format!("pepd-program-{}", std::process::id()));
        let path = scratch.display();
        let script = format!("echo begun > {path}; sleep 3600 | cat; echo ended > {path}");
        block_on(async {
            let hangs = shell(&script, "").run();
            let begun = async {
                // The shell makes the file before it writes into it.
                while std::fs::read(&scratch).ok().as_deref() != Some(b"begun\n") {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                output = hangs => panic!("it has ended: {output:?}"),
                () = begun => {}
            }
            let next = timeout(LIMIT / 2, shell("true", "").run()).await.unwrap();
            assert!(next.unwrap().status.success());
        });
        assert_eq!(std::fs::read_to_string(&scratch).unwrap(), "begun\n");
        std::fs::remove_file(&scratch).unwrap();
    }
}
