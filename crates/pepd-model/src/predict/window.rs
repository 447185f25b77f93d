//! What a window costs one leg that always has something to send, and how large one is enough.

use super::path::Path;
use super::prediction::Effort;
use crate::law::{Confidence, Leg};

/// The losses that an answer takes. Most of what chance does drops out, and what is told is told in per cent.
const LOSSES: f64 = 4000.0;

/// What a leg carries with a window, and what it would with any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windowed {
    /// The window, packets.
    pub window: f64,
    /// With it, packets a second.
    pub throughput: f64,
    /// Without any, packets a second: what the law and the link's rate leave.
    pub limit: f64,
    /// How far both are to be trusted.
    pub confidence: Confidence,
}

impl Windowed {
    /// The part of what there could be that there is, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.throughput / self.limit).min(1.0)
    }
}

/// Gives what a window, packets, leaves of what the leg carries; none where nothing but windows bounds it.
#[must_use]
pub fn windowed(leg: &Leg, window: f64) -> Option<Windowed> {
    Some(with(leg, window, limit(leg)?))
}

/// Gives the first window of `from`, twice that, and so on that leaves `share`, 0 to 1, of what the leg carries;
/// none where it would be above `most`, or nothing but windows bounds the leg.
#[must_use]
pub fn enough(leg: &Leg, from: f64, share: f64, most: f64) -> Option<Windowed> {
    let limit = limit(leg)?;
    std::iter::successors(Some(from), |window| Some(2.0 * window))
        .take_while(|window| *window > 0.0 && *window <= most)
        .map(|window| with(leg, window, limit))
        .find(|found| found.share() >= share)
}

/// Gives what the leg carries without any window, in packets a second, if that is bounded.
fn limit(leg: &Leg) -> Option<(f64, Confidence)> {
    let (limit, confidence) = mean(leg, None);
    (limit.is_finite() && limit > 0.0).then_some((limit, confidence))
}

fn with(leg: &Leg, window: f64, (limit, confidence): (f64, Confidence)) -> Windowed {
    let (throughput, with) = mean(leg, Some(window));
    Windowed {
        window,
        throughput: throughput.min(limit),
        limit,
        confidence: confidence.min(with),
    }
}

/// Gives what the leg carries with a window, packets a second, and how far that is to be trusted.
fn mean(leg: &Leg, window: Option<f64>) -> (f64, Confidence) {
    let leg = Leg { window, ..*leg };
    let alone = leg.alone();
    let effort = Effort {
        losses: LOSSES,
        ..Effort::default()
    };
    let carries = match alone.throughput.is_finite() && leg.rtt > 0.0 {
        // The law's mean, or that of a window which is below its cap for a part of the time.
        true => Path::new(&[leg]).run(effort, false).1.1,
        false => f64::INFINITY,
    };
    (carries, alone.confidence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::{Control, Loss};

    fn reno(loss: f64) -> Leg {
        Leg {
            loss: Loss::per_packet(loss),
            control: Control::Reno,
            ..Leg::new(0.1)
        }
    }

    #[test]
    fn without_losses_it_is_the_window_in_each_round_trip() {
        for control in [Control::Reno, Control::Cubic, Control::FixedRate] {
            let leg = Leg {
                rate: Some(4000.0),
                control,
                ..Leg::new(0.1)
            };
            let found = windowed(&leg, 100.0).unwrap();
            assert_eq!((found.throughput, found.limit), (1000.0, 4000.0));
            assert_eq!(found.share(), 0.25);
            assert_eq!(windowed(&leg, 400.0).unwrap().share(), 1.0);
            let found = enough(&leg, 100.0, 0.95, 1e5).unwrap();
            assert_eq!((found.window, found.share()), (400.0, 1.0));
        }
    }

    #[test]
    fn what_is_lost_needs_no_window() {
        let leg = Leg {
            rate: Some(4000.0),
            loss: Loss::per_packet(0.25),
            control: Control::FixedRate,
            ..Leg::new(0.1)
        };
        assert_eq!(windowed(&leg, 300.0).unwrap().throughput, 3000.0);
        assert_eq!(windowed(&leg, 300.0).unwrap().share(), 1.0);
    }

    #[test]
    fn a_window_that_swings_is_cut_off_above_and_not_below() {
        // 1.31 / √p: a mean of 131 packets, between 90 and 180 of them.
        let leg = reno(1e-4);
        let mean = leg.alone().throughput * leg.rtt;
        let at = |times: f64| windowed(&leg, times * mean).unwrap();
        assert!((at(1.0).limit / leg.alone().throughput - 1.0).abs() < 1e-9);
        assert!((0.75..0.95).contains(&at(1.0).share()), "{:?}", at(1.0));
        assert!(at(0.25).share() > 0.2 && at(0.25).share() <= 0.25);
        assert!(at(4.0).share() > 0.98, "{:?}", at(4.0));
        let shares: Vec<f64> = [0.25, 0.5, 1.0, 2.0, 4.0].map(|it| at(it).share()).into();
        assert!(shares.windows(2).all(|two| two[0] < two[1]), "{shares:?}");
        let found = enough(&leg, 0.25 * mean, 0.95, 1e5).unwrap();
        assert!(
            (found.window / (2.0 * mean) - 1.0).abs() < 1e-9,
            "{found:?}"
        );
    }

    #[test]
    fn nothing_is_told_of_what_is_not_known() {
        assert_eq!(windowed(&Leg::new(0.1), 100.0), None);
        assert_eq!(enough(&Leg::new(0.1), 100.0, 0.95, 1e5), None);
        assert_eq!(windowed(&Leg::new(0.0), 100.0), None);
        assert_eq!(enough(&reno(1e-4), 10.0, 0.95, 100.0), None);
        assert_eq!(enough(&reno(1e-4), 0.0, 0.95, 100.0), None);
    }
}
