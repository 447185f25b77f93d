//! `pepd reload`, `pepd drain` and `pepd link`: what a running daemon is told.

use pepd_admin::wire::{Done, DrainQuery, LinkReport, MoveQuery, MoveReport, Status};

use crate::cli::{DrainArgs, LinkArgs, Target};
use crate::clock::unix_time;
use crate::commands::client::Client;
use crate::commands::{endpoint, status};
use crate::exit::{Failure, Result};
use crate::ui::output::print;

/// Has the daemon read its configuration again, and says what to know beside, or why it does not.
pub fn reload(target: &Target) -> Result {
    let done = Client::new(target)?.post(endpoint::RELOAD)?;
    let notes: String = done
        .notes
        .iter()
        .map(|note| format!("note: {note}\n"))
        .collect();
    print(format!("reloaded\n{notes}").as_bytes())
}

/// Has the daemon route new connections, let those that there are finish or move to another box, and end.
pub fn drain(args: &DrainArgs) -> Result {
    let address = endpoint::drain(&DrainQuery {
        to: args.to.clone(),
    });
    let client = Client::new(&args.target)?;
    if let Some(to) = &args.to {
        ask_first(&client, to)?;
    }
    let done = client.post(&address)?;
    print(drained(&done).as_bytes())
}

/// Looks whether the other box would take any: a drain is not taken back.
fn ask_first(client: &Client, to: &str) -> Result {
    let address = endpoint::move_away(&MoveQuery {
        to: to.to_owned(),
        campus: None,
        source: None,
        flows: None,
        dry_run: true,
    });
    let report: MoveReport = client.parse(&client.move_away(&address)?)?;
    match report.stayed.first().filter(|_| report.moved.is_empty()) {
        Some(stays) => Err(Failure::unavailable(format!(
            "{to} would take none of them: {}; the daemon goes on (`pepd drain` alone asks nobody)",
            stays.why
        ))),
        None => Ok(()),
    }
}

/// Says what the end waits for, and how to have it at once.
fn drained(done: &Done) -> String {
    // A daemon of another version may not say.
    let why = match done.notes.is_empty() {
        true => "it is ending, when its last connection does, or its drain time is over".to_owned(),
        false => done.notes.join("; "),
    };
    format!("draining: {why}\n`pepd status` shows how far it is; SIGTERM ends it at once\n")
}

/// Tells the daemon what is known of the link under a leg.
pub fn link(args: &LinkArgs) -> Result {
    if args.time.is_some() && args.report != LinkReport::GoingDown {
        return Err(Failure::usage(
            "--for goes with `going-down` only, also where the link is gone already: it says for how long it will be",
        ));
    }
    let address = endpoint::link(&args.leg, args.report, args.time);
    let client = Client::new(&args.target)?;
    client.post(&address)?;
    // What is told need not be believed at once.
    let status: Status = client.get(endpoint::STATUS)?;
    let known = status.links.iter().find(|link| link.leg == args.leg);
    let state = known.map_or_else(
        || args.report.name().to_owned(),
        |link| status::link_state(link, link.state.name(), unix_time()),
    );
    print(format!("{}: {state}\n", args.leg).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_says_what_it_waits_for() {
        let answer = |notes: &[&str]| Done {
            done: "draining".to_owned(),
            notes: notes.iter().copied().map(str::to_owned).collect(),
        };
        let why = "it is ending, when its 2 connections do, in 30s at the latest";
        assert_eq!(
            drained(&answer(&[why])),
            format!(
                "draining: {why}\n`pepd status` shows how far it is; SIGTERM ends it at once\n"
            )
        );
        assert!(drained(&answer(&[])).contains("its drain time is over"));
    }
}
