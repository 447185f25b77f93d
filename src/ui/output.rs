//! Writing to standard output and standard error, where a reader may have gone.

use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd as _;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::exit::{Failure, Result};

/// Writes to standard output; it is no error if the reader has had enough.
pub fn print(text: &[u8]) -> Result {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Failure::internal("write to standard output", error)),
    }
}

/// Writes a line to standard error. Where that cannot be done there is nobody to tell; eprintln!
/// would panic.
pub fn eprint(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The same for who may not wait: where nobody has read what was written before, as from a pipe that is full,
/// the line is lost.
pub fn eprint_in_time(text: impl fmt::Display) {
    let stderr = io::stderr();
    let mut writable = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // A pipe is writable where a line has room (PIPE_BUF, pipe(7)).
    if poll(&mut writable, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        eprint(text);
    }
}

/// Writes why the process ends to standard error; gives the code that it is to end with.
pub fn tell(failure: &Failure) -> u8 {
    eprint(failure);
    failure.code()
}

/// Tells whether what is written there may have colours: it is a terminal, and nobody has asked for
/// none (`NO_COLOR`, no-color.org).
pub fn has_colours(stream: &impl IsTerminal) -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|said| !said.is_empty());
    stream.is_terminal() && !refused
}
