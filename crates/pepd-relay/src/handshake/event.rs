//! What happens to the flow of a held SYN, and what is to be done then.

use std::time::Instant;

use pepd_packet::SequenceNumber;
use pepd_telemetry::UnsplitReason;

use super::verdict::{SynVerdict, Unreachable};

/// Tells a dial from a later one of the same flow, and older flows from younger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(super) u64);

/// An event in the life of a flow.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<P, U, D> {
    /// A SYN of the client's has come.
    Syn {
        /// Its sequence number.
        number: SequenceNumber,
        /// The packet.
        syn: P,
        /// Whether there is a place for it if it is the first of its flow.
        place: Place,
        /// When the client's first one may have come, if it is the first that was seen.
        begun: Instant,
    },
    /// The next SYN begins a new connection from the same port
    /// ([`State::is_port_reused`](super::machine::State::is_port_reused)).
    PortReused,
    /// The dial is under way, and can be told to end by this.
    DialStarted(D),
    /// The upstream leg has sent its SYN.
    LegSent {
        /// Whether it had data of the client's.
        with_data: bool,
    },
    /// The destination has answered.
    Answered(U),
    /// The dial has ended without an upstream leg, and this is what that means.
    DialFailed(SynVerdict),
    /// This host itself says that the dial is in vain.
    IcmpError(Unreachable),
    /// The client has reset what it did not expect: an answer that did not come by this host.
    ClientReset,
    /// The upstream leg has tried to send this acknowledgement, which would end its destination's
    /// handshake.
    FinalAck(P),
    /// The listener has accepted the client.
    Accepted,
    /// It has to go: this is what becomes of a SYN that is held.
    Evict(SynVerdict),
    /// The dial of an evicted flow has ended.
    DialEnded,
    /// Its [`State::deadline`](super::machine::State::deadline) has passed.
    Expired,
    /// SYNs are no longer held: this is what becomes of those that still are.
    Cleared(SynVerdict),
}

/// Whether a SYN that is the first of its flow can be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It can, with this ticket.
    Free(Ticket),
    /// It has waited for so long that one that repeats it may have been routed.
    Late,
    /// The listeners have no room for another handshake.
    NoListener,
    /// There is none.
    Full,
    /// No destination may be dialed for it now.
    OverBudget,
    /// The other end of a flow that is under way opens the same connection at the same time
    /// (RFC 9293, section 3.5).
    Crossing {
        /// Whether the upstream leg towards that end has sent its SYN.
        leg_is_open: bool,
    },
}

impl Place {
    /// Returns the ticket of a SYN that is held, or the verdict of one that is not.
    pub(super) fn ticket(self) -> Result<Ticket, SynVerdict> {
        Err(match self {
            Self::Free(ticket) => return Ok(ticket),
            Self::Late => SynVerdict::Bypass(UnsplitReason::Late),
            Self::NoListener => SynVerdict::Bypass(UnsplitReason::Backlog),
            Self::Full => SynVerdict::Bypass(UnsplitReason::Full),
            Self::OverBudget => SynVerdict::Bypass(UnsplitReason::Budget),
            // The two SYNs make one connection with the leg's socket. This is what happens at a
            // single box, and in a chain whose boxes have begun at opposite ends.
            Self::Crossing { leg_is_open: true } => SynVerdict::Pass,
            // Routed it would reach the client and spoil both. It need not come again: the leg's
            // own SYN meets that end's open socket.
            Self::Crossing { leg_is_open: false } => SynVerdict::Superseded,
        })
    }
}

/// The upstream leg's own SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegSyn {
    /// It is about to be sent.
    Unsent,
    /// It has been sent.
    Sent {
        /// Whether it had data of the client's (RFC 7413).
        with_data: bool,
    },
}

impl LegSyn {
    /// Returns whether data of the client's is on its way.
    pub(super) fn had_data(self) -> bool {
        self == Self::Sent { with_data: true }
    }
}

/// The action that follows an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action<P, U, D> {
    /// There is nothing to do.
    Nothing,
    /// The SYN is held: its destination is to be dialed.
    Dial(Ticket),
    /// This SYN has its verdict.
    Decide(P, SynVerdict),
    /// This acknowledgement of an upstream leg's is to go on.
    Release(P),
    /// This acknowledgement is to be dropped.
    Drop(P),
    /// This dial has been told to end: [`Event::DialEnded`] is to follow when it has.
    AwaitEnd(Ticket, D),
    /// The client and this upstream leg are to be joined, and this acknowledgement of the leg's is to
    /// go on.
    Join(U, Option<P>),
    /// The client needs an upstream leg of its own, once this dial, told to end, has ended. The SYN
    /// is no longer needed.
    DialAnew(P, Option<D>),
    /// This upstream leg is to be closed: nobody has come for it. This acknowledgement of its is to
    /// be dropped.
    Close(U, Option<P>),
    /// This upstream leg is to be closed: its flow is gone.
    TooLate(U),
    /// The event cannot happen here, and has changed nothing.
    Illegal(Event<P, U, D>),
}

impl<P, U, D> Action<P, U, D> {
    /// Returns whether it routes a SYN that has not been held: there was no place or budget for it,
    /// or it repeats one that was routed.
    pub(super) fn is_routed_at_once(&self) -> bool {
        use UnsplitReason::{Backlog, Budget, Full};
        matches!(
            self,
            Self::Decide(
                _,
                SynVerdict::Pass | SynVerdict::Bypass(Full | Backlog | Budget)
            )
        )
    }
}
