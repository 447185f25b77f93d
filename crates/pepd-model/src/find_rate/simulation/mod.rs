//! A link, and what sends over it: packet by packet, without a clock.

mod cubic;
mod flow;
mod leg;
mod link;
mod scenario;

use self::cubic::Cubic;
use self::leg::Leg;
use self::link::{Link, at};
pub use self::scenario::{Scenario, Steps};
use super::{Controller, DELAYED, Heard, Ledger, LimitedBy, PACKET};
use crate::events::Events;

/// What was seen in a tenth of a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// What the link could carry, in bytes.
    pub capacity: f64,
    /// What came out of it for each leg's connections, lost or not, in bytes.
    pub carried: Vec<f64>,
    /// The same for others.
    pub foreign: f64,
    /// The longest time for which a packet of the legs' waited for it, in seconds.
    pub queue: f64,
    /// The bytes that were dropped before it.
    pub dropped: f64,
    /// The same of those that have a link of their own before that.
    pub to_own_links: f64,
    /// The bytes that went out of these.
    pub of_own_links: f64,
    /// The connections that were kept to what their own path carries, at the end.
    pub capped: usize,
    /// What limits the first leg, by each epoch that began.
    pub limited: Vec<LimitedBy>,
    /// The share of packets that its path is taken to let through, at the end.
    pub path_share: f64,
}

/// The length of a sample, in seconds.
pub const SAMPLE: f64 = 0.1;

#[derive(Debug)]
enum What {
    /// A leg begins.
    Begins(usize),
    /// The leg's next packet is due.
    Send(usize),
    /// Its epoch is over.
    Turn(usize),
    /// An acknowledgement of these packets of the leg's (connection, epoch, sent at) comes, and is taken.
    Comes(usize, usize, Vec<(u64, f64)>),
    Acknowledged(usize, usize, Vec<(u64, f64)>),
    /// The receiver of a leg's connection has waited for long enough for another packet since so many had come.
    Waited(usize, usize, u64),
    /// A foreign connection's packet was acknowledged or lost.
    Foreign(usize, bool),
    /// The next packet of what others send whatever becomes of it is due.
    Constant,
}

struct Run<'s> {
    scenario: &'s Scenario,
    link: Link<'s>,
    legs: Vec<Leg>,
    foreign: Vec<Cubic>,
    events: Events<What>,
    samples: Vec<Sample>,
}

/// Runs it, and gives what was seen in each tenth of a second.
pub fn run(scenario: &Scenario, controller: impl Fn() -> Controller) -> Vec<Sample> {
    let mut run = Run {
        scenario,
        link: Link::new(scenario),
        legs: Vec::new(),
        foreign: Vec::new(),
        events: Events::new(),
        samples: Vec::new(),
    };
    for index in 0..scenario.legs.len() {
        let begins = scenario.begins + index as f64 * scenario.apart;
        run.at(begins, What::Begins(index));
    }
    for index in 0..scenario.foreign {
        run.foreign.push(Cubic::new());
        run.send_foreign(0.001 * index as f64, index);
    }
    if let Some((begins, _)) = scenario.constant.first() {
        run.at(*begins, What::Constant);
    }
    while let Some((now, what)) = run.events.next(scenario.seconds) {
        match what {
            What::Begins(leg) => run.begin(now, leg, controller()),
            _ => run.happens(now, what),
        }
    }
    run.samples
}

impl Run<'_> {
    /// Begins the next leg, the handshake of whose first connection is over.
    fn begin(&mut self, now: f64, index: usize, controller: Controller) {
        let rtt = at(&self.scenario.rtt, now) + self.link.queue(now);
        let mut ledger = Ledger::new(controller, 0);
        ledger.controller_mut().heard(now, rtt);
        let span = ledger.turn(now);
        let mut leg = Leg::new(self.scenario, ledger, self.scenario.legs[index]);
        leg.last_send = now;
        self.legs.push(leg);
        for _ in 1..self.scenario.at_once.1 {
            self.send_one(now, index);
        }
        self.at(now, What::Send(index));
        self.at(now + span.length, What::Turn(index));
    }

    fn at(&mut self, time: f64, what: What) {
        if time.is_finite() {
            self.events.enter(time, what);
        }
    }

    fn sample(&mut self, time: f64) -> &mut Sample {
        let index = index(time.min(self.scenario.seconds));
        while self.samples.len() <= index {
            let from = self.samples.len() as f64 * SAMPLE;
            // Fine enough for any trace here.
            let parts = 10;
            let mean: f64 = (0..parts)
                .map(|part| {
                    at(
                        &self.scenario.rate,
                        from + SAMPLE * (f64::from(part) + 0.5) / f64::from(parts),
                    )
                })
                .sum();
            self.samples.push(Sample {
                capacity: mean / f64::from(parts) * SAMPLE,
                carried: vec![0.0; self.scenario.legs.len()],
                ..Sample::default()
            });
        }
        &mut self.samples[index]
    }

    fn happens(&mut self, now: f64, what: What) {
        match what {
            // Who runs it begins it.
            What::Begins(_) => {}
            What::Send(leg) => self.send(now, leg),
            What::Turn(leg) => self.turn(now, leg),
            What::Comes(leg, flow, packets) => {
                let taken = self.link.takes_late(now);
                self.at(taken, What::Acknowledged(leg, flow, packets));
            }
            What::Acknowledged(leg, flow, packets) => self.acknowledged(now, leg, flow, &packets),
            What::Waited(leg, flow, came) => {
                if self.legs[leg].flows[flow].waits_since(came) {
                    self.acknowledge(now, leg, flow);
                }
            }
            What::Foreign(index, is_lost) => {
                let rtt = at(&self.scenario.rtt, now);
                let flow = &mut self.foreign[index];
                if is_lost {
                    flow.lost(now, rtt);
                } else {
                    flow.acknowledged(now);
                }
                self.send_foreign(now, index);
            }
            What::Constant => self.send_constant(now),
        }
    }

    /// Sends what is due, and sees to it that it goes on.
    fn send(&mut self, now: f64, index: usize) {
        let rate = self.legs[index].rate();
        let each = PACKET / rate;
        let mut next = now;
        while self.send_one(now, index) {
            next += each;
            if next + each > now + self.scenario.at_once.0 {
                break;
            }
        }
        if next == now {
            // Nobody has anything to send, or nobody may.
            let demand = Some(self.scenario.demand).filter(|demand| demand.is_finite());
            next += PACKET / demand.map_or(rate, |demand| rate.max(demand));
        }
        self.at(next, What::Send(index));
    }

    /// Sends a packet, unless no connection may.
    fn send_one(&mut self, now: f64, index: usize) -> bool {
        let demand = self.scenario.demand;
        let leg = &mut self.legs[index];
        leg.replace(self.scenario, leg.last_send, now);
        let passed = now - leg.last_send;
        leg.last_send = now;
        for flow in &mut leg.flows {
            flow.want(demand, passed);
        }
        let flows = active(&self.scenario.active, now).min(leg.flows.len());
        let chosen = (0..flows)
            .map(|step| (leg.turn + step) % flows)
            .find(|flow| leg.flows[*flow].may_send(now));
        let Some(flow) = chosen else {
            return false;
        };
        // Who is slower than its receiver waits sends two at a time (crates/pepd-bpf/src/bpf/leg_rate.bpf.c).
        let is_slow = leg.rate() / (flows as f64) < PACKET / DELAYED;
        leg.is_second = is_slow && !leg.is_second;
        leg.turn = if leg.is_second { flow } else { flow + 1 };
        leg.flows[flow].send(now);
        let number = leg.ledger.current().map_or(0, |epoch| epoch.number);
        leg.book(flow, flows);
        leg.flows[flow].unbooked = Some(number);
        self.carry(now, index, (flow, number));
        true
    }

    /// Has the link carry a packet of a connection, sent in such an epoch.
    fn carry(&mut self, now: f64, index: usize, (flow, number): (usize, u64)) {
        let Some((left, is_lost)) = self.link.carry(now) else {
            self.sample(now).dropped += PACKET;
            return;
        };
        if left.is_infinite() {
            return;
        }
        if left <= self.scenario.seconds {
            let sample = self.sample(left);
            sample.carried[index] += PACKET;
            sample.queue = sample.queue.max(left - now);
        }
        if is_lost {
            let trip = at(&self.scenario.rtt, left);
            self.legs[index].flows[flow].misses_until(left + 1.5 * trip);
            return;
        }
        let Some(left) = self.by_own_link(left, index, flow) else {
            return;
        };
        let receiver = &mut self.legs[index].flows[flow];
        receiver.untold.push((number, now));
        match receiver.comes(left, self.scenario.delayed) {
            None => self.acknowledge(left, index, flow),
            Some(came) => self.at(
                left + self.scenario.delayed,
                What::Waited(index, flow, came),
            ),
        }
    }

    /// Has the receiver of a connection acknowledge what has come.
    fn acknowledge(&mut self, now: f64, index: usize, flow: usize) {
        let farther = self.legs[index].flows[flow].farther;
        let moved = match farther > 0.0 && !self.scenario.moves.is_empty() {
            true => at(&self.scenario.moves, now),
            false => 0.0,
        };
        let trip = at(&self.scenario.rtt, now) + farther + moved;
        if !self.link.loses_acknowledgement(now) {
            let told = std::mem::take(&mut self.legs[index].flows[flow].untold);
            self.at(now + trip, What::Comes(index, flow, told));
        }
    }

    /// When a packet is through the link of its connection's own, if there is one and it is not dropped.
    fn by_own_link(&mut self, now: f64, index: usize, flow: usize) -> Option<f64> {
        let Some(link) = &mut self.legs[index].flows[flow].own_link else {
            return Some(now);
        };
        let through = link.carry(now);
        if now <= self.scenario.seconds {
            self.sample(now).to_own_links += PACKET;
        }
        let left = through?;
        if left <= self.scenario.seconds {
            self.sample(left).of_own_links += PACKET;
        }
        Some(left)
    }

    /// Tells a connection's path what was acknowledged, if it is looked for links of their own.
    fn tell_own_path(&mut self, now: f64, index: usize, flow: usize, (bytes, delay): (f64, f64)) {
        let flows = active(&self.scenario.active, now);
        let leg = &mut self.legs[index];
        let rate = leg.rate();
        let heard = Heard {
            bytes,
            delay,
            rtt: leg.flows[flow].least(),
            share: rate / flows.min(leg.flows.len()) as f64,
        };
        if let Some(path) = &mut leg.flows[flow].own_path {
            let longer = path.acknowledged(now, &heard, &mut leg.delay);
            leg.flows[flow].becomes_longer(longer);
        }
        let capped = leg.flows.iter().filter(|flow| flow.is_capped()).count();
        leg.ledger.controller_mut().keeps(now, capped as u64);
        self.sample(now).capped = capped;
    }

    fn acknowledged(&mut self, now: f64, index: usize, flow: usize, packets: &[(u64, f64)]) {
        let leg = &mut self.legs[index];
        let Some(last) = packets.last() else { return };
        let rtt = now - last.1;
        let flows = active(&self.scenario.active, now).min(leg.flows.len());
        leg.book(flow, flows);
        // The first round trip of a connection has the leg's queue in it.
        let queue = leg.queue(now);
        let slack = leg.ledger.controller().slack();
        let before = leg.flows[flow].least();
        let queue = leg.flows[flow].acknowledged(now, last.1, queue);
        let own = leg.flows[flow].own(queue, &leg.delay);
        if leg.asked(flow, last.0).is_some_and(|epoch| epoch.is_empty) {
            leg.flows[flow].verify(rtt, slack);
        }
        let is_sure = leg.flows[flow].is_sure();
        let mut revealed = 0.0;
        // What was taken off its first one says nothing of the queue.
        if before.is_finite() {
            leg.all.heard(queue);
            revealed = before - rtt;
        }
        leg.heard = now;
        for (number, sent) in packets {
            if let Some(epoch) = leg.asked(flow, *number) {
                epoch.acknowledge(now - own, PACKET, (queue - own, is_sure), now - sent);
                epoch.revealed = epoch.revealed.max(revealed);
            }
        }
        leg.ledger.controller_mut().heard(now, rtt);
        if self.scenario.finds_own_links {
            let bytes = packets.len() as f64 * PACKET;
            self.tell_own_path(now, index, flow, (bytes, queue));
        }
    }

    fn turn(&mut self, now: f64, index: usize) {
        let span = self.legs[index].ledger.turn(now);
        if index == 0 {
            let controller = self.legs[index].ledger.controller();
            let (limited, path_share) = (controller.limited_by(), controller.path_share());
            let sample = self.sample(now);
            sample.limited.push(limited);
            sample.path_share = path_share;
        }
        self.at(now + span.length, What::Turn(index));
    }

    fn send_constant(&mut self, now: f64) {
        self.carry_foreign(now);
        let rate = at(&self.scenario.constant, now);
        self.at(now + PACKET / rate.max(1.0), What::Constant);
    }

    /// Gives when a packet of others has left the link, and whether it is lost; none if it was dropped.
    fn carry_foreign(&mut self, now: f64) -> Option<(f64, bool)> {
        let carried = self.link.carry(now);
        if let Some((left, _)) = carried.filter(|it| it.0 <= self.scenario.seconds) {
            self.sample(left).foreign += PACKET;
        }
        carried
    }

    fn send_foreign(&mut self, now: f64, index: usize) {
        loop {
            let flow = &mut self.foreign[index];
            if flow.under_way >= flow.window.floor() {
                return;
            }
            flow.under_way += 1.0;
            let rtt = at(&self.scenario.rtt, now);
            match self.carry_foreign(now) {
                Some((left, is_lost)) => {
                    self.at(left + rtt, What::Foreign(index, is_lost));
                }
                None => self.at(now + rtt, What::Foreign(index, true)),
            }
        }
    }
}

/// How many connections have something to send at a time.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers here are small and positive"
)]
fn active(steps: &Steps, now: f64) -> usize {
    if steps.is_empty() {
        usize::MAX
    } else {
        at(steps, now) as usize
    }
}

/// The sample that a time belongs to.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times here are positive, and no longer than days"
)]
pub(super) fn index(time: f64) -> usize {
    (time / SAMPLE) as usize
}
