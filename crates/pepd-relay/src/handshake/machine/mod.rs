//! One held SYN: where its flow stands (`state`), and what each event makes of it.
//!
//! No I/O, no clock and no lock: the [`table`](super::table) owns the flows and says what time it
//! is, and the rest of the folder does what an [`Action`] says. What is held is of any type: a
//! packet `P`, an upstream leg `U`, and a dial `D` that can be told to end.

mod state;

use std::time::Instant;

use pepd_packet::SequenceNumber;
use pepd_telemetry::UnsplitReason;

use super::event::{Action, Event, LegSyn, Place};
use super::syn_history::PastVerdict;
use super::verdict::SynVerdict;
use state::{Answered, Dialing, Evicting};
pub(super) use state::{CLAIM_TIME, State};

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
            Event::Syn {
                number,
                syn,
                place,
                begun,
            } => match self {
                Self::Remembered(_, PastVerdict::Split) if place == Place::NoListener => {
                    Step::decide(self, syn, SynVerdict::Bypass(UnsplitReason::Backlog))
                }
                Self::Remembered(_, past) => Step::decide(self, syn, past.of_retransmits()),
                _ => first_syn(number, syn, place, (begun, now)),
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
            Event::PortReused | Event::Evict(_) | Event::Expired | Event::Cleared(_) => {
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
            | SynVerdict::RefusedLinkGone
            | SynVerdict::Unreachable(_)
            | SynVerdict::Silence
            | SynVerdict::Superseded => Self::Unknown,
        }
    }
}

/// Returns what becomes of the first SYN of a flow that was seen, where the first one of all may have come at `begun`.
fn first_syn<P, U, D>(
    number: SequenceNumber,
    syn: P,
    place: Place,
    (begun, now): (Instant, Instant),
) -> Step<P, U, D> {
    match place.ticket() {
        Ok(ticket) => Step {
            action: Action::Dial(ticket),
            ..Step::to(State::Dialing(Dialing {
                ticket,
                number,
                syn,
                dial: None,
                leg: LegSyn::Unsent,
                first_syn: begun,
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
            // Once more where the leg is dialed anew.
            Event::LegSent { with_data } => self.leg_sent(with_data),
            Event::Answered(upstream) => self.answered(upstream, now),
            Event::DialFailed(verdict) => self.settled(verdict),
            Event::IcmpError(unreachable) => self.settled(SynVerdict::Unreachable(unreachable)),
            // Before the leg has sent its SYN, nobody can have answered it.
            Event::ClientReset if self.leg == LegSyn::Unsent => Step::to(State::Dialing(self)),
            Event::ClientReset => self.settled(SynVerdict::Bypass(UnsplitReason::AsymmetricRoute)),
            Event::Accepted => self.accepted(),
            // The destination repeats its answer, and the leg acknowledges that.
            Event::FinalAck(ack) => Step::drop(State::Dialing(self), ack),
            Event::Evict(verdict) => self.evicted(verdict),
            Event::Expired => self.settled(SynVerdict::Silence),
            Event::PortReused if self.leg.had_data() => self.dropped(SynVerdict::Superseded),
            Event::Cleared(verdict) => self.dropped(verdict),
            Event::DialStarted(_) | Event::PortReused | Event::DialEnded => {
                Step::illegal(State::Dialing(self), event)
            }
        }
    }

    fn started<U>(self, dial: D) -> Step<P, U, D> {
        let dial = Some(dial);
        Step::to(State::Dialing(Self { dial, ..self }))
    }

    fn leg_sent<U>(self, with_data: bool) -> Step<P, U, D> {
        let with_data = with_data || self.leg.had_data();
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

    fn evicted<U>(self, verdict: SynVerdict) -> Step<P, U, D> {
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
                    verdict,
                }))
            },
            None => Step::settle(number, syn, verdict),
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
            Event::Evict(_) | Event::Expired | Event::Cleared(_) => self.closed(),
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
            Event::DialEnded => Step::settle(self.number, self.syn, self.verdict),
            Event::Cleared(verdict) => Step::decide(State::Unknown, self.syn, verdict),
            // Of the dial that has been told to end, and has not yet.
            Event::Answered(upstream) => Step::too_late(State::Evicting(self), upstream),
            Event::LegSent { .. } | Event::DialFailed(_) => Step::to(State::Evicting(self)),
            // The SYN is about to be routed, whatever comes.
            Event::IcmpError(_) | Event::ClientReset => Step::to(State::Evicting(self)),
            Event::Accepted => Step::to(State::Evicting(self)),
            Event::FinalAck(ack) => Step::drop(State::Evicting(self), ack),
            Event::PortReused | Event::DialStarted(_) | Event::Evict(_) | Event::Expired => {
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
