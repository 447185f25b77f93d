//! The chain itself: what happens, in the order of time.

use std::collections::VecDeque;

use super::link::Link;
use super::receiver::{DELAY, Receiver};
use super::record::Record;
use super::sender::{Ack, Packet, Sender};
use super::setup::{Gap, Held, Setup};
use crate::events::Events;
use crate::law::{Control, Leg};

/// A chain of legs with boxes between them, packet by packet.
#[derive(Clone, Debug)]
pub struct Chain {
    now: f64,
    legs: Vec<State>,
    gaps: Vec<Gap>,
    delays: bool,
    /// Each of a leg.
    events: Events<(usize, What)>,
    /// The leg whose packet is being taken, and acknowledged then.
    taking: Option<usize>,
    record: Record,
    /// Since when what the record has is so.
    noted: f64,
}

/// A leg.
#[derive(Clone, Debug)]
struct State {
    sender: Sender,
    link: Link,
    receiver: Receiver,
    /// What is not let in, since the buffer is full.
    door: VecDeque<Packet>,
    /// What the receiver has told that it has room for.
    told: u64,
    /// When the sender is woken.
    wakes: f64,
    /// How far apart packets are sent, and when the next one may be.
    pace: Option<f64>,
    paced: f64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Arrives(Packet),
    Acknowledged(Ack),
    /// A delayed acknowledgement is due.
    Owes,
    Wakes,
    Paced,
}

impl Chain {
    /// Makes a chain; nothing has been sent.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let gap = |index: usize| setup.gaps.get(index).copied().unwrap_or(Gap::OPEN);
        let last = setup.legs.len().saturating_sub(1);
        let state = |(index, leg): (usize, &Leg)| {
            let told = if index < last {
                gap(index).first()
            } else {
                u64::MAX
            };
            let fixed = leg.control == Control::FixedRate;
            State {
                sender: Sender::new(leg, told, setup.validates),
                link: Link::new(leg, setup.queue, setup.seed, index as u64),
                receiver: Receiver::default(),
                door: VecDeque::new(),
                told,
                wakes: f64::INFINITY,
                pace: leg.rate.filter(|_| fixed).map(|rate| 1.0 / rate),
                paced: 0.0,
            }
        };
        let mut chain = Self {
            now: 0.0,
            legs: setup.legs.iter().enumerate().map(state).collect(),
            gaps: (0..last).map(gap).collect(),
            delays: setup.delays,
            events: Events::new(),
            taking: None,
            record: Record::default(),
            noted: 0.0,
        };
        chain.forget();
        chain.transmit(0);
        chain
    }

    /// Begins a new record.
    pub fn forget(&mut self) {
        self.noted = self.now;
        self.record = Record {
            delivered: vec![0; self.legs.len()],
            sent: vec![0; self.legs.len()],
            shares: vec![crate::fluid::Shares::default(); self.gaps.len()],
            held: vec![Vec::new(); self.gaps.len()],
            time: 0.0,
        };
    }

    /// The time since the start, seconds.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.now
    }

    /// What each leg's window allows now, packets.
    #[must_use]
    pub fn windows(&self) -> Vec<f64> {
        self.legs.iter().map(|leg| leg.sender.window()).collect()
    }

    /// What each box holds now that has arrived and was not sent on, packets.
    #[must_use]
    pub fn queues(&self) -> Vec<u64> {
        (0..self.gaps.len()).map(|gap| self.queue(gap)).collect()
    }

    /// What has happened since the start, or since it was last forgotten.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Runs until a time, seconds since the start.
    pub fn run(&mut self, until: f64) {
        while let Some((at, (leg, what))) = self.events.next(until) {
            self.note(at);
            self.now = at;
            self.happen(leg, what);
        }
        self.note(until);
        self.now = until;
    }

    fn happen(&mut self, leg: usize, what: What) {
        match what {
            What::Arrives(packet) => self.arrive(leg, packet),
            What::Acknowledged(ack) => {
                self.legs[leg].sender.acknowledge(self.now, ack);
                self.transmit(leg);
            }
            What::Owes => {
                if self.legs[leg].receiver.owes() {
                    self.acknowledge(leg, None);
                }
            }
            What::Wakes => {
                self.legs[leg].wakes = f64::INFINITY;
                let available = self.available(leg);
                if let Some(packet) = self.legs[leg].sender.wake(self.now, available) {
                    self.put(leg, packet);
                }
                self.transmit(leg);
            }
            What::Paced => self.transmit(leg),
        }
    }

    /// The packets that a leg's sender has: those before this number.
    fn available(&self, leg: usize) -> u64 {
        leg.checked_sub(1)
            .map_or(u64::MAX, |before| self.legs[before].receiver.next())
    }

    /// What has arrived at a box and was not sent on.
    fn queue(&self, gap: usize) -> u64 {
        let next = self.legs[gap].receiver.next();
        next - self.legs[gap + 1].sender.next().min(next)
    }

    fn is_full(&self, leg: usize) -> bool {
        let Some(gap) = self.gaps.get(leg) else {
            return false;
        };
        gap.held == Held::Arrived && self.queue(leg) >= gap.buffer.saturating_add(gap.unsent)
    }

    fn arrive(&mut self, leg: usize, packet: Packet) {
        let state = &mut self.legs[leg];
        // What is not next takes no room of the queue; what it is behind holds it back at the latest.
        if !state.door.is_empty() {
            state.door.push_back(packet);
        } else if state.receiver.is_next(packet.number) && self.is_full(leg) {
            self.legs[leg].door.push_back(packet);
        } else {
            self.admit(leg, packet);
        }
    }

    /// Lets a packet in.
    fn admit(&mut self, leg: usize, packet: Packet) {
        let delays = self.delays;
        let state = &mut self.legs[leg];
        let before = state.receiver.next();
        let at_once = state.receiver.take(packet.number, delays);
        self.record.delivered[leg] += state.receiver.next() - before;
        // What goes on at once takes no room of what is advertised.
        if leg + 1 < self.legs.len() && self.legs[leg].receiver.next() > before {
            let outer = self.taking.replace(leg);
            self.transmit(leg + 1);
            self.taking = outer;
        }
        if at_once {
            self.acknowledge(leg, Some(packet));
        } else {
            self.later(self.now + DELAY, leg, What::Owes);
        }
    }

    /// Sends an acknowledgement back, for a packet or for what is owed.
    fn acknowledge(&mut self, leg: usize, packet: Option<Packet>) {
        let room = self.room(leg);
        let state = &mut self.legs[leg];
        state.receiver.acknowledged();
        state.told = state.told.max(room);
        let ack = Ack {
            until: state.receiver.next(),
            packet,
            room,
        };
        let at = self.now + state.link.delay();
        self.later(at, leg, What::Acknowledged(ack));
    }

    /// What a leg's receiver has room for: packets before this number.
    fn room(&self, leg: usize) -> u64 {
        let Some(gap) = self.gaps.get(leg) else {
            return u64::MAX;
        };
        let left = gap.buffer.saturating_sub(self.unread(leg));
        match gap.held {
            Held::Arrived => u64::MAX,
            Held::UnderWay | Held::Advertised => {
                self.legs[leg].receiver.next().saturating_add(left)
            }
        }
    }

    /// What the box has not taken from the leg: it hands so much over before it is sent on.
    fn unread(&self, gap: usize) -> u64 {
        self.queue(gap).saturating_sub(self.gaps[gap].unsent)
    }

    /// Sends what a leg may send, and tells the leg before it what that makes room for.
    fn transmit(&mut self, leg: usize) {
        let available = self.available(leg);
        let before = self.legs[leg].sender.next();
        loop {
            let state = &mut self.legs[leg];
            if state.pace.is_some() && self.now < state.paced {
                break;
            }
            let Some(packet) = state.sender.send(self.now, available) else {
                break;
            };
            self.put(leg, packet);
            let state = &mut self.legs[leg];
            if let Some(spacing) = state.pace {
                state.paced = self.now + spacing;
                let at = state.paced;
                self.later(at, leg, What::Paced);
            }
        }
        let wakes = self.legs[leg].sender.wakes();
        if wakes < self.legs[leg].wakes {
            self.legs[leg].wakes = wakes;
            self.later(wakes, leg, What::Wakes);
        }
        if self.legs[leg].sender.next() > before && leg > 0 {
            self.make_room(leg - 1);
        }
    }

    fn put(&mut self, leg: usize, packet: Packet) {
        self.record.sent[leg] += 1;
        if let Some(at) = self.legs[leg].link.send(self.now) {
            self.later(at, leg, What::Arrives(packet));
        }
    }

    /// Lets in what waits at a box, or tells its sender of room.
    fn make_room(&mut self, leg: usize) {
        while !self.is_full(leg) || !self.legs[leg].is_next_at_door() {
            let Some(packet) = self.legs[leg].door.pop_front() else {
                break;
            };
            self.admit(leg, packet);
        }
        let Some(gap) = self.gaps.get(leg) else {
            return;
        };
        let state = &self.legs[leg];
        let left = state.told.saturating_sub(state.receiver.next());
        let room = gap.buffer.saturating_sub(self.unread(leg));
        let tells = match gap.held {
            Held::Arrived => false,
            // Where the window can be doubled (Linux, `tcp_cleanup_rbuf`).
            Held::UnderWay => room > left && (room >= 2 * left || room >= gap.buffer),
            Held::Advertised => left == 0 && room > 0,
        };
        if tells && self.taking != Some(leg) {
            self.acknowledge(leg, None);
        }
    }

    fn later(&mut self, at: f64, leg: usize, what: What) {
        self.events.enter(at, (leg, what));
    }

    /// Notes what was so since the last event.
    fn note(&mut self, until: f64) {
        let time = until - self.noted;
        self.noted = until;
        if time <= 0.0 {
            return;
        }
        self.record.time += time;
        for gap in 0..self.gaps.len() {
            let queue = self.queue(gap);
            let shares = &mut self.record.shares[gap];
            let is_starved = queue == 0 && self.legs[gap + 1].sender.has_window();
            if is_starved {
                shares.starved += time;
            } else if !self.legs[gap].door.is_empty() || self.legs[gap].sender.is_held() {
                shares.backpressured += time;
            } else {
                shares.free += time;
            }
            let level = usize::try_from(queue).unwrap_or(usize::MAX);
            let levels = &mut self.record.held[gap];
            if levels.len() <= level {
                levels.resize(level + 1, 0.0);
            }
            levels[level] += time;
        }
    }
}

impl State {
    fn is_next_at_door(&self) -> bool {
        self.door
            .front()
            .is_some_and(|packet| self.receiver.is_next(packet.number))
    }
}

impl Gap {
    /// The room that a sender begins with: packets before this number.
    fn first(self) -> u64 {
        match self.held {
            Held::Arrived => u64::MAX,
            Held::UnderWay | Held::Advertised => self.buffer,
        }
    }
}
