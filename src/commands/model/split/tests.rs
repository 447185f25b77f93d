//! What is said of two legs.

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command};

fn asked(line: &str) -> std::result::Result<Report, String> {
    let words = ["pepd", "model"].into_iter().chain(line.split(' '));
    let Command::Model(args) = Cli::try_parse_from(words).unwrap().command else {
        panic!("another command");
    };
    let legs = [args.leg_in.unwrap().0, args.leg_out.unwrap().0];
    report(legs.map(|leg| (leg, None)), &args)
}

/// Asks of the same legs as they were measured when that many segments had been sent over them.
fn measured(line: &str, segments: u64) -> Report {
    let words = ["pepd", "model"].into_iter().chain(line.split(' '));
    let Command::Model(args) = Cli::try_parse_from(words).unwrap().command else {
        panic!("another command");
    };
    let known = |leg: Leg| (leg, Some(Sent::new(segments * 1448, leg.loss.per_packet)));
    let legs = [args.leg_in.unwrap().0, args.leg_out.unwrap().0];
    report(legs.map(known), &args).unwrap()
}

#[test]
fn what_was_measured_on_few_segments_is_no_figure() {
    let line = "--in rtt=40ms --out rtt=20ms,loss=1% --rate 50Mbit --buffer 1MiB";
    let report = measured(line, 500);
    assert_eq!((report.gain, report.confidence), (None, "low"));
    let worst = report.at_worst.unwrap();
    assert!(worst.throughput < report.throughput && worst.unsplit < report.unsplit.throughput);
    insta::assert_snapshot!(text(&report));
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["gain"].is_null() && json["doubts"][0]["segments"] == 500.0);
    // With many it is as if somebody had said it.
    let report = measured(line, 1_000_000);
    assert!(report.doubts.is_empty() && report.at_worst.is_none());
    assert_eq!(text(&report), text(&asked(line).unwrap()));
}

#[test]
fn the_papers_table_by_a_kernels_reading() {
    let line = "--in rtt=40ms,loss=0.4/s,control=reno --out rtt=20ms,loss=0.4/s,control=reno --rate 100Mbit --buffer 144800B";
    insta::assert_snapshot!(text(&asked(line).unwrap()));
}

#[test]
fn the_buffer_for_a_share() {
    let line = "--in rtt=200ms,loss=0.01% --out rtt=20ms,loss=1% --rate 50Mbit --target 95% --connections 1000";
    let report = asked(line).unwrap();
    assert!(report.buffer_found && report.throughput / report.limit > 0.94);
    insta::assert_snapshot!(text(&report));
}

#[test]
fn a_share_that_no_buffer_brings_is_said_as_it_was_written() {
    let line = "--in rtt=10s,rate=9Tbit --out rtt=10s,rate=9Tbit --target 57%";
    let error = asked(line).unwrap_err();
    assert!(error.contains("brings 57 % of the limit"), "{error}");
}

#[test]
fn a_leg_that_nothing_bounds_is_refused() {
    for target in ["", " --target 90%"] {
        let error = asked(&format!("--in rtt=40ms --out rtt=20ms,loss=1%{target}")).unwrap_err();
        assert!(error.contains("nothing bounds the leg --in"), "{error}");
    }
}

#[test]
fn of_bbr_no_more_is_said_than_was_measured() {
    let line = |loss| format!("--in rtt=10ms --out rtt=60ms,loss={loss},control=bbr --rate 50Mbit");
    assert!(asked(&line("20%")).is_ok());
    let error = asked(&line("25%")).unwrap_err();
    assert!(error.contains("bbr at a loss of more than 20 %"), "{error}");
}

#[test]
fn a_queue_without_end_has_no_length() {
    let line = "--in rtt=10ms --out rtt=500ms,loss=5% --rate 50Mbit";
    let report = asked(line).unwrap();
    assert!(report.queue.is_none() && report.delay.is_none());
    assert!(text(&report).contains("grows for as long as there is data"));
    let limited = asked(&format!("{line} --buffer 256KiB")).unwrap();
    assert!(limited.queue.is_some() && limited.delay.is_some());
}

/// The box's buffer is what the leg from the sender may have under way and unread: small, where that is
/// short. What the long leg has under way is not in it, but is held all the same.
#[test]
fn memory_has_what_is_under_way_behind_the_box_in_it() {
    let line = "--in rtt=10ms --out rtt=600ms,loss=1%,control=bbr --rate 50Mbit --target 95%";
    let report = asked(line).unwrap();
    let buffer = report.buffer.unwrap();
    assert!(buffer < 1e5 && report.under_way > 3e6, "{report:?}");
    assert_eq!(report.memory, Some(buffer + report.under_way));
    assert!(text(&report).contains("its own buffer is to hold that twice"));
}

#[test]
fn curves_have_their_points() {
    let report = asked("--in rtt=40ms,loss=0.4/s --out rtt=20ms,loss=1%").unwrap();
    assert_eq!((report.over_loss.len(), report.over_buffer.len()), (20, 20));
    assert!(report.gain > Some(1.0));
}

#[test]
fn a_figure_has_both_curves_and_where_the_path_is() {
    let report = asked("--in rtt=40ms,loss=0.4/s --out rtt=20ms,loss=1% --buffer 64KiB").unwrap();
    let charts = charts::of(&report, 0.01);
    assert_eq!(charts[0].here, Some(0.01));
    assert!(
        charts[1]
            .here
            .is_some_and(|here| (here - 65_536.0).abs() < 1500.0)
    );
    let svg = figure::draw(&charts).unwrap();
    assert_eq!(svg.matches("with a box").count(), 2, "{svg}");
    assert_eq!(svg.matches("#787878").count(), 2, "{svg}");
    assert_eq!(charts::of(&report, 0.9)[0].here, None);
}

/// Gives what is no number in an answer, but where there may be none.
fn missing(value: &serde_json::Value, name: &str) -> Vec<String> {
    const MAY_MISS: [&str; 11] = [
        "buffer",
        "memory",
        "queue",
        "delay",
        "antibuffer",
        "rho",
        "class",
        "hill",
        "largest_share",
        "gain",
        "at_worst",
    ];
    match value {
        serde_json::Value::Null if !MAY_MISS.contains(&name) => vec![name.to_owned()],
        serde_json::Value::Array(all) => all.iter().flat_map(|it| missing(it, name)).collect(),
        serde_json::Value::Object(all) => all
            .iter()
            .flat_map(|(name, it)| missing(it, name))
            .collect(),
        _ => Vec::new(),
    }
}

/// Whatever can be asked for is answered with numbers, or refused with a sentence.
#[test]
fn no_answer_has_what_is_no_number() {
    let legs = [
        "rtt=1us",
        "rtt=10s",
        "rtt=40ms,loss=0%",
        "rtt=40ms,loss=0/s",
        "rtt=40ms,loss=50%",
        "rtt=40ms,loss=100/s",
        "rtt=40ms,loss=1e-10%",
        "rtt=40ms,rate=1bit",
        "rtt=40ms,rate=1Mbit,loss=80/s",
        "rtt=40ms,rate=10Tbit",
        "rtt=40ms,window=1448B",
        "rtt=40ms,window=1TiB,per-ack=2",
    ];
    let ends = [
        "",
        "--buffer 1448B",
        "--buffer 1TiB",
        "--target 99.999999%",
        "--target 1e-300%",
    ];
    let mut refused = 0;
    for (at, leg) in legs.iter().enumerate() {
        let (_, control) = Control::ALL[at % Control::ALL.len()];
        let (odd, usual) = (format!("{leg},control={control}"), "rtt=20ms,loss=1%");
        let [first, second] = match at / 2 % 2 {
            0 => [odd.as_str(), usual],
            _ => [usual, &odd],
        };
        let end = ends[at % ends.len()];
        let line = format!("--in {first} --out {second} --rate 50Mbit {end}");
        match asked(line.trim_end()) {
            Err(_) => refused += 1,
            Ok(report) => is_of_numbers(&report, &line),
        }
    }
    assert!(refused < 4, "{refused}");
}

/// Each leg has its law, and without a box a thousand losses come in a round trip.
#[test]
fn where_no_law_is_there_is_no_factor() {
    let line = "--in rtt=10s,loss=0.001/s --out rtt=1us,loss=100/s --rate 100Gbit";
    let report = asked(line).unwrap();
    assert_eq!((report.gain, report.confidence), (None, "low"));
    assert!(report.legs.iter().all(|leg| leg.confidence != "low"));
    assert_eq!(report.unsplit.confidence, "low");
    insta::assert_snapshot!(worth(&report) + &legs(&report));
    let usual = asked("--in rtt=40ms,loss=0.4/s --out rtt=20ms,loss=1% --rate 50Mbit").unwrap();
    assert!(usual.gain.is_some() && usual.confidence != "low");
}

/// A leg whose losses over time take all that its link carries.
#[test]
fn what_nothing_comes_through_is_refused() {
    let line = "--in rtt=40ms,rate=1Mbit,loss=90/s --out rtt=20ms,loss=1% --rate 50Mbit";
    let error = asked(line).unwrap_err();
    assert!(error.contains("nothing arrives"), "{error}");
}

fn is_of_numbers(report: &Report, line: &str) {
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(missing(&json, ""), Vec::<String>::new(), "{line}");
    let shown = text(report);
    assert!(
        !shown.contains("NaN") && !shown.contains("inf"),
        "{line}: {shown}"
    );
    assert!(report.gain.is_none_or(f64::is_finite), "{line}");
}
