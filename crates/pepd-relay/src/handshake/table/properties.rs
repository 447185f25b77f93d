//! Whatever happens in whatever order: every packet, upstream leg and dial that the table is given
//! comes out again, once.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use pepd_packet::SequenceNumber;
use pepd_telemetry::UnsplitReason;
use proptest::prelude::*;

use super::*;

/// An operation on the table. A dial is named by how many were begun after it, so that events of
/// dials whose flow is gone are among them.
#[derive(Clone, Debug)]
enum Op {
    Syn {
        host: u8,
        port: u16,
        from_server: bool,
        number: u32,
        late: bool,
    },
    DialStarted(usize),
    LegSent(usize, bool),
    Answered(usize),
    DialFailed(usize, SynVerdict),
    IcmpError(usize),
    ClientReset(usize),
    FinalAck(usize),
    Accepted(usize),
    DialEnded(usize),
    Expire,
    Clear,
    EvictAll,
    Wait(u64),
    Capacity(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let dial = 0usize..6;
    let syn = (1u8..4, 1u16..4, 0u32..3).prop_flat_map(|(host, port, number)| {
        (prop::bool::weighted(0.1), prop::bool::weighted(0.1)).prop_map(move |(back, late)| {
            Op::Syn {
                host,
                port,
                from_server: back,
                number,
                late,
            }
        })
    });
    let verdict = prop::sample::select(vec![
        SynVerdict::Split,
        SynVerdict::Refused,
        SynVerdict::Silence,
        SynVerdict::Bypass(UnsplitReason::NotPossible),
    ]);
    prop_oneof![
        8 => syn,
        6 => dial.clone().prop_map(Op::DialStarted),
        4 => (dial.clone(), any::<bool>()).prop_map(|(dial, data)| Op::LegSent(dial, data)),
        3 => dial.clone().prop_map(Op::Answered),
        2 => (dial.clone(), verdict).prop_map(|(dial, verdict)| Op::DialFailed(dial, verdict)),
        1 => dial.clone().prop_map(Op::IcmpError),
        1 => dial.clone().prop_map(Op::ClientReset),
        3 => dial.clone().prop_map(Op::FinalAck),
        2 => dial.clone().prop_map(Op::Accepted),
        3 => dial.prop_map(Op::DialEnded),
        1 => Just(Op::Expire),
        1 => prop::sample::select(vec![
            Op::Clear, Op::EvictAll, Op::Expire, Op::Expire, Op::Expire, Op::Expire,
        ]),
        3 => (0u64..8000).prop_map(Op::Wait),
        1 => (0u32..6).prop_map(Op::Capacity),
    ]
}

/// A dial that counts how often it was told to end.
#[derive(Clone, Debug, Default)]
struct Counted(Rc<Cell<u32>>);

impl Dial for Counted {
    type Leg = ();

    fn leg_sent(&mut self, (): ()) {}

    fn leg(&self) -> Option<&()> {
        None
    }

    fn stop(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// A dial that was asked for.
struct Begun {
    flow: FourTuple,
    ticket: Ticket,
    handles: Vec<Counted>,
    answered: bool,
}

struct World {
    table: Table<u32, u32, Counted>,
    now: Instant,
    capacity: u32,
    next: u32,
    packets: HashSet<u32>,
    upstreams: HashSet<u32>,
    begun: Vec<Begun>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            table: Table::new(4, SourcePrefix::NETWORK, now),
            now,
            capacity: 4,
            next: 0,
            packets: HashSet::new(),
            upstreams: HashSet::new(),
            begun: Vec::new(),
        }
    }

    fn name(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Checks a packet that comes out.
    fn decided(&mut self, decided: Option<Decided<u32>>) {
        if let Some((packet, _)) = decided {
            assert!(self.packets.remove(&packet), "a second verdict");
        }
    }

    /// Checks an acknowledgement that comes out.
    fn acknowledged(&mut self, ack: u32) {
        assert!(self.packets.remove(&ack), "a second end");
    }

    fn closed(&mut self, upstream: u32) {
        assert!(self.upstreams.remove(&upstream), "closed twice");
    }

    fn evicted(&mut self, evicted: Evicted<u32, u32, Counted>) {
        for decided in evicted.packets {
            self.decided(Some(decided));
        }
        for upstream in evicted.upstreams {
            self.closed(upstream);
        }
        for ack in evicted.acks {
            self.acknowledged(ack);
        }
        for ending in evicted.dials {
            assert_eq!(ending.dial.0.get(), 1, "told to end");
        }
    }

    fn syn(&mut self, flow: FourTuple, number: u32, late: bool) {
        let packet = self.name();
        self.packets.insert(packet);
        let syn = ReceivedSyn {
            flow,
            number: SequenceNumber(number),
            packet,
            late,
        };
        let Received {
            evicted, action, ..
        } = self.table.on_syn(syn, self.now);
        self.evicted(evicted);
        match action {
            SynAction::Decide(packet, verdict) => self.decided(Some((packet, verdict))),
            SynAction::Dial(ticket) => {
                assert!(!late && self.packets.contains(&packet));
                assert!(self.table.len() <= self.capacity.max(1) as usize);
                self.begun.push(Begun {
                    flow,
                    ticket,
                    handles: Vec::new(),
                    answered: false,
                });
            }
            SynAction::Nothing => panic!("a SYN that came to nothing"),
        }
    }

    /// Does what happens to a dial, or to its flow.
    fn of_dial(&mut self, back: usize, op: &Op) {
        let Some(index) = self.begun.len().checked_sub(back + 1) else {
            return;
        };
        let now = self.now;
        let Begun { flow, ticket, .. } = self.begun[index];
        match *op {
            Op::DialStarted(_) => {
                let dial = Counted::default();
                self.begun[index].handles.push(dial.clone());
                self.table.dial_started(flow, ticket, dial, now);
            }
            Op::LegSent(_, data) => self.table.leg_sent(flow, ticket, data.into(), (), now),
            Op::Answered(_) => {
                let upstream = self.name();
                self.upstreams.insert(upstream);
                match self.table.answered(flow, ticket, upstream, now) {
                    Ok(decided) => {
                        assert_eq!(decided.1, SynVerdict::Split);
                        self.decided(Some(decided));
                        self.begun[index].answered = true;
                    }
                    Err(upstream) => self.closed(upstream.unwrap()),
                }
            }
            Op::DialFailed(_, verdict) => {
                let decided = self.table.dial_failed(flow, ticket, verdict, now);
                assert!(decided.is_none_or(|decided| decided.1 == verdict));
                self.decided(decided);
            }
            Op::IcmpError(_) => {
                let decided = self.table.icmp_error(flow, Unreachable::Host, now);
                self.decided(decided);
            }
            Op::ClientReset(_) => {
                let decided = self.table.client_reset(flow, now);
                self.decided(decided);
            }
            Op::FinalAck(_) => {
                let ack = self.name();
                self.packets.insert(ack);
                match self.table.final_ack(flow, ack, now) {
                    FinalAck::Release(ack) | FinalAck::Drop(ack) => self.acknowledged(ack),
                    FinalAck::Withheld => {}
                }
            }
            Op::Accepted(_) => self.accepted(flow),
            Op::DialEnded(_) => {
                let decided = self.table.dial_ended(flow, ticket, now);
                self.decided(decided);
            }
            _ => {}
        }
    }

    fn accepted(&mut self, flow: FourTuple) {
        match self.table.accepted(flow, self.now) {
            Claim::Answered(upstream, ack) => {
                self.closed(upstream);
                ack.into_iter().for_each(|ack| self.acknowledged(ack));
            }
            Claim::Dialing(packet, dial) => {
                assert!(dial.is_none_or(|dial| dial.0.get() == 1), "told to end");
                self.decided(Some((packet, SynVerdict::Superseded)));
            }
            Claim::Unknown => {}
        }
    }

    fn happen(&mut self, op: &Op) {
        match *op {
            Op::Syn {
                host,
                port,
                from_server,
                number,
                late,
            } => {
                let flow = FourTuple {
                    client: ([10, 1, 0, host], port).into(),
                    server: ([10, 2, 0, 2], 80).into(),
                };
                let flow = if from_server { flow.reversed() } else { flow };
                self.syn(flow, number, late);
            }
            Op::DialStarted(dial)
            | Op::LegSent(dial, _)
            | Op::Answered(dial)
            | Op::DialFailed(dial, _)
            | Op::IcmpError(dial)
            | Op::ClientReset(dial)
            | Op::FinalAck(dial)
            | Op::Accepted(dial)
            | Op::DialEnded(dial) => self.of_dial(dial, op),
            Op::Expire => {
                let evicted = self.table.expire(self.now);
                self.evicted(evicted);
            }
            Op::Clear => self.clear(),
            Op::EvictAll => {
                let blocked = SynVerdict::Bypass(UnsplitReason::Blocked);
                let evicted = self.table.evict_all(blocked, self.now);
                self.evicted(evicted);
                assert_eq!(self.table.len(), 0);
            }
            Op::Wait(milliseconds) => self.now += Duration::from_millis(milliseconds),
            Op::Capacity(capacity) => {
                self.table
                    .set_capacity(capacity, usize::MAX, SourcePrefix::NETWORK);
                self.capacity = capacity;
            }
        }
        self.check();
    }

    fn clear(&mut self) {
        let evicted = self.table.clear(SynVerdict::Superseded, self.now);
        assert!(evicted.dials.is_empty());
        self.evicted(evicted);
        assert_eq!(self.table.len(), 0);
        assert!(self.packets.is_empty(), "lost: {:?}", self.packets);
        assert!(self.upstreams.is_empty(), "lost: {:?}", self.upstreams);
    }

    /// Checks what is true at any time.
    fn check(&self) {
        let flows = self.table.lock();
        let placed = |state: &&State<u32, u32, Counted>| state.place().is_some();
        let places = flows.states.values().filter(placed).count();
        assert_eq!((places, places), (flows.places.len(), self.table.len()));
        assert!(flows.places.is_consistent());
        let absent = |state: &State<_, _, _>| state.ticket().is_none();
        assert!(!flows.states.values().any(absent), "nothing is kept of it");
        for handle in self.begun.iter().flat_map(|begun| &begun.handles) {
            assert!(handle.0.get() <= 1, "told to end twice");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_is_dealt_with_twice(
        ops in prop::collection::vec(op(), 1..80)
    ) {
        let mut world = World::new();
        for op in &ops {
            world.happen(op);
        }
        world.clear();
        for begun in &world.begun {
            for (index, handle) in begun.handles.iter().enumerate() {
                let ended = handle.0.get() == 1;
                prop_assert!(ended || begun.answered && index == 0, "a dial goes on");
            }
        }
    }
}
