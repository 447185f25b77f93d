//! What is done with flows that have left the table.

use std::sync::Arc;
use std::time::Instant;

use pepd_telemetry::HeldSynFailure;

use super::answered_leg::AnsweredLeg;
use super::dial_handle::{DialHandle, ended};
use super::queued_packet::QueuedPacket;
use super::table::{EndingDial, Evicted};
use crate::shared::Shared;

/// Gives the SYNs their verdicts, now or when their dials have ended, and closes the upstream legs.
pub(crate) fn let_go(
    shared: &Arc<Shared>,
    evicted: Evicted<QueuedPacket, AnsweredLeg, DialHandle>,
) {
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
        tokio::spawn(route(Arc::clone(shared), ending));
    }
}

/// Routes a SYN that had to go, once its dial has ended.
async fn route(shared: Arc<Shared>, ending: EndingDial<DialHandle>) {
    let EndingDial { flow, ticket, dial } = ending;
    ended(&dial).await;
    let decided = shared.handshakes.dial_ended(flow, ticket, Instant::now());
    if let Some((packet, verdict)) = decided {
        shared.decide(packet, verdict);
    }
}
