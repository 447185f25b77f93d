use super::*;

const NUMBER: SequenceNumber = SequenceNumber(7);

type Strings = Table<&'static str, &'static str>;

fn from(host: u8, port: u16) -> FourTuple {
    FourTuple {
        client: ([10, 1, 0, host], port).into(),
        server: ([10, 2, 0, 2], 80).into(),
    }
}

fn claim(table: &Strings, flow: FourTuple, now: Instant) -> Option<&'static str> {
    match table.claim(flow, now) {
        Claim::Answered(upstream) => Some(upstream),
        Claim::Unknown => None,
        Claim::Asking(..) => panic!("nobody has answered"),
    }
}

fn new(table: &Strings, flow: FourTuple, packet: &'static str, now: Instant) -> Ticket {
    match table.see(flow, NUMBER, packet, false, now) {
        Seen::New(ticket, evicted) => {
            assert_eq!(evicted, Evicted::default());
            ticket
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answered_flow_is_claimed_once() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Ok("syn"));
    assert_eq!(
        table.see(from(1, 1), NUMBER, "again", false, now),
        Seen::Answered("again"),
        "its SYN-ACK was lost"
    );
    assert_eq!(claim(&table, from(1, 2), now), None);
    assert_eq!(claim(&table, from(1, 1), now), Some("leg"));
    assert_eq!(claim(&table, from(1, 1), now), None);
    assert_eq!(table.len(), 0);
    assert!(table.lock().ages.is_empty() && table.lock().sources.is_empty());
}

#[test]
fn a_repeated_syn_takes_the_place_of_the_one_before() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let ticket = new(&table, from(1, 1), "first", now);
    assert_eq!(
        table.see(from(1, 1), NUMBER, "second", false, now),
        Seen::Again("first")
    );
    assert_eq!(
        table.give_up(from(1, 1), ticket, Next::Answered, now),
        Some("second")
    );
    assert_eq!(table.give_up(from(1, 1), ticket, Next::Answered, now), None);
    // The same flow later is another one: an old attempt has no say in it.
    let later = new(&table, from(1, 1), "third", now);
    assert_eq!(table.give_up(from(1, 1), ticket, Next::Answered, now), None);
    assert_eq!(table.answer(from(1, 1), ticket, "old", now), Err("old"));
    assert_eq!(table.answer(from(1, 1), later, "leg", now), Ok("third"));
    assert_eq!(table.abort(from(1, 1), now), None, "it has been answered");
}

#[test]
fn a_syn_of_the_other_end_is_for_the_leg_towards_it() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let (flow, reverse) = (from(1, 1), from(1, 1).reversed());
    let crossing = |packet, leg_is_open| Seen::Crossing {
        packet,
        leg_is_open,
    };
    let ticket = new(&table, flow, "syn", now);
    assert_eq!(
        table.see(reverse, NUMBER, "a", false, now),
        crossing("a", false)
    );
    table.sent(flow, ticket, 0);
    assert_eq!(
        table.see(reverse, NUMBER, "b", false, now),
        crossing("b", true)
    );
    assert_eq!(table.answer(flow, ticket, "leg", now), Ok("syn"));
    assert_eq!(
        table.see(reverse, NUMBER, "c", false, now),
        crossing("c", true)
    );
    assert_eq!(claim(&table, flow, now), Some("leg"));
    new(&table, reverse, "d", now);
}

#[test]
fn only_what_has_been_asked_can_be_answered_by_another_way() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    assert_eq!(table.detour(from(1, 1), now), None);
    table.sent(from(1, 1), ticket, 0);
    assert_eq!(table.detour(from(1, 2), now), None);
    assert_eq!(table.detour(from(1, 1), now), Some("syn"));
    let ticket = new(&table, from(1, 2), "syn", now);
    assert_eq!(table.answer(from(1, 2), ticket, "leg", now), Ok("syn"));
    assert_eq!(table.detour(from(1, 2), now), None, "it came by this one");
}

#[test]
fn when_full_the_oldest_goes() {
    let now = Instant::now();
    let table = Strings::new(3, now);
    let first = new(&table, from(1, 1), "a", now);
    assert_eq!(table.answer(from(1, 1), first, "leg", now), Ok("a"));
    new(&table, from(2, 1), "b", now);
    new(&table, from(3, 1), "c", now);
    // The budget is the capacity per second.
    let now = now + Duration::from_secs(1);
    let Seen::New(_, evicted) = table.see(from(4, 1), NUMBER, "d", false, now) else {
        panic!("refused")
    };
    assert_eq!((evicted.packets, evicted.upstreams), (vec![], vec!["leg"]));
    let Seen::New(_, evicted) = table.see(from(5, 1), NUMBER, "e", false, now) else {
        panic!("refused")
    };
    assert_eq!((evicted.packets, evicted.upstreams), (vec!["b"], vec![]));
    assert_eq!(table.len(), 3);
    assert_eq!(table.clear().packets.len(), 3);
    assert!(table.lock().sources.is_empty());
}

#[test]
fn a_flow_keeps_its_place_while_its_answer_may_be_on_the_way() {
    let start = Instant::now();
    let now = start + PLACE_TIME / 2;
    let table = Strings::new(4, start);
    let see = |flow, now| table.see(flow, NUMBER, "syn", false, now);
    new(&table, from(1, 1), "a", start);
    new(&table, from(1, 2), "b", now);
    assert_eq!(see(from(1, 3), now), Seen::Full("syn"), "its own share");
    assert_eq!(see(from(1, 3), now), Seen::Routed("syn"));
    new(&table, from(2, 1), "c", now);
    new(&table, from(3, 1), "d", now);
    assert_eq!(see(from(4, 1), now), Seen::Full("syn"), "everyone's");
    let now = start + PLACE_TIME;
    let next = see(from(1, 4), now);
    assert!(
        matches!(&next, Seen::New(_, evicted) if evicted.packets == ["a"]),
        "{next:?}"
    );
    assert_eq!(see(from(1, 5), now), Seen::Full("syn"), "b is younger");
}

#[test]
fn a_source_has_half_and_evicts_its_own() {
    let now = Instant::now();
    let table = Strings::new(4, now);
    new(&table, from(9, 1), "other", now);
    new(&table, from(1, 1), "a", now);
    new(&table, from(1, 2), "b", now);
    let now = now + PLACE_TIME;
    let Seen::New(_, evicted) = table.see(from(1, 3), NUMBER, "c", false, now) else {
        panic!("refused")
    };
    assert_eq!(evicted.packets, ["a"]);
}

#[test]
fn a_syn_that_makes_room_is_routed_when_its_attempt_has_ended() {
    let start = Instant::now();
    let table = Strings::new(2, start);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let attempt = runtime.spawn(std::future::pending::<()>()).abort_handle();
    let ticket = new(&table, from(1, 1), "syn", start);
    assert!(table.attach(from(1, 1), ticket, attempt));
    let now = start + PLACE_TIME;
    let next = table.see(from(1, 2), NUMBER, "next", false, now);
    assert!(
        matches!(&next, Seen::New(_, evicted)
            if evicted.packets.is_empty() && evicted.leaving.len() == 1),
        "{next:?}"
    );
    let again = || table.see(from(1, 1), NUMBER, "again", false, now);
    assert_eq!(again(), Seen::Again("syn"), "not yet");
    assert_eq!(table.left(from(1, 1), now), Some("again"));
    assert_eq!(again(), Seen::Routed("again"));
    assert_eq!(table.left(from(1, 1), now), None);
    assert_eq!(table.len(), 1);
}

#[test]
fn attempts_in_vain_are_bounded_per_second_and_others_are_not() {
    let now = Instant::now();
    let table = Strings::new(4, now);
    for port in 0..100 {
        let ticket = new(&table, from(1, port), "good", now);
        assert_eq!(table.answer(from(1, port), ticket, "leg", now), Ok("good"));
        assert_eq!(claim(&table, from(1, port), now), Some("leg"));
    }
    for port in 0..4 {
        let ticket = new(&table, from(2, port), "vain", now);
        assert_eq!(
            table.give_up(from(2, port), ticket, Next::Answered, now),
            Some("vain")
        );
    }
    let refused = table.see(from(2, 9), NUMBER, "vain", false, now);
    assert_eq!(refused, Seen::OverBudget("vain"));
    let later = now + Duration::from_secs(1);
    new(&table, from(2, 10), "later", later);
    let repeated = table.see(from(2, 9), NUMBER, "again", false, later);
    assert_eq!(repeated, Seen::Routed("again"), "there is a budget again");
}

#[test]
fn a_leg_that_nobody_comes_for_expires() {
    let now = Instant::now();
    let table = Strings::new(4, now);
    let ticket = new(&table, from(1, 1), "a", now);
    assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Ok("a"));
    let early = table.expire(now + Duration::from_secs(19));
    assert_eq!(early, Evicted::default());
    let late = table.expire(now + Duration::from_secs(21));
    assert_eq!(late.upstreams, ["leg"]);
    assert_eq!(table.len(), 0);
}

#[test]
fn a_client_that_sends_no_more_has_given_up() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let table = Strings::new(4, start);
    new(&table, from(1, 1), "0", start);
    // As RFC 6298 has it: never longer than what has passed, and a second.
    for seconds in [1, 3, 7, 15, 31, 63] {
        assert_eq!(table.expire(after(seconds)), Evicted::default());
        assert!(matches!(
            table.see(from(1, 1), NUMBER, "again", false, after(seconds)),
            Seen::Again(_)
        ));
    }
    assert_eq!(table.expire(after(127)), Evicted::default());
    assert_eq!(table.expire(after(63 + 126 + 5)).packets, ["again"]);
    new(&table, from(1, 2), "once", start);
    assert_eq!(table.expire(after(5)).packets, ["once"]);
}

#[test]
fn what_repeats_a_routed_syn_is_routed() {
    let now = Instant::now();
    let table = Strings::new(2, now);
    let again = |flow| table.see(flow, NUMBER, "again", false, now);
    let late = table.see(from(1, 1), NUMBER, "syn", true, now);
    assert_eq!(late, Seen::Late("syn"));
    assert_eq!(again(from(1, 1)), Seen::Routed("again"));
    // Another connection from the same port is held.
    let other = table.see(from(1, 1), SequenceNumber(8), "other", false, now);
    assert!(matches!(other, Seen::New(..)), "{other:?}");
    // Its client goes over its share.
    let now = now + PLACE_TIME;
    let next = table.see(from(1, 2), NUMBER, "next", false, now);
    assert!(
        matches!(&next, Seen::New(_, evicted) if evicted.packets == ["other"]),
        "{next:?}"
    );
    let repeated = table.see(from(1, 1), SequenceNumber(8), "again", false, now);
    assert_eq!(repeated, Seen::Routed("again"));
}

#[test]
fn what_becomes_of_an_attempt_becomes_of_the_syns_that_repeat_it() {
    let now = Instant::now();
    let table = Strings::new(64, now);
    let again = |flow| table.see(flow, NUMBER, "again", false, now);
    let end = |port, next| {
        let flow = from(1, port);
        let ticket = new(&table, flow, "syn", now);
        assert_eq!(table.give_up(flow, ticket, next, now), Some("syn"));
        again(flow)
    };
    assert_eq!(end(1, Next::Routed), Seen::Routed("again"));
    assert_eq!(end(2, Next::Split), Seen::Answered("again"));
    assert!(matches!(end(3, Next::Answered), Seen::New(..)));
    let ticket = new(&table, from(1, 4), "syn", now);
    table.sent(from(1, 4), ticket, 0);
    assert_eq!(table.detour(from(1, 4), now), Some("syn"));
    assert_eq!(again(from(1, 4)), Seen::Routed("again"));
    // The client has been accepted, and its connection may be over.
    let ticket = new(&table, from(1, 5), "syn", now);
    assert_eq!(table.answer(from(1, 5), ticket, "leg", now), Ok("syn"));
    assert_eq!(claim(&table, from(1, 5), now), Some("leg"));
    assert_eq!(again(from(1, 5)), Seen::Answered("again"));
}

#[test]
fn a_syn_that_comes_late_is_one_more_of_a_flow_under_way() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let late = |flow| table.see(flow, NUMBER, "late", true, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    assert_eq!(late(from(1, 1)), Seen::Again("syn"));
    assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Ok("late"));
    assert_eq!(late(from(1, 1)), Seen::Answered("late"));
}

#[test]
fn a_client_that_is_accepted_ends_the_attempt() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    let claimed = table.claim(from(1, 1), now);
    assert!(matches!(claimed, Claim::Asking("syn", None)), "{claimed:?}");
    assert_eq!(table.answer(from(1, 1), ticket, "leg", now), Err("leg"));
    assert_eq!(table.len(), 0);
}

#[test]
fn who_begins_anew_gets_no_leg_that_has_said_something() {
    let now = Instant::now();
    let table = Strings::new(8, now);
    let anew = SequenceNumber(8);
    let nothing = Evicted::default;
    for (port, bytes) in [(1, 0), (2, 5)] {
        let flow = from(1, port);
        let ticket = new(&table, flow, "syn", now);
        table.sent(flow, ticket, bytes);
        assert_eq!(table.begun_anew(flow, NUMBER), nothing(), "a repetition");
        let gone = table.begun_anew(flow, anew);
        assert_eq!(gone.packets.len(), usize::from(bytes > 0));
        assert_eq!(table.len(), usize::from(bytes == 0));
        table.clear();
        // And the same once its destination has answered.
        let ticket = new(&table, flow, "syn", now);
        table.sent(flow, ticket, bytes);
        assert_eq!(table.answer(flow, ticket, "leg", now), Ok("syn"));
        assert_eq!(table.begun_anew(flow, NUMBER), nothing(), "a repetition");
        let gone = table.begun_anew(flow, anew);
        assert_eq!(gone.upstreams.len(), usize::from(bytes > 0));
        table.clear();
    }
    assert_eq!(table.len(), 0);
}
