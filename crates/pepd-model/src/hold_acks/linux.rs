//! Today's Linux sender: a sample is the whole age of the oldest segment that an ACK acknowledges.
//!
//! With or without timestamps it is taken from the time at which the segment was sent
//! (`tcp_clean_rtx_queue`, `tcp_ack_update_rtt` in net/ipv4/tcp_input.c). So what an ACK has waited
//! stays in the samples of those after it, and the timeout ends near the length of the outage.
//!
//! The timer is restarted by each ACK of new data (RFC 6298, 5.3), but not always with the whole
//! timeout: while a tail loss probe is pending, what is sent or probed next sets it to a timeout
//! after the *oldest segment was sent* (`tcp_rearm_rto`, `tcp_rto_delta_us`; `tcp_write_xmit` calls
//! `tcp_schedule_loss_probe` in net/ipv4/tcp_output.c without `advancing_rto`). That is the shorter of the two, and
//! what is kept to here: the sender then waits in either case. As the timeout is at most two
//! minutes (`TCP_RTO_MAX`), no number of ACKs gets it over a longer outage.
//!
//! The deviation is the one that the kernel keeps at least: its `rttvar` is never below the last
//! `mdev` nor below 200 ms, and comes down once a round trip only (`tcp_rtt_estimator`).

use std::iter::repeat_n;
use std::time::Duration;

use super::{MOST_ACKS, Schedule};

/// `tcp_rto_min`, in seconds: the least that is added to the smoothed round trip.
pub const RTO_MIN: f64 = 0.2;

/// `TCP_RTO_MAX`, in seconds.
pub const RTO_MAX: f64 = 120.0;

/// The share of the time that the sender would wait which is used at most. The rest is for the
/// jitter of the path and for timers that are rounded to the kernel's ticks.
pub const FULLEST: f64 = 0.95;

/// What is known of a sender and its path when the link goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// The whole round trip, R + r.
    pub rtt: Duration,
    /// Its mean deviation; zero is what is safe to assume.
    pub deviation: Duration,
    /// For how long the oldest of the ACKs has been held already.
    pub held: Duration,
}

/// What the sender's estimator holds, in seconds.
#[derive(Clone, Copy, Debug)]
struct Estimator {
    /// `srtt_us`.
    mean: f64,
    /// `mdev_us`, which is four times the mean deviation.
    deviation: f64,
}

impl Estimator {
    fn rto(self) -> f64 {
        (self.mean + self.deviation.max(RTO_MIN)).min(RTO_MAX)
    }

    /// As `tcp_rtt_estimator`: a sample below the mean that would raise the deviation does so with
    /// an eighth of the gain.
    fn after(self, sample: f64) -> Self {
        let error = sample - self.mean;
        let mut change = error.abs() - self.deviation / 4.0;
        if error < 0.0 && change > 0.0 {
            change /= 8.0;
        }
        Self {
            mean: self.mean + error / 8.0,
            deviation: self.deviation + change,
        }
    }
}

/// What comes of using a share of the time that the sender would wait before each ACK.
struct Run {
    releases: Vec<f64>,
    final_rto: f64,
    /// When the sender times out unless another ACK comes, less what is not used of that time.
    deadline: f64,
}

/// When the segments were sent that one ACK acknowledges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// The earliest that any of them may have been: the sender's timer may count from there.
    pub earliest: f64,
    /// The latest that the oldest of them may have been: its age is the sample.
    pub latest: f64,
}

/// ACKs that are there to be released, as their sender sees them.
struct Waiting<'a> {
    now: f64,
    /// What each acknowledges.
    sent: &'a [Sent],
    /// When what they do not acknowledge was sent, at the earliest.
    rest: f64,
}

impl Waiting<'_> {
    /// Uses one of `shares` of the time that the sender would wait before each ACK.
    fn run(&self, mut sender: Estimator, shares: impl Iterator<Item = f64>) -> Run {
        let mut at = self.now;
        let mut releases = Vec::new();
        for (sent, share) in self.sent.iter().zip(shares) {
            at += share * (sent.earliest + sender.rto() - at).max(0.0);
            releases.push(at);
            sender = sender.after(at - sent.latest);
        }
        let left = (self.rest + sender.rto() - at).max(0.0);
        Run {
            releases,
            final_rto: sender.rto(),
            deadline: at + FULLEST * left,
        }
    }

    /// Uses the same share each time.
    fn evenly(&self, sender: Estimator, share: f64) -> Run {
        self.run(sender, repeat_n(share, self.sent.len()))
    }

    /// Uses the smallest share that gets the sender over the time `until`; none if the largest does not.
    fn least(&self, sender: Estimator, until: f64) -> Option<Run> {
        let (mut low, mut high) = (0.0, FULLEST);
        let mut best = self.evenly(sender, high);
        if best.deadline < until {
            return None;
        }
        // As many halvings as a share has digits that matter.
        for _ in 0..30 {
            let share = f64::midpoint(low, high);
            let run = self.evenly(sender, share);
            if run.deadline < until {
                low = share;
            } else {
                (best, high) = (run, share);
            }
        }
        Some(best)
    }
}

/// A sender whose ACKs are being released, one after the other. Times are in seconds from any moment
/// that stays the same.
#[derive(Clone, Copy, Debug)]
pub struct Sender(Estimator);

/// The ACKs that are looked at ahead: with far fewer a sender can be kept as long as it can be.
pub const AHEAD: usize = 32;

impl Sender {
    /// Makes one whose ACKs have come a round trip of `rtt` after what they acknowledge was sent.
    pub fn new(rtt: Duration) -> Self {
        Self(Estimator {
            mean: rtt.as_secs_f64(),
            deviation: 0.0,
        })
    }

    /// Notes that it has an ACK of what was sent at `sent`.
    pub fn acknowledged(&mut self, now: f64, sent: Sent) {
        self.0 = self.0.after(now - sent.latest);
    }

    /// Returns when the first of the ACKs that are there is to be released, so that they get the sender
    /// over the time `until`; where they do not, or it is not known, as far as they can.
    pub fn next(&self, now: f64, sent: &[Sent], until: Option<f64>) -> f64 {
        let sent = sent.get(..AHEAD).unwrap_or(sent);
        let rest = sent.last().map_or(now, |last| last.earliest);
        let waiting = Waiting { now, sent, rest };
        let least = until.and_then(|until| waiting.least(self.0, until));
        let run = least.unwrap_or_else(|| waiting.evenly(self.0, FULLEST));
        run.releases.first().copied().unwrap_or(now)
    }
}

impl Path {
    fn start(&self) -> Estimator {
        Estimator {
            mean: self.rtt.as_secs_f64(),
            deviation: 4.0 * self.deviation.as_secs_f64(),
        }
    }

    /// Returns when the segment of an ACK was sent: of the one that has just come, a round trip ago; of
    /// the oldest one that waits, longer ago by as much as it has been held.
    fn sent(&self) -> Sent {
        let latest = -self.rtt.as_secs_f64();
        let earliest = latest - self.held.as_secs_f64();
        Sent { earliest, latest }
    }

    /// Does something with `acks` of them.
    fn with<T>(&self, acks: usize, work: impl FnOnce(&Waiting<'_>, Estimator) -> T) -> T {
        let sent = vec![self.sent(); acks.min(MOST_ACKS)];
        let waiting = Waiting {
            now: 0.0,
            sent: &sent,
            rest: self.sent().earliest,
        };
        work(&waiting, self.start())
    }
}

/// Gives the schedule that gets the sender over `outage`, with the same share of the time that it
/// would wait left before each ACK, and that as large as it can be. `None` if the outage is longer
/// than [`limit`].
///
/// The ACK of what is sent to the host behind the link when that is back comes a round trip later
/// at most: the sender waits for that, too.
pub fn schedule(path: &Path, acks: usize, outage: Duration) -> Option<Schedule> {
    let until = (outage + path.rtt).as_secs_f64();
    let run = path.with(acks, |waiting, sender| waiting.least(sender, until))?;
    Some(Schedule {
        releases: run.releases,
        final_rto: run.final_rto,
    })
}

/// Gives the longest outage that `acks` ACKs get the sender over; zero where it cannot be kept
/// from timing out at all.
pub fn limit(path: &Path, acks: usize) -> Duration {
    let run = path.with(acks, |waiting, sender| waiting.evenly(sender, FULLEST));
    let seconds = run.deadline - path.rtt.as_secs_f64();
    // It is below RTO_MAX, and so is what it is taken from.
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::linux_sender::{Sender, Timer};
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn paths() -> impl Strategy<Value = Path> {
        (1_u64..1500, 0_u64..100, 0_u64..150).prop_map(|(rtt, deviation, held)| Path {
            rtt: millis(rtt),
            deviation: millis(deviation),
            held: millis(held),
        })
    }

    fn timers() -> impl Strategy<Value = Timer> {
        prop_oneof![
            Just(Timer::Restarted),
            Just(Timer::OldestSent),
            Just(Timer::Probe { is_spent: false }),
            Just(Timer::Probe { is_spent: true }),
        ]
    }

    #[test]
    fn without_acks_the_sender_waits_for_its_first_timeout() {
        let path = Path {
            rtt: millis(40),
            deviation: millis(0),
            held: millis(0),
        };
        // 0.95 of 200 ms after the link has gone, less the round trip of what comes after it.
        assert_eq!(limit(&path, 0), millis(150));
        let schedule = schedule(&path, 0, millis(150)).unwrap();
        assert!(schedule.releases.is_empty());
    }

    #[test]
    fn no_number_of_acks_gets_over_two_minutes() {
        let path = Path {
            rtt: millis(40),
            deviation: millis(0),
            held: millis(0),
        };
        let longest = limit(&path, MOST_ACKS).as_secs_f64();
        assert!((110.0..120.0).contains(&longest), "{longest}");
        assert_eq!(schedule(&path, MOST_ACKS, Duration::from_secs(121)), None);
    }

    proptest! {
        /// However the sender's timer is set, whatever else its estimator may hold, and wherever a
        /// round trip ends.
        #[test]
        fn the_sender_never_times_out(
            path in paths(),
            timer in timers(),
            acks in 0_usize..40,
            share in 0.0_f64..1.0,
            ages in prop::collection::vec(0.0_f64..=1.0, 41),
            round_trips in prop::collection::vec(any::<bool>(), 40),
            more_deviation in 0_u64..100,
            more_variance in 0_u64..300_000,
        ) {
            let outage = limit(&path, acks).mul_f64(share);
            let Some(schedule) = schedule(&path, acks, outage) else {
                prop_assert!(limit(&path, acks).is_zero());
                return Ok(());
            };
            let rtt = path.rtt.as_secs_f64();
            // In the order in which they were sent.
            let mut sent: Vec<f64> = ages
                .iter()
                .take(acks + 1)
                .map(|share| -rtt - share * path.held.as_secs_f64())
                .collect();
            sent.sort_by(f64::total_cmp);
            let mut sender = Sender::new(path.rtt, path.deviation + millis(more_deviation), more_variance, timer, sent[0]);
            let mut before = 0.0;
            for (index, release) in schedule.releases.iter().enumerate() {
                prop_assert!(*release >= before);
                prop_assert!(*release <= outage.as_secs_f64() + rtt);
                prop_assert!(sender.waits_until(*release), "ACK {} at {}", index, release);
                sender.ack(*release, sent[index], sent[index + 1], round_trips[index]);
                before = *release;
            }
            prop_assert!(sender.waits_until(outage.as_secs_f64() + rtt));
        }

        /// No other way to share out the time gets the sender over a longer outage.
        #[test]
        fn no_other_schedule_reaches_farther(path in paths(), acks in 1_u32..5) {
            const STEPS: u32 = 6;
            let reached = path.with(acks as usize, |waiting, sender| waiting.evenly(sender, FULLEST));
            for code in 0..STEPS.pow(acks) {
                let shares = (0..acks).map(|it| {
                    FULLEST * f64::from(code / STEPS.pow(it) % STEPS) / f64::from(STEPS - 1)
                });
                let other = path.with(acks as usize, |waiting, sender| waiting.run(sender, shares));
                let (other, reached) = (other.deadline, reached.deadline);
                prop_assert!(other <= reached + 1e-9, "{} {}", other, reached);
            }
        }

        /// Deciding anew at each release comes to the same as the whole schedule.
        #[test]
        fn one_after_the_other_is_the_schedule(rtt in 1_u64..1500, acks in 1_usize..20, share in 0.0_f64..1.0) {
            let path = Path { rtt: millis(rtt), deviation: Duration::ZERO, held: Duration::ZERO };
            let outage = limit(&path, acks).mul_f64(share);
            prop_assume!(!outage.is_zero());
            let Some(schedule) = schedule(&path, acks, outage) else { return Ok(()) };
            let until = Some((outage + path.rtt).as_secs_f64());
            let mut sender = super::Sender::new(path.rtt);
            let (mut now, mut sent) = (0.0, vec![path.sent(); acks]);
            for release in schedule.releases {
                now = sender.next(now, &sent, until);
                prop_assert!((now - release).abs() < 1e-3, "{} {}", now, release);
                sender.acknowledged(now, sent.remove(0));
            }
        }

        #[test]
        fn the_limit_is_where_it_is_said_to_be(path in paths(), acks in 0_usize..40, share in 0.0_f64..0.999) {
            let limit = limit(&path, acks);
            prop_assume!(!limit.is_zero());
            prop_assert!(schedule(&path, acks, limit.mul_f64(share)).is_some());
            prop_assert!(schedule(&path, acks, limit + millis(1)).is_none());
        }

        /// More ACKs and a larger deviation never make it shorter; what was held longer never
        /// makes it longer.
        #[test]
        fn the_limit_grows(path in paths(), acks in 0_usize..40, more in 1_u64..200) {
            let before = limit(&path, acks);
            prop_assert!(limit(&path, acks + 1) >= before);
            let rougher = Path { deviation: path.deviation + millis(more), ..path };
            prop_assert!(limit(&rougher, acks) >= before);
            let later = Path { held: path.held + millis(more), ..path };
            prop_assert!(limit(&later, acks) <= before);
        }
    }
}
