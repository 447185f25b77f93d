//! The best that is physically possible.

use std::time::Duration;

use pepd_testbed::link::Loss;

use crate::paper::{Boxes, Experiment, Leg, Limit, Point, Workload};
use crate::path::{HEADERS, MTU, TUNNEL};
use crate::results::Metric;
use crate::stats::{real, real64};

/// Payload of a full packet, in bits.
pub const PACKET_BITS: f64 = 8.0 * 1448.0;

/// Returns what `metric` of `experiment` can be at best on `legs`, in the metric's own unit.
#[must_use]
pub fn limit(
    experiment: &Experiment,
    point: &Point,
    legs: &[Leg; 2],
    window: Duration,
    metric: Metric,
) -> Option<f64> {
    let bits = bits(experiment, point, legs, window);
    let trip: f64 = legs.iter().map(|leg| leg.rtt.as_secs_f64()).sum();
    match metric {
        Metric::Goodput => Some(bits),
        Metric::PerFlow => {
            let flows = match experiment.workload {
                Workload::Bulk { flows, .. } => point.flows.unwrap_or(flows),
                _ => 1,
            };
            Some(bits / real(flows))
        }
        Metric::Packets => Some(bits / PACKET_BITS),
        Metric::RoundTrip50 | Metric::RoundTrip99 => Some(trip),
        Metric::PageTime | Metric::PageTime50 => match experiment.workload {
            // A trip for the document, which names the objects, and one for these.
            Workload::Web(page) => Some(2.0 * trip + 8.0 * real64(page.bytes()) / bits),
            _ => None,
        },
        Metric::Fairness
        | Metric::Satisfied
        | Metric::Buffering
        | Metric::Queue95
        | Metric::Dropped
        | Metric::Found
        | Metric::Used
        | Metric::Foreign => None,
    }
}

fn bits(experiment: &Experiment, point: &Point, legs: &[Leg; 2], window: Duration) -> f64 {
    let outer = match experiment.boxes {
        Boxes::One => 0,
        Boxes::Three => TUNNEL,
    };
    let payload = real(usize::from(MTU.bytes() - HEADERS - outer));
    let share = payload / real(usize::from(MTU.bytes()));
    let rate = |leg: &Leg| leg.mean_rate(window) * (1.0 - loss(leg)) * share;
    let mut rates = legs.each_ref().map(rate);
    if let Some(policer) = point.policer {
        let policed = real64(policer.rate.as_bits_per_second()) * share;
        rates[1] = rates[1].min(policed);
    }
    match experiment.limit {
        Limit::Rate => rates[0].min(rates[1]),
        Limit::RenoUnderPoisson => {
            let bound = |leg: &Leg, rate: f64| rate.min(PACKET_BITS * reno_under_poisson(leg));
            bound(&legs[0], rates[0]).min(bound(&legs[1], rates[1]))
        }
        Limit::RateAndWindow => {
            let window = |leg: &Leg, rate: f64| rate.min(8.0 * 65535.0 / leg.rtt.as_secs_f64());
            window(&legs[0], rates[0]).min(window(&legs[1], rates[1]))
        }
        Limit::RateWithoutOutages => {
            let up = |leg: &Leg, rate: f64| {
                // What is left of an outage when the measurement ends does not count.
                let until = |time: Duration| time.min(window);
                let outages = leg.outages.iter();
                let down: Duration = outages
                    .map(|outage| until(outage.start + outage.length) - until(outage.start))
                    .sum();
                rate * (1.0 - down.as_secs_f64() / window.as_secs_f64())
            };
            up(&legs[0], rates[0]).min(up(&legs[1], rates[1]))
        }
    }
}

/// Returns the packets per second that Reno reaches on `leg`; see [`Limit::RenoUnderPoisson`].
fn reno_under_poisson(leg: &Leg) -> f64 {
    match leg.loss {
        Loss::Poisson { per_second } => 2.0 / (per_second * leg.rtt.as_secs_f64().powi(2)),
        _ => f64::INFINITY,
    }
}

/// Returns the mean share of packets that a leg loses.
fn loss(leg: &Leg) -> f64 {
    match leg.loss {
        Loss::Independent { probability } => probability,
        Loss::GilbertElliott {
            good_to_bad,
            bad_to_good,
            loss_in_good,
            loss_in_bad,
        } => {
            let bad = good_to_bad / (good_to_bad + bad_to_good);
            bad * loss_in_bad + (1.0 - bad) * loss_in_good
        }
        // A few per second do not affect the rate.
        Loss::None | Loss::Poisson { .. } => 0.0,
    }
}
