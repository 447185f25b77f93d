//! All connections of which something is held.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, Passing};

use crate::figures::{Figures, HEADERS, LOOKED_AT, Limits};
use crate::flow::{Flow, Released};
use crate::leg::{Leg, Phase, Report};
use crate::{Act, PacketId};

/// Decides what becomes of packets while links are away.
#[derive(Debug)]
pub struct Holder {
    limits: Limits,
    /// When its own time began.
    begun: Instant,
    legs: HashMap<Arc<str>, Leg>,
    flows: HashMap<FourTuple, Flow>,
    timers: BTreeMap<(Instant, u64), FourTuple>,
    last_timer: u64,
    /// Parts of ACKs among those that are held: no packets.
    parts: usize,
    /// The connections, the oldest first; some are no longer there.
    order: VecDeque<FourTuple>,
    figures: Figures,
}

impl Holder {
    /// Makes one that holds nothing yet.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self {
            limits,
            begun: now,
            legs: HashMap::new(),
            flows: HashMap::new(),
            timers: BTreeMap::new(),
            last_timer: 0,
            parts: 0,
            order: VecDeque::new(),
            figures: Figures::default(),
        }
    }

    /// Returns whether packets are to be given to it: a link is away, or something is still held.
    pub fn is_needed(&self) -> bool {
        !self.legs.is_empty()
    }

    /// Returns what is held.
    pub fn figures(&self) -> Figures {
        let flows = self.flows.values().filter(|flow| !flow.is_idle()).count();
        Figures {
            flows,
            ..self.figures
        }
    }

    /// Returns when [`Holder::tick`] is to be called.
    pub fn deadline(&self) -> Option<Instant> {
        let timers = self.timers.keys().next().map(|(at, _)| *at);
        let legs = self.legs.values().filter_map(Leg::deadline);
        legs.chain(timers).min()
    }

    /// Takes what is heard of the link under a leg.
    pub fn hear(&mut self, leg: &Arc<str>, report: Report, now: Instant) {
        if matches!(report, Report::Up(_)) && !self.legs.contains_key(leg) {
            return;
        }
        let link = self.legs.entry(Arc::clone(leg));
        link.or_insert_with(|| Leg::new(now)).hear(report, now);
        // What was due for a sender's patience is now due for the link, or the other way round.
        for four_tuple in self.of(leg) {
            if let Some(flow) = self.flows.get_mut(&four_tuple) {
                flow.is_live = false;
            }
            self.schedule(four_tuple, now);
        }
        self.forget_if_over(leg);
    }

    /// Takes a packet that goes from a host behind the leg `from` to one behind the leg `to`, and says
    /// what becomes of it, and of others if need be.
    pub fn packet(
        &mut self,
        id: PacketId,
        packet: &[u8],
        (from, to): (Option<&Arc<str>>, Option<&Arc<str>>),
        now: Instant,
        acts: &mut Vec<Act>,
    ) {
        let Some(segment) = Passing::read(packet) else {
            acts.push(Act::Release(id));
            return;
        };
        if let Some(to) = to
            && self.keep(id, &segment, to, now, acts)
        {
            return;
        }
        match from {
            Some(from) => self.acknowledge(id, &segment, from, now, acts),
            None => acts.push(Act::Release(id)),
        }
    }

    /// Takes note of the time.
    pub fn tick(&mut self, now: Instant, acts: &mut Vec<Act>) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let four_tuple = entry.remove();
            let seconds = self.seconds(now);
            if let Some(flow) = self.flows.get_mut(&four_tuple) {
                flow.timer = None;
                let released = flow.release(now, seconds, acts);
                self.count_out(released);
            }
            self.schedule(four_tuple, now);
            self.forget_if_idle(four_tuple);
        }
        let names: Vec<Arc<str>> = self.legs.keys().cloned().collect();
        for name in names {
            self.tick_leg(&name, now, acts);
            self.forget_if_over(&name);
        }
    }

    /// Lets go everything, for good.
    pub fn end(&mut self, acts: &mut Vec<Act>) {
        let all: Vec<FourTuple> = self.flows.keys().copied().collect();
        for four_tuple in all {
            self.release_acks(four_tuple, acts);
            self.release_kept(four_tuple, acts);
        }
        self.flows.clear();
        self.legs.clear();
        self.order.clear();
    }

    fn tick_leg(&mut self, name: &Arc<str>, now: Instant, acts: &mut Vec<Act>) {
        let Some(leg) = self.legs.get_mut(name) else {
            return;
        };
        if leg.moment.take_if(|at| *at <= now).is_some() {
            leg.phase = Phase::Late;
            for four_tuple in self.of(name) {
                self.release_acks(four_tuple, acts);
            }
            return;
        }
        while leg.goes_on() && leg.next <= now {
            let Some(four_tuple) = leg.turns.pop_front() else {
                return;
            };
            let Some(flow) = self.flows.get_mut(&four_tuple) else {
                continue;
            };
            let Some(bytes) = go_on(flow, &mut self.figures, acts) else {
                continue;
            };
            leg.sent(bytes);
            if flow.kept() > 0 {
                leg.turns.push_back(four_tuple);
            } else if flow.is_idle() {
                self.flows.remove(&four_tuple);
            }
        }
    }

    /// Keeps a packet for a host whose link is gone; returns whether it has said what becomes of it.
    fn keep(
        &mut self,
        id: PacketId,
        segment: &Passing<'_>,
        to: &Arc<str>,
        now: Instant,
        acts: &mut Vec<Act>,
    ) -> bool {
        let four_tuple = segment.four_tuple.reversed();
        let Some(leg) = self.legs.get(to) else {
            return false;
        };
        let has_kept = self
            .flows
            .get(&four_tuple)
            .is_some_and(|flow| flow.kept() > 0);
        let (mut is_gone, is_proof) = (leg.phase == Phase::Gone, leg.has_long_gone(now));
        if let Some(flow) = self.flows.get_mut(&four_tuple) {
            flow.measure(segment, now);
            is_gone &= !flow.is_live;
            if is_gone && is_proof && flow.is_kept(segment) {
                // If it is there after all, its host answers, and no other reason for that may come.
                self.figures.repeated_total += 1;
                acts.push(Act::Release(id));
                return true;
            }
            if is_gone && flow.is_known(segment) {
                self.figures.repeated_total += 1;
                acts.push(Act::Drop(id));
                return true;
            }
        }
        // What comes while something is still kept stays behind it.
        if !is_gone && !has_kept {
            return false;
        }
        let bytes = segment.length as usize + segment.options.len() + HEADERS;
        let of_one = self
            .flows
            .get(&four_tuple)
            .map_or(0, |flow| flow.kept_bytes);
        let is_beyond = !self.has_room(four_tuple)
            || self.figures.bytes + bytes > self.limits.bytes
            || of_one + bytes > self.limits.bytes_of_one;
        if is_beyond {
            self.figures.beyond_total += 1;
            // On a link that is there it must not overtake what is kept.
            acts.push(if is_gone {
                Act::Release(id)
            } else {
                Act::Drop(id)
            });
            return true;
        }
        let flow = self.flow(four_tuple, to);
        flow.keep(id, segment, bytes);
        if let Some(leg) = self.legs.get_mut(to) {
            leg.kept += bytes;
            if !has_kept {
                leg.turns.push_back(four_tuple);
            }
        }
        self.figures.bytes += bytes;
        self.figures.packets += 1;
        self.figures.packets_total += 1;
        true
    }

    /// Takes a segment from a host whose link may be away.
    fn acknowledge(
        &mut self,
        id: PacketId,
        segment: &Passing<'_>,
        from: &Arc<str>,
        now: Instant,
        acts: &mut Vec<Act>,
    ) {
        let four_tuple = segment.four_tuple;
        let Some(leg) = self.legs.get(from) else {
            acts.push(Act::Release(id));
            return;
        };
        let (holds, is_proof) = (leg.holds(), leg.has_long_gone(now));
        let is_known = self.flows.contains_key(&four_tuple);
        let has_room = self.has_room(four_tuple);
        let may_begin = holds && has_room;
        if !is_known && !may_begin {
            self.figures.beyond_total += u64::from(holds);
            acts.push(Act::Release(id));
            return;
        }
        let seconds = self.seconds(now);
        let flow = self.flow(four_tuple, from);
        flow.is_live |= is_proof;
        let may_hold = flow.may_hold(segment);
        // What comes while others are still held stays behind them.
        if may_hold && has_room && (holds && !flow.is_live || flow.acks() > 0) {
            flow.hold(id, segment, seconds);
            let is_timed = flow.timer.is_some();
            self.figures.acks += 1;
            self.figures.acks_total += 1;
            if !is_timed {
                self.schedule(four_tuple, now);
            }
            return;
        }
        self.figures.beyond_total += u64::from(may_hold && !has_room);
        self.release_acks(four_tuple, acts);
        let flow = self.flow(four_tuple, from);
        flow.passed();
        if flow.is_live {
            self.release_kept(four_tuple, acts);
        }
        acts.push(Act::Release(id));
    }

    /// Releases all ACKs of a connection at once.
    fn release_acks(&mut self, four_tuple: FourTuple, acts: &mut Vec<Act>) {
        if let Some(flow) = self.flows.get_mut(&four_tuple) {
            let released = flow.release_all(acts);
            if let Some(timer) = flow.timer.take() {
                self.timers.remove(&timer);
            }
            self.count_out(released);
        }
    }

    /// Releases all that is kept of a connection at once.
    fn release_kept(&mut self, four_tuple: FourTuple, acts: &mut Vec<Act>) {
        let Some(flow) = self.flows.get_mut(&four_tuple) else {
            return;
        };
        let mut bytes = 0;
        while let Some(some) = go_on(flow, &mut self.figures, acts) {
            bytes += some;
        }
        if bytes > 0
            && let Some(leg) = self.legs.get_mut(&flow.leg)
        {
            leg.kept = leg.kept.saturating_sub(bytes);
            leg.turns.retain(|it| *it != four_tuple);
        }
    }

    /// Counts ACKs that are not held any more.
    fn count_out(&mut self, Released { acks, parts }: Released) {
        self.figures.acks = self.figures.acks.saturating_sub(acks + parts);
        self.parts = self.parts.saturating_sub(parts);
    }

    /// Returns what is known of a connection of this leg, if only that there is one.
    fn flow(&mut self, four_tuple: FourTuple, leg: &Arc<str>) -> &mut Flow {
        let order = &mut self.order;
        self.flows.entry(four_tuple).or_insert_with(|| {
            order.push_back(four_tuple);
            Flow::new(Arc::clone(leg))
        })
    }

    /// Returns whether there is room for more of this connection: if need be, in the place of one of the
    /// oldest of which nothing is held.
    fn has_room(&mut self, four_tuple: FourTuple) -> bool {
        let packets = self.figures.acks + self.figures.packets - self.parts;
        if packets >= self.limits.packets {
            return false;
        }
        if self.flows.contains_key(&four_tuple) {
            return true;
        }
        for _ in 0..LOOKED_AT {
            if self.flows.len() < self.limits.flows && self.order.len() < 2 * self.limits.flows {
                return true;
            }
            let Some(oldest) = self.order.pop_front() else {
                return true;
            };
            match self.flows.get(&oldest) {
                Some(flow) if flow.is_idle() => _ = self.flows.remove(&oldest),
                Some(_) => self.order.push_back(oldest),
                None => {}
            }
        }
        false
    }

    /// Sets the timer for the next ACK of a connection.
    fn schedule(&mut self, four_tuple: FourTuple, now: Instant) {
        let seconds = self.seconds(now);
        let Some(flow) = self.flows.get_mut(&four_tuple) else {
            return;
        };
        if let Some(timer) = flow.timer.take() {
            self.timers.remove(&timer);
        }
        let Some(leg) = self.legs.get(&flow.leg) else {
            return;
        };
        let wait = if leg.holds() {
            let parts = if self.limits.makes_parts {
                flow.split()
            } else {
                0
            };
            self.figures.acks += parts;
            self.parts += parts;
            self.figures.parts_total += parts as u64;
            // Later than expected, they last for as long as they can.
            let until = leg.until.filter(|until| *until > now);
            let until = until.map(|until| (until - self.begun).as_secs_f64());
            let due = flow.next_release(seconds, until);
            due.map(|due| Duration::from_secs_f64((due - seconds).max(0.0)))
        } else {
            let back = leg.since.saturating_duration_since(self.begun);
            flow.wait_when_back(leg.pace, back.as_secs_f64(), seconds)
        };
        let Some(wait) = wait else {
            return;
        };
        self.last_timer += 1;
        let timer = (now + wait, self.last_timer);
        flow.timer = Some(timer);
        self.timers.insert(timer, four_tuple);
    }

    /// Lists the connections of a leg.
    fn of(&self, leg: &Arc<str>) -> Vec<FourTuple> {
        let flows = self.flows.iter().filter(|(_, flow)| flow.leg == *leg);
        flows.map(|(four_tuple, _)| *four_tuple).collect()
    }

    fn forget_if_idle(&mut self, four_tuple: FourTuple) {
        let Some(flow) = self.flows.get(&four_tuple).filter(|flow| flow.is_idle()) else {
            return;
        };
        let is_back = self
            .legs
            .get(&flow.leg)
            .is_none_or(|leg| leg.phase == Phase::Back);
        if is_back {
            self.flows.remove(&four_tuple);
        }
    }

    /// Forgets a link that is back, once nothing is held for it.
    fn forget_if_over(&mut self, name: &Arc<str>) {
        let is_over = |leg: &Leg| leg.phase == Phase::Back && leg.turns.is_empty();
        if !self.legs.get(name).is_some_and(is_over) {
            return;
        }
        for four_tuple in self.of(name) {
            self.forget_if_idle(four_tuple);
        }
        if !self.flows.values().any(|flow| flow.leg == *name) {
            self.legs.remove(name);
        }
    }

    /// Gives a time in seconds of its own.
    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.begun).as_secs_f64()
    }
}

/// Lets the first packet that is kept of a connection go on, counts it out, and gives its bytes.
fn go_on(flow: &mut Flow, figures: &mut Figures, acts: &mut Vec<Act>) -> Option<usize> {
    let (id, bytes) = flow.go_on()?;
    acts.push(Act::Release(id));
    figures.packets -= 1;
    figures.bytes -= bytes;
    Some(bytes)
}
