//! Whether somebody else uses the link.

/// How much more of what is sent more is carried, where there is a queue: alone nothing, since the link
/// carries what it can in any case; beside others that share the queue, one less the own share of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elasticity {
    mean: f64,
    deviation: f64,
    count: f64,
    /// The last two epochs that were taken: the number of the second one, and the rates carried and sent.
    last: Option<(u64, [f64; 2], f64)>,
}

impl Elasticity {
    /// By how much rates differ at least that are compared: a difference of a packet is nothing then.
    const APART: f64 = 0.15;
    /// The comparisons over which it is a mean.
    const MEMORY: f64 = 5.0;

    /// Takes two epochs at one rate with a queue all the time: the number of the second one, and the rates
    /// carried, as they are seen in two ways, and sent. What only one of them sees was seen wrong.
    pub(super) fn compare(&mut self, number: u64, carried: [f64; 2], sent: f64) {
        if self.last.is_some_and(|last| last.0 + 1 == number) {
            return;
        }
        let last = self.last.replace((number, carried, sent));
        let Some((_, before, rate)) = last.filter(|last| last.0 + 4 >= number) else {
            return;
        };
        let apart = (sent / rate).ln();
        if apart.abs() <= Self::APART || before.iter().chain(&carried).any(|it| *it <= 0.0) {
            return;
        }
        let [one, other] = [0, 1].map(|of| (carried[of] / before[of]).ln() / apart);
        let value = one.min(other);
        self.count = (self.count + 1.0).min(Self::MEMORY);
        let error = value.clamp(-1.0, 2.0) - self.mean;
        self.mean += error / self.count;
        self.deviation += (error.abs() - self.deviation) / self.count;
    }

    /// Returns it, if it is plain that there are others.
    pub(super) fn of_others(&self) -> Option<f64> {
        let doubt = 2.0 * self.deviation / self.count.max(1.0).sqrt();
        (self.count >= 2.0 && self.mean > 0.35 + doubt).then_some(self.mean)
    }
}
