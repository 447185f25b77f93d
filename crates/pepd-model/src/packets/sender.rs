//! A TCP sender: what is under way, what is taken for lost, and when something is sent again.
//!
//! ```text
//!   open ──something is lost──▶ recovery ──all that was sent before is acknowledged──▶ open
//!     │ ──nothing comes for a timeout──▶ lost all ──the same──▶ open      ▲ from recovery, too
//! ```

use std::collections::VecDeque;

use super::rtt::Rtt;
use super::window::Window;
use crate::law::Leg;

/// How many packets behind one have to arrive before it is taken for lost without waiting (RFC 8985, section 7.2).
const DUPLICATES: usize = 3;

/// A packet under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) number: u64,
    /// How many the sender had sent before, also again.
    pub(super) order: u64,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ack {
    /// All before this has arrived.
    pub(super) until: u64,
    /// The packet that it is for.
    pub(super) packet: Option<Packet>,
    /// What may be sent: packets before this number.
    pub(super) room: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: f64,
    order: u64,
    has_arrived: bool,
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open,
    /// Until this is acknowledged.
    Recovery(u64),
    /// The same, after a timeout.
    LostAll(u64),
}

/// A sender.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    window: Window,
    rtt: Rtt,
    state: State,
    /// The first packet that is not acknowledged, and those from it on.
    first: u64,
    sent: VecDeque<Sent>,
    orders: u64,
    /// The latest of what has arrived.
    latest: u64,
    arrived: usize,
    lost: usize,
    /// The receiver's limit, and the sender's own.
    edge: u64,
    own: usize,
    validates: bool,
    is_limited: bool,
    /// Until this is acknowledged the window counts as used if it was.
    used_until: u64,
    probed: Option<u64>,
    times_out: f64,
    reorders: f64,
}

impl Sender {
    pub(super) fn new(leg: &Leg, edge: u64, validates: bool) -> Self {
        Self {
            window: Window::new(leg),
            rtt: Rtt::new(leg.rtt),
            state: State::Open,
            first: 0,
            sent: VecDeque::new(),
            orders: 0,
            latest: 0,
            arrived: 0,
            lost: 0,
            edge,
            own: leg.window.map_or(usize::MAX, whole),
            validates,
            is_limited: true,
            used_until: 0,
            probed: None,
            times_out: f64::INFINITY,
            reorders: f64::INFINITY,
        }
    }

    /// The first packet that was never sent.
    pub(super) fn next(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// What the window allows, packets.
    pub(super) fn window(&self) -> f64 {
        self.window.size()
    }

    /// Whether the receiver's room, and not the window, holds it back.
    pub(super) fn is_held(&self) -> bool {
        self.next() >= self.edge && self.has_window()
    }

    /// Whether its window would allow more.
    pub(super) fn has_window(&self) -> bool {
        real(self.under_way()) < self.window.size() && self.sent.len() < self.own
    }

    fn under_way(&self) -> usize {
        self.sent.len() - self.arrived - self.lost
    }

    /// When it wants to be woken, seconds.
    pub(super) fn wakes(&self) -> f64 {
        self.times_out.min(self.reorders)
    }

    /// Gives what is to be sent now, if there is something: packets before `available` are there.
    pub(super) fn send(&mut self, now: f64, available: u64) -> Option<Packet> {
        if real(self.under_way()) >= self.window.size() {
            self.is_limited = true;
            self.used_until = self.next();
            return None;
        }
        if self.lost > 0 {
            let index = self.sent.iter().position(|sent| sent.is_lost)?;
            return Some(self.transmit(now, index));
        }
        let has_room = self.next() < self.edge && self.sent.len() < self.own;
        if self.next() < available && has_room {
            return Some(self.transmit(now, self.sent.len()));
        }
        if self.first >= self.used_until {
            self.is_limited = false;
            self.used_until = self.next();
        }
        None
    }

    fn transmit(&mut self, now: f64, index: usize) -> Packet {
        let sent = Sent {
            at: now,
            order: self.orders,
            has_arrived: false,
            is_lost: false,
        };
        self.orders += 1;
        if let Some(place) = self.sent.get_mut(index) {
            self.lost -= usize::from(place.is_lost);
            *place = sent;
        } else {
            self.sent.push_back(sent);
        }
        // Linux does so as well when the first is sent again: it may be lost again.
        if self.times_out.is_infinite() || self.state == State::Open || index == 0 {
            self.arm(now);
        }
        Packet {
            number: self.first + index as u64,
            order: sent.order,
        }
    }

    /// Sets the timer anew: for a probe, or for a timeout.
    fn arm(&mut self, now: f64) {
        self.times_out = if self.sent.is_empty() {
            f64::INFINITY
        } else if self.may_probe() {
            now + self.rtt.probe(self.sent.len() == 1)
        } else {
            now + self.rtt.timeout()
        };
    }

    fn may_probe(&self) -> bool {
        self.state == State::Open && self.arrived == 0 && self.probed.is_none()
    }

    /// Takes an acknowledgement.
    pub(super) fn acknowledge(&mut self, now: f64, ack: Ack) {
        self.edge = self.edge.max(ack.room);
        if let Some(packet) = ack.packet {
            self.arrive(now, packet);
        }
        let mut acked = 0;
        while self.first < ack.until {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            self.first += 1;
            acked += 1;
            self.arrived -= usize::from(sent.has_arrived);
            self.lost -= usize::from(sent.is_lost);
        }
        let probe = self.probed.take_if(|number| *number < self.first);
        self.find_lost(now);
        if let State::Recovery(until) | State::LostAll(until) = self.state
            && self.first >= until
        {
            self.state = State::Open;
            if self.lost > 0 {
                self.recover(now);
            }
        } else if self.state == State::Open && probe.is_some() && acked > 0 && self.repaired(ack) {
            // What the probe has mended was lost all the same (RFC 8985, section 7.4.2).
            self.window.lose();
        }
        let may_grow = matches!(self.state, State::Open | State::LostAll(_));
        if may_grow && acked > 0 && (self.is_limited || !self.validates) {
            self.window.grow(now, real(acked), self.rtt.smoothed());
        }
        if acked > 0 {
            self.arm(now);
        }
    }

    /// Whether what an acknowledgement is for had been sent again, and was the last.
    fn repaired(&self, ack: Ack) -> bool {
        ack.packet
            .is_some_and(|packet| packet.number + 1 == ack.until && packet.order > packet.number)
            && self.sent.is_empty()
    }

    /// Notes that a packet has arrived.
    fn arrive(&mut self, now: f64, packet: Packet) {
        self.latest = self.latest.max(packet.order);
        let index = packet.number.checked_sub(self.first);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let Some(sent) = index.and_then(|index| self.sent.get_mut(index)) else {
            return;
        };
        let is_this = sent.order == packet.order;
        if !sent.has_arrived {
            sent.has_arrived = true;
            self.arrived += 1;
            self.lost -= usize::from(sent.is_lost);
            sent.is_lost = false;
        }
        if is_this {
            self.rtt.sample(now - sent.at);
        }
    }

    /// Takes for lost what was sent before something that has arrived (RFC 8985): a link keeps the order.
    fn find_lost(&mut self, now: f64) {
        self.reorders = f64::INFINITY;
        if self.arrived == 0 && self.state == State::Open {
            return;
        }
        let waits = self.arrived < DUPLICATES && self.state == State::Open;
        let (latest, reordering) = (self.latest, self.rtt.reordering());
        let patience = self.rtt.smoothed() + reordering;
        let before = self.lost;
        let mut due = f64::INFINITY;
        for sent in &mut self.sent {
            if sent.has_arrived || sent.is_lost || sent.order >= latest {
                continue;
            }
            // By the same sum as the timer, so that the two agree to the last bit.
            let lost_at = sent.at + patience;
            if waits && lost_at > now {
                due = due.min(lost_at);
                continue;
            }
            sent.is_lost = true;
            self.lost += 1;
        }
        self.reorders = due;
        if self.lost > before && self.state == State::Open {
            self.recover(now);
        }
    }

    fn recover(&mut self, now: f64) {
        self.state = State::Recovery(self.next());
        self.window.lose();
        self.probed = None;
        self.arm(now);
    }

    /// Does what is due; gives a packet that is to be sent whatever the window says.
    pub(super) fn wake(&mut self, now: f64, available: u64) -> Option<Packet> {
        if self.reorders <= now {
            self.find_lost(now);
        }
        if self.times_out > now {
            return None;
        }
        if self.may_probe() {
            return self.probe(now, available);
        }
        // Not what was sent a moment ago (Linux, `tcp_timeout_mark_lost`).
        let recent = now - self.rtt.smoothed();
        for (index, sent) in self.sent.iter_mut().enumerate() {
            if !sent.has_arrived && !sent.is_lost && (index == 0 || sent.at <= recent) {
                sent.is_lost = true;
                self.lost += 1;
            }
        }
        self.probed = None;
        self.rtt.back_off();
        match self.state {
            // Once for all that is lost.
            State::LostAll(_) => {}
            State::Open | State::Recovery(_) => self.window.time_out(),
        }
        self.state = State::LostAll(self.next());
        self.arm(now);
        None
    }

    /// Sends something new, or the last packet again, to learn what has become of those before it.
    fn probe(&mut self, now: f64, available: u64) -> Option<Packet> {
        let has_new = self.next() < available.min(self.edge) && self.sent.len() < self.own;
        let index = if has_new {
            self.sent.len()
        } else {
            self.sent.len().checked_sub(1)?
        };
        self.probed = Some(self.first + index as u64);
        let packet = self.transmit(now, index);
        self.times_out = now + self.rtt.timeout();
        Some(packet)
    }
}

/// The whole packets of a number of them.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "of a window; what is too large becomes the largest"
)]
fn whole(packets: f64) -> usize {
    packets.max(1.0).floor() as usize
}

/// A number of packets.
#[allow(clippy::cast_precision_loss, reason = "windows are far below 2^53")]
fn real(packets: usize) -> f64 {
    packets as f64
}
