//! What a run comes to: throughput, the phases of each buffer, and its queue.

use super::line::Line;

/// What a run comes to.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// How long it lasted, seconds.
    pub time: f64,
    /// What each leg has sent, packets.
    pub sent: Vec<f64>,
    /// The phases of each buffer.
    pub shares: Vec<Shares>,
    /// The integral of each queue over time, packet seconds.
    area: Vec<f64>,
    /// The queue of one buffer from event to event, if it is wanted.
    holds: Option<(usize, Vec<Hold>)>,
}

/// How long a buffer was in each phase, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Neither empty nor full.
    pub free: f64,
    /// Empty: the leg behind it sends what comes.
    pub starved: f64,
    /// Full: the leg before it sends what leaves.
    pub backpressured: f64,
}

/// A queue between two events: level + speed t + growth t²/2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// When it begins, seconds since the start.
    pub from: f64,
    /// How long it lasts, seconds.
    pub time: f64,
    /// The queue when it begins, packets.
    pub level: f64,
    /// What it grows by then, packets a second.
    pub speed: f64,
    /// What that grows by, packets a second squared.
    pub growth: f64,
}

impl Record {
    /// An empty record, of phases and throughput.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty record that also keeps the queue of a buffer, counted from 0.
    #[must_use]
    pub fn of_queue(gap: usize) -> Self {
        Self {
            holds: Some((gap, Vec::new())),
            ..Self::default()
        }
    }

    /// What the last leg delivers, packets a second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.sent.last().map_or(0.0, |sent| sent / self.time)
    }

    /// What a buffer holds on average, packets.
    #[must_use]
    pub fn mean_queue(&self, gap: usize) -> f64 {
        self.area.get(gap).map_or(0.0, |area| area / self.time)
    }

    /// The queue that was kept, from event to event.
    #[must_use]
    pub fn holds(&self) -> &[Hold] {
        self.holds.as_ref().map_or(&[], |(_, holds)| holds)
    }

    /// The level that the kept queue is at or below for a share of the time, packets.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let highest = |hold: &Hold| {
            let turn = if hold.growth < 0.0 {
                (-hold.speed / hold.growth).clamp(0.0, hold.time)
            } else {
                0.0
            };
            let at_ends = hold.level.max(hold.at(hold.time));
            at_ends.max(hold.at(turn))
        };
        let wanted = share * self.time;
        let top = self.holds().iter().map(highest).fold(0.0, f64::max);
        let below = |level: f64| -> f64 {
            let times = self.holds().iter().map(|hold| hold.below(level));
            times.sum()
        };
        if below(0.0) >= wanted {
            return 0.0;
        }
        let (mut low, mut high) = (0.0, top);
        for _ in 0..48 {
            let middle = f64::midpoint(low, high);
            if below(middle) < wanted {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// The kept queue at so many instants at equal distances, packets.
    #[must_use]
    pub fn samples(&self, count: u32) -> Vec<f64> {
        let Some(first) = self.holds().first() else {
            return Vec::new();
        };
        let mut holds = self.holds().iter().peekable();
        let instants =
            (0..count).map(|n| first.from + self.time * (f64::from(n) + 0.5) / f64::from(count));
        let level = |instant: f64| {
            while holds
                .next_if(|hold| hold.from + hold.time < instant)
                .is_some()
            {}
            holds.peek().map(|hold| hold.at(instant - hold.from))
        };
        instants.filter_map(level).collect()
    }

    /// Adds what happens until the next event.
    pub(super) fn add(&mut self, now: f64, after: f64, queues: &[f64], sent: &[(Line, usize)]) {
        self.time += after;
        self.sent.resize(sent.len(), 0.0);
        for (total, (line, _)) in self.sent.iter_mut().zip(sent) {
            *total += line.sent(after);
        }
        self.shares.resize(queues.len(), Shares::default());
        self.area.resize(queues.len(), 0.0);
        for (gap, level) in queues.iter().enumerate() {
            let ((coming, from), (leaving, to)) = (sent[gap], sent[gap + 1]);
            let shares = &mut self.shares[gap];
            match (from == to, from <= gap) {
                (false, _) => shares.free += after,
                (true, true) => shares.starved += after,
                (true, false) => shares.backpressured += after,
            }
            let hold = Hold {
                from: now,
                time: after,
                level: *level,
                speed: coming.value - leaving.value,
                growth: coming.slope - leaving.slope,
            };
            self.area[gap] += hold.area();
            match &mut self.holds {
                Some((kept, holds)) if *kept == gap && after > 0.0 => holds.push(hold),
                _ => {}
            }
        }
    }
}

impl Shares {
    /// The shares of the time, which add up to 1.
    #[must_use]
    pub fn of(self, time: f64) -> Self {
        Self {
            free: self.free / time,
            starved: self.starved / time,
            backpressured: self.backpressured / time,
        }
    }
}

impl Hold {
    /// The queue after a while, packets.
    #[must_use]
    pub fn at(&self, after: f64) -> f64 {
        self.level + (self.speed + self.growth * after / 2.0) * after
    }

    fn area(&self) -> f64 {
        let half = self.speed / 2.0 + self.growth * self.time / 6.0;
        (self.level + half * self.time) * self.time
    }

    /// How long it is at or below a level, seconds.
    fn below(&self, level: f64) -> f64 {
        let over = self.level - level;
        if self.speed == 0.0 && self.growth == 0.0 {
            return if over <= 0.0 { self.time } else { 0.0 };
        }
        let mut cuts = [0.0, self.time, self.time, self.time];
        let discriminant = self.speed * self.speed - 2.0 * self.growth * over;
        if self.growth == 0.0 {
            cuts[1] = -over / self.speed;
        } else if discriminant > 0.0 {
            let root = discriminant.sqrt();
            cuts[1] = (-self.speed - root) / self.growth;
            cuts[2] = (-self.speed + root) / self.growth;
        }
        for cut in &mut cuts {
            *cut = cut.clamp(0.0, self.time);
        }
        cuts.sort_by(f64::total_cmp);
        let pieces = cuts.windows(2).filter(|pair| {
            let middle = f64::midpoint(pair[0], pair[1]);
            self.at(middle) <= level
        });
        pieces.map(|pair| pair[1] - pair[0]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_one_parabola() {
        // 0 up to 4 and back to 0 in 4 s: 4 t - t².
        let hold = Hold {
            from: 0.0,
            time: 4.0,
            level: 0.0,
            speed: 4.0,
            growth: -2.0,
        };
        let record = Record {
            time: 4.0,
            holds: Some((0, vec![hold])),
            ..Record::default()
        };
        // Above 3 from 1 s to 3 s.
        assert!((record.quantile(0.5) - 3.0).abs() < 1e-9);
        assert!((record.quantile(1.0) - 4.0).abs() < 1e-9);
        assert!((hold.area() - 32.0 / 3.0).abs() < 1e-9);
        assert_eq!(record.samples(2), [3.0, 3.0]);
    }
}
