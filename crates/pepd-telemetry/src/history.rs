//! The last minutes of a flow, a point for each second in which something happened.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::phase::PhaseTimes;
use crate::{DirectionPoint, HistoryPoint, LegPoint, PhaseSeconds};

/// Points that a flow keeps: five minutes.
pub const POINTS_PER_FLOW: usize = 300;

/// Points that a flow's history begins with; it doubles when they are used up. Most connections
/// say something once and are then at rest.
const FIRST_POINTS: usize = 2;

/// One second of a flow, in 56 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// Hundredths of a second since the table began: enough for 497 days.
    pub(crate) time: u32,
    /// Milliseconds that it covers.
    pub(crate) span: u16,
    pub(crate) up: DirectionSecond,
    pub(crate) down: DirectionSecond,
    pub(crate) client_leg: LegSecond,
    pub(crate) upstream_leg: LegSecond,
}

/// One direction's part of a [`Point`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectionSecond {
    bytes: u32,
    queue: u32,
    free: u16,
    starved: u16,
    backpressured: u16,
}

impl DirectionSecond {
    pub(crate) fn new(bytes: u64, queue: u64, times: PhaseTimes) -> Self {
        Self {
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            queue: u32::try_from(queue).unwrap_or(u32::MAX),
            free: millis(times.free),
            starved: millis(times.starved),
            backpressured: millis(times.backpressured),
        }
    }
}

/// One leg's part of a [`Point`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LegSecond {
    /// Microseconds.
    pub(crate) rtt: u32,
    pub(crate) cwnd: u32,
    pub(crate) retransmitted_segments: u16,
}

pub(crate) fn millis(time: Duration) -> u16 {
    u16::try_from(time.as_millis()).unwrap_or(u16::MAX)
}

impl Point {
    /// Returns the point as the API gives it; `epoch` is when the table began, in seconds since the
    /// Unix epoch.
    fn expand(&self, epoch: f64) -> HistoryPoint {
        let span = f64::from(self.span.max(1)) / 1e3;
        let direction = |of: &DirectionSecond| DirectionPoint {
            goodput: f64::from(of.bytes) * 8.0 / span,
            phases: PhaseSeconds {
                free: f64::from(of.free) / 1e3,
                starved: f64::from(of.starved) / 1e3,
                backpressured: f64::from(of.backpressured) / 1e3,
            },
            queue: of.queue.into(),
        };
        let leg = |of: &LegSecond| LegPoint {
            rtt: f64::from(of.rtt) / 1e6,
            cwnd: of.cwnd,
            retransmitted_segments: of.retransmitted_segments.into(),
        };
        HistoryPoint {
            time: epoch + f64::from(self.time) / 100.0,
            up: direction(&self.up),
            down: direction(&self.down),
            client_leg: leg(&self.client_leg),
            upstream_leg: leg(&self.upstream_leg),
        }
    }
}

/// The number of points that all flows together may have: once they are used up, a flow overwrites
/// its own oldest, and one without any has none.
#[derive(Debug)]
pub(crate) struct PointBudget(AtomicUsize);

impl PointBudget {
    /// Creates a budget of `points`.
    pub(crate) fn new(points: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(points)))
    }

    fn take(&self, points: usize) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(points))
            .is_ok()
    }

    fn give(&self, points: usize) {
        self.0.fetch_add(points, Relaxed);
    }
}

/// One flow's points.
#[derive(Debug)]
pub(crate) struct History {
    points: VecDeque<Point>,
    /// Points taken from the budget.
    granted: usize,
    budget: Arc<PointBudget>,
}

impl History {
    pub(crate) fn new(budget: Arc<PointBudget>) -> Self {
        Self {
            points: VecDeque::new(),
            granted: 0,
            budget,
        }
    }

    pub(crate) fn push(&mut self, point: Point) {
        let more = self
            .granted
            .max(FIRST_POINTS)
            .min(POINTS_PER_FLOW - self.granted);
        if self.points.len() == self.granted && more > 0 && self.budget.take(more) {
            self.granted += more;
            self.points.reserve_exact(more);
        }
        if self.granted == 0 {
            return;
        }
        if self.points.len() == self.granted {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    pub(crate) fn expand(&self, epoch: f64) -> Vec<HistoryPoint> {
        self.points
            .iter()
            .map(|point| point.expand(epoch))
            .collect()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.budget.give(self.granted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(time: u32) -> Point {
        let times = PhaseTimes {
            free: Duration::from_millis(250),
            starved: Duration::from_millis(750),
            backpressured: Duration::ZERO,
        };
        Point {
            time,
            span: 1000,
            up: DirectionSecond::new(125_000, 7, times),
            down: DirectionSecond::default(),
            client_leg: LegSecond {
                rtt: 20_000,
                cwnd: 10,
                retransmitted_segments: 3,
            },
            upstream_leg: LegSecond::default(),
        }
    }

    #[test]
    fn a_point_is_small_and_keeps_what_it_is_given() {
        assert!(size_of::<Point>() <= 64, "{}", size_of::<Point>());
        let full = point(250).expand(1000.0);
        assert!((full.time - 1002.5).abs() < 1e-9);
        assert!((full.up.goodput - 1e6).abs() < 1e-6);
        assert!((full.up.phases.starved - 0.75).abs() < 1e-9);
        assert_eq!((full.up.queue, full.client_leg.cwnd), (7, 10));
        assert!((full.client_leg.rtt - 0.02).abs() < 1e-9);
    }

    #[test]
    fn the_last_five_minutes_are_kept() {
        let mut history = History::new(PointBudget::new(1000));
        (0..1000).for_each(|time| history.push(point(time)));
        let points = history.expand(0.0);
        assert_eq!(points.len(), POINTS_PER_FLOW);
        assert!((points[0].time - 7.0).abs() < 1e-9);
        assert!(history.points.capacity() <= POINTS_PER_FLOW);
    }

    #[test]
    fn the_budget_bounds_all_flows_together() {
        let budget = PointBudget::new(64);
        let mut first = History::new(Arc::clone(&budget));
        let mut second = History::new(Arc::clone(&budget));
        (0..200).for_each(|time| first.push(point(time)));
        second.push(point(1));
        assert_eq!(first.expand(0.0).len(), 64);
        assert!(
            (first.expand(0.0)[0].time - 1.36).abs() < 1e-9,
            "the newest"
        );
        assert!(second.expand(0.0).is_empty());
        drop(first);
        second.push(point(2));
        assert_eq!(second.expand(0.0).len(), 1);
    }
}
