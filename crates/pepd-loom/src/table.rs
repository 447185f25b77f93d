//! The table of held SYNs: a SYN, its destination's answer, the accept and the expiry meet on
//! different workers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::thread;
use pepd_packet::{FourTuple, SequenceNumber, SourcePrefix};

use crate::handshake::table::{Claim, Dial, Evicted, ReceivedSyn, SynAction, Table};
use crate::handshake::verdict::SynVerdict;

/// A dial that nobody carries out.
#[derive(Debug)]
struct Dialing;

impl Dial for Dialing {
    type Leg = ();

    fn stop(&self) {}

    fn leg_sent(&mut self, (): ()) {}

    fn leg(&self) -> Option<&()> {
        None
    }
}

/// A packet, named by its number.
type Packet = u8;
/// An upstream leg.
type Leg = &'static str;

type Handshakes = Table<Packet, Leg, Dialing>;

const FLOW: FourTuple = FourTuple {
    client: address(1, 40_000),
    server: address(2, 80),
};

const fn address(net: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, net, 0, 2)), port)
}

const NUMBER: SequenceNumber = SequenceNumber(7);

fn syn(packet: Packet) -> ReceivedSyn<Packet> {
    ReceivedSyn {
        flow: FLOW,
        number: NUMBER,
        packet,
        late: false,
    }
}

fn table(now: Instant) -> Arc<Handshakes> {
    let table = Handshakes::new(4, SourcePrefix::NETWORK, now);
    table.set_capacity(4, 16, SourcePrefix::NETWORK);
    Arc::new(table)
}

fn legs_of(evicted: Evicted<Packet, Leg, Dialing>) -> usize {
    evicted.upstreams.len()
}

fn leg_of(claim: Claim<Packet, Leg, Dialing>) -> usize {
    usize::from(matches!(claim, Claim::Answered(..)))
}

/// The client is accepted by one worker while another hears that the leg has expired: one of them
/// has the leg, and the other knows. What is said of the number of flows afterwards is right.
pub fn a_leg_is_claimed_or_expires() {
    loom::model(|| {
        let now = Instant::now();
        let late = now + Duration::from_secs(3600);
        let table = table(now);
        let received = table.on_syn(syn(1), now);
        let SynAction::Dial(ticket) = received.action else {
            unreachable!("there is a place");
        };
        assert!(table.dial_started(FLOW, ticket, Dialing, now));
        let decided = table.answered(FLOW, ticket, "leg", now);
        assert_eq!(decided, Ok((1, SynVerdict::Split)));
        let accepting = {
            let table = Arc::clone(&table);
            thread::spawn(move || leg_of(table.accepted(FLOW, now)))
        };
        let expired = legs_of(table.expire(late));
        let claimed = accepting.join().unwrap_or_default();
        assert_eq!(claimed + expired, 1);
        assert_eq!(table.len(), 0);
    });
}

/// The destination answers while the table is emptied: the leg is the table's or comes back, and
/// the SYN has one verdict.
pub fn an_answer_meets_the_end() {
    loom::model(|| {
        let now = Instant::now();
        let table = table(now);
        let received = table.on_syn(syn(1), now);
        let SynAction::Dial(ticket) = received.action else {
            unreachable!("there is a place");
        };
        assert!(table.dial_started(FLOW, ticket, Dialing, now));
        let answering = {
            let table = Arc::clone(&table);
            thread::spawn(move || match table.answered(FLOW, ticket, "leg", now) {
                Ok(_) => (1, 0),
                Err(leg) => (0, usize::from(leg.is_some())),
            })
        };
        let ended = table.clear(SynVerdict::Silence, now);
        let (decided, back) = answering.join().unwrap_or_default();
        let (packets, legs) = (ended.packets.len(), ended.upstreams.len());
        assert_eq!((decided + packets, back + legs), (1, 1));
        assert_eq!(table.len(), 0);
    });
}

/// Two workers read a SYN and what repeats it, and a third one accepts: the SYN is dialed once, and
/// a client that has been told to come is not taken for one that nobody knows.
pub fn a_repeated_syn_is_dialed_once() {
    loom::model(|| {
        let now = Instant::now();
        let table = table(now);
        let reading = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.on_syn(syn(1), now).action)
        };
        let here = table.on_syn(syn(2), now).action;
        let Ok(there) = reading.join() else { return };
        let dials = [&here, &there].map(|action| match action {
            SynAction::Dial(ticket) => Some(*ticket),
            SynAction::Decide(..) | SynAction::Nothing => None,
        });
        let ([Some(ticket), None] | [None, Some(ticket)]) = dials else {
            unreachable!("{dials:?}");
        };
        assert_eq!(table.len(), 1);
        assert!(table.dial_started(FLOW, ticket, Dialing, now));
        // The packet is told to go on once the table has been told: what follows is after that.
        let accepting = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.answered(FLOW, ticket, "leg", now).is_ok());
                leg_of(table.accepted(FLOW, now))
            })
        };
        assert_eq!(accepting.join().unwrap_or_default(), 1);
        assert_eq!(table.len(), 0);
    });
}
