//! `pepd move`: live connections go to another box.

use std::collections::BTreeSet;

use pepd_admin::wire::{MoveQuery, MoveReport};

use crate::cli::MoveArgs;
use crate::commands::client::Client;
use crate::commands::endpoint;
use crate::commands::flows::require_campus;
use crate::exit::{Failure, Result};
use crate::ui::format;
use crate::ui::output::print;

/// Moves what is asked for, as often as it takes: a request moves no more than some hundred.
pub fn move_away(args: &MoveArgs) -> Result {
    let client = Client::new(&args.target)?;
    let ids: Vec<_> = args.flows.iter().map(u64::to_string).collect();
    let address = endpoint::move_away(&MoveQuery {
        to: args.to.clone(),
        campus: args.campus.clone(),
        source: args.source,
        flows: Some(ids.join(",")).filter(|ids| !ids.is_empty()),
        dry_run: args.dry_run,
    });
    let mut all = MoveReport::default();
    loop {
        let answer = client.move_away(&address)?;
        if args.json {
            print(&answer)?;
        }
        let report: MoveReport = client.parse(&answer)?;
        let goes_on = report.left > 0 && !report.moved.is_empty() && !args.dry_run;
        add(&mut all, report);
        if !goes_on {
            break;
        }
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

fn add(all: &mut MoveReport, report: MoveReport) {
    // Those that stay are asked for again each time.
    let moved: BTreeSet<_> = report.moved.iter().map(|it| it.id).collect();
    all.stayed.retain(|it| !moved.contains(&it.id));
    let known: BTreeSet<_> = all.stayed.iter().map(|it| it.id).collect();
    let new = report.stayed.into_iter();
    all.stayed.extend(new.filter(|it| !known.contains(&it.id)));
    all.moved.extend(report.moved);
    all.lost.extend(report.lost);
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
        text += &format!("{id}  {client} > {server}  is lost\n");
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
        (_, 0, 0) => Ok(()),
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
    fn nothing_to_move_is_no_failure() {
        let all = report(&[], &[], 0);
        assert_eq!(describe(&all), "there is no such connection\n");
        assert!(outcome(&all).is_ok());
    }
}
