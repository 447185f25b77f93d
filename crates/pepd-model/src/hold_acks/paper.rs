//! The paper's sender: a sample is the time since the ACK before, and the timer runs from that ACK.
//!
//! The first n of N ACKs wait as long as the sender lets them; the others come at equal distances
//! θ, which bring its timeout down again. The n is the one with the lowest timeout in the end, of
//! all those for which the sender waits for each ACK. The paper's own search stops at the first
//! minimum, and does not ask whether θ is longer than the sender waits.

use super::{MOST_ACKS, Schedule};

/// What the sender's estimator holds (eq. 1–4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimator {
    /// The smoothed round trip μ, in seconds.
    pub mean: f64,
    /// Its mean deviation σ, in seconds.
    pub deviation: f64,
}

impl Estimator {
    /// Gives the retransmission timeout, in seconds (eq. 4).
    pub fn rto(self) -> f64 {
        self.mean + 4.0 * self.deviation
    }

    /// Gives the estimator after a sample in seconds (eq. 1–3, g = 1/8, h = 1/4).
    #[must_use]
    pub fn after(self, sample: f64) -> Self {
        let error = sample - self.mean;
        Self {
            mean: self.mean + error / 8.0,
            deviation: self.deviation + (error.abs() - self.deviation) / 4.0,
        }
    }
}

/// What comes of one n: how many ACKs wait as long as they can.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// How many ACKs wait as long as the sender lets them: n.
    pub waiting: usize,
    /// The distance of the others, in seconds: θ.
    pub distance: f64,
    /// The timeout after the last ACK, in seconds: `RTO_N(n)`, eq. 11.
    pub final_rto: f64,
    /// Whether the sender waits for each of them.
    pub is_feasible: bool,
}

/// Gives what each n < `acks` with S(n) ≤ `outage` comes to, in the order of n; `outage` in seconds.
pub fn choices(start: Estimator, acks: usize, outage: f64) -> Vec<Choice> {
    let acks = acks.min(MOST_ACKS);
    let (mut estimator, mut waited) = (start, 0.0);
    let mut choices = Vec::new();
    for waiting in 0..acks {
        if waited > outage {
            break;
        }
        let distance = (outage - waited) / (acks - waiting) as f64;
        let (mut last, mut is_feasible) = (estimator, true);
        for _ in waiting..acks {
            is_feasible &= distance <= last.rto();
            last = last.after(distance);
        }
        choices.push(Choice {
            waiting,
            distance,
            final_rto: last.rto(),
            is_feasible,
        });
        waited += estimator.rto();
        estimator = estimator.after(estimator.rto());
    }
    choices
}

/// Gives the n with the lowest timeout in the end, of those for which the sender waits for each
/// ACK; `None` if there is none: the outage is longer than [`limit`].
pub fn best(start: Estimator, acks: usize, outage: f64) -> Option<Choice> {
    choices(start, acks, outage)
        .into_iter()
        .filter(|choice| choice.is_feasible)
        .min_by(|left, right| left.final_rto.total_cmp(&right.final_rto))
}

/// Gives the schedule with the lowest timeout in the end: the last ACK is released when the outage
/// ends. `None` if the sender would time out.
pub fn schedule(start: Estimator, acks: usize, outage: f64) -> Option<Schedule> {
    let best = best(start, acks, outage)?;
    let mut now = 0.0;
    let waits = steps(start, acks, best).into_iter().map(|step| step.wait);
    Some(Schedule {
        releases: waits
            .map(|wait| {
                now += wait;
                now
            })
            .collect(),
        final_rto: best.final_rto,
    })
}

/// An ACK of a schedule, as the sender meets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The time since the one before, in seconds: x.
    pub wait: f64,
    /// The timeout after it, in seconds: RTO.
    pub rto: f64,
}

/// Gives each ACK of what comes of one n, whether the sender waits for it or not.
pub fn steps(start: Estimator, acks: usize, choice: Choice) -> Vec<Step> {
    let mut estimator = start;
    let step = |index| {
        let wait = if index < choice.waiting {
            estimator.rto()
        } else {
            choice.distance
        };
        estimator = estimator.after(wait);
        Step {
            wait,
            rto: estimator.rto(),
        }
    };
    (0..acks.min(MOST_ACKS)).map(step).collect()
}

/// Gives the n at which the search stops that the paper prints (section V): the first whose timeout in
/// the end is no longer than its neighbours'. `None` without ACKs.
pub fn printed(start: Estimator, acks: usize, outage: f64) -> Option<Choice> {
    let choices = choices(start, acks, outage);
    let rto = |n: usize| choices.get(n).map_or(f64::INFINITY, |it| it.final_rto);
    let is_least = |n: &usize| rto(*n) <= rto(n.saturating_sub(1)) && rto(*n) <= rto(n + 1);
    let first = (0..choices.len()).find(is_least)?;
    choices.get(first).copied()
}

/// Gives the longest outage in seconds that `acks` ACKs get the sender over: S(N), eq. 8.
pub fn limit(start: Estimator, acks: usize) -> f64 {
    let (mut estimator, mut waited) = (start, 0.0);
    for _ in 0..acks.min(MOST_ACKS) {
        waited += estimator.rto();
        estimator = estimator.after(estimator.rto());
    }
    waited
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The paper's example (Fig. 2, 5–8).
    const EXAMPLE: Estimator = Estimator {
        mean: 1.0,
        deviation: 0.3,
    };

    fn rounded(value: f64) -> f64 {
        (value * 100.0).round() / 100.0
    }

    #[test]
    fn a_thousand_seconds_with_thirty_acks() {
        let choices = choices(EXAMPLE, 30, 1000.0);
        // What the printed search stops at: a timeout at once.
        assert_eq!(printed(EXAMPLE, 30, 1000.0).as_ref(), choices.first());
        assert_eq!(rounded(choices[0].final_rto), 37.41);
        assert_eq!(rounded(choices[0].distance), 33.33);
        let first = choices.iter().find(|choice| choice.is_feasible).unwrap();
        assert_eq!(first.waiting, 6);
        let best = best(EXAMPLE, 30, 1000.0).unwrap();
        assert_eq!((best.waiting, rounded(best.final_rto)), (9, 34.97));
    }

    #[test]
    fn five_hundred_seconds_with_twenty_acks() {
        let choices = choices(EXAMPLE, 20, 500.0);
        let tenths = |n: usize| (choices[n].final_rto * 10.0).round() / 10.0;
        assert_eq!([6, 7, 8, 9].map(tenths), [55.8, 53.4, 41.6, 48.7]);
        assert_eq!(best(EXAMPLE, 20, 500.0).unwrap().waiting, 8);
    }

    #[test]
    fn two_hundred_and_fifty_seconds_with_twenty_acks() {
        let best = best(EXAMPLE, 20, 250.0).unwrap();
        assert_eq!(best.waiting, 7);
        assert_eq!(rounded(best.final_rto), 14.07);
        assert_eq!(rounded(best.distance), 11.73);
    }

    #[test]
    fn without_acks_there_is_no_schedule() {
        assert_eq!(schedule(EXAMPLE, 0, 1.0), None);
        assert_eq!(limit(EXAMPLE, 0), 0.0);
    }

    /// Runs the paper's sender; gives its estimator in the end, `None` if it times out.
    fn send(start: Estimator, releases: &[f64]) -> Option<Estimator> {
        let (mut estimator, mut before) = (start, 0.0);
        for release in releases {
            let gap = release - before;
            // A little for what adding up loses.
            if gap < 0.0 || gap > estimator.rto() * (1.0 + 1e-9) + 1e-9 {
                return None;
            }
            estimator = estimator.after(gap);
            before = *release;
        }
        Some(estimator)
    }

    fn estimators() -> impl Strategy<Value = Estimator> {
        (0.01_f64..2.0, 0.001_f64..1.0).prop_map(|(mean, share)| Estimator {
            mean,
            deviation: mean * share,
        })
    }

    proptest! {
        #[test]
        fn the_sender_never_times_out(start in estimators(), acks in 1_usize..60, share in 0.0_f64..1.0) {
            let outage = limit(start, acks) * share;
            if let Some(schedule) = schedule(start, acks, outage) {
                prop_assert_eq!(schedule.releases.len(), acks);
                let last = schedule.releases.last().unwrap();
                prop_assert!((last - outage).abs() <= 1e-6 * outage.max(1.0));
                prop_assert!(send(start, &schedule.releases).is_some());
            }
        }

        /// Up to the limit there is a schedule, and beyond it there is none.
        #[test]
        fn the_limit_is_where_it_is_said_to_be(start in estimators(), acks in 1_usize..40, share in 0.0_f64..0.999) {
            let limit = limit(start, acks);
            prop_assert!(schedule(start, acks, limit * share).is_some());
            prop_assert!(schedule(start, acks, limit * 1.001).is_none());
        }

        /// The same as trying every n with a sender of its own.
        #[test]
        fn no_other_n_is_better(start in estimators(), acks in 1_usize..12, share in 0.0_f64..0.999) {
            let outage = limit(start, acks) * share;
            let best = best(start, acks, outage).unwrap();
            for waiting in 0..acks {
                let first = limit(start, waiting);
                if first > outage {
                    continue;
                }
                let distance = (outage - first) / (acks - waiting) as f64;
                let releases: Vec<f64> = (1..=acks)
                    .map(|it| if it <= waiting { limit(start, it) } else { first + distance * (it - waiting) as f64 })
                    .collect();
                if let Some(last) = send(start, &releases) {
                    prop_assert!(best.final_rto <= last.rto() * (1.0 + 1e-6));
                }
            }
        }

        /// More ACKs, a longer round trip or a larger deviation never make the limit shorter.
        #[test]
        fn the_limit_grows(start in estimators(), acks in 1_usize..40, more in 1.0_f64..3.0) {
            let limit_before = limit(start, acks);
            prop_assert!(limit(start, acks + 1) > limit_before);
            let slower = Estimator { mean: start.mean * more, ..start };
            prop_assert!(limit(slower, acks) >= limit_before);
            let rougher = Estimator { deviation: start.deviation * more, ..start };
            prop_assert!(limit(rougher, acks) >= limit_before);
        }

        /// The closed forms as printed: eq. 7, 8 and 11.
        #[test]
        fn the_closed_forms_hold(start in estimators(), acks in 1_usize..20, share in 0.0_f64..0.999) {
            let Estimator { mean, deviation } = start;
            let power = |base: f64, n: usize| base.powi(i32::try_from(n).unwrap());
            let is_near = |left: f64, right: f64| (left - right).abs() <= 1e-6 * right.abs().max(1.0);
            let sum = |n: usize| n as f64 * mean
                + deviation * (56.0 / 9.0 * (power(1.75, n) - 1.0) - 2.0 * n as f64 / 3.0);
            let outage = limit(start, acks) * share;
            prop_assert!(is_near(limit(start, acks), sum(acks)));
            for choice in choices(start, acks, outage) {
                let (n, rest) = (choice.waiting, acks - choice.waiting);
                let sigma = power(1.75, n) * deviation;
                let mu = mean + 2.0 / 3.0 * deviation * (power(1.75, n) - 1.0);
                let (slow, fast) = (power(0.875, rest), power(0.75, rest));
                let rto = slow * mu + 4.0 * fast * sigma + (1.0 - slow) * choice.distance
                    + 8.0 * (slow - fast) * (mu - choice.distance).abs();
                prop_assert!(is_near(choice.final_rto, rto), "{} {}", choice.final_rto, rto);
            }
        }
    }
}
