//! One held SYN: where its flow stands, and what each event makes of it.
//!
//! Long, but one piece: each state's part of the match names the others.
//!
//! No I/O, no clock and no lock: the [`table`](super::table) owns the flows and says what time it
//! is, and the rest of the folder does what an [`Action`] says. What is held is of any type: a
//! packet `P`, an upstream leg `U`, and a dial `D` that can be told to end.

use std::time::{Duration, Instant};

use pepd_packet::SequenceNumber;
use pepd_telemetry::UnsplitReason;

use super::event::{Action, Event, LegSyn, Place, Ticket};
use super::syn_history::PastVerdict;
use super::verdict::SynVerdict;
use crate::listener::REQUEST_TIME;

/// The verdict of a SYN that has made room for another.
const ROUTED_FOR_ROOM: SynVerdict = SynVerdict::Bypass(UnsplitReason::Full);

/// The time for which an upstream leg waits for its client, from the last SYN that went on to the
/// listener: as long as the listener keeps the handshake, and a second, in which the client may be
/// accepted. It is enough for a SYN-ACK lost three times (1 + 2 + 4 s) and for a long path. A client
/// that comes later is served as with "early".
pub(super) const CLAIM_TIME: Duration = REQUEST_TIME.saturating_add(Duration::from_secs(1));

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
/// leads ([`State::after`]). There is no place for a SYN that is late, or that finds the table full
/// or the budget spent; one that crosses that of a flow under way has its verdict, and is not
/// remembered. A flow that is evicted before its dial has started is routed at once. An Evicting
/// flow becomes Unknown when the table is Cleared. A Remembered one is Unknown to a SYN of another
/// number, and to all when the history has forgotten it, because of its age or for want of room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State<P, U, D> {
    /// Nothing is known of it.
    Unknown,
    /// The SYN of this number has had its verdict; a retransmission of it goes the same way. The
    /// [`SynHistory`](super::syn_history::SynHistory) keeps these.
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
pub(super) struct Dialing<P, D> {
    ticket: Ticket,
    /// That of the client's last SYN.
    number: SequenceNumber,
    /// The client's last SYN.
    syn: P,
    dial: Option<D>,
    leg: LegSyn,
    /// The time at which the client's first SYN came.
    first_syn: Instant,
    /// The time at which its last one came.
    last_syn: Instant,
}

/// An upstream leg whose client is expected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered<P, U> {
    ticket: Ticket,
    number: SequenceNumber,
    upstream: U,
    /// The last acknowledgement that it has tried to send.
    ack: Option<P>,
    leg: LegSyn,
    /// The time at which the last SYN went on to the listener.
    since: Instant,
}

/// A SYN that has made room for another, and is routed once its dial has ended.
///
/// A dial's socket has its client's address and port until it has ended. To such a socket the
/// destination's answer to the client's own SYN is wrong, and the socket resets what that SYN has
/// opened (RFC 9293, section 3.10.7.3). So neither a SYN nor one that repeats it is routed before
/// its dial has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Evicting<P> {
    ticket: Ticket,
    number: SequenceNumber,
    syn: P,
}

/// A transition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step<P, U, D> {
    /// The state of the flow from now on.
    pub(super) next: State<P, U, D>,
    /// The action to take.
    pub(super) action: Action<P, U, D>,
    /// A dial that is to be told to end.
    pub(super) stop: Option<D>,
}

impl<P, U, D> State<P, U, D> {
    /// Takes the flow through `event` at the time `now`: one total match over both, by states.
    pub(super) fn on(self, event: Event<P, U, D>, now: Instant) -> Step<P, U, D> {
        match self {
            Self::Unknown | Self::Remembered(..) => self.on_absent(event, now),
            Self::Dialing(dialing) => dialing.on(event, now),
            Self::Answered(answered) => answered.on(event, now),
            Self::Evicting(evicting) => evicting.on(event),
        }
    }

    /// Returns what becomes of a flow of which there is nothing, or no more than a memory.
    fn on_absent(self, event: Event<P, U, D>, now: Instant) -> Step<P, U, D> {
        match event {
            Event::Syn { number, syn, place } => match self {
                Self::Remembered(_, PastVerdict::Split) if place == Place::NoListener => {
                    Step::decide(self, syn, SynVerdict::Bypass(UnsplitReason::Backlog))
                }
                Self::Remembered(_, past) => Step::decide(self, syn, past.of_retransmits()),
                _ => first_syn(number, syn, place, now),
            },
            // Of a dial whose flow was taken from it meanwhile, on another worker.
            Event::DialStarted(dial) => Step {
                stop: Some(dial),
                ..Step::to(self)
            },
            Event::Answered(upstream) => Step::too_late(self, upstream),
            Event::LegSent { .. } | Event::DialFailed(_) | Event::DialEnded => Step::to(self),
            // About a connection that is no held SYN's, or a client that was not held.
            Event::IcmpError(_) | Event::ClientReset | Event::Accepted => Step::to(self),
            // It was on its way when the client came.
            Event::FinalAck(ack) if matches!(self, Self::Remembered(_, PastVerdict::Split)) => {
                Step::release(self, ack)
            }
            // Of a leg that has been given up.
            Event::FinalAck(ack) => Step::drop(self, ack),
            Event::PortReused | Event::Evict | Event::Expired | Event::Cleared(_) => {
                Step::illegal(self, event)
            }
        }
    }

    /// Returns what a SYN's verdict means for those that repeat it: one that was routed is routed
    /// again, because its destination may have answered it, and one that was split goes to the
    /// listener, even if its connection is over. All others are held like a first one.
    fn after(number: SequenceNumber, verdict: SynVerdict) -> Self {
        match verdict {
            SynVerdict::Bypass(_) => Self::Remembered(number, PastVerdict::Routed),
            SynVerdict::Split => Self::Remembered(number, PastVerdict::Split),
            SynVerdict::Pass
            | SynVerdict::Refused
            | SynVerdict::Unreachable(_)
            | SynVerdict::Silence
            | SynVerdict::Superseded => Self::Unknown,
        }
    }

    /// Returns the ticket of its dial.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Unknown | Self::Remembered(..) => None,
            Self::Dialing(dialing) => Some(dialing.ticket),
            Self::Answered(leg) => Some(leg.ticket),
            Self::Evicting(evicting) => Some(evicting.ticket),
        }
    }

    /// Returns the dial that a held SYN waits for.
    pub(super) fn dial(&self) -> Option<&D> {
        match self {
            Self::Dialing(dialing) => dialing.dial.as_ref(),
            Self::Unknown | Self::Remembered(..) | Self::Answered(_) | Self::Evicting(_) => None,
        }
    }

    /// Returns the same, to be told of its leg.
    pub(super) fn dial_mut(&mut self) -> Option<&mut D> {
        match self {
            Self::Dialing(dialing) => dialing.dial.as_mut(),
            Self::Unknown | Self::Remembered(..) | Self::Answered(_) | Self::Evicting(_) => None,
        }
    }

    /// Returns the ticket that it has a place by.
    pub(super) fn place(&self) -> Option<Ticket> {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => None,
            Self::Dialing(_) | Self::Answered(_) => self.ticket(),
        }
    }

    /// Returns whether the upstream leg has sent its SYN; none where there is none.
    pub(super) fn leg_is_open(&self) -> Option<bool> {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => None,
            Self::Dialing(dialing) => Some(dialing.leg != LegSyn::Unsent),
            Self::Answered(_) => Some(true),
        }
    }

    /// Returns whether a SYN of this number begins a new connection, from the same port, and the
    /// upstream leg has said something for the one before. Whoever comes from that port can have
    /// another one.
    pub(super) fn is_port_reused(&self, by: SequenceNumber) -> bool {
        match self {
            Self::Unknown | Self::Remembered(..) | Self::Evicting(_) => false,
            Self::Dialing(Dialing { number, leg, .. })
            | Self::Answered(Answered { number, leg, .. }) => leg.had_data() && *number != by,
        }
    }

    /// Returns until when a listener may keep its client's handshake; none if its SYN has not gone on
    /// to one, as far as this state tells.
    pub(super) fn listener_until(&self) -> Option<Instant> {
        match self {
            Self::Answered(_) => self.deadline(),
            Self::Unknown | Self::Remembered(..) | Self::Dialing(_) | Self::Evicting(_) => None,
        }
    }

    /// Returns when its client has given up, or has had its time to come.
    pub(super) fn deadline(&self) -> Option<Instant> {
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

/// Returns what becomes of the first SYN of a flow.
fn first_syn<P, U, D>(number: SequenceNumber, syn: P, place: Place, now: Instant) -> Step<P, U, D> {
    match place.ticket() {
        Ok(ticket) => Step {
            action: Action::Dial(ticket),
            ..Step::to(State::Dialing(Dialing {
                ticket,
                number,
                syn,
                dial: None,
                leg: LegSyn::Unsent,
                first_syn: now,
                last_syn: now,
            }))
        },
        Err(verdict) => Step::settle(number, syn, verdict),
    }
}

impl<P, D> Dialing<P, D> {
    fn on<U>(self, event: Event<P, U, D>, now: Instant) -> Step<P, U, D> {
        match event {
            Event::Syn { number, syn, .. } => self.retransmitted(number, syn, now),
            Event::DialStarted(dial) if self.dial.is_none() => self.started(dial),
            Event::LegSent { with_data } if self.leg == LegSyn::Unsent => self.leg_sent(with_data),
            Event::Answered(upstream) => self.answered(upstream, now),
            Event::DialFailed(verdict) => self.settled(verdict),
            Event::IcmpError(unreachable) => self.settled(SynVerdict::Unreachable(unreachable)),
            // Before the leg has sent its SYN, nobody can have answered it.
            Event::ClientReset if self.leg == LegSyn::Unsent => Step::to(State::Dialing(self)),
            Event::ClientReset => self.settled(SynVerdict::Bypass(UnsplitReason::AsymmetricRoute)),
            Event::Accepted => self.accepted(),
            // The destination repeats its answer, and the leg acknowledges that.
            Event::FinalAck(ack) => Step::drop(State::Dialing(self), ack),
            Event::Evict => self.evicted(),
            Event::Expired => self.settled(SynVerdict::Silence),
            Event::PortReused if self.leg.had_data() => self.dropped(SynVerdict::Superseded),
            Event::Cleared(verdict) => self.dropped(verdict),
            Event::DialStarted(_)
            | Event::LegSent { .. }
            | Event::PortReused
            | Event::DialEnded => Step::illegal(State::Dialing(self), event),
        }
    }

    fn started<U>(self, dial: D) -> Step<P, U, D> {
        let dial = Some(dial);
        Step::to(State::Dialing(Self { dial, ..self }))
    }

    fn leg_sent<U>(self, with_data: bool) -> Step<P, U, D> {
        let leg = LegSyn::Sent { with_data };
        Step::to(State::Dialing(Self { leg, ..self }))
    }

    /// Puts a newer SYN in the place of the one before.
    fn retransmitted<U>(self, number: SequenceNumber, syn: P, now: Instant) -> Step<P, U, D> {
        let before = self.syn;
        let next = State::Dialing(Self {
            number,
            syn,
            last_syn: now,
            ..self
        });
        Step::decide(next, before, SynVerdict::Superseded)
    }

    fn answered<U>(self, upstream: U, now: Instant) -> Step<P, U, D> {
        let next = State::Answered(Answered {
            ticket: self.ticket,
            number: self.number,
            upstream,
            ack: None,
            leg: self.leg,
            since: now,
        });
        Step::decide(next, self.syn, SynVerdict::Split)
    }

    fn accepted<U>(self) -> Step<P, U, D> {
        Step {
            action: Action::DialAnew(self.syn, self.dial),
            ..Step::to(State::Remembered(self.number, PastVerdict::Split))
        }
    }

    fn evicted<U>(self) -> Step<P, U, D> {
        let Self {
            ticket,
            number,
            syn,
            ..
        } = self;
        match self.dial {
            Some(dial) => Step {
                action: Action::AwaitEnd(ticket, dial),
                ..Step::to(State::Evicting(Evicting {
                    ticket,
                    number,
                    syn,
                }))
            },
            None => Step::settle(number, syn, ROUTED_FOR_ROOM),
        }
    }

    /// Gives the SYN this verdict, and those that repeat it what follows from it.
    fn settled<U>(self, verdict: SynVerdict) -> Step<P, U, D> {
        Step {
            stop: self.dial,
            ..Step::settle(self.number, self.syn, verdict)
        }
    }

    /// Gives the SYN this verdict, and forgets it.
    fn dropped<U>(self, verdict: SynVerdict) -> Step<P, U, D> {
        Step {
            stop: self.dial,
            ..Step::decide(State::Unknown, self.syn, verdict)
        }
    }
}

impl<P, U> Answered<P, U> {
    fn on<D>(self, event: Event<P, U, D>, now: Instant) -> Step<P, U, D> {
        match event {
            Event::Syn { number, syn, .. } => self.retransmitted(number, syn, now),
            Event::Accepted => self.accepted(),
            Event::FinalAck(ack) => self.withhold(ack),
            Event::Evict | Event::Expired | Event::Cleared(_) => self.closed(),
            Event::PortReused if self.leg.had_data() => self.closed(),
            // An established connection survives ICMP errors (RFC 1122, section 4.2.3.9), and its
            // client's RST is the leg's business.
            Event::IcmpError(_) | Event::ClientReset => Step::to(State::Answered(self)),
            Event::PortReused
            | Event::DialStarted(_)
            | Event::LegSent { .. }
            | Event::Answered(_)
            | Event::DialFailed(_)
            | Event::DialEnded => Step::illegal(State::Answered(self), event),
        }
    }

    /// Decides on a SYN whose SYN-ACK was lost, or is on its way.
    fn retransmitted<D>(self, number: SequenceNumber, syn: P, now: Instant) -> Step<P, U, D> {
        let next = State::Answered(Self {
            number,
            since: now,
            ..self
        });
        Step::decide(next, syn, SynVerdict::Split)
    }

    /// Keeps a newer acknowledgement in the place of the one before.
    fn withhold<D>(self, ack: P) -> Step<P, U, D> {
        let before = self.ack;
        let next = State::Answered(Self {
            ack: Some(ack),
            ..self
        });
        match before {
            Some(before) => Step::drop(next, before),
            None => Step::to(next),
        }
    }

    fn accepted<D>(self) -> Step<P, U, D> {
        Step {
            action: Action::Join(self.upstream, self.ack),
            ..Step::to(State::Remembered(self.number, PastVerdict::Split))
        }
    }

    fn closed<D>(self) -> Step<P, U, D> {
        Step {
            action: Action::Close(self.upstream, self.ack),
            ..Step::to(State::Unknown)
        }
    }
}

impl<P> Evicting<P> {
    fn on<U, D>(self, event: Event<P, U, D>) -> Step<P, U, D> {
        match event {
            Event::Syn { number, syn, .. } => self.retransmitted(number, syn),
            Event::DialEnded => Step::settle(self.number, self.syn, ROUTED_FOR_ROOM),
            Event::Cleared(verdict) => Step::decide(State::Unknown, self.syn, verdict),
            // Of the dial that has been told to end, and has not yet.
            Event::Answered(upstream) => Step::too_late(State::Evicting(self), upstream),
            Event::LegSent { .. } | Event::DialFailed(_) => Step::to(State::Evicting(self)),
            // The SYN is about to be routed, whatever comes.
            Event::IcmpError(_) | Event::ClientReset => Step::to(State::Evicting(self)),
            Event::Accepted => Step::to(State::Evicting(self)),
            Event::FinalAck(ack) => Step::drop(State::Evicting(self), ack),
            Event::PortReused | Event::DialStarted(_) | Event::Evict | Event::Expired => {
                Step::illegal(State::Evicting(self), event)
            }
        }
    }

    fn retransmitted<U, D>(self, number: SequenceNumber, syn: P) -> Step<P, U, D> {
        let next = State::Evicting(Self {
            number,
            syn,
            ..self
        });
        Step::decide(next, self.syn, SynVerdict::Superseded)
    }
}

impl<P, U, D> Step<P, U, D> {
    fn to(next: State<P, U, D>) -> Self {
        Self {
            next,
            action: Action::Nothing,
            stop: None,
        }
    }

    fn decide(next: State<P, U, D>, syn: P, verdict: SynVerdict) -> Self {
        Self {
            action: Action::Decide(syn, verdict),
            ..Self::to(next)
        }
    }

    fn release(next: State<P, U, D>, ack: P) -> Self {
        Self {
            action: Action::Release(ack),
            ..Self::to(next)
        }
    }

    fn drop(next: State<P, U, D>, ack: P) -> Self {
        Self {
            action: Action::Drop(ack),
            ..Self::to(next)
        }
    }

    fn too_late(next: State<P, U, D>, upstream: U) -> Self {
        Self {
            action: Action::TooLate(upstream),
            ..Self::to(next)
        }
    }

    fn illegal(next: State<P, U, D>, event: Event<P, U, D>) -> Self {
        Self {
            action: Action::Illegal(event),
            ..Self::to(next)
        }
    }

    fn settle(number: SequenceNumber, syn: P, verdict: SynVerdict) -> Self {
        Self::decide(State::after(number, verdict), syn, verdict)
    }
}

#[cfg(test)]
mod tests;
