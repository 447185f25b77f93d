//! What splitting is worth on two legs, and the buffer that it takes.

use std::fmt::Write as _;

use pepd_model::law::measured::BBR_MOST;
use pepd_model::law::{Alone, Control, Leg, PAYLOAD};
use pepd_model::predict::{
    Counted, Effort, Path, Point, Prediction, Quantiles, least_buffer, over_buffer, over_loss,
};
use serde::Serialize;

use super::doubt::{self, AtWorst, Doubt, Sent};
use super::figure;
use super::measured::Known;
use crate::cli::{Counts, Model};
use crate::exit::{Failure, Result};
use crate::leg_spec;
use crate::ui::format;
use crate::ui::table;

mod charts;

/// The version of the JSON. It changes when something is removed or means something else.
const SCHEMA: u32 = 3;

/// The points of a curve.
const POINTS: u32 = 20;

/// The largest buffer that is looked at, packets: 3 GB.
const LARGEST: f64 = 2e6;

/// Why there is no factor.
const NO_LAW: &str =
    "There is more than one loss in a round trip where trust is low, and no law is for that.";

/// ρ from which on a queue grows, and below which it settles: within a thousandth of 1 it does neither by itself.
const GROWS: f64 = 1.001;
const SETTLES: f64 = 0.999;

/// The answer; times in seconds, rates in bits per second, sizes in bytes.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    throughput: f64,
    /// With a buffer that never fills.
    limit: f64,
    /// Without a box.
    unsplit: Carried,
    /// None where losses are not known well enough, or come so often that no law is for them.
    gain: Option<f64>,
    /// What was measured on too few segments: then all above and below is for the losses that were seen.
    doubts: Vec<Doubt>,
    /// What is carried where as much is lost as may be, if there is any doubt.
    at_worst: Option<Worst>,
    legs: Vec<Carried>,
    /// What the box may hold; none if that is not limited.
    buffer: Option<f64>,
    /// Whether that buffer is the answer to --target.
    buffer_found: bool,
    counts: Counts,
    connections: u32,
    /// What the leg to the receiver has under way, beside the buffer.
    under_way: f64,
    /// What so many connections take, one direction full: the buffer, and what is under way behind it.
    memory: Option<f64>,
    starved: f64,
    backpressured: f64,
    queue: Option<Spread>,
    delay: Option<Spread>,
    antibuffer: Option<Spread>,
    rho: Option<f64>,
    class: Option<&'static str>,
    hill: Option<f64>,
    largest_share: Option<f64>,
    confidence: &'static str,
    over_loss: Vec<Place>,
    over_buffer: Vec<Place>,
}

/// What a leg carries by itself.
#[derive(Debug, Serialize)]
struct Carried {
    control: &'static str,
    rtt: f64,
    throughput: f64,
    bound: &'static str,
    confidence: &'static str,
    reason: String,
}

/// What is carried at worst, with a box and without.
#[derive(Clone, Copy, Debug, Serialize)]
struct Worst {
    throughput: f64,
    unsplit: f64,
}

/// A mean and quantiles.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    mean: f64,
    median: f64,
    p95: f64,
    p99: f64,
}

/// A point of a curve: the loss, or the buffer.
#[derive(Debug, Serialize)]
struct Place {
    at: f64,
    split: f64,
    unsplit: f64,
}

/// Answers in text, JSON or SVG.
pub fn answer(legs: [Known; 2], args: &Model) -> Result<String> {
    let report = report(legs, args).map_err(Failure::usage)?;
    if args.svg {
        return figure::draw(&charts::of(&report, legs[1].0.loss.per_packet));
    }
    if args.json {
        let json = serde_json::to_string_pretty(&report);
        return Ok(json.map_err(|error| Failure::internal("write JSON", error))? + "\n");
    }
    Ok(text(&report))
}

fn report(known: [Known; 2], args: &Model) -> std::result::Result<Report, String> {
    let mut legs = known.map(|(leg, _)| leg);
    for leg in &mut legs {
        leg.rate = leg.rate.or(args.rate.map(leg_spec::packets_a_second));
    }
    for (name, leg) in ["in", "out"].into_iter().zip(&legs) {
        if !leg.alone().throughput.is_finite() {
            return Err(format!(
                "nothing bounds the leg --{name}: give it a loss, a rate (or --rate) or a window"
            ));
        }
        if leg.control == Control::Bbr && leg.loss.per_packet > BBR_MOST {
            return Err(format!(
                "of bbr at a loss of more than {} nothing is known: it was not measured, and no law is; take \
                 another control for --{name}",
                format::percent(BBR_MOST)
            ));
        }
    }
    if args
        .buffer
        .is_some_and(|buffer| leg_spec::packets(buffer) < 1.0)
    {
        return Err(format!(
            "--buffer: it holds a packet at least, {PAYLOAD} bytes"
        ));
    }
    let mut path = Path {
        buffer: args.buffer.map_or(f64::INFINITY, leg_spec::packets),
        counted: match args.counts {
            Counts::UnderWay => Counted::UnderWay,
            Counts::Arrived => Counted::Arrived,
        },
        ..Path::new(&legs)
    };
    if let Some(share) = args.target {
        let least = least_buffer(&path, share, LARGEST);
        let least = least.ok_or_else(|| {
            // As it was written, without what 57 / 100 * 100 has behind the point.
            let (share, most) = ((share * 1e10).round() / 1e8, size(LARGEST * PAYLOAD));
            format!("no buffer of up to {most} brings {share} % of the limit: want less, or see with --buffer what more brings")
        })?;
        path.buffer = least.max(1.0);
    }
    let found = path
        .predict(Effort::default())
        .ok_or("nothing bounds the path: give both legs a loss, a rate (or --rate) or a window")?;
    doubt::arrives(&found)?;
    let mut report = fill(&path, &found, args);
    let sent: [Option<Sent>; 2] = known.map(|(_, sent)| sent);
    if let Some((doubts, at_worst)) = doubt::doubts(&path, sent, &found) {
        report.doubt(doubts, at_worst);
    }
    Ok(report)
}

impl Report {
    /// Takes back what is no figure.
    fn doubt(&mut self, doubts: Vec<Doubt>, at_worst: AtWorst) {
        let trust = doubt::TRUST.name();
        for (name, leg) in ["in", "out"].into_iter().zip(&mut self.legs) {
            if let Some(doubt) = doubts.iter().find(|doubt| doubt.is_of(name)) {
                (leg.confidence, leg.reason) = (trust, doubt.reason());
            }
        }
        self.unsplit.confidence = trust;
        "what its legs lose is not known".clone_into(&mut self.unsplit.reason);
        self.confidence = trust;
        self.gain = None;
        self.at_worst = Some(Worst {
            throughput: bits(at_worst.throughput),
            unsplit: bits(at_worst.unsplit),
        });
        self.doubts = doubts;
    }
}

fn fill(path: &Path, found: &Prediction, args: &Model) -> Report {
    let buffer = path.buffer.is_finite().then_some(path.buffer * PAYLOAD);
    let shares = found.phases.first().copied().unwrap_or_default();
    let carried = |leg: &Leg, alone: &Alone| Carried {
        control: leg.control.name(),
        rtt: leg.rtt,
        throughput: bits(alone.throughput),
        bound: alone.bound.name(),
        confidence: alone.confidence.name(),
        reason: alone.reason.to_owned(),
    };
    let whole = path.joined().unwrap_or(path.legs[0]);
    let places = |points: Vec<Point>, by: f64| {
        let place = |point: Point| Place {
            at: point.at * by,
            split: bits(point.split),
            unsplit: bits(point.unsplit),
        };
        points.into_iter().map(place).collect()
    };
    let under_way = found.throughput * path.legs[1].rtt * PAYLOAD;
    // Without a limit, and more coming than going, both are as long as one looks.
    let is_bounded = buffer.is_some() || found.rho.is_some_and(|rho| rho < GROWS);
    let bandwidth_delay = found.limit * whole.rtt;
    let most = (4.0 * bandwidth_delay).clamp(100.0, LARGEST);
    Report {
        schema: SCHEMA,
        throughput: bits(found.throughput),
        limit: bits(found.limit),
        unsplit: carried(&whole, &found.unsplit),
        gain: gain(found),
        doubts: Vec::new(),
        at_worst: None,
        legs: path
            .legs
            .iter()
            .zip(&found.legs)
            .map(|(leg, alone)| carried(leg, alone))
            .collect(),
        buffer,
        buffer_found: args.target.is_some(),
        counts: args.counts,
        connections: args.connections,
        under_way,
        memory: buffer.map(|buffer| (buffer + under_way) * f64::from(args.connections)),
        starved: shares.starved,
        backpressured: shares.backpressured,
        queue: spread(found.queue.filter(|_| is_bounded), PAYLOAD),
        delay: spread(found.delay.filter(|_| is_bounded), 1.0),
        antibuffer: spread(found.antibuffer, PAYLOAD),
        rho: found.rho,
        class: found.class.map(|class| class.name()),
        hill: found.hill,
        largest_share: found.largest_share,
        confidence: found.confidence.name(),
        over_loss: places(over_loss(path, 1, [1e-4, 0.2], POINTS), 1.0),
        over_buffer: places(over_buffer(path, [1.0, most], POINTS), PAYLOAD),
    }
}

/// Gives how many times as much there is with a box, where there are laws to say that by.
fn gain(found: &Prediction) -> Option<f64> {
    let mut all = found.legs.iter().chain([&found.unsplit]);
    let has_laws = all.all(|alone| !alone.is_beyond_law);
    has_laws.then(|| found.throughput / found.unsplit.throughput)
}

/// Gives a mean and quantiles in other units: so many of each.
fn spread(found: Option<Quantiles>, by: f64) -> Option<Spread> {
    found.map(|it| Spread {
        mean: it.mean * by,
        median: it.median * by,
        p95: it.p95 * by,
        p99: it.p99 * by,
    })
}

fn bits(packets: f64) -> f64 {
    packets * PAYLOAD * 8.0
}

fn text(report: &Report) -> String {
    format!("{}\n{}\n{}", worth(report), legs(report), dynamics(report))
}

/// Returns what a box brings, and what it holds for that.
fn worth(report: &Report) -> String {
    let rate = format::rate;
    let mut text = headline(report);
    let share = format::percent(report.throughput / report.limit);
    let _ = match report.buffer {
        Some(buffer) if report.buffer_found => writeln!(
            text,
            "That takes a buffer of {}, and brings {share} of the {} that larger ones would.",
            size(buffer),
            rate(report.limit)
        ),
        Some(buffer) => writeln!(
            text,
            "The buffer of {} brings {share} of the {} that larger ones would.",
            size(buffer),
            rate(report.limit)
        ),
        None => writeln!(text, "The box may hold as much as there is."),
    };
    let _ = writeln!(
        text,
        "The leg to the receiver has {} under way besides: its own buffer is to hold that twice.",
        size(report.under_way)
    );
    if let Some(memory) = report.memory.filter(|_| report.connections > 1) {
        let count = format::count(u64::from(report.connections));
        let _ = writeln!(
            text,
            "{count} connections that are full take {}.",
            size(memory)
        );
    }
    text
}

/// Returns what is carried with a box and without, or between what that is.
fn headline(report: &Report) -> String {
    let rate = format::rate;
    let (with, without) = (report.throughput, report.unsplit.throughput);
    let Some(worst) = report.at_worst else {
        let (with, without) = (rate(with), rate(without));
        return match report.gain {
            Some(times) => {
                format!("{with} with a box, {without} without: {times:.2} times as much.\n")
            }
            None => format!(
                "{with} with a box, {without} without: how many times as much is not known.\n{NO_LAW}\n"
            ),
        };
    };
    let mut text = format!(
        "From {} to {} with a box, from {} to {} without: more is not known.\n",
        rate(worst.throughput),
        rate(with),
        rate(worst.unsplit),
        rate(without)
    );
    for doubt in &report.doubts {
        let _ = writeln!(text, "{}", doubt.sentence());
    }
    text + "What follows is for the losses that were seen.\n"
}

/// Returns the table of the legs, and of the path without a box.
fn legs(report: &Report) -> String {
    let mut rows = table::table(
        &[
            "LEG", "CONTROL", "RTT", "ALONE", "BOUND BY", "TRUST", "BECAUSE",
        ],
        &[2, 3],
        &[6],
        None,
    );
    let whole = std::iter::once(("no box", &report.unsplit));
    for (name, leg) in ["in", "out"].into_iter().zip(&report.legs).chain(whole) {
        rows.add_row([
            name.to_owned(),
            leg.control.to_owned(),
            format::seconds(leg.rtt),
            format::rate(leg.throughput),
            leg.bound.to_owned(),
            leg.confidence.to_owned(),
            leg.reason.to_owned(),
        ]);
    }
    table::text(&rows)
}

/// Returns what the box's buffer goes through.
fn dynamics(report: &Report) -> String {
    let mut text = String::new();
    let free = 1.0 - report.starved - report.backpressured;
    let _ = writeln!(
        text,
        "Phases: free {}, starved {}, backpressured {}.",
        format::percent(free),
        format::percent(report.starved),
        format::percent(report.backpressured)
    );
    if let (Some(rho), Some(class)) = (report.rho, report.class) {
        let settles = if rho < SETTLES {
            "settles"
        } else if rho < GROWS {
            "has no tendency of its own"
        } else if report.buffer.is_some() {
            "would grow without backpressure"
        } else {
            "grows for as long as there is data, since nothing limits what the box holds (--buffer does)"
        };
        let _ = writeln!(text, "ρ = {rho:.3} ({class}): the queue {settles}.");
    }
    for (name, spread, write) in [
        ("Queue", report.queue, size as fn(f64) -> String),
        ("Room left", report.antibuffer, size),
        ("Delay", report.delay, format::seconds),
    ] {
        if let Some(it) = spread {
            let [mean, median, p95, p99] = [it.mean, it.median, it.p95, it.p99].map(write);
            let _ = writeln!(
                text,
                "{name}: mean {mean}, median {median}, 95 % {p95}, 99 % {p99}."
            );
        }
    }
    text
}

/// Writes a size in bytes.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "of a size, for people; what is too large becomes the largest"
)]
fn size(bytes: f64) -> String {
    format::bytes(bytes.max(0.0).round() as u64)
}

#[cfg(test)]
mod tests;
