mod room;
mod steps;

use std::time::Duration;

use pepd_packet::SequenceNumber;
use pepd_telemetry::UnsplitReason;

use super::places::PLACE_TIME;
use super::*;
use crate::limits::Flood;
use steps::*;

#[test]
fn an_answered_flow_is_claimed_once() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    assert_eq!(answer(&table, from(1, 1), ticket, "leg", now), Ok("syn"));
    assert_eq!(
        see(&table, from(1, 1), "again", now),
        split("again"),
        "its SYN-ACK was lost"
    );
    assert_eq!(claim(&table, from(1, 2), now), None);
    assert_eq!(claim(&table, from(1, 1), now), Some("leg"));
    assert_eq!(claim(&table, from(1, 1), now), None);
    assert_eq!(table.len(), 0);
    assert!(table.lock().places.is_empty());
}

#[test]
fn the_destinations_handshake_ends_with_the_clients() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let flow = from(1, 1);
    let acknowledge = |ack| table.final_ack(flow, ack, now);
    assert_eq!(acknowledge("nobody's"), FinalAck::Drop("nobody's"));
    let ticket = new(&table, flow, "syn", now);
    assert_eq!(acknowledge("early"), FinalAck::Drop("early"));
    assert_eq!(answer(&table, flow, ticket, "leg", now), Ok("syn"));
    assert_eq!(acknowledge("first"), FinalAck::Withheld);
    assert_eq!(acknowledge("second"), FinalAck::Drop("first"));
    let claim = table.accepted(flow, now);
    assert_eq!(claim, Claim::Answered("leg", Some("second")));
    assert_eq!(acknowledge("late"), FinalAck::Release("late"));
}

#[test]
fn the_handshake_of_a_leg_that_is_given_up_does_not_end() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let flow = from(1, 1);
    let ticket = new(&table, flow, "syn", now);
    assert_eq!(answer(&table, flow, ticket, "leg", now), Ok("syn"));
    assert_eq!(table.final_ack(flow, "ack", now), FinalAck::Withheld);
    let gone = table.expire(now + Duration::from_secs(60));
    assert_eq!((gone.upstreams, gone.acks), (vec!["leg"], vec!["ack"]));
    let late = table.final_ack(flow, "late", now);
    assert_eq!(late, FinalAck::Drop("late"));
}

#[test]
fn a_repeated_syn_takes_the_place_of_the_one_before() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let ticket = new(&table, from(1, 1), "first", now);
    assert_eq!(see(&table, from(1, 1), "second", now), superseded("first"));
    assert_eq!(
        fail(&table, from(1, 1), ticket, SynVerdict::Refused, now),
        Some("second")
    );
    assert_eq!(
        fail(&table, from(1, 1), ticket, SynVerdict::Refused, now),
        None
    );
    // The same flow later is another one: an old attempt has no say in it.
    let later = new(&table, from(1, 1), "third", now);
    assert_eq!(
        fail(&table, from(1, 1), ticket, SynVerdict::Refused, now),
        None
    );
    assert_eq!(answer(&table, from(1, 1), ticket, "old", now), Err("old"));
    assert_eq!(answer(&table, from(1, 1), later, "leg", now), Ok("third"));
    assert_eq!(
        table.icmp_error(from(1, 1), Unreachable::Host, now),
        None,
        "it has been answered"
    );
}

#[test]
fn a_syn_of_the_other_end_is_for_the_leg_towards_it() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let (flow, reverse) = (from(1, 1), from(1, 1).reversed());
    let crossing = |packet, leg_is_open| {
        let to_leg = SynVerdict::Pass;
        let nowhere = SynVerdict::Superseded;
        SynAction::Decide(packet, if leg_is_open { to_leg } else { nowhere })
    };
    let ticket = new(&table, flow, "syn", now);
    assert_eq!(see(&table, reverse, "a", now), crossing("a", false));
    table.leg_sent(flow, ticket, 0, (), now);
    assert_eq!(see(&table, reverse, "b", now), crossing("b", true));
    assert_eq!(answer(&table, flow, ticket, "leg", now), Ok("syn"));
    assert_eq!(see(&table, reverse, "c", now), crossing("c", true));
    assert_eq!(claim(&table, flow, now), Some("leg"));
    new(&table, reverse, "d", now);
}

#[test]
fn only_what_has_been_asked_can_be_answered_by_another_way() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    assert_eq!(reset(&table, from(1, 1), now), None);
    table.leg_sent(from(1, 1), ticket, 0, (), now);
    assert_eq!(reset(&table, from(1, 2), now), None);
    assert_eq!(reset(&table, from(1, 1), now), Some("syn"));
    let ticket = new(&table, from(1, 2), "syn", now);
    assert_eq!(answer(&table, from(1, 2), ticket, "leg", now), Ok("syn"));
    assert_eq!(reset(&table, from(1, 2), now), None, "it came by this one");
}

#[test]
fn a_syn_that_makes_room_is_routed_when_its_attempt_has_ended() {
    let start = Instant::now();
    let table = Strings::new(2, SourcePrefix::NETWORK, start);
    let ticket = new(&table, from(1, 1), "syn", start);
    assert!(table.dial_started(from(1, 1), ticket, Deaf, start));
    let now = start + PLACE_TIME;
    let evicted = evicted_for(&table, from(1, 2), "next", now);
    assert!(
        evicted.packets.is_empty() && evicted.dials.len() == 1,
        "{evicted:?}"
    );
    let again = || see(&table, from(1, 1), "again", now);
    let dial_ended = |now| {
        let (packet, verdict) = table.dial_ended(from(1, 1), ticket, now)?;
        assert_eq!(verdict, FULL);
        Some(packet)
    };
    assert_eq!(again(), superseded("syn"), "not yet");
    assert_eq!(dial_ended(now), Some("again"));
    assert_eq!(again(), routed_again("again"));
    assert_eq!(dial_ended(now), None);
    assert_eq!(table.len(), 1);
}

#[test]
fn attempts_in_vain_are_bounded_per_second_and_others_are_not() {
    let now = Instant::now();
    let table = Strings::new(4, SourcePrefix::NETWORK, now);
    for port in 0..100 {
        let ticket = new(&table, from(1, port), "good", now);
        assert_eq!(
            answer(&table, from(1, port), ticket, "leg", now),
            Ok("good")
        );
        assert_eq!(claim(&table, from(1, port), now), Some("leg"));
    }
    for port in 0..3 {
        let ticket = new(&table, from(2, port), "vain", now);
        assert_eq!(
            fail(&table, from(2, port), ticket, SynVerdict::Refused, now),
            Some("vain")
        );
    }
    let refused = see(&table, from(2, 9), "vain", now);
    assert_eq!(refused, bypass("vain", UnsplitReason::Budget));
    let later = now + Duration::from_secs(1);
    new(&table, from(2, 10), "later", later);
    let repeated = see(&table, from(2, 9), "again", later);
    assert_eq!(repeated, routed_again("again"), "there is a budget again");
}

#[test]
fn a_leg_that_nobody_comes_for_expires() {
    let now = Instant::now();
    let table = Strings::new(4, SourcePrefix::NETWORK, now);
    let ticket = new(&table, from(1, 1), "a", now);
    assert_eq!(answer(&table, from(1, 1), ticket, "leg", now), Ok("a"));
    let early = table.expire(now + Duration::from_secs(15));
    assert_eq!(early, Evicted::default());
    let late = table.expire(now + Duration::from_secs(17));
    assert_eq!(late.upstreams, ["leg"]);
    assert_eq!(table.len(), 0);
}

#[test]
fn a_client_that_sends_no_more_has_given_up() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let table = Strings::new(4, SourcePrefix::NETWORK, start);
    new(&table, from(1, 1), "0", start);
    // As RFC 6298 has it: never longer than what has passed, and a second.
    for seconds in [1, 3, 7, 15, 31, 63] {
        assert_eq!(table.expire(after(seconds)), Evicted::default());
        assert!(matches!(
            see(&table, from(1, 1), "again", after(seconds)),
            SynAction::Decide(_, SynVerdict::Superseded)
        ));
    }
    assert_eq!(table.expire(after(127)), Evicted::default());
    assert_eq!(
        table.expire(after(63 + 126 + 5)).packets,
        [("again", SynVerdict::Silence)]
    );
    new(&table, from(1, 2), "once", start);
    assert_eq!(
        table.expire(after(5)).packets,
        [("once", SynVerdict::Silence)]
    );
}

/// One whose earlier SYNs came to the process before sends the next one as long after those as it has sent any.
#[test]
fn a_client_that_began_before_has_its_time() {
    let start = Instant::now() + Duration::from_secs(60);
    let after = |seconds| start + Duration::from_secs(seconds);
    let table = Strings::new(4, SourcePrefix::NETWORK, start);
    table.succeed(start);
    new(&table, from(1, 1), "31 s after its first", start);
    assert_eq!(table.expire(after(65)), Evicted::default());
    // Who is seen first after that has begun then.
    new(&table, from(1, 2), "its first", after(65));
    let given_up = [
        ("31 s after its first", SynVerdict::Silence),
        ("its first", SynVerdict::Silence),
    ];
    assert_eq!(table.expire(after(69)).packets, given_up[..1]);
    assert_eq!(table.expire(after(70)).packets, given_up[1..]);
}

#[test]
fn what_repeats_a_routed_syn_is_routed() {
    let now = Instant::now();
    let table = Strings::new(2, SourcePrefix::NETWORK, now);
    let again = |flow| see(&table, flow, "again", now);
    let late = receive(&table, from(1, 1), NUMBER, "syn", true, now).action;
    assert_eq!(late, bypass("syn", UnsplitReason::Late));
    assert_eq!(again(from(1, 1)), routed_again("again"));
    // Another connection from the same port is held.
    let other = receive(&table, from(1, 1), SequenceNumber(8), "other", false, now).action;
    assert!(matches!(other, SynAction::Dial(_)), "{other:?}");
    // Its client goes over its share.
    let now = now + PLACE_TIME;
    let evicted = evicted_for(&table, from(1, 2), "next", now);
    assert_eq!(evicted.packets, [("other", FULL)]);
    let repeated = receive(&table, from(1, 1), SequenceNumber(8), "again", false, now);
    assert_eq!(repeated.action, routed_again("again"));
}

#[test]
fn what_becomes_of_an_attempt_becomes_of_the_syns_that_repeat_it() {
    let now = Instant::now();
    let table = Strings::new(64, SourcePrefix::NETWORK, now);
    let again = |flow| see(&table, flow, "again", now);
    let end = |port, next| {
        let flow = from(1, port);
        let ticket = new(&table, flow, "syn", now);
        assert_eq!(fail(&table, flow, ticket, next, now), Some("syn"));
        again(flow)
    };
    assert_eq!(
        end(1, SynVerdict::Bypass(UnsplitReason::NotPossible)),
        routed_again("again")
    );
    assert_eq!(end(2, SynVerdict::Split), split("again"));
    assert!(matches!(end(3, SynVerdict::Refused), SynAction::Dial(_)));
    let ticket = new(&table, from(1, 4), "syn", now);
    table.leg_sent(from(1, 4), ticket, 0, (), now);
    assert_eq!(reset(&table, from(1, 4), now), Some("syn"));
    assert_eq!(again(from(1, 4)), routed_again("again"));
    // The client has been accepted, and its connection may be over.
    let ticket = new(&table, from(1, 5), "syn", now);
    assert_eq!(answer(&table, from(1, 5), ticket, "leg", now), Ok("syn"));
    assert_eq!(claim(&table, from(1, 5), now), Some("leg"));
    assert_eq!(again(from(1, 5)), split("again"));
}

#[test]
fn a_syn_that_comes_late_is_one_more_of_a_flow_under_way() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let late = |flow| receive(&table, flow, NUMBER, "late", true, now).action;
    let ticket = new(&table, from(1, 1), "syn", now);
    assert_eq!(late(from(1, 1)), superseded("syn"));
    assert_eq!(answer(&table, from(1, 1), ticket, "leg", now), Ok("late"));
    assert_eq!(late(from(1, 1)), split("late"));
}

#[test]
fn a_client_that_is_accepted_ends_the_attempt() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let ticket = new(&table, from(1, 1), "syn", now);
    let claimed = table.accepted(from(1, 1), now);
    assert!(
        matches!(claimed, Claim::Dialing("syn", None)),
        "{claimed:?}"
    );
    assert_eq!(answer(&table, from(1, 1), ticket, "leg", now), Err("leg"));
    assert_eq!(table.len(), 0);
}

#[test]
fn who_begins_anew_gets_no_leg_that_has_said_something() {
    let now = Instant::now();
    let table = Strings::new(8, SourcePrefix::NETWORK, now);
    let anew = SequenceNumber(8);
    let nothing = Evicted::default;
    for (port, bytes) in [(1, 0), (2, 5)] {
        let flow = from(1, port);
        let ticket = new(&table, flow, "syn", now);
        table.leg_sent(flow, ticket, bytes, (), now);
        assert_eq!(port_reused(&table, flow, NUMBER), nothing(), "a repetition");
        let gone = port_reused(&table, flow, anew);
        assert_eq!(gone.packets.len(), usize::from(bytes > 0));
        assert_eq!(table.len(), usize::from(bytes == 0));
        let _ = table.clear(SynVerdict::Superseded, now);
        // And the same once its destination has answered.
        let ticket = new(&table, flow, "syn", now);
        table.leg_sent(flow, ticket, bytes, (), now);
        assert_eq!(answer(&table, flow, ticket, "leg", now), Ok("syn"));
        assert_eq!(port_reused(&table, flow, NUMBER), nothing(), "a repetition");
        let gone = port_reused(&table, flow, anew);
        assert_eq!(gone.upstreams.len(), usize::from(bytes > 0));
        let _ = table.clear(SynVerdict::Superseded, now);
    }
    assert_eq!(table.len(), 0);
}
