//! Connection establishment end to end: the client's SYN waits until its destination has
//! answered.
//!
//! A SYN that the capture holds comes through the NFQUEUE of one worker ([`queue`]). It is
//! entered in the [`table`] that all workers share, and an upstream leg is opened from the
//! client's own address and port ([`connect`]). What becomes of that becomes of the SYN, told
//! to the capture by the mark that the packet goes on with ([`Decision`]). The upstream leg of
//! a SYN that went on to the listener waits in the table until the listener, whichever
//! worker's it is, accepts the client and claims it.

pub(crate) mod connect;
mod connect_budget;
pub(crate) mod evicted;
pub(crate) mod queue;
mod syn_history;
pub(crate) mod table;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pepd_packet::{MarkValue, PacketMark, VerdictMarks};
use pepd_sys::nfqueue::{Queue, Verdict};
use pepd_telemetry::{Counters, HeldSynFailure, UnsplitReason};

/// The table as the workers use it.
pub(crate) type Held = table::Table<Waiting, AnsweredLeg>;

/// An upstream leg whose destination has answered.
#[derive(Debug)]
pub(crate) struct AnsweredLeg {
    pub(crate) socket: OwnedFd,
    /// How much of what the client says first went out in the SYN.
    pub(crate) sent: usize,
}

/// A packet that waits for its verdict.
#[derive(Debug)]
pub(crate) struct Waiting {
    queue: Arc<Queue>,
    id: u32,
    mark: PacketMark,
}

/// What becomes of a client's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// To the listener.
    Split,
    /// To the upstream leg that is open towards its sender, or to the next hop; not counted.
    Pass,
    /// Routed as if pepd were not there.
    Bypass(UnsplitReason),
    /// Answered with a RST.
    Refused,
    /// Answered with an ICMP error.
    Unreachable(Unreachable),
    /// Not answered.
    Silence,
}

impl Decision {
    /// The whole mark of a packet that had `mark` and goes on as decided.
    fn mark(self, mark: PacketMark, marks: VerdictMarks) -> PacketMark {
        let value = match self {
            Self::Split => marks.split,
            Self::Refused => marks.refused,
            Self::Unreachable(Unreachable::Network) => marks.network,
            Self::Unreachable(Unreachable::Host) => marks.host,
            Self::Unreachable(Unreachable::Port) => marks.port,
            Self::Unreachable(Unreachable::Prohibited) => marks.prohibited,
            // A socket that it is for has it before the mark is looked at.
            Self::Pass | Self::Bypass(_) | Self::Silence => MarkValue::NONE,
        };
        mark.with(value, marks.mask)
    }
}

/// Which ICMP error a client is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// The network, or no route (RFC 792 code 0, RFC 4443 code 0).
    Network,
    /// The host or its address (codes 1 and 3).
    Host,
    /// The port (codes 3 and 4).
    Port,
    /// Administratively prohibited (RFC 1812 code 13, RFC 4443 code 1).
    Prohibited,
}

impl Waiting {
    pub(crate) fn new(queue: &Arc<Queue>, id: u32, mark: PacketMark) -> Self {
        Self {
            queue: Arc::clone(queue),
            id,
            mark,
        }
    }

    /// Gives the verdict, and counts it.
    ///
    /// Without `marks` the capture holds no SYNs any more (it was reloaded): the client's
    /// next one goes where it has to.
    pub(crate) fn decide(
        self,
        decision: Decision,
        marks: Option<VerdictMarks>,
        counters: &Counters,
    ) {
        count(decision, counters);
        let verdict = match (marks, decision) {
            (None, _) | (_, Decision::Silence) => Verdict::Drop,
            (Some(marks), _) => Verdict::Accept(decision.mark(self.mark, marks)),
        };
        self.give(verdict);
    }

    /// Drops the packet because a newer one of the same flow waits in its place.
    pub(crate) fn supersede(self) {
        self.give(Verdict::Drop);
    }

    /// Lets the packet go on as it came.
    pub(crate) fn release(self) {
        let verdict = Verdict::Accept(self.mark);
        self.give(verdict);
    }

    fn give(&self, verdict: Verdict) {
        if let Err(error) = self.queue.decide(self.id, verdict) {
            // The client's next SYN has another chance.
            tracing::debug!(%error, "give a verdict");
        }
    }
}

fn count(decision: Decision, counters: &Counters) {
    match decision {
        Decision::Split | Decision::Pass => {}
        Decision::Refused => counters.held_syns_failed[HeldSynFailure::Refused].increment(),
        Decision::Unreachable(_) => {
            counters.held_syns_failed[HeldSynFailure::Unreachable].increment();
        }
        Decision::Silence => counters.held_syns_failed[HeldSynFailure::Unanswered].increment(),
        Decision::Bypass(reason) => counters.unsplit[reason].increment(),
    }
}

#[cfg(test)]
mod tests {
    use pepd_packet::MarkMask;

    use super::*;

    #[test]
    fn the_operators_bits_of_a_mark_survive() {
        let marks = VerdictMarks {
            mask: MarkMask(0x7000_0000),
            split: MarkValue(0x1000_0000),
            refused: MarkValue(0x2000_0000),
            network: MarkValue(0x3000_0000),
            host: MarkValue(0x4000_0000),
            port: MarkValue(0x5000_0000),
            prohibited: MarkValue(0x6000_0000),
        };
        let mark = |before, decision: Decision| decision.mark(PacketMark(before), marks).0;
        assert_eq!(mark(0xf000_00aa, Decision::Split), 0x9000_00aa);
        assert_eq!(mark(0x7000_00aa, Decision::Silence), 0xaa);
    }
}
