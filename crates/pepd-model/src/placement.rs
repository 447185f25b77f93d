//! Where boxes are worth most on a path of several hops (Jain & Ott, section IV).

use crate::law::Leg;

/// The best places for a number of boxes.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// After how many hops each box is, in the path's order.
    pub after: Vec<usize>,
    /// What arrives then, packets a second: the slowest leg's, as eq. 7 has it for large buffers.
    pub throughput: f64,
}

/// Gives the best places for no box, one, and so on up to `most`, or as many as there are places for.
/// Of equally good places those nearest to the sender's end are taken. Empty without hops.
#[must_use]
pub fn placements(hops: &[Leg], most: usize) -> Vec<Placement> {
    let count = hops.len();
    let carried = |from: usize, to: usize| {
        let leg = hops[from..to].iter().copied().reduce(Leg::joined);
        leg.map_or(0.0, |leg| leg.alone().throughput)
    };
    // best[to]: the slowest of the legs up to there, with so many boxes before, and where these are.
    let mut best: Vec<Placement> = (1..=count)
        .map(|to| Placement {
            after: Vec::new(),
            throughput: carried(0, to),
        })
        .collect();
    let mut found: Vec<Placement> = best.last().cloned().into_iter().collect();
    for boxes in 1..=most.min(count.saturating_sub(1)) {
        let with_one_more = |to: usize| {
            let places = boxes..to;
            let choice = places.map(|place| {
                let before = &best[place - 1];
                let mut after = before.after.clone();
                after.push(place);
                Placement {
                    after,
                    throughput: before.throughput.min(carried(place, to)),
                }
            });
            choice.reduce(|first, next| {
                if next.throughput > first.throughput {
                    next
                } else {
                    first
                }
            })
        };
        let none = Placement {
            after: Vec::new(),
            throughput: 0.0,
        };
        best = (1..=count)
            .map(|to| with_one_more(to).unwrap_or_else(|| none.clone()))
            .collect();
        found.extend(best.last().cloned());
    }
    found
}

/// Gives what one box is worth by the square root law alone (Jain & Ott, eq. 1 to 9, with p₁ + p₂ − p₁p₂ as it
/// is): the round trips in seconds and the losses of packets of the two legs.
#[must_use]
pub fn square_root_gain(rtt: [f64; 2], loss: [f64; 2]) -> f64 {
    let [first, second] = [0, 1].map(|leg| 1.0 / (rtt[leg] * loss[leg].sqrt()));
    let whole = (rtt[0] + rtt[1]) * (loss[0] + loss[1] - loss[0] * loss[1]).sqrt();
    first.min(second) * whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::law::{Control, Loss};

    fn hop(rtt: f64, loss: f64) -> Leg {
        Leg {
            loss: Loss::per_packet(loss),
            control: Control::Reno,
            rate: Some(1e6),
            ..Leg::new(rtt)
        }
    }

    #[test]
    fn the_papers_gains() {
        // Jain & Ott, Fig. 3: 10 ms and 100 ms, 5 % on both; Joshi et al., wireless: 100 ms each, 5 % on one.
        let jain = square_root_gain([0.01, 0.1], [0.05, 0.05]);
        assert!((jain - 1.536).abs() < 0.005, "{jain}");
        let joshi = square_root_gain([0.1, 0.1], [0.0, 0.05]);
        assert!((joshi - 2.0).abs() < 1e-9, "{joshi}");
    }

    #[test]
    fn one_box_goes_between_the_long_leg_and_the_lossy_one() {
        let hops = [
            hop(0.02, 1e-6),
            hop(0.2, 1e-6),
            hop(0.01, 0.01),
            hop(0.01, 0.01),
        ];
        let found = placements(&hops, 9);
        assert_eq!(found.len(), 4);
        assert_eq!(found[1].after, [2]);
        assert!(found[1].throughput > 5.0 * found[0].throughput);
    }

    #[test]
    fn as_good_as_trying_all_places() {
        let hops: Vec<_> = [
            (0.05, 1e-3),
            (0.01, 1e-2),
            (0.1, 1e-4),
            (0.02, 5e-3),
            (0.03, 1e-3),
        ]
        .into_iter()
        .map(|(rtt, loss)| hop(rtt, loss))
        .collect();
        let slowest = |places: &[usize]| {
            let ends = places.iter().copied().chain([hops.len()]);
            let mut from = 0;
            let legs = ends.map(|to| {
                let leg = hops[from..to].iter().copied().reduce(Leg::joined).unwrap();
                from = to;
                leg.alone().throughput
            });
            legs.fold(f64::INFINITY, f64::min)
        };
        let found = placements(&hops, 2);
        let mut best = 0.0_f64;
        for first in 1..4 {
            for second in first + 1..5 {
                best = best.max(slowest(&[first, second]));
            }
        }
        assert_eq!(found[2].throughput, best);
        assert_eq!(slowest(&found[2].after), best);
    }
}
