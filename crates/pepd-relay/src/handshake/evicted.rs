//! What is done with flows that have left the table.

use std::sync::Arc;
use std::time::Instant;

use pepd_telemetry::HeldSynFailure;

use super::answered_leg::AnsweredLeg;
use super::dial_handle::{DialHandle, ended};
use super::queued_packet::QueuedPacket;
use super::table::{EndingDial, Evicted};
use crate::shared::Context;

/// Gives the SYNs their verdicts, now or when their dials have ended, and closes the upstream legs.
pub(super) fn let_go(
    context: &Arc<Context>,
    evicted: Evicted<QueuedPacket, AnsweredLeg, DialHandle>,
) {
    let shared = &context.shared;
    let unclaimed = evicted.upstreams.len() as u64;
    shared.counters.held_syns_failed[HeldSynFailure::Unclaimed].add(unclaimed);
    // Their destinations' handshakes are reset, and end no more.
    drop(evicted.upstreams);
    for ack in evicted.acks {
        ack.supersede();
    }
    for (packet, verdict) in evicted.packets {
        shared.decide(packet, verdict);
    }
    for ending in evicted.dials {
        tokio::spawn(route(Arc::clone(context), ending));
    }
}

/// Routes a SYN that has made room for another, once its dial has ended.
async fn route(context: Arc<Context>, ending: EndingDial<DialHandle>) {
    let EndingDial { flow, ticket, dial } = ending;
    ended(&dial).await;
    let shared = &context.shared;
    let decided = shared.handshakes.dial_ended(flow, ticket, Instant::now());
    if let Some((packet, verdict)) = decided {
        shared.decide(packet, verdict);
    }
}
