//! What the table gives to those that ask it.

use pepd_packet::FourTuple;

use crate::handshake::event::{Action, Event, Ticket};
use crate::handshake::verdict::SynVerdict;
use crate::limits::Flood;

/// A packet, and what becomes of it.
pub(crate) type Decided<P> = (P, SynVerdict);

/// The actions that follow from a SYN: for what has had to go for it, which comes first, and then
/// its own.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Received<P, U, D> {
    pub(crate) evicted: Evicted<P, U, D>,
    pub(crate) action: SynAction<P>,
    /// What it is one of too many of.
    pub(crate) flood: Option<Flood>,
}

/// The action to take on a SYN.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum SynAction<P> {
    /// Its destination is to be dialed, and the table told of the dial: it is the first of its
    /// flow, and is held.
    Dial(Ticket),
    /// This packet has its verdict: it, or the one in whose place it is held now.
    Decide(P, SynVerdict),
    /// There is nothing.
    Nothing,
}

/// The upstream leg, if any, for a client that has been accepted.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Claim<P, U, D> {
    /// Its upstream leg, and an acknowledgement of the leg's that is to go on now.
    Answered(U, Option<P>),
    /// A SYN that is still held: one that repeats it has been given to the listener, because SYNs
    /// are no longer held. The dial has been told to end.
    Dialing(P, Option<D>),
    /// There is nothing.
    Unknown,
}

/// What becomes of an acknowledgement that an upstream leg has tried to send.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum FinalAck<P> {
    /// It goes on: the client has come.
    Release(P),
    /// It is dropped: the leg has been given up, or has tried again.
    Drop(P),
    /// It is withheld until the client comes.
    Withheld,
}

/// The flows that are no longer in the table.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Evicted<P, U, D> {
    /// SYNs with their verdicts.
    pub(crate) packets: Vec<Decided<P>>,
    /// Dials of SYNs that are to be routed, once they have ended.
    pub(crate) dials: Vec<EndingDial<D>>,
    /// Upstream legs that nobody came for.
    pub(crate) upstreams: Vec<U>,
    /// What those had tried to acknowledge: to be dropped.
    pub(crate) acks: Vec<P>,
}

/// A dial that has been told to end, so that its SYN can be routed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndingDial<D> {
    pub(crate) flow: FourTuple,
    pub(crate) ticket: Ticket,
    pub(crate) dial: D,
}

impl<P, U, D> Default for Evicted<P, U, D> {
    fn default() -> Self {
        Self {
            packets: Vec::new(),
            dials: Vec::new(),
            upstreams: Vec::new(),
            acks: Vec::new(),
        }
    }
}

impl<P, U, D> Evicted<P, U, D> {
    /// Adds what a flow has left.
    pub(super) fn add(&mut self, flow: FourTuple, action: Action<P, U, D>) {
        match action {
            Action::Decide(packet, verdict) => self.packets.push((packet, verdict)),
            Action::AwaitEnd(ticket, dial) => self.dials.push(EndingDial { flow, ticket, dial }),
            Action::Close(upstream, ack) => {
                self.upstreams.push(upstream);
                self.acks.extend(ack);
            }
            _ => {}
        }
    }
}

impl<P, U, D> Action<P, U, D> {
    /// Returns it as the answer to a SYN.
    pub(super) fn of_syn(self) -> SynAction<P> {
        match self {
            Self::Dial(ticket) => SynAction::Dial(ticket),
            Self::Decide(packet, verdict) => SynAction::Decide(packet, verdict),
            _ => SynAction::Nothing,
        }
    }

    /// Returns it as the answer to what may end a dial.
    pub(super) fn decided(self) -> Option<Decided<P>> {
        match self {
            Self::Decide(packet, verdict) => Some((packet, verdict)),
            _ => None,
        }
    }

    /// Returns it as the answer to an upstream leg; none where the leg has found its place, and
    /// there is no SYN.
    pub(super) fn answered(self) -> Result<Decided<P>, Option<U>> {
        match self {
            Self::Decide(packet, verdict) => Ok((packet, verdict)),
            Self::TooLate(upstream) | Self::Illegal(Event::Answered(upstream)) => {
                Err(Some(upstream))
            }
            _ => Err(None),
        }
    }

    /// Returns it as the answer to an acknowledgement of an upstream leg's.
    pub(super) fn of_ack(self) -> FinalAck<P> {
        match self {
            Self::Release(ack) => FinalAck::Release(ack),
            Self::Drop(ack) => FinalAck::Drop(ack),
            _ => FinalAck::Withheld,
        }
    }

    /// Returns it as the answer to an accepted client.
    pub(super) fn claim(self) -> Claim<P, U, D> {
        match self {
            Self::Join(upstream, ack) => Claim::Answered(upstream, ack),
            Self::DialAnew(packet, dial) => Claim::Dialing(packet, dial),
            _ => Claim::Unknown,
        }
    }

    /// Returns the dial that is to be told to end with it.
    pub(super) fn ending_dial(&self) -> Option<&D> {
        match self {
            Self::AwaitEnd(_, dial)
            | Self::DialAnew(_, Some(dial))
            | Self::Illegal(Event::DialStarted(dial)) => Some(dial),
            _ => None,
        }
    }
}
