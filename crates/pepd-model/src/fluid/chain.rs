//! The chain itself: which leg drives which, and what happens next.

use super::leg::Leg;
use super::line::{Line, first_zero};
use super::losses::Losses;
use super::record::Record;

/// A chain of legs with a buffer between each two.
///
/// ```text
///   free ──the buffer before it is empty, and less comes──▶ starved
///     ▲  ◀──its rate meets its driver's, or falls below──     │
///     │                                                       │
///     └──the same, and ──▶ backpressured ◀── the buffer behind it is full, and less leaves
/// ```
#[derive(Clone, Debug)]
pub struct Chain {
    legs: Vec<Leg>,
    buffers: Vec<f64>,
    losses: Vec<Losses>,
    now: f64,
    rates: Vec<f64>,
    queues: Vec<f64>,
    /// What each leg sends from now on, and which leg drives it.
    sent: Vec<(Line, usize)>,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// The time that was asked for is over.
    End,
    /// A leg loses something, at this time.
    Loss(usize, f64),
    /// A leg's rate reaches its cap.
    Cap(usize),
    /// A leg's rate meets its driver's.
    Meet(usize),
    /// A buffer runs empty.
    Empty(usize),
    /// A buffer is full.
    Full(usize),
}

impl Chain {
    /// A chain of legs, at least one, with as many buffers between them, packets, as there are gaps (those
    /// that are missing are infinite); the queues are empty and the rates what each leg has on average.
    #[must_use]
    pub fn new(legs: &[Leg], buffers: &[f64], seed: u64) -> Self {
        let gaps = legs.len().saturating_sub(1);
        let given = buffers.iter().copied();
        Self {
            legs: legs.to_vec(),
            buffers: given
                .chain(std::iter::repeat(f64::INFINITY))
                .take(gaps)
                .collect(),
            losses: legs.iter().map(|leg| Losses::new(leg, seed)).collect(),
            now: 0.0,
            rates: legs.iter().map(|leg| finite(leg.usual())).collect(),
            queues: vec![0.0; gaps],
            sent: Vec::new(),
        }
    }

    /// Has the run start with these queues, packets.
    #[must_use]
    pub fn starting_with(mut self, queues: &[f64]) -> Self {
        let held = queues.iter().zip(&self.buffers);
        self.queues = held.map(|(queue, buffer)| queue.min(*buffer)).collect();
        self
    }

    /// The time since the start, seconds.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.now
    }

    /// What each leg's window allows now, packets a second.
    #[must_use]
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// What waits in each buffer now, packets.
    #[must_use]
    pub fn queues(&self) -> &[f64] {
        &self.queues
    }

    /// Runs until a time, seconds since the start, and adds what happens to a record.
    pub fn run(&mut self, until: f64, record: &mut Record) {
        while self.now < until {
            self.drive();
            let (after, event) = self.next(until);
            self.advance(after, record);
            self.now = match event {
                Event::End => until,
                Event::Loss(_, time) => time,
                _ => self.now + after,
            };
            self.happen(event);
        }
    }

    /// Finds what each leg sends: the least of what its own window allows, of what comes, if the buffer
    /// before it is empty, and of what leaves, if the one behind it is full.
    fn drive(&mut self) {
        self.sent.clear();
        for (index, leg) in self.legs.iter().enumerate() {
            let own = Line {
                value: self.rates[index],
                slope: growth(leg, self.rates[index]),
            };
            let before = index.checked_sub(1).filter(|gap| self.queues[*gap] <= 0.0);
            let coming = before.map(|gap| self.sent[gap]);
            let held = coming.filter(|coming| coming.0.is_below(own));
            self.sent.push(held.unwrap_or((own, index)));
        }
        for gap in (0..self.queues.len()).rev() {
            let leaving = self.sent[gap + 1];
            if self.queues[gap] >= self.buffers[gap] && leaving.0.is_below(self.sent[gap].0) {
                self.sent[gap] = leaving;
            }
        }
    }

    /// Finds the next event, and in how many seconds it is.
    fn next(&mut self, until: f64) -> (f64, Event) {
        let mut first = (until - self.now, Event::End);
        let mut sooner = |after: f64, event: Event| {
            if after < first.0 {
                first = (after.max(0.0), event);
            }
        };
        for (index, leg) in self.legs.iter().enumerate() {
            let (rate, (line, driver)) = (self.rates[index], self.sent[index]);
            let alpha = growth(leg, rate);
            if driver == index {
                if alpha > 0.0 {
                    sooner((leg.cap - rate) / alpha, Event::Cap(index));
                }
                continue;
            }
            let above = rate * rate - line.value * line.value;
            if line.slope > alpha {
                let sent = above / (line.slope - alpha) / 2.0;
                sooner(line.until_sent(sent), Event::Meet(index));
            }
            if alpha > 0.0 && leg.cap.is_finite() {
                let sent = (leg.cap * leg.cap - rate * rate) / alpha / 2.0;
                sooner(line.until_sent(sent), Event::Cap(index));
            }
        }
        for (gap, (queue, buffer)) in self.queues.iter().zip(&self.buffers).enumerate() {
            let ((coming, from), (leaving, to)) = (self.sent[gap], self.sent[gap + 1]);
            if from == to {
                continue;
            }
            let (speed, growth) = (coming.value - leaving.value, coming.slope - leaving.slope);
            sooner(first_zero(*queue, speed, growth), Event::Empty(gap));
            if buffer.is_finite() {
                sooner(
                    first_zero(buffer - queue, -speed, -growth),
                    Event::Full(gap),
                );
            }
        }
        for (index, losses) in self.losses.iter_mut().enumerate() {
            let by = self.now + first.0;
            if let Some(time) = losses.next(self.now, self.sent[index].0, by) {
                first = (time - self.now, Event::Loss(index, time));
            }
        }
        first
    }

    /// Moves everything on by a time, seconds.
    fn advance(&mut self, after: f64, record: &mut Record) {
        record.add(self.now, after, &self.queues, &self.sent);
        for (gap, queue) in self.queues.iter_mut().enumerate() {
            let ((coming, from), (leaving, to)) = (self.sent[gap], self.sent[gap + 1]);
            if from != to {
                let level = *queue + coming.sent(after) - leaving.sent(after);
                *queue = level.clamp(0.0, self.buffers[gap]);
            }
        }
        for (index, leg) in self.legs.iter().enumerate() {
            let (rate, (line, driver)) = (self.rates[index], self.sent[index]);
            let alpha = growth(leg, rate);
            let grown = if driver == index {
                rate + alpha * after
            } else {
                (rate * rate + 2.0 * alpha * line.sent(after)).sqrt()
            };
            self.rates[index] = grown.min(leg.cap);
        }
    }

    /// Does what happens, so that what is equal is so to the last bit.
    fn happen(&mut self, event: Event) {
        match event {
            Event::End => {}
            Event::Loss(index, _) => {
                if let Some(aimd) = self.legs[index].aimd {
                    self.rates[index] *= aimd.beta;
                }
            }
            Event::Cap(index) => self.rates[index] = self.legs[index].cap,
            Event::Meet(index) => self.rates[index] = self.rates[self.sent[index].1],
            Event::Empty(gap) => self.queues[gap] = 0.0,
            Event::Full(gap) => self.queues[gap] = self.buffers[gap],
        }
    }
}

/// What a leg's rate grows by while all that its window allows is sent.
fn growth(leg: &Leg, rate: f64) -> f64 {
    match leg.aimd {
        Some(aimd) if rate < leg.cap => aimd.alpha,
        _ => 0.0,
    }
}

/// The rate at which a leg starts that nothing bounds: it grows from there.
fn finite(rate: f64) -> f64 {
    if rate.is_finite() { rate } else { 1.0 }
}
