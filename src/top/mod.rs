//! `pepd top`: a running daemon on a terminal, second by second.

mod app;
mod detail;
mod feed;
mod footer;
mod legs;
mod list;
mod phases;
mod screen;
mod spark;
mod style;
mod summary;
#[cfg(test)]
mod tests;
mod watch;

use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;

use crate::cli::Target;
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::exit::{Failure, Result};
use app::{App, KeyOutcome};
use feed::Feed;

/// The time that a key or new figures may wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Shows the daemon until a key or a signal ends it, or its terminal is gone.
pub fn top(target: &Target) -> Result {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::unavailable(
            "top needs a terminal; `pepd status` and `pepd flows` also print into a file",
        ));
    }
    let client = Client::new(target)?;
    // If there is no daemon at first, there is nothing to wait for.
    let status = client.get(endpoint::STATUS)?;
    let ended = watch::start().map_err(|error| Failure::internal("start a thread", error))?;
    let mut app = App::new(status);
    let feed = Feed::start(client, app.request())
        .map_err(|error| Failure::internal("start a thread", error))?;
    // A panic, in whichever thread, restores the terminal before it says what it was.
    let terminal =
        ratatui::try_init().map_err(|error| Failure::internal("take the terminal", error))?;
    // What ratatui does when it is dropped panics without a terminal.
    let mut terminal = ManuallyDrop::new(terminal);
    let result = run(&mut terminal, &mut app, &feed, &ended);
    let result = result.and_then(|()| terminal.show_cursor());
    let restored = ratatui::try_restore();
    result
        .and(restored)
        .map_err(|error| Failure::unavailable(format!("the terminal is gone: {error}")))
}

fn run(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    feed: &Feed,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut changed = true;
    while !ended.load(Ordering::Relaxed) {
        if changed {
            terminal.draw(|frame| screen::draw(frame, app))?;
        }
        changed = false;
        if event::poll(POLL_INTERVAL)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if app.key(key) == KeyOutcome::Quit {
                        return Ok(());
                    }
                    feed.ask_for(app.request());
                }
                _ => {}
            }
            changed = true;
        }
        while let Some(update) = feed.next() {
            app.apply(update);
            changed = true;
        }
    }
    Ok(())
}
