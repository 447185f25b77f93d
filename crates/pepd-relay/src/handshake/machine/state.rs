//! Where the flow of a held SYN stands, and what can be told of it without changing it.

use std::time::{Duration, Instant};

use pepd_packet::SequenceNumber;

use crate::handshake::event::{LegSyn, Ticket};
use crate::handshake::syn_history::PastVerdict;
use crate::handshake::verdict::SynVerdict;
use crate::listener::REQUEST_TIME;

/// The time for which an upstream leg waits for its client, from the last SYN that went on to the
/// listener: as long as the listener keeps the handshake, and a second, in which the client may be
/// accepted. It is enough for a SYN-ACK lost three times (1 + 2 + 4 s) and for a long path. A client
/// that comes later is served as with "early".
pub(in crate::handshake) const CLAIM_TIME: Duration =
    REQUEST_TIME.saturating_add(Duration::from_secs(1));

/// Returns how long a client's next SYN may take, given how long its last one came after its first:
/// each interval is at most twice the one before (RFC 6298, section 5.5), so that the next one is
/// not longer than what has passed and a second; this allows for twice that and a slow start. A
/// client that stays silent for longer has given up.
fn next_syn_within(last_after_first: Duration) -> Duration {
    2 * last_after_first + Duration::from_secs(5)
}

/// The state of a flow.
///
/// ```text
///                       Syn, and there is no place for it
///      ┌──────────────────────────────────────────────────────────┐
///      │                                                          ▼
/// ┌─────────┐  Syn  ┌───────────┐ DialFailed, ClientReset ┌────────────────────┐
/// │ Unknown │──────▶│  Dialing  │────────────────────────▶│ Remembered: routed │
/// └─────────┘       └───────────┘                         └────────────────────┘
///   ▲     ▲  DialFailed, │ │ │ │ Evict  ┌──────────┐ DialEnded    ▲
///   │     │  IcmpError,  │ │ │ └───────▶│ Evicting │──────────────┘
///   │     │  Expired,    │ │ │          └──────────┘
///   │     │  PortReused, │ │ │ DialFailed, Accepted
///   │     │  Cleared     │ │ └──────────────────────────┐
///   │     └──────────────┘ │ Answered                   ▼
///   │                      ▼                   ┌───────────────────┐
///   │                ┌──────────┐ Accepted     │                   │
///   └────────────────│ Answered │─────────────▶│ Remembered: split │
///    Expired, Evict, └──────────┘              └───────────────────┘
///    PortReused, Cleared
/// ```
///
/// Events that leave a flow where it is are not drawn; one of them is FinalAck, which Answered keeps
/// and all others drop or let go. The verdict of DialFailed says where it
/// leads ([`State::after`](super::State::after)). There is no place for a SYN that is late, or that finds the table full
/// or the budget spent; one that crosses that of a flow under way has its verdict, and is not
/// remembered. A flow that is evicted before its dial has started is routed at once. An Evicting
/// flow becomes Unknown when the table is Cleared. A Remembered one is Unknown to a SYN of another
/// number, and to all when the history has forgotten it, because of its age or for want of room.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::handshake) enum State<P, U, D> {
    /// Nothing is known of it.
    Unknown,
    /// The SYN of this number has had its verdict; a retransmission of it goes the same way. The
    /// [`SynHistory`](crate::handshake::syn_history::SynHistory) keeps these.
    Remembered(SequenceNumber, PastVerdict),
    /// The SYN is held, and its destination is dialed.
    Dialing(Dialing<P, D>),
    /// The destination has answered, and the SYN went on to the listener: the upstream leg waits
    /// for its client.
    Answered(Answered<P, U>),
    /// The SYN is held no longer than its dial takes to end.
    Evicting(Evicting<P>),
}

/// A held SYN whose destination is dialed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::handshake) struct Dialing<P, D> {
    pub(super) ticket: Ticket,
    /// That of the client's last SYN.
    pub(super) number: SequenceNumber,
    /// The client's last SYN.
    pub(super) syn: P,
    pub(super) dial: Option<D>,
    pub(super) leg: LegSyn,
    /// The time at which the client's first SYN came.
    pub(super) first_syn: Instant,
    /// The time at which its last one came.
    pub(super) last_syn: Instant,
}

/// An upstream leg whose client is expected.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::handshake) struct Answered<P, U> {
    pub(super) ticket: Ticket,
    pub(super) number: SequenceNumber,
    pub(super) upstream: U,
    /// The last acknowledgement that it has tried to send.
    pub(super) ack: Option<P>,
    pub(super) leg: LegSyn,
    /// The time at which the last SYN went on to the listener.
    pub(super) since: Instant,
}

/// A SYN that had to go, and is routed once its dial has ended.
///
/// A dial's socket has its client's address and port until it has ended. To such a socket the
/// destination's answer to the client's own SYN is wrong, and the socket resets what that SYN has
/// opened (RFC 9293, section 3.10.7.3). So neither a SYN nor one that repeats it is routed before
/// its dial has ended.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::handshake) struct Evicting<P> {
    pub(super) ticket: Ticket,
    pub(super) number: SequenceNumber,
    pub(super) syn: P,
    /// What becomes of it then.
    pub(super) verdict: SynVerdict,
}

impl<P, U, D> State<P, U, D> {
    /// Returns the ticket of its dial.
    pub(in crate::handshake) fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Unknown | Self::Remembered(..) => None,
            Self::Dialing(dialing) => Some(dialing.ticket),
            Self::Answered(leg) => Some(leg.ticket),
            Self::Evicting(evicting) => Some(evicting.ticket),
        }
    }

    /// Returns the dial that a held SYN waits for.
    pub(in crate::handshake) fn dial(&self) -> Option<&D> {
        match self {
            Self::Dialing(dialing) => dialing.dial.as_ref(),
            Self::Unknown | Self::Remembered(..) | Self::Answered(_) | Self::Evicting(_) => None,
        }
    }

    /// Returns the same, to be told of its leg.
    pub(in crate::handshake) fn dial_mut(&mut self) -> Option<&mut D> {
        match self {
            Self::Dialing(dialing) => dialing.dial.as_mut(),
            Self::Unknown | Self::Remembered(..) | Self::Answered(_) | Self::Evicting(_) => None,
        }
    }

    /// Returns the ticket that it has a place by.
    pub(in crate::handshake) fn place(&self) -> Option<Ticket> {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => None,
            Self::Dialing(_) | Self::Answered(_) => self.ticket(),
        }
    }

    /// Returns whether the upstream leg has sent its SYN; none where there is none.
    pub(in crate::handshake) fn leg_is_open(&self) -> Option<bool> {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => None,
            Self::Dialing(dialing) => Some(dialing.leg != LegSyn::Unsent),
            Self::Answered(_) => Some(true),
        }
    }

    /// Returns whether a SYN of this number begins a new connection, from the same port, and the
    /// upstream leg has said something for the one before. Whoever comes from that port can have
    /// another one.
    pub(in crate::handshake) fn is_port_reused(&self, by: SequenceNumber) -> bool {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => false,
            Self::Dialing(Dialing { number, leg, .. })
            | Self::Answered(Answered { number, leg, .. }) => leg.had_data() && *number != by,
        }
    }

    /// Returns until when a listener may keep its client's handshake; none if its SYN has not gone on
    /// to one, as far as this state tells.
    pub(in crate::handshake) fn listener_until(&self) -> Option<Instant> {
        match self {
            Self::Answered(_) => self.deadline(),
            Self::Unknown | Self::Remembered(..) | Self::Dialing(_) | Self::Evicting(_) => None,
        }
    }

    /// Returns when its client has given up, or has had its time to come.
    pub(in crate::handshake) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => None,
            Self::Dialing(dialing) => {
                let last = dialing.last_syn;
                let took = last.saturating_duration_since(dialing.first_syn);
                Some(last + next_syn_within(took))
            }
            Self::Answered(leg) => Some(leg.since + CLAIM_TIME),
        }
    }
}
