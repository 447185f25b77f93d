//! `pepd model hold-acks`: when held ACKs are released, so that their sender does not time out.

use std::fmt::Write as _;

use pepd_model::hold_acks::linux::{self, Path};
use pepd_model::hold_acks::{MOST_ACKS, Schedule, paper};
use serde::Serialize;

use crate::cli::{Estimator, HoldAcks};
use crate::exit::{Failure, Result};
use crate::ui::format;
use crate::ui::output::print;
use crate::ui::table;

/// The version of the JSON. It changes when something is removed or means something else.
const SCHEMA: u32 = 1;

/// The schedule of held ACKs; times in seconds.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    estimator: Estimator,
    acks: usize,
    rtt: f64,
    rttvar: f64,
    outage: f64,
    /// The longest outage that so many ACKs get the sender over.
    limit: f64,
    /// The sender's timeout after the last ACK; none if it times out before.
    final_rto: Option<f64>,
    /// When each ACK is released, from when the link is gone; empty if the sender times out.
    releases: Vec<f64>,
}

/// Prints when held ACKs are released, and how long an outage may be.
pub fn hold_acks(args: &HoldAcks) -> Result {
    if args.held.is_some() && args.estimator == Estimator::Paper {
        return Err(Failure::usage(
            "--held is for --estimator linux: the paper's sender counts from the ACK before; leave it out",
        ));
    }
    let report = report(args);
    let text = if args.json {
        let json = serde_json::to_string_pretty(&report);
        json.map_err(|error| Failure::internal("write JSON", error))? + "\n"
    } else {
        text(&report)
    };
    print(text.as_bytes())
}

fn report(args: &HoldAcks) -> Report {
    let count = u64::from(args.acks) * u64::from(args.segments);
    let acks = usize::try_from(count).map_or(MOST_ACKS, |acks| acks.min(MOST_ACKS));
    let (rtt, outage) = (args.rtt.as_secs_f64(), args.outage.as_secs_f64());
    let (deviation, limit, schedule) = match args.estimator {
        Estimator::Paper => {
            let deviation = args.rttvar.map_or(rtt / 2.0, |it| it.as_secs_f64());
            let start = paper::Estimator {
                mean: rtt,
                deviation,
            };
            let schedule = paper::schedule(start, acks, outage);
            (deviation, paper::limit(start, acks), schedule)
        }
        Estimator::Linux => {
            let path = Path {
                rtt: args.rtt,
                deviation: args.rttvar.unwrap_or_default(),
                held: args.held.unwrap_or_default(),
            };
            let schedule = linux::schedule(&path, acks, args.outage);
            let limit = linux::limit(&path, acks).as_secs_f64();
            (path.deviation.as_secs_f64(), limit, schedule)
        }
    };
    let final_rto = schedule.as_ref().map(|schedule| schedule.final_rto);
    Report {
        schema: SCHEMA,
        estimator: args.estimator,
        acks,
        rtt,
        rttvar: deviation,
        outage,
        limit,
        final_rto,
        releases: schedule.map_or_else(Vec::new, |Schedule { releases, .. }| releases),
    }
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{} ACKs get the sender over an outage of {}.\n",
        report.acks,
        format::seconds(report.limit)
    );
    let outage = format::seconds(report.outage);
    let Some(final_rto) = report.final_rto else {
        let _ = writeln!(text, "It times out in one of {outage}.");
        return text;
    };
    let _ = writeln!(
        text,
        "After one of {outage} its retransmission timeout is {}.\n",
        format::seconds(final_rto)
    );
    let mut rows = table::table(&["ACK", "RELEASED", "AFTER"], &[0, 1, 2], &[], None);
    let mut before = 0.0;
    for (index, release) in report.releases.iter().enumerate() {
        rows.add_row([
            (index + 1).to_string(),
            format::seconds(*release),
            format::seconds(release - before),
        ]);
        before = *release;
    }
    text + &table::text(&rows)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, Question};

    fn asked(line: &str) -> Report {
        report(&parsed(line).unwrap())
    }

    fn parsed(line: &str) -> std::result::Result<HoldAcks, clap::Error> {
        let words = ["pepd", "model", "hold-acks"].into_iter();
        let cli = Cli::try_parse_from(words.chain(line.split(' ')))?;
        let Command::Model(model) = cli.command else {
            panic!("another command");
        };
        let Some(Question::HoldAcks(args)) = model.question else {
            panic!("another question");
        };
        Ok(args)
    }

    #[test]
    fn what_the_papers_sender_does_not_look_at_is_refused() {
        let line = "--acks 20 --rtt 1s --outage 250s --estimator paper --held 1s";
        let error = hold_acks(&parsed(line).unwrap()).unwrap_err();
        assert_eq!(error.code(), crate::exit::USAGE);
        assert!(error.to_string().contains("--held is for"), "{error}");
    }

    #[test]
    fn no_link_is_gone_for_centuries() {
        for outage in ["1000years", "25h", "0s", "-1s"] {
            let error = parsed(&format!("--acks 2 --rtt 1s --outage={outage}")).unwrap_err();
            assert!(error.to_string().contains("up to a day"), "{error}");
        }
    }

    #[test]
    fn the_papers_example() {
        let line = "--acks 20 --rtt 1s --rttvar 300ms --outage 250s --estimator paper";
        insta::assert_snapshot!(text(&asked(line)));
    }

    #[test]
    fn a_linux_sender() {
        insta::assert_snapshot!(text(&asked("--acks 12 --rtt 40ms --outage 10s")));
    }

    #[test]
    fn an_outage_beyond_the_limit() {
        let report = asked("--acks 3 --rtt 40ms --outage 10s");
        assert_eq!((report.final_rto, report.releases.len()), (None, 0));
        insta::assert_snapshot!(text(&report));
    }

    #[test]
    fn an_ack_of_several_segments_counts_as_several() {
        let whole = asked("--acks 12 --rtt 40ms --outage 1s");
        let split = asked("--acks 3 --segments 4 --rtt 40ms --outage 1s");
        assert_eq!(whole.releases, split.releases);
    }

    #[test]
    fn the_json() {
        let report = asked("--acks 2 --rtt 40ms --outage 10s");
        insta::assert_snapshot!(serde_json::to_string_pretty(&report).unwrap());
    }
}
