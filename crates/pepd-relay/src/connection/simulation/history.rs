//! Random histories of a connection: what its sockets go through, and in which order.

use std::collections::VecDeque;
use std::rc::Rc;

use libc::{ECONNRESET, ETIMEDOUT};
use proptest::collection::vec;
use proptest::prelude::*;

use super::leg::{Side, SimPool, World};
use super::socket::Event;

/// One history, from which everything follows.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// The bytes that each socket can send before its peer has acknowledged anything.
    room: [u64; 2],
    /// The bytes that a pipe holds.
    capacity: u64,
    /// The number of pipes that are granted of every four that are asked for.
    generosity: u64,
    /// How many of every sixteen calls lack memory.
    shortage: u64,
    /// Bytes that went out with the SYN.
    pub(super) early: usize,
    events: Vec<(Side, Event)>,
    /// After how many instructions each process dies that relays it.
    deaths: Vec<u64>,
    /// The seed of when events happen between the calls, and of how much each call moves.
    seed: u64,
}

/// The sizes that are large: more than a step may move, and than a pipe or the buffer for copies
/// holds.
const LARGE: std::ops::Range<u32> = 300_000..700_000;

impl History {
    /// Histories of a connection, or of one direction alone: from the client to the upstream leg.
    ///
    /// The process that relays it dies up to `deaths` times.
    pub(super) fn any(both_directions: bool, deaths: usize) -> impl Strategy<Value = Self> {
        let event = if both_directions {
            (side(), any_event()).boxed()
        } else {
            prop_oneof![
                arriving().prop_map(|event| (Side::Client, event)),
                leaving().prop_map(|event| (Side::Upstream, event)),
            ]
            .boxed()
        };
        (
            (0_u64..20, 0_u64..20),
            prop_oneof![8 => 1_u64..40, 1 => Just(256 * 1024)],
            prop_oneof![Just(4_u64), Just(0), Just(2)],
            prop_oneof![6 => Just(0_u64), 1 => Just(1), 1 => Just(4)],
            0_usize..3,
            vec(event, 0..14),
            vec(0_u64..60, 0..=deaths),
            any::<u64>(),
        )
            .prop_map(
                |(room, capacity, generosity, shortage, early, events, deaths, seed)| Self {
                    room: room.into(),
                    capacity,
                    generosity,
                    shortage,
                    early,
                    events: events.into_iter().map(|e| fit(e, capacity)).collect(),
                    deaths,
                    seed,
                },
            )
    }

    /// Both legs are reset with an urgent byte in hand, and the process dies as it has taken the client's error, when
    /// nobody reads the client any more: what it was sent is lost with it, not missing.
    pub(super) fn of_an_error_that_nobody_noted() -> Self {
        use Side::{Client, Upstream};
        Self {
            room: [0, 1],
            capacity: 3,
            generosity: 4,
            shortage: 0,
            early: 0,
            events: vec![
                (Client, Event::Data(2)),
                (Upstream, Event::Urgent(0)),
                (Upstream, Event::Data(1)),
                (Client, Event::Room(1)),
                (Upstream, Event::Reset(ECONNRESET)),
                (Client, Event::Reset(ECONNRESET)),
            ],
            deaths: vec![17, 15],
            seed: 17_783_138_237_446_067_172,
        }
    }

    /// Returns the world in which it is about to happen, and a pool of pipes.
    pub(super) fn begin(&self) -> (Rc<World>, SimPool) {
        let upcoming: VecDeque<_> = self.events.iter().copied().collect();
        let deaths = self.deaths.iter().copied().collect();
        let world = World::new(self.room, upcoming, self.shortage, deaths, self.seed);
        let pool = SimPool {
            world: Rc::clone(&world),
            capacity: self.capacity,
            generosity: self.generosity,
            loans: Rc::default(),
        };
        (world, pool)
    }
}

/// Shortens a large piece, which would only take long through a small pipe.
fn fit((side, event): (Side, Event), capacity: u64) -> (Side, Event) {
    match event {
        Event::Data(len) if capacity < 40 => (side, Event::Data(len % 100)),
        event => (side, event),
    }
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Client), Just(Side::Upstream)]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![3 => arriving(), 2 => leaving()]
}

/// Returns what a source goes through.
fn arriving() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1_u32..30).prop_map(Event::Data),
        1 => LARGE.prop_map(Event::Data),
        3 => (0_u8..3).prop_map(Event::Urgent),
        2 => Just(Event::Fin),
        1 => reset(),
    ]
}

/// Returns what a sink goes through.
fn leaving() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1_u32..30).prop_map(Event::Room),
        2 => LARGE.prop_map(Event::Room),
        1 => Just(Event::ResetInSplice),
        1 => reset(),
    ]
}

fn reset() -> impl Strategy<Value = Event> {
    prop_oneof![Just(ECONNRESET), Just(ETIMEDOUT)].prop_map(Event::Reset)
}
