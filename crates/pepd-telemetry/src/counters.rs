//! Counters of the whole process, turned up by the workers and read by anyone.

use std::fmt;

use crate::counter::{Counter, Gauge};
use crate::measurements::Measurements;
use crate::reason::{CountersBy, HeldSynFailure, UnsplitReason};

/// Everything that pepd counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections being split now.
    pub live: Gauge,
    /// Connections accepted from captured traffic.
    pub accepted: Counter,
    /// Connections whose two directions both ended with a FIN, everything delivered.
    pub closed: Counter,
    /// Connections that ended with an error on the client leg.
    pub client_failed: Counter,
    /// Connections that ended with an error on the upstream leg.
    pub upstream_failed: Counter,
    /// Connections ended by pepd itself: the drain time was over, or nothing moved after one
    /// leg had failed.
    pub cut: Counter,
    /// Clients that got a RST because their destination could not be reached.
    pub unreachable: Counter,
    /// Upstream legs that could not use the client's port and took another of its address.
    pub other_port: Counter,
    /// Connections whose destination would have led to this host itself, mostly to the listener;
    /// refused.
    pub refused: Counter,
    /// Clients that got a RST as soon as they were connected, because their source had as many
    /// connections as it may, and they could not be routed any more.
    pub source_full: Counter,
    /// Times that accepting paused because descriptors had run out.
    pub accept_pauses: Counter,
    /// Times that a direction had to copy: the pipes had run out, or splice(2) lacked memory.
    pub copied_without_pipe: Counter,
    /// Legs that were restarted when their link was back.
    pub restarted: Counter,
    /// SYNs held until their destination answers, and upstream legs that wait for their
    /// clients, now.
    pub pending: Gauge,
    /// Flows whose SYN was held.
    pub held: Counter,
    /// Held SYNs that became no connection, by what happened to them.
    pub held_syns_failed: CountersBy<HeldSynFailure>,
    /// Connections that were to be split and were routed instead, by reason.
    pub unsplit: CountersBy<UnsplitReason>,
    /// Bytes from clients delivered to upstream legs.
    pub bytes_up: Counter,
    /// Bytes from upstream legs delivered to clients.
    pub bytes_down: Counter,
    /// The measurements that the metrics need beyond counts.
    pub measurements: Measurements,
}

/// One line for people: the numbers that say whether all is well.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} live, {} pending, {} accepted, {} closed, {} failed, {} cut, {} unreachable, \
             {} on another port, {} refused and {} unreachable before they were accepted, {} let \
             through",
            self.live.get(),
            self.pending.get(),
            self.accepted.get(),
            self.closed.get(),
            self.client_failed.get() + self.upstream_failed.get(),
            self.cut.get(),
            self.unreachable.get(),
            self.other_port.get(),
            self.held_syns_failed[HeldSynFailure::Refused].get(),
            self.held_syns_failed[HeldSynFailure::Unreachable].get(),
            self.unsplit.total(),
        )
    }
}
