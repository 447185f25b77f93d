//! Which connections are to move.

use std::time::Instant;

use pepd_admin::api::MoveOrder;
use pepd_admin::wire::FlowSnapshot;
use pepd_move::wire::{Offered, Translated};
use pepd_packet::FourTuple;

use super::Ground;

/// A connection that may move.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) id: u64,
    pub(super) flow: FourTuple,
    /// What its source is translated to, once that has been asked.
    pub(super) translated: Option<Translated>,
    /// The bytes that wait in this box, as of the last second: so much is to be sent at least.
    pub(super) bytes: u64,
}

impl Candidate {
    /// Returns it as it is offered.
    pub(super) fn offered(&self) -> Offered {
        Offered {
            flow: self.flow,
            translated: self.translated,
        }
    }
}

/// Gives the connections that an order is about, the oldest first.
pub(super) fn candidates(ground: &Ground, order: &MoveOrder) -> Vec<Candidate> {
    let mut flows = ground.observer.flows().flows(Instant::now());
    flows.retain(|flow| is_meant(flow, order));
    flows.sort_unstable_by_key(|flow| flow.id);
    let candidates = flows.into_iter().map(|flow| Candidate {
        id: flow.id,
        flow: FourTuple {
            client: flow.client,
            server: flow.server,
        },
        translated: None,
        bytes: flow.up.queue.total() + flow.down.queue.total(),
    });
    candidates.collect()
}

fn is_meant(flow: &FlowSnapshot, order: &MoveOrder) -> bool {
    let ends = [&flow.client_campus, &flow.server_campus];
    let campus = order.campus.as_deref().is_none_or(|wanted| {
        match wanted.split_once(':') {
            // Either end may be the client's.
            Some((one, other)) => ends == [one, other] || ends == [other, one],
            None => ends.iter().any(|name| *name == wanted),
        }
    });
    let source = order
        .source
        .is_none_or(|net| net.contains(&flow.client.ip()));
    let named = order.flows.is_empty() || order.flows.contains(&flow.id);
    campus && source && named
}
