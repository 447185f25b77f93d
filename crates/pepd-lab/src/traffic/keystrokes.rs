//! Keystrokes, and the echo of each: an interactive session.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use pepd_testbed::traffic::listen;

use super::bulk::{PORT, pair, sleep_until};
use crate::path::Path;

/// Sends `count` bytes from the sender, one `every` so often whatever has come back, to the
/// receiver, which sends them back. Returns each one's round trip in seconds.
///
/// # Errors
/// When the connection is not established, or an echo has not come `wait` after the last key.
pub fn type_away(
    path: &Path,
    count: usize,
    every: Duration,
    wait: Duration,
    congestion: &str,
) -> Result<Vec<f64>> {
    let listener = listen(&path.receiver, Path::receiver_address(PORT))?;
    let (keyboard, host) = pair(&path.sender, &listener, congestion)?;
    keyboard.set_nodelay(true)?;
    host.set_nodelay(true)?;
    keyboard.set_read_timeout(Some(wait))?;
    let begin = Instant::now();
    let pressed = |index: usize| begin + every * u32::try_from(index).unwrap_or(u32::MAX);
    let screen = keyboard.try_clone()?;
    thread::scope(|scope| {
        scope.spawn(|| echo(&host));
        let typing = scope.spawn(move || -> Result<()> {
            for index in 0..count {
                sleep_until(pressed(index));
                (&keyboard).write_all(b"x").context("a key was not taken")?;
            }
            Ok(())
        });
        let trips = watch(&screen, count, pressed);
        // It ends the echo, whatever happened.
        let _ = host.shutdown(Shutdown::Both);
        let _ = screen.shutdown(Shutdown::Both);
        typing
            .join()
            .map_err(|_| anyhow!("the typist panicked"))??;
        trips
    })
}

fn watch(
    mut screen: &TcpStream,
    count: usize,
    pressed: impl Fn(usize) -> Instant,
) -> Result<Vec<f64>> {
    let mut trips = Vec::with_capacity(count);
    let mut buffer = [0; 4096];
    while trips.len() < count {
        let length = screen.read(&mut buffer).context("the echo stays away")?;
        ensure!(
            length > 0,
            "the connection ended after {} of {count} keys",
            trips.len()
        );
        let now = Instant::now();
        for _ in 0..length {
            trips.push(now.duration_since(pressed(trips.len())).as_secs_f64());
        }
    }
    Ok(trips)
}

fn echo(mut host: &TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = host.read(&mut buffer) {
        if host.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
