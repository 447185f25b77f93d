//! A leg: a controller, and the connections that share its rate.

use super::super::own_path::LegDelay;
use super::super::{Epoch, Ledger, Near, OwnPath, PACKET};
use super::Scenario;
use super::flow::Flow;
use super::link::{OwnLink, at};

/// A queue is not forgotten for so long though nothing is heard, in seconds (`TOGETHER` in crates/pepd-bpf/src/bpf/epochs.h).
const TOGETHER: f64 = 0.02;

pub(super) struct Leg {
    pub(super) ledger: Ledger,
    pub(super) flows: Vec<Flow>,
    /// By how much round trips are longer than the least: those of connections that are known, and of all.
    pub(super) delay: LegDelay,
    pub(super) all: LegDelay,
    /// When the last one was heard, in seconds.
    pub(super) heard: f64,
    pub(super) last_send: f64,
    pub(super) turn: usize,
    /// Whether the next packet is the second of two of a connection.
    pub(super) is_second: bool,
}

impl Leg {
    /// Makes one with so many connections.
    pub(super) fn new(scenario: &Scenario, ledger: Ledger, count: usize) -> Self {
        let mut flows = vec![Flow::new(at(&scenario.rtt, 0.0)); count];
        for (flow, link) in flows.iter_mut().zip(&scenario.own_links) {
            flow.own_link = Some(OwnLink::new(*link));
        }
        for (flow, farther) in flows.iter_mut().zip(&scenario.farther) {
            flow.farther = *farther;
        }
        if scenario.finds_own_links {
            for flow in &mut flows {
                flow.own_path = Some(OwnPath::new(0.0));
            }
        }
        Self {
            ledger,
            flows,
            delay: LegDelay::default(),
            all: LegDelay::default(),
            heard: 0.0,
            last_send: 0.0,
            turn: 0,
            is_second: false,
        }
    }

    /// What is sent at just now, in bytes a second.
    pub(super) fn rate(&self) -> f64 {
        self.ledger.current().map_or(1.0, |epoch| epoch.rate)
    }

    /// Returns the epoch of a number, if it is open and a connection's acknowledgements of what it sent in it are waited for.
    pub(super) fn asked(&mut self, flow: usize, number: u64) -> Option<&mut Epoch> {
        let is_near = self.flows[flow].least_or_first() <= self.ledger.near().most(number);
        self.ledger.epoch_mut(number).filter(|_| is_near)
    }

    /// Books what a connection, one of so many, has sent since it was looked at last: as the program in the kernel, it is looked at
    /// before each transmission, and at each acknowledgement.
    pub(super) fn book(&mut self, flow: usize, flows: usize) {
        let Some(number) = self.flows[flow].unbooked.take() else {
            return;
        };
        let least = self.flows[flow].least_or_first();
        self.ledger.near_mut().add(Near::class(least), PACKET);
        if let Some(epoch) = self.ledger.epoch_mut(number) {
            epoch.sent += PACKET;
            epoch.flows = flows as f64;
        }
        if let Some(epoch) = self.asked(flow, number) {
            epoch.near += PACKET;
            epoch.farthest = epoch.farthest.max(least);
        }
    }

    /// The queueing delay that there is, in seconds; none where nothing was heard for as long as it takes to empty it.
    pub(super) fn queue(&self, now: f64) -> f64 {
        let queue = self.all.before(1).unwrap_or_default();
        let is_heard = now - self.heard < queue.max(TOGETHER);
        if is_heard { queue } else { 0.0 }
    }

    /// Has others begin where some connections have lived for long enough since a time in seconds.
    pub(super) fn replace(&mut self, scenario: &Scenario, before: f64, now: f64) {
        let rtt = at(&scenario.rtt, now);
        let count = self.flows.len() as f64;
        for (place, flow) in self.flows.iter_mut().enumerate() {
            let shift = scenario.lives * place as f64 / count;
            let ends = |time: f64| ((time + shift) / scenario.lives).floor();
            if ends(now) > ends(before) {
                let before = std::mem::replace(flow, Flow::new(rtt));
                flow.own_path = before.own_path.map(|_| OwnPath::new(now));
                flow.own_link = before.own_link;
                flow.farther = before.farther;
            }
        }
    }
}
