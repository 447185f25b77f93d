//! What the tests do with a table, a step at a time.

use pepd_packet::SequenceNumber;
use pepd_telemetry::UnsplitReason;

use super::super::*;

pub(super) const NUMBER: SequenceNumber = SequenceNumber(7);

pub(super) const FULL: SynVerdict = SynVerdict::Bypass(UnsplitReason::Full);

/// A dial that cannot be told anything.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Deaf;

impl Dial for Deaf {
    type Leg = ();

    fn stop(&self) {}

    fn leg_sent(&mut self, (): ()) {}

    fn leg(&self) -> Option<&()> {
        None
    }
}

pub(super) type Strings = Table<&'static str, &'static str, Deaf>;
pub(super) type Action = SynAction<&'static str>;

/// Returns the SYN in whose place another is held now.
pub(super) fn superseded(packet: &'static str) -> Action {
    SynAction::Decide(packet, SynVerdict::Superseded)
}

/// To the listener.
pub(super) fn split(packet: &'static str) -> Action {
    SynAction::Decide(packet, SynVerdict::Split)
}

/// Returns the verdict that sends it the same way as the one that it repeats, which was routed.
pub(super) fn routed_again(packet: &'static str) -> Action {
    SynAction::Decide(packet, SynVerdict::Pass)
}

pub(super) fn bypass(packet: &'static str, reason: UnsplitReason) -> Action {
    SynAction::Decide(packet, SynVerdict::Bypass(reason))
}

pub(super) fn from(host: u8, port: u16) -> FourTuple {
    FourTuple {
        client: ([10, 1, 0, host], port).into(),
        server: ([10, 2, 0, host], 80).into(),
    }
}

pub(super) fn receive(
    table: &Strings,
    flow: FourTuple,
    number: SequenceNumber,
    packet: &'static str,
    late: bool,
    now: Instant,
) -> Received<&'static str, &'static str, Deaf> {
    let syn = ReceivedSyn {
        flow,
        number,
        packet,
        late,
    };
    table.on_syn(syn, now)
}

/// Returns what becomes of a SYN for which nobody has to go.
pub(super) fn see(table: &Strings, flow: FourTuple, packet: &'static str, now: Instant) -> Action {
    let received = receive(table, flow, NUMBER, packet, false, now);
    assert_eq!(received.evicted, Evicted::default());
    received.action
}

/// Returns what has to go for a new SYN.
pub(super) fn evicted_for(
    table: &Strings,
    flow: FourTuple,
    packet: &'static str,
    now: Instant,
) -> Evicted<&'static str, &'static str, Deaf> {
    match receive(table, flow, NUMBER, packet, false, now) {
        Received {
            evicted,
            action: SynAction::Dial(_),
            ..
        } => evicted,
        other => panic!("refused: {other:?}"),
    }
}

pub(super) fn claim(table: &Strings, flow: FourTuple, now: Instant) -> Option<&'static str> {
    match table.accepted(flow, now) {
        Claim::Answered(upstream, None) => Some(upstream),
        Claim::Answered(_, ack) => panic!("withheld: {ack:?}"),
        Claim::Unknown => None,
        Claim::Dialing(..) => panic!("nobody has answered"),
    }
}

pub(super) fn new(table: &Strings, flow: FourTuple, packet: &'static str, now: Instant) -> Ticket {
    match see(table, flow, packet, now) {
        SynAction::Dial(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// The destination answers: the SYN that goes on to the listener.
pub(super) fn answer(
    table: &Strings,
    flow: FourTuple,
    ticket: Ticket,
    upstream: &'static str,
    now: Instant,
) -> Result<&'static str, &'static str> {
    match table.answered(flow, ticket, upstream, now) {
        Ok((packet, verdict)) => {
            assert_eq!(verdict, SynVerdict::Split);
            Ok(packet)
        }
        Err(upstream) => Err(upstream.unwrap()),
    }
}

/// The dial ends like this: the SYN, which gets the same verdict.
pub(super) fn fail(
    table: &Strings,
    flow: FourTuple,
    ticket: Ticket,
    verdict: SynVerdict,
    now: Instant,
) -> Option<&'static str> {
    let (packet, of_packet) = table.dial_failed(flow, ticket, verdict, now)?;
    assert_eq!(of_packet, verdict);
    Some(packet)
}

/// Returns what ends because a SYN of this number is of a new connection from the same port.
pub(super) fn port_reused(
    table: &Strings,
    flow: FourTuple,
    number: SequenceNumber,
) -> Evicted<&'static str, &'static str, Deaf> {
    table.with(|flows| flows.end_if_port_reused(flow, number, Instant::now()))
}

pub(super) fn reset(table: &Strings, flow: FourTuple, now: Instant) -> Option<&'static str> {
    let (packet, verdict) = table.client_reset(flow, now)?;
    assert_eq!(verdict, SynVerdict::Bypass(UnsplitReason::AsymmetricRoute));
    Some(packet)
}
