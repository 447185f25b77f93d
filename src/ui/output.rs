//! Writing to standard output and standard error, where a reader may have gone.

use std::env;
use std::fmt;
use std::io::{self, IsTerminal, Write};

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
