//! What is told wrongly, forged, or too much.

use std::sync::Arc;
use std::time::Duration;

use pepd_packet::Segment;

use super::{LIMITS, MOBILE, World, ack, data, millis};
use crate::{Act, Limits, PacketId, Report};

#[test]
fn a_link_that_does_not_go_spends_nobodys_patience() {
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(None));
    (1..30).for_each(|it| _ = world.ack(it * 1000));
    world.wait(millis(2001));
    assert_eq!(world.released().len(), 29);
    world.ack(30_000);
    assert_eq!(world.released().len(), 30);
    world.hear(Report::Gone(None));
    world.ack(31_000);
    assert_eq!(world.released().len(), 30);
}

#[test]
fn what_is_beyond_a_limit_goes_on() {
    let mut world = World::new(Limits {
        packets: 5,
        ..LIMITS
    });
    world.hear(Report::Gone(None));
    (0..8).for_each(|it| _ = world.data(it * 1000, 1000));
    assert_eq!(world.released(), [6, 7, 8]);
    assert_eq!(world.holder.figures().beyond_total, 3);
    let mut world = World::new(Limits {
        bytes_of_one: 2500,
        ..LIMITS
    });
    world.hear(Report::Gone(None));
    (0..3).for_each(|it| _ = world.data(it * 1000, 1000));
    assert_eq!(world.released(), [3]);
    let mut world = World::new(Limits { flows: 1, ..LIMITS });
    world.hear(Report::Gone(None));
    world.data(0, 1);
    let other = Segment {
        from: "10.1.0.3:80".parse().unwrap(),
        ..data(0, 1)
    };
    world.give(&other, false);
    assert_eq!(world.released(), [2]);
}

/// An outage that is longer than was said spends the ACKs that are left as slowly as it can.
#[test]
fn an_outage_may_be_longer_than_was_said() {
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(Some(Duration::from_secs(1))));
    (1..=400).for_each(|it| _ = world.ack(it * 1000));
    world.hear(Report::Gone(None));
    world.wait(Duration::from_secs(2));
    let by_then = world.released().len();
    assert!(by_then < 100, "{by_then}");
    world.wait(Duration::from_secs(8));
    assert!(
        world.released().len() < by_then + 12,
        "{}",
        world.released().len()
    );
    // Who knows more may say so.
    world.hear(Report::Gone(Some(Duration::from_secs(100))));
    world.wait(Duration::from_secs(100));
    assert!(world.holder.figures().acks > 0);
}

/// Whoever is heard long after his link is said to be gone shows that it is not, for what is his.
#[test]
fn what_is_heard_by_a_link_that_is_gone_proves_that_it_is_not() {
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    let kept = world.data(0, 1000);
    world.ack(1000);
    world.wait(millis(4900));
    world.ack(2000);
    assert!(!world.released().contains(&kept.0), "it was under way");
    world.wait(millis(200));
    let last = world.ack(3000);
    assert!(world.released().contains(&kept.0) && world.released().contains(&last.0));
    let next = world.data(3000, 1000);
    assert!(world.released().contains(&next.0));
    assert_eq!(world.holder.figures().packets, 0);
    // With the next outage it is as with the first.
    world.hear(Report::Up(None));
    world.hear(Report::Gone(None));
    world.data(4000, 1000);
    assert_eq!(world.holder.figures().packets, 1);
}

/// Nobody is heard who has nothing to say: what is repeated long after a link is said to be gone is passed on,
/// and if it is there after all, its host answers.
#[test]
fn what_is_repeated_finds_out_whether_a_link_is_gone() {
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    let kept = [world.data(0, 1000).0, world.data(1000, 1000).0];
    let early = world.data(0, 1000);
    assert!(matches!(world.done.pop(), Some((_, Act::Drop(id))) if id == early));
    world.wait(millis(5100));
    let (late, new) = (world.data(0, 1000), world.data(2000, 1000));
    assert_eq!(world.released(), [late.0]);
    assert_eq!(world.holder.figures().repeated_total, 2);
    world.ack(1000);
    let all = [kept[0], kept[1], new.0];
    assert_eq!(world.released()[1..4], all, "its host has answered");
    // What has no data is repeated, too, as a keepalive is.
    let mut world = World::new(LIMITS);
    world.hear(Report::Gone(None));
    world.data(7, 0);
    world.wait(millis(5100));
    let again = world.data(7, 0);
    assert_eq!(world.released(), [again.0]);
}

/// ACKs that no host would have sent are no reason for parts of them, nor is one that was damaged.
#[test]
fn a_forged_ack_goes_on_as_it_came() {
    let forged: [fn(&mut Segment); 2] = [|it| it.acknowledgement = 1 << 30, |it| it.sequence = 77];
    for change in forged {
        let mut world = World::new(LIMITS);
        world.hear(Report::GoingDown(None));
        world.ack(1000);
        let mut segment = ack(9000);
        change(&mut segment);
        let id = world.give(&segment, true);
        assert_eq!(world.released(), [1, id.0]);
    }
    let mut world = World::new(LIMITS);
    world.hear(Report::GoingDown(None));
    world.ack(1000);
    let mut damaged = ack(9000).packet().unwrap();
    damaged[28] ^= 1;
    let (radio, lan) = (Arc::clone(&world.radio), Arc::clone(&world.lan));
    let mut acts = Vec::new();
    let legs = (Some(&radio), Some(&lan));
    world
        .holder
        .packet(PacketId(7), &damaged, legs, world.now, &mut acts);
    assert_eq!(acts, [Act::Release(PacketId(7))]);
}

/// A connection of which nothing is held makes room for another one.
#[test]
fn old_connections_make_room() {
    let mut world = World::new(Limits { flows: 2, ..LIMITS });
    world.hear(Report::GoingDown(None));
    for port in 1..100 {
        let mut from: std::net::SocketAddr = MOBILE.parse().unwrap();
        from.set_port(port);
        world.give(&Segment { from, ..ack(1) }, true);
    }
    world.ack(1000);
    world.ack(2000);
    let figures = world.holder.figures();
    assert_eq!((figures.acks, figures.beyond_total), (1, 0));
}
