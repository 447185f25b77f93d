//! The daemon's admin socket, asked without a program.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Asks the daemon behind `socket`: `request` is a method and a path, and the answer what it says.
/// It takes no program to be started, and so no time worth speaking of.
///
/// # Errors
/// When nobody answers, or not with status 200: with what was said.
pub fn ask(socket: &Path, request: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
    let (_, body) = answer
        .split_once("\r\n\r\n")
        .context("an answer without a body")?;
    Ok(body.to_owned())
}
