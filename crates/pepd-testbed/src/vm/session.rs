//! The conversation of host and guest.
//!
//! On the control port the host sends one shell script, after its length. The guest answers
//! `start RELEASE` when it runs the command, `requests COUNT` when the command has ended, and
//! `exit STATUS` when all its output has been taken by the host and its results are written.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::error::{Error, Result};
use super::machine::Machine;
use super::outcome::{Ended, Run};
use super::script::Script;

/// Serves a guest until it has ended, or for `limit` from `started` on.
pub(super) fn run(
    mut machine: Machine,
    script: &Script,
    started: Instant,
    limit: Duration,
    stdout: &mut (dyn Write + Send),
    stderr: &mut (dyn Write + Send),
) -> Result<Run> {
    let clone = |stream: &UnixStream| stream.try_clone().map_err(Error::system("copy a socket"));
    let out = clone(&machine.channels().out)?;
    let err = clone(&machine.channels().err)?;
    let mut control = clone(&machine.channels().control)?;
    let script = script.as_bytes();
    let message = [format!("{}\n", script.len()).as_bytes(), script].concat();

    let run = thread::scope(|scope| {
        scope.spawn(|| pass_on(out, stdout));
        scope.spawn(|| pass_on(err, stderr));
        // Of its own, since QEMU takes no more than a buffer's worth before the guest reads.
        scope.spawn(move || control.write_all(&message));
        let run = converse(&machine, started, limit);
        machine.stop();
        run
    });
    Ok(run)
}

/// Follows the control port to the command's end.
fn converse(machine: &Machine, started: Instant, limit: Duration) -> Run {
    let mut boot = None;
    let mut host_requests = None;
    let mut lines = BufReader::new(&machine.channels().control);
    let ended = loop {
        match read_line(&mut lines, started + limit) {
            Ok(line) => match line.split_once(' ') {
                Some(("start", _release)) => boot = Some(started.elapsed()),
                Some(("requests", count)) => host_requests = count.parse().ok(),
                Some(("exit", status)) => match status.parse() {
                    Ok(status) => break Ended::Exited(status),
                    Err(_) => break Ended::Died(machine.console()),
                },
                _ => break Ended::Died(machine.console()),
            },
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                break Ended::TimedOut(machine.console());
            }
            Err(_) => break Ended::Died(machine.console()),
        }
    };
    Run {
        ended,
        boot,
        host_requests,
    }
}

/// Reads the next line, or returns TimedOut, or what the end of the machine gives.
fn read_line(lines: &mut BufReader<&UnixStream>, deadline: Instant) -> io::Result<String> {
    let mut line = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        lines.get_ref().set_read_timeout(Some(left))?;
        match lines.read_until(b'\n', &mut line) {
            Ok(_) if line.ends_with(b"\n") => {
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Passes on what comes, at once, until the end. When nobody reads the output any more
/// (EPIPE) the rest is still taken, so that the command does not hang.
fn pass_on(mut from: UnixStream, to: &mut (dyn Write + Send)) {
    let mut buffer = [0; 16384];
    let mut open = true;
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        open = open
            && to
                .write_all(&buffer[..length])
                .and_then(|()| to.flush())
                .is_ok();
    }
}
