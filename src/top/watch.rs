//! What ends the screen from outside: a signal, or that its terminal is gone.
//!
//! It is a thread of its own because crossterm reads until it has a whole key: it waits for the rest
//! of half a one, and tries again without end where there is no terminal any more.

use std::io;
use std::os::fd::AsFd;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::terminal::disable_raw_mode;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::UNAVAILABLE;

/// The interval in milliseconds at which a signal is looked for; a terminal's end is noticed at
/// once.
const INTERVAL: u8 = 100;

/// The time that the screen has after a signal to give its terminal back.
const GRACE: Duration = Duration::from_secs(1);

/// Starts the thread. The flag says that a signal has come and the screen is to close; one that does
/// not is left as it is, and the process ends.
pub fn start() -> io::Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    let flag = Arc::clone(&ended);
    std::thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || watch(&flag))?;
    Ok(ended)
}

fn watch(ended: &AtomicBool) {
    let mut since = None;
    loop {
        if has_lost_its_terminal() {
            exit(UNAVAILABLE.into());
        }
        if ended.load(Ordering::Relaxed) && since.get_or_insert_with(Instant::now).elapsed() > GRACE
        {
            // It cannot be drawn on: that may be what the screen waits for.
            let _ = disable_raw_mode();
            exit(UNAVAILABLE.into());
        }
    }
}

/// Waits for standard input to hang up, as long as the interval.
fn has_lost_its_terminal() -> bool {
    let input = io::stdin();
    // Errors and the end are told unasked.
    let mut inputs = [PollFd::new(input.as_fd(), PollFlags::empty())];
    match poll(&mut inputs, PollTimeout::from(INTERVAL)) {
        Ok(ready) => ready > 0,
        Err(error) => error != Errno::EINTR,
    }
}
