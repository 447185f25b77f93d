//! Curves, and the smallest buffer that is enough.

use super::path::Path;
use super::prediction::Effort;
use crate::law::{Leg, Loss};

/// The losses that a point of a curve takes: its neighbours meet the same ones, so that it is smooth all the same.
const CURVE: f64 = 3000.0;

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The loss of a packet, or the buffer in packets.
    pub at: f64,
    /// What arrives, packets a second.
    pub split: f64,
    /// What arrives without a box, packets a second.
    pub unsplit: f64,
}

/// Gives the throughput over the loss of one leg, counted from 0, at so many places between two probabilities
/// at equal ratios. What the leg loses a second stays.
#[must_use]
pub fn over_loss(path: &Path, leg: usize, [low, high]: [f64; 2], count: u32) -> Vec<Point> {
    let at = |loss: f64| {
        let mut path = path.clone();
        if let Some(leg) = path.legs.get_mut(leg) {
            leg.loss = Loss {
                per_packet: loss,
                ..leg.loss
            };
        }
        point(&path, loss)
    };
    spread(low, high, count).map(at).collect()
}

/// Gives the throughput over the buffer of the boxes, at so many places between two sizes in packets.
#[must_use]
pub fn over_buffer(path: &Path, [low, high]: [f64; 2], count: u32) -> Vec<Point> {
    let at = |buffer: f64| {
        let path = Path {
            buffer,
            ..path.clone()
        };
        point(&path, buffer)
    };
    spread(low, high, count).map(at).collect()
}

/// Gives the smallest buffer, packets, with which a wanted share, 0 to 1, of what infinite ones allow arrives;
/// none if it would be above `most`.
#[must_use]
pub fn least_buffer(path: &Path, share: f64, most: f64) -> Option<f64> {
    let effort = Effort {
        losses: 2.0 * CURVE,
        ..Effort::default()
    };
    let with = |buffer: f64| {
        let path = Path {
            buffer,
            ..path.clone()
        };
        path.run(effort, false).1.0
    };
    let unlimited = Path {
        buffer: f64::INFINITY,
        ..path.clone()
    };
    // Not by a run with an infinite one: where more comes than leaves that takes for ever to settle.
    let wanted = share * unlimited.run(effort, false).1.1;
    if with(most) < wanted {
        return None;
    }
    let (mut low, mut high) = (0.0_f64, most);
    while high - low > 0.5_f64.max(0.005 * high) {
        let middle = if low > 0.0 && high / low > 4.0 {
            (low * high).sqrt()
        } else if low > 0.0 {
            f64::midpoint(low, high)
        } else {
            (high / 16.0).max(high.min(1.0) / 2.0)
        };
        if with(middle) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high)
}

fn point(path: &Path, at: f64) -> Point {
    let effort = Effort {
        losses: CURVE,
        ..Effort::default()
    };
    let unsplit = path.joined().map_or(0.0, |leg| leg.alone().throughput);
    // A leg that carries nothing is none that a fluid comes through.
    let carries = |leg: &Leg| leg.alone().throughput > 0.0;
    let split = match path.legs.iter().all(carries) {
        true => path.run(effort, false).1.0,
        false => 0.0,
    };
    Point { at, split, unsplit }
}

fn spread(low: f64, high: f64, count: u32) -> impl Iterator<Item = f64> {
    let steps = f64::from(count.max(2) - 1);
    (0..count).map(move |step| low * (high / low).powf(f64::from(step) / steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::{Confidence, Control};
    use crate::predict::Counted;

    fn reno(rtt: f64, loss: Loss) -> Leg {
        Leg {
            loss,
            control: Control::Reno,
            ..Leg::new(rtt)
        }
    }

    fn table_19_1() -> Path {
        let loss = Loss::per_second(0.4);
        Path::new(&[reno(0.04, loss), reno(0.02, loss)])
    }

    #[test]
    fn the_prediction_of_table_19_1() {
        let path = Path {
            buffer: 100.0,
            counted: Counted::Arrived,
            ..table_19_1()
        };
        let found = path.predict(Effort::default()).unwrap();
        assert!((found.rho.unwrap() - 0.25).abs() < 1e-9);
        assert_eq!(found.class.unwrap().name(), "SF");
        assert!((2900.0..3100.0).contains(&found.throughput), "{found:?}");
        assert!((found.limit - 3125.0).abs() < 1e-6);
        assert!(found.phases[0].starved > 0.5);
        // Without a box: 60 ms and 0.8 losses a second.
        let whole = 2.0 / (0.8 * 0.06 * 0.06);
        assert!((found.unsplit.throughput / whole - 1.0).abs() < 0.01);
    }

    /// Whose legs are known each by itself, and which has a thousand losses in a round trip without a box.
    #[test]
    fn what_is_beyond_any_law_without_a_box_is_not_trusted() {
        let legs = [
            reno(10.0, Loss::per_second(0.001)),
            reno(1e-6, Loss::per_second(100.0)),
        ];
        let legs = legs.map(|leg| Leg {
            rate: Some(1e7),
            ..leg
        });
        let found = Path::new(&legs).predict(Effort::default()).unwrap();
        assert!(found.legs.iter().all(|leg| !leg.is_beyond_law));
        assert!(found.unsplit.is_beyond_law);
        assert_eq!(found.confidence, Confidence::Low);
        let usual = table_19_1().predict(Effort::default()).unwrap();
        assert!(!usual.unsplit.is_beyond_law && usual.confidence == Confidence::High);
    }

    /// Eq. 19.16, where nothing is lost: 100 packets wait for 500 a second, or none waits.
    #[test]
    fn the_delay_is_half_of_each_round_trip_and_what_waits() {
        let fixed = |rtt, rate| Leg {
            control: Control::FixedRate,
            rate: Some(rate),
            ..Leg::new(rtt)
        };
        for (coming, leaving, wanted) in [(1000.0, 500.0, 0.23), (500.0, 1000.0, 0.03)] {
            let path = Path {
                buffer: 100.0,
                counted: Counted::Arrived,
                ..Path::new(&[fixed(0.04, coming), fixed(0.02, leaving)])
            };
            let delay = path.predict(Effort::default()).unwrap().delay.unwrap();
            for found in [delay.mean, delay.median, delay.p95, delay.p99] {
                assert!((found - wanted).abs() < 1e-6, "{delay:?}");
            }
        }
    }

    #[test]
    fn a_kernels_window_holds_the_near_leg_down() {
        let path = Path {
            buffer: 10.0,
            ..table_19_1()
        };
        let found = path.predict(Effort::default()).unwrap();
        // No more than 10 packets in 40 ms.
        assert!((200.0..=250.0).contains(&found.throughput), "{found:?}");
    }

    #[test]
    fn the_least_buffer_is_enough_and_one_that_is_smaller_is_not() {
        let path = table_19_1();
        let least = least_buffer(&path, 0.9, 1e5).unwrap();
        let with = |buffer: f64| {
            let path = Path {
                buffer,
                ..path.clone()
            };
            path.predict(Effort::default()).unwrap().throughput
        };
        assert!(with(least * 1.1) > 0.89 * 3125.0, "{least}");
        assert!(with(least * 0.8) < 0.9 * 3125.0, "{least}");
        assert_eq!(least_buffer(&path, 0.9, 10.0), None);
    }

    #[test]
    fn curves_fall_with_loss_and_rise_with_the_buffer() {
        let path = Path {
            buffer: 200.0,
            ..Path::new(&[
                reno(0.1, Loss::per_packet(1e-4)),
                reno(0.01, Loss::per_packet(0.01)),
            ])
        };
        let curve = over_loss(&path, 1, [1e-4, 0.1], 12);
        assert!(
            curve
                .windows(2)
                .all(|pair| pair[1].split < pair[0].split * 1.02),
            "{curve:?}"
        );
        let curve = over_buffer(&path, [1.0, 10_000.0], 12);
        assert!(
            curve
                .windows(2)
                .all(|pair| pair[1].split > pair[0].split * 0.98),
            "{curve:?}"
        );
    }
}
