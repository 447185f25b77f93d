//! For how many there is room, and who makes some.

use super::*;

#[test]
fn when_full_the_oldest_goes() {
    let now = Instant::now();
    let table = Strings::new(3, SourcePrefix::NETWORK, now);
    let first = new(&table, from(1, 1), "a", now);
    assert_eq!(answer(&table, from(1, 1), first, "leg", now), Ok("a"));
    new(&table, from(2, 1), "b", now);
    new(&table, from(3, 1), "c", now);
    // The budget is the capacity per second.
    let now = now + Duration::from_secs(1);
    let evicted = evicted_for(&table, from(4, 1), "d", now);
    assert_eq!((evicted.packets, evicted.upstreams), (vec![], vec!["leg"]));
    let evicted = evicted_for(&table, from(5, 1), "e", now);
    assert_eq!(
        (evicted.packets, evicted.upstreams),
        (vec![("b", FULL)], vec![])
    );
    assert_eq!(table.len(), 3);
    assert_eq!(table.clear(SynVerdict::Superseded, now).packets.len(), 3);
    assert!(table.lock().places.is_empty());
}

#[test]
fn a_flow_keeps_its_place_while_its_answer_may_be_on_the_way() {
    let start = Instant::now();
    let now = start + PLACE_TIME / 2;
    let table = Strings::new(4, SourcePrefix::NETWORK, start);
    let see = |flow, now| see(&table, flow, "syn", now);
    new(&table, from(1, 1), "a", start);
    new(&table, from(1, 2), "b", now);
    assert_eq!(
        see(from(1, 3), now),
        bypass("syn", UnsplitReason::Full),
        "its own share"
    );
    assert_eq!(see(from(1, 3), now), routed_again("syn"));
    new(&table, from(2, 1), "c", now);
    new(&table, from(3, 1), "d", now);
    assert_eq!(
        see(from(4, 1), now),
        bypass("syn", UnsplitReason::Full),
        "everyone's"
    );
    let now = start + PLACE_TIME;
    let evicted = evicted_for(&table, from(1, 4), "syn", now);
    assert_eq!(evicted.packets, [("a", FULL)]);
    assert_eq!(
        see(from(1, 5), now),
        bypass("syn", UnsplitReason::Full),
        "b is younger"
    );
}

#[test]
fn a_source_has_half_and_evicts_its_own() {
    let now = Instant::now();
    let table = Strings::new(4, SourcePrefix::NETWORK, now);
    new(&table, from(9, 1), "other", now);
    new(&table, from(1, 1), "a", now);
    new(&table, from(1, 2), "b", now);
    let now = now + PLACE_TIME;
    let evicted = evicted_for(&table, from(1, 3), "c", now);
    assert_eq!(evicted.packets, [("a", FULL)]);
}

#[test]
fn no_more_syns_go_on_than_the_listeners_have_room_for() {
    let start = Instant::now();
    let table = Strings::new(2, SourcePrefix::NETWORK, start);
    table.set_capacity(2, 3, SourcePrefix::NETWORK);
    let full = |flow, now| {
        let said = see(&table, flow, "syn", now);
        assert_eq!(said, bypass("syn", UnsplitReason::Backlog));
    };
    let answered = |flow, now| {
        let ticket = new(&table, flow, "syn", now);
        assert_eq!(answer(&table, flow, ticket, "leg", now), Ok("syn"));
    };
    answered(from(1, 1), start);
    answered(from(2, 1), start);
    // The listener keeps what it has of those that make room.
    let now = start + PLACE_TIME;
    assert_eq!(evicted_for(&table, from(3, 1), "c", now).upstreams, ["leg"]);
    full(from(4, 1), now);
    // A client that comes leaves the queue, whether it has a leg or not.
    assert_eq!(claim(&table, from(1, 1), now), None);
    let later = now + PLACE_TIME;
    let _ = evicted_for(&table, from(5, 1), "e", later);
    full(from(6, 1), later);
}

#[test]
fn a_listener_gives_up_in_time() {
    let start = Instant::now();
    let table = Strings::new(4, SourcePrefix::NETWORK, start);
    table.set_capacity(4, 1, SourcePrefix::NETWORK);
    let flow = from(1, 1);
    let ticket = new(&table, flow, "syn", start);
    assert_eq!(answer(&table, flow, ticket, "leg", start), Ok("syn"));
    assert_eq!(
        table.clear(SynVerdict::Superseded, start).upstreams,
        ["leg"]
    );
    let now = start + Duration::from_secs(14);
    assert_eq!(table.expire(now), Evicted::default());
    let full = see(&table, from(1, 2), "syn", now);
    assert_eq!(full, bypass("syn", UnsplitReason::Backlog));
    let now = start + Duration::from_secs(17);
    assert_eq!(table.expire(now), Evicted::default());
    new(&table, from(1, 3), "syn", now);
}

#[test]
fn a_destination_leaves_room_for_others() {
    let now = Instant::now();
    let table = Strings::new(4, SourcePrefix::NETWORK, now);
    let to = |client: u8, server: u8| FourTuple {
        server: ([10, 2, 0, server], 80).into(),
        ..from(client, 1)
    };
    for client in 1..=3 {
        new(&table, to(client, 2), "attacked", now);
    }
    let attacked = see(&table, to(4, 2), "syn", now);
    assert_eq!(attacked, bypass("syn", UnsplitReason::Full));
    new(&table, to(4, 3), "another", now);
    let now = now + PLACE_TIME;
    let evicted = evicted_for(&table, to(5, 2), "syn", now);
    assert_eq!(evicted.packets, [("attacked", FULL)]);
}

#[test]
fn many_that_find_no_place_are_a_flood() {
    let now = Instant::now();
    let table = Strings::new(4, SourcePrefix::NETWORK, now);
    let mut floods = Vec::new();
    for number in 0..1000 {
        let syn = ReceivedSyn {
            flow: FourTuple {
                client: ([10, 1, 0, 1], number).into(),
                server: ([10, 2, 0, 1], 80).into(),
            },
            number: NUMBER,
            packet: "forged",
            late: false,
        };
        floods.extend(table.on_syn(syn, now).flood);
    }
    assert_eq!(floods, [Flood::Of([10, 2, 0, 1].into())]);
}
