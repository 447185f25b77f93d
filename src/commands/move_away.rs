//! `pepd move`: live connections go to another box.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use hyper::StatusCode;
use pepd_admin::wire::{MoveQuery, MoveReport};

use crate::cli::MoveArgs;
use crate::commands::client::{Client, Error};
use crate::commands::endpoint;
use crate::commands::flows::require_campus;
use crate::exit::{Failure, Result};
use crate::ui::format;
use crate::ui::output::print;

/// The pause before it is asked again whether another move is over.
const PAUSE: Duration = Duration::from_millis(500);

/// The ids in one request: its line has room for no more than some kilobytes.
const IDS: usize = 400;

/// Moves what is asked for.
pub fn move_away(args: &MoveArgs) -> Result {
    let client = Client::new(&args.target)?;
    let query = |ids: &[u64]| MoveQuery {
        to: args.to.clone(),
        campus: args.campus.clone(),
        source: args.source,
        flows: Some(comma_separated(ids)).filter(|ids| !ids.is_empty()),
        dry_run: args.dry_run,
    };
    let mut all = MoveReport::default();
    // Without ids there is one request, about whatever else is asked for.
    let (first, rest) = args.flows.split_at(args.flows.len().min(IDS));
    for ids in std::iter::once(first).chain(rest.chunks(IDS)) {
        let of_these = move_those(&client, &query(ids), args.json)?;
        all.meant += of_these.meant;
        all.left += of_these.left;
        all.unknown.extend(of_these.unknown);
        all.to = of_these.to;
        all.dry_run = of_these.dry_run;
        all.stayed.extend(of_these.stayed);
        all.moved.extend(of_these.moved);
        all.lost.extend(of_these.lost);
    }
    if let (Some(campus), 0) = (&args.campus, all.meant) {
        let status = client.get(endpoint::STATUS)?;
        for name in campus.split(':') {
            require_campus(name, &status)?;
        }
    }
    if !args.json {
        print(describe(&all).as_bytes())?;
    }
    outcome(&all)
}

fn comma_separated(ids: &[u64]) -> String {
    let ids: Vec<_> = ids.iter().map(u64::to_string).collect();
    ids.join(",")
}

/// Gives an order, once no other one is carried out.
fn in_turn(client: &Client, address: &str) -> Result<Vec<u8>> {
    let mut waits = false;
    loop {
        match client.move_away(address) {
            Err(Error::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                problem,
            }) => {
                if !std::mem::replace(&mut waits, true) {
                    eprintln!("pepd: {}: this one waits for it", problem.what);
                }
                thread::park_timeout(PAUSE);
            }
            done => return Ok(done?),
        }
    }
}

/// Moves those, as often as it takes: a request moves no more than some hundred.
fn move_those(client: &Client, query: &MoveQuery, json: bool) -> Result<MoveReport> {
    let address = endpoint::move_away(query);
    let mut all = MoveReport::default();
    loop {
        let answer = in_turn(client, &address)?;
        if json {
            print(&answer)?;
        }
        let report: MoveReport = client.parse(&answer)?;
        let goes_on = report.left > 0 && !report.moved.is_empty() && !query.dry_run;
        add(&mut all, report);
        if !goes_on {
            return Ok(all);
        }
    }
}

fn add(all: &mut MoveReport, report: MoveReport) {
    // Those that stay are asked for again each time.
    let moved: BTreeSet<_> = report.moved.iter().map(|it| it.id).collect();
    all.stayed.retain(|it| !moved.contains(&it.id));
    let known: BTreeSet<_> = all.stayed.iter().map(|it| it.id).collect();
    let new = report.stayed.into_iter();
    all.stayed.extend(new.filter(|it| !known.contains(&it.id)));
    all.moved.extend(report.moved);
    all.lost.extend(report.lost);
    // Those that have moved are not here when it is asked again.
    if all.to.is_empty() {
        all.unknown = report.unknown;
    }
    all.to = report.to;
    all.dry_run = report.dry_run;
    all.meant = all.meant.max(report.meant);
    all.left = report.left;
}

fn describe(all: &MoveReport) -> String {
    let mut text = String::new();
    for it in &all.stayed {
        let (id, client, server, why) = (it.id, it.client, it.server, &it.why);
        text += &format!("{id}  {client} > {server}  stays: {why}\n");
    }
    for it in &all.lost {
        let (id, client, server) = (it.id, it.client, it.server);
        text += &format!(
            "{id}  {client} > {server}  is lost here: {} was told to serve it, and may (`pepd flows` there)\n",
            all.to
        );
    }
    for id in &all.unknown {
        text += &format!("{id}  there is no such connection\n");
    }
    let count = |of: usize| match of {
        1 => "1 connection".to_owned(),
        of => format!("{of} connections"),
    };
    let moved = count(all.moved.len());
    let rest = match all.left {
        0 => String::new(),
        left => format!("; {left} were not asked about"),
    };
    let longest = all.moved.iter().map(|it| it.pause).fold(0.0, f64::max);
    text + &match (all.dry_run, all.meant, all.moved.is_empty()) {
        (_, 0, _) => "there is no such connection\n".to_owned(),
        (true, ..) => format!("{} would take {moved}{rest}\n", all.to),
        (false, _, true) => format!("none has moved to {}\n", all.to),
        (false, ..) => format!(
            "{moved} moved to {}; the longest pause was {}\n",
            all.to,
            format::seconds(longest)
        ),
    }
}

fn outcome(all: &MoveReport) -> Result {
    let (stay, lost) = (all.stayed.len() as u64 + all.left, all.lost.len());
    match (all.dry_run, lost, stay) {
        (_, 0, 0) if all.unknown.is_empty() => Ok(()),
        (_, 0, 0) => Err(Failure::stays(format!(
            "{} of the IDs are of no connection here: `pepd flows` has them, and they are others once one has moved",
            all.unknown.len()
        ))),
        (true, ..) => Err(Failure::stays(format!(
            "{stay} of {} would stay here",
            all.meant
        ))),
        (_, 0, stay) => Err(Failure::stays(format!("{stay} of {} stay here", all.meant))),
        (_, lost, _) => Err(Failure::stays(format!(
            "{lost} of {} are lost: the other box was told to serve them, and did not say that it does",
            all.meant
        ))),
    }
}

#[cfg(test)]
mod tests {
    use pepd_admin::wire::{MovedConnection, StayedConnection};

    use super::*;

    fn moved(id: u64) -> MovedConnection {
        MovedConnection {
            id,
            client: "10.1.0.2:40000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
            pause: 0.021,
        }
    }

    fn stayed(id: u64) -> StayedConnection {
        StayedConnection {
            id,
            client: "10.1.0.2:40001".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
            why: "one of its legs is mending a loss".to_owned(),
        }
    }

    fn report(moved_ids: &[u64], stayed_ids: &[u64], left: u64) -> MoveReport {
        MoveReport {
            to: "hb-c".to_owned(),
            meant: (moved_ids.len() + stayed_ids.len()) as u64 + left,
            moved: moved_ids.iter().map(|&id| moved(id)).collect(),
            stayed: stayed_ids.iter().map(|&id| stayed(id)).collect(),
            left,
            ..MoveReport::default()
        }
    }

    #[test]
    fn each_connection_is_told_once() {
        let mut all = MoveReport::default();
        add(&mut all, report(&[1, 2], &[3, 4], 2));
        add(&mut all, report(&[3, 5], &[4], 0));
        let ids: Vec<_> = all.moved.iter().map(|it| it.id).collect();
        assert_eq!(ids, [1, 2, 3, 5]);
        assert_eq!((all.stayed.len(), all.left), (1, 0));
        insta::assert_snapshot!(describe(&all), @r"
        4  10.1.0.2:40001 > 10.2.0.2:80  stays: one of its legs is mending a loss
        4 connections moved to hb-c; the longest pause was 21.0 ms
        ");
        assert_eq!(outcome(&all).unwrap_err().code(), 70);
    }

    #[test]
    fn who_is_not_there_is_named() {
        let mut all = MoveReport::default();
        let mut first = report(&[1], &[], 0);
        first.unknown = vec![7];
        add(&mut all, first);
        insta::assert_snapshot!(describe(&all), @r"
        7  there is no such connection
        1 connection moved to hb-c; the longest pause was 21.0 ms
        ");
        assert_eq!(outcome(&all).unwrap_err().code(), 70);
    }

    #[test]
    fn nothing_to_move_is_no_failure() {
        let all = report(&[], &[], 0);
        assert_eq!(describe(&all), "there is no such connection\n");
        assert!(outcome(&all).is_ok());
    }
}
