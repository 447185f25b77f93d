//! Connections through outages, packet by packet.

mod doubts;
mod properties;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::segment::{flag, timestamps};
use pepd_packet::{Rate, Segment};

use crate::{Act, Holder, Limits, PacketId, Report};

const LIMITS: Limits = Limits {
    flows: 100,
    packets: 1000,
    bytes: 1 << 20,
    bytes_of_one: 1 << 19,
    makes_parts: true,
};

const MOBILE: &str = "10.2.0.2:4000";
const FIXED: &str = "10.1.0.2:80";

/// A box with a holder, whose second leg's link goes away.
struct World {
    holder: Holder,
    radio: Arc<str>,
    lan: Arc<str>,
    begun: Instant,
    now: Instant,
    last: u64,
    /// What became of the packets, and when.
    done: Vec<(Duration, Act)>,
}

impl World {
    fn new(limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            holder: Holder::new(limits, now),
            radio: "radio".into(),
            lan: "lan".into(),
            begun: now,
            now,
            last: 0,
            done: Vec::new(),
        }
    }

    fn hear(&mut self, report: Report) {
        self.holder.hear(&Arc::clone(&self.radio), report, self.now);
    }

    /// Lets time pass, so that all that is due is done when it is.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.holder.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let mut acts = Vec::new();
            self.holder.tick(self.now, &mut acts);
            self.note(acts);
        }
        self.now = end;
    }

    fn note(&mut self, acts: Vec<Act>) {
        let at = self.now - self.begun;
        self.done.extend(acts.into_iter().map(|act| (at, act)));
    }

    fn give(&mut self, segment: &Segment, is_from_radio: bool) -> PacketId {
        self.last += 1;
        let id = PacketId(self.last);
        let (radio, lan) = (Arc::clone(&self.radio), Arc::clone(&self.lan));
        let legs = match is_from_radio {
            true => (Some(&radio), Some(&lan)),
            false => (Some(&lan), Some(&radio)),
        };
        let mut acts = Vec::new();
        let packet = segment.packet().unwrap();
        self.holder.packet(id, &packet, legs, self.now, &mut acts);
        self.note(acts);
        id
    }

    /// The mobile acknowledges so many bytes.
    fn ack(&mut self, bytes: u32) -> PacketId {
        self.give(&ack(bytes), true)
    }

    /// The fixed host sends so many bytes, from there on.
    fn data(&mut self, sequence: u32, length: usize) -> PacketId {
        self.give(&data(sequence, length), false)
    }

    fn released(&self) -> Vec<u64> {
        let done = self.done.iter().filter_map(|(_, act)| match act {
            Act::Release(id) => Some(id.0),
            _ => None,
        });
        done.collect()
    }
}

fn ack(bytes: u32) -> Segment {
    Segment {
        acknowledgement: bytes,
        window: 1000,
        options: timestamps(bytes, 1),
        ..Segment::new(
            flag::ACK,
            MOBILE.parse().unwrap(),
            FIXED.parse().unwrap(),
            9,
        )
    }
}

fn data(sequence: u32, length: usize) -> Segment {
    Segment {
        acknowledgement: 9,
        options: timestamps(1, 1),
        payload: vec![7; length],
        ..Segment::new(
            flag::ACK,
            FIXED.parse().unwrap(),
            MOBILE.parse().unwrap(),
            sequence,
        )
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn acks_are_released_one_by_one_each_before_its_sender_times_out() {
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(Some(Duration::from_secs(10))));
    let first = world.ack(1000);
    let held: Vec<u64> = (2..=20).map(|it| world.ack(it * 1000).0).collect();
    assert_eq!(
        world.released(),
        [first.0],
        "of which it is not known that it is new"
    );
    world.hear(Report::Gone(None));
    world.wait(Duration::from_secs(10));
    let released = world.released();
    assert_eq!(released[1..], held[..released.len() - 1]);
    let times: Vec<Duration> = world.done.iter().map(|(at, _)| *at).collect();
    assert!(times[1] < millis(190), "{times:?}");
    let last = *times.last().unwrap();
    assert!(
        (Duration::from_secs(4)..Duration::from_secs(10)).contains(&last),
        "{times:?}"
    );
    // What is left goes on when it is back, and nothing is left then.
    world.hear(Report::Up(None));
    world.wait(millis(200));
    assert_eq!(world.released()[1..], held);
    assert!(!world.holder.is_needed());
    assert_eq!(world.holder.figures().flows, 0);
}

#[test]
fn one_ack_of_much_is_made_several() {
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(None));
    world.ack(1000);
    let whole = world.ack(1000 + 5 * 1460 + 7);
    world.hear(Report::Gone(None));
    world.wait(Duration::from_secs(30));
    let numbers: Vec<u32> = world
        .done
        .iter()
        .filter_map(|(_, act)| match act {
            Act::Send(part) => Some(part.acknowledgement),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, [2460, 3920, 5380, 6840]);
    let Some((_, Act::Send(part))) = world.done.get(1) else {
        panic!("{:?}", world.done);
    };
    assert_eq!(part.options, ack(1000 + 5 * 1460 + 7).options);
    assert_eq!(world.done.last().unwrap().1, Act::Release(whole));
    assert_eq!(world.holder.figures().parts_total, 4);
    let mut world = World::new(Limits {
        makes_parts: false,
        ..LIMITS
    });
    world.hear(Report::GoingDown(None));
    world.ack(1000);
    world.ack(100_000);
    world.wait(millis(200));
    assert_eq!(world.released(), [1, 2]);
    assert_eq!(world.holder.figures().parts_total, 0);
}

#[test]
fn nothing_else_waits_and_nothing_overtakes() {
    let special: [fn(&mut Segment); 8] = [
        |it| it.acknowledgement = 2000,
        |it| it.options = [&[1, 1, 5, 10][..], &[0; 8]].concat(),
        |it| it.flags |= flag::FIN,
        |it| it.flags = flag::RST,
        |it| it.flags |= flag::RST,
        |it| it.flags |= flag::URG,
        |it| it.payload = b"x".to_vec(),
        // ECE (RFC 3168).
        |it| it.flags |= 0x40,
    ];
    for (number, change) in special.into_iter().enumerate() {
        let mut world = World::new(LIMITS);
        world.hear(Report::GoingDown(None));
        let mut all = vec![world.ack(1000).0, world.ack(2000).0];
        assert_eq!(world.released().len(), 1);
        let mut segment = ack(3000);
        change(&mut segment);
        all.push(world.give(&segment, true).0);
        assert_eq!(world.released(), all, "{number}");
    }
    // A window that opens again.
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(None));
    world.ack(1000);
    world.give(
        &Segment {
            window: 0,
            ..ack(2000)
        },
        true,
    );
    assert_eq!(world.released().len(), 1, "to close is no reason");
    world.ack(3000);
    assert_eq!(world.released(), [1, 2, 3]);
}

#[test]
fn what_comes_meanwhile_is_kept_and_goes_on_at_the_links_rate() {
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    let all: Vec<u64> = (0..50).map(|it| world.data(it * 1000, 1000).0).collect();
    // Said twice.
    let again = world.data(3000, 1000);
    assert_eq!(world.done.pop(), Some((Duration::ZERO, Act::Drop(again))));
    world.wait(Duration::from_secs(60));
    assert!(world.released().is_empty());
    // 50 packets of 1072 bytes or so at 100,000 bytes a second.
    world.hear(Report::Up(Some(Rate(800_000))));
    world.wait(millis(100));
    assert!(
        (10..13).contains(&world.released().len()),
        "{:?}",
        world.released()
    );
    // What comes now stays behind them.
    let last = world.data(50_000, 1000);
    world.wait(millis(440));
    assert_eq!(world.released()[..50], all);
    assert_eq!(world.released()[50..], [last.0]);
    assert!(!world.holder.is_needed());
    assert_eq!(world.holder.figures().bytes, 0);
}

/// Without a rate what is kept goes on within a moment; who sends all the time is not slowed down by that.
#[test]
fn a_backlog_ends_though_more_comes_all_the_time() {
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    world.data(0, 1000);
    world.data(1000, 1000);
    world.hear(Report::Up(None));
    for it in 2..200 {
        world.data(it * 1000, 1000);
        world.wait(millis(1));
    }
    world.wait(millis(5));
    assert!(!world.holder.is_needed());
    assert_eq!(world.released(), (1..=200).collect::<Vec<_>>());
}

/// A link that is about to go again carries what was kept before.
#[test]
fn a_backlog_goes_on_while_the_link_is_going_down_again() {
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    (0..50).for_each(|it| _ = world.data(it * 1000, 1000));
    world.hear(Report::Up(Some(Rate(800_000))));
    world.wait(millis(50));
    world.hear(Report::GoingDown(Some(Duration::from_secs(10))));
    world.wait(millis(600));
    assert_eq!(world.released().len(), 50);
    world.data(50_000, 1000);
    assert_eq!(world.released().len(), 51);
}

#[test]
fn connections_take_turns() {
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    (0..50).for_each(|it| _ = world.data(it * 1000, 1000));
    let other = Segment {
        from: "10.1.0.3:80".parse().unwrap(),
        ..data(0, 1000)
    };
    let other = world.give(&other, false);
    world.hear(Report::Up(Some(Rate(800_000))));
    world.wait(millis(25));
    assert!(world.released().contains(&other.0));
}

#[test]
fn what_has_arrived_is_not_kept() {
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(None));
    world.ack(1000);
    world.ack(2000);
    world.hear(Report::Gone(None));
    let again = world.data(1000, 1000);
    assert_eq!(world.done.last().unwrap().1, Act::Drop(again));
    world.data(2000, 1000);
    assert_eq!(world.holder.figures().packets, 1);
}

#[test]
fn other_legs_are_not_touched() {
    let mut world = World::new(LIMITS);
    let lan = Arc::clone(&world.lan);
    world.holder.hear(&lan, Report::Up(None), world.now);
    assert!(!world.holder.is_needed());
    world.hear(Report::Gone(None));
    let other = Segment {
        from: "10.1.0.3:80".parse().unwrap(),
        to: "10.1.9.9:9".parse().unwrap(),
        ..data(0, 1)
    };
    let mut acts = Vec::new();
    let packet = other.packet().unwrap();
    let legs = (Some(&lan), None);
    world
        .holder
        .packet(PacketId(7), &packet, legs, world.now, &mut acts);
    world
        .holder
        .packet(PacketId(8), b"no packet", legs, world.now, &mut acts);
    assert_eq!(acts, [Act::Release(PacketId(7)), Act::Release(PacketId(8))]);
}

/// Nor do those whose ACKs wait: what comes when the link is back waits for no timer.
#[test]
fn acks_that_come_all_the_time_are_not_held_for_ever() {
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(None));
    (1..=100).for_each(|it| _ = world.ack(it * 1000));
    world.hear(Report::Gone(None));
    world.wait(millis(500));
    world.hear(Report::Up(None));
    for it in 101..=900 {
        world.ack(it * 1000);
        world.wait(millis(1));
    }
    assert!(!world.holder.is_needed(), "{:?}", world.holder.figures());
    assert_eq!(world.released(), (1..=900).collect::<Vec<_>>());
}
