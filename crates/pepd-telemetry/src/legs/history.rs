//! A leg's last ten minutes by the second, and its last day by the minute.

use std::collections::VecDeque;

use super::snapshot::{HistoryStep, LegHistoryPoint, PathPoint, RateLimit};

/// The seconds of a leg that are kept: ten minutes, of those in which something was sent.
pub const SECONDS_PER_LEG: usize = 600;

/// The minutes that are kept: a day, in the same way. Both together are 350 kB for a leg that is always used.
pub const MINUTES_PER_LEG: usize = 1440;

/// The points of a leg.
#[derive(Debug, Default)]
pub(super) struct History {
    seconds: VecDeque<LegHistoryPoint>,
    minutes: VecDeque<LegHistoryPoint>,
    running: Minute,
}

/// The minute that goes on.
#[derive(Debug, Default)]
struct Minute {
    /// Which it is, of those since the Unix epoch.
    number: u64,
    points: Vec<LegHistoryPoint>,
}

impl History {
    pub(super) fn push(&mut self, point: LegHistoryPoint) {
        // What is older is not of the last ten minutes, though there be room.
        #[allow(clippy::cast_precision_loss, reason = "some hundreds and thousands")]
        let [seconds, day] = [SECONDS_PER_LEG as f64, 60.0 * MINUTES_PER_LEG as f64];
        keep(&mut self.seconds, point, SECONDS_PER_LEG, seconds);
        let number = minute(point.time);
        if number != self.running.number {
            let over = std::mem::take(&mut self.running.points);
            if let Some(mean) = mean(&over) {
                keep(&mut self.minutes, mean, MINUTES_PER_LEG, day);
            }
            self.running.number = number;
        }
        self.running.points.push(point);
    }

    /// Returns the points after `since`. The minute that goes on is one of them, as far as it is known.
    pub(super) fn points(&self, step: HistoryStep, since: f64) -> Vec<LegHistoryPoint> {
        let is_later = |point: &LegHistoryPoint| point.time > since;
        match step {
            HistoryStep::Second => self.seconds.iter().copied().filter(is_later).collect(),
            HistoryStep::Minute => {
                let running = mean(&self.running.points);
                let all = self.minutes.iter().copied().chain(running);
                all.filter(is_later).collect()
            }
        }
    }
}

fn keep(points: &mut VecDeque<LegHistoryPoint>, point: LegHistoryPoint, most: usize, span: f64) {
    points.push_back(point);
    let is_old = |first: &LegHistoryPoint| first.time <= point.time - span;
    while points.len() > most || points.front().is_some_and(is_old) {
        points.pop_front();
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds since 1970"
)]
fn minute(time: f64) -> u64 {
    (time / 60.0) as u64
}

/// Makes one point of the seconds of a minute; none of none.
fn mean(points: &[LegHistoryPoint]) -> Option<LegHistoryPoint> {
    let last = points.last()?;
    let sent = sum(points, |it| Some(it.sent)).0;
    let resent = sum(points, |it| Some(it.sent * it.resent)).0;
    let rtts = sum(points, |it| it.rtt);
    let slowest = points.iter().filter_map(|it| it.slow_rtt).reduce(f64::max);
    // Seconds in which nothing was sent have no point.
    Some(LegHistoryPoint {
        time: last.time,
        sent: sent / 60.0,
        resent: if sent > 0.0 { resent / sent } else { 0.0 },
        busy: sum(points, |it| Some(it.busy)).0 / 60.0,
        rtt: (rtts.1 > 0.0).then(|| rtts.0 / rtts.1),
        slow_rtt: slowest,
        least_rtt: last.least_rtt,
        path: path(points),
    })
}

fn path(points: &[LegHistoryPoint]) -> Option<PathPoint> {
    let mean = |of: fn(&PathPoint) -> f64| {
        let (all, count) = sum(points, |it| it.path.as_ref().map(of));
        (count > 0.0).then(|| all / count)
    };
    let times = |limit: &RateLimit| {
        let is = |it: &&LegHistoryPoint| it.path.is_some_and(|path| path.limit == *limit);
        points.iter().filter(is).count()
    };
    Some(PathPoint {
        rate: mean(|it| it.rate)?,
        capacity: mean(|it| it.capacity)?,
        loss: mean(|it| it.loss)?,
        queue: mean(|it| it.queue)?,
        limit: RateLimit::ALL.into_iter().max_by_key(times)?,
    })
}

/// Adds up what there is, and counts it.
fn sum(points: &[LegHistoryPoint], of: impl Fn(&LegHistoryPoint) -> Option<f64>) -> (f64, f64) {
    let values = points.iter().filter_map(of);
    values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(time: f64) -> LegHistoryPoint {
        LegHistoryPoint {
            time,
            sent: 6e6,
            resent: 0.1,
            busy: 1.0,
            rtt: Some(0.03),
            slow_rtt: Some(time / 1e6),
            least_rtt: Some(0.02),
            path: Some(PathPoint {
                rate: 7e6,
                limit: RateLimit::Link,
                ..PathPoint::default()
            }),
        }
    }

    #[test]
    fn ten_minutes_are_kept_by_the_second_and_a_day_by_the_minute() {
        let mut history = History::default();
        for second in 1..200_000 {
            history.push(point(f64::from(second)));
        }
        let seconds = history.points(HistoryStep::Second, 0.0);
        assert_eq!(seconds.len(), SECONDS_PER_LEG);
        assert!((seconds[0].time - 199_400.0).abs() < 1e-9);
        assert_eq!(history.points(HistoryStep::Second, 199_990.5).len(), 9);
        let minutes = history.points(HistoryStep::Minute, 0.0);
        assert_eq!(
            minutes.len(),
            MINUTES_PER_LEG + 1,
            "with the one that goes on"
        );
        let whole = minutes[7];
        assert!((whole.sent - 6e6).abs() < 1.0 && (whole.resent - 0.1).abs() < 1e-9);
        assert!((whole.busy - 1.0).abs() < 1e-9 && (whole.rtt.unwrap() - 0.03).abs() < 1e-9);
        assert_eq!(whole.slow_rtt, Some(whole.time / 1e6), "the longest");
        let path = whole.path.unwrap();
        assert!((path.rate - 7e6).abs() < 1.0 && path.limit == RateLimit::Link);
    }

    #[test]
    fn what_was_not_used_for_long_has_no_old_points_in_its_last_ten_minutes() {
        let mut history = History::default();
        history.push(point(30.0));
        history.push(point(1000.0));
        assert_eq!(history.points(HistoryStep::Second, 0.0).len(), 1);
        let minutes = history.points(HistoryStep::Minute, 0.0);
        assert_eq!(minutes.len(), 2);
        // One second of the sixty.
        assert!((minutes[0].sent - 1e5).abs() < 1e-6);
    }
}
