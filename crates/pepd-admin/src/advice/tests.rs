use super::*;
use crate::wire::{
    DirectionSnapshot, Goodput, HandshakeMode, LinkReport, PhaseSeconds, QueueBytes, TcpFigures,
};

/// What a case says of the last ten seconds; the rest is ordinary.
struct Case {
    /// Seconds free, starved and backpressured, downwards.
    phases: [f64; 3],
    goodput: f64,
    client_loss: f64,
    client_rtt: f64,
    upstream_rtt: f64,
    control: &'static str,
    buffer: Option<u64>,
    rate: Option<u64>,
    buffer_limited: f64,
}

const ORDINARY: Case = Case {
    phases: [0.2, 0.3, 9.5],
    goodput: 8e6,
    client_loss: 0.0,
    client_rtt: 0.04,
    upstream_rtt: 0.02,
    control: "cubic",
    buffer: None,
    rate: None,
    buffer_limited: 0.0,
};

fn advice(case: &Case) -> Vec<String> {
    let [free, starved, backpressured] = case.phases;
    let down = PairDirection {
        bytes: 100_000_000,
        goodput: case.goodput,
        phases: PhaseSeconds::default(),
        recent_phases: PhaseSeconds {
            free,
            starved,
            backpressured,
        },
    };
    let leg = |profile: &str, rtt, loss| PairLeg {
        profile: profile.to_owned(),
        rtt: Some(rtt),
        retransmitted: Some(loss),
    };
    let pair = PairSnapshot {
        client_campus: "a".to_owned(),
        server_campus: "b".to_owned(),
        live: 1,
        accepted: 1,
        up: PairDirection::default(),
        down,
        client_leg: leg("near", case.client_rtt, case.client_loss),
        upstream_leg: leg("far", case.upstream_rtt, 0.0),
    };
    let facts = |name: &str| LegFacts {
        name: name.to_owned(),
        congestion: None,
        buffer: case.buffer,
        rate: case.rate,
    };
    advise(&[pair], &[flow(case)], &[facts("near"), facts("far")])
}

fn flow(case: &Case) -> FlowSnapshot {
    let direction = |goodput| DirectionSnapshot {
        bytes: 100_000_000,
        goodput: Goodput {
            last_second: goodput,
            last_ten_seconds: goodput,
            life: goodput,
        },
        phase: None,
        phases: PhaseSeconds::default(),
        idle: 0.0,
        queue: QueueBytes::default(),
        queue_max: 0,
    };
    let leg = |profile: &str, rtt| LegSnapshot {
        profile: profile.to_owned(),
        congestion: Some(case.control.to_owned()),
        link: LinkReport::Up,
        tcp: Some(TcpFigures {
            rtt,
            busy: Some(10.0),
            send_buffer_limited: Some(10.0 * case.buffer_limited),
            ..TcpFigures::default()
        }),
        buffers: None,
    };
    FlowSnapshot {
        id: 1,
        client: "10.1.0.2:4000".parse().unwrap(),
        server: "10.2.0.2:80".parse().unwrap(),
        client_campus: "a".to_owned(),
        server_campus: "b".to_owned(),
        handshake: HandshakeMode::EndToEnd,
        started: 0.0,
        age: 100.0,
        first_byte: None,
        up: direction(0.0),
        down: direction(case.goodput),
        client_leg: leg("near", case.client_rtt),
        upstream_leg: leg("far", case.upstream_rtt),
    }
}

/// Returns the only sentence.
fn sentence(case: &Case) -> String {
    let mut advice = advice(case);
    assert_eq!(advice.len(), 1, "{advice:?}");
    advice.remove(0)
}

#[test]
fn a_loss_based_control_on_a_lossy_leg_is_to_be_changed() {
    let lossy = Case {
        client_loss: 0.05,
        ..ORDINARY
    };
    assert_eq!(
        sentence(&lossy),
        "from b to a, [leg.near] is the bottleneck: the other leg waits for it 95 % of the time; \
         5.0 % of its bytes are sent again, and cubic takes every loss for congestion: set \
         [leg.near] congestion = \"bbr\", or \"find-rate\" where most of what its narrow place carries \
         is yours"
    );
    let already = Case {
        control: "bbr",
        ..lossy
    };
    assert!(sentence(&already).contains("no key of its own"));
    let too_lossy = Case {
        client_loss: 0.15,
        ..already
    };
    let text = sentence(&too_lossy);
    assert!(text.contains("15.0 % of its bytes are sent again, and bbr slows down"));
    assert!(text.ends_with("set [leg.near] congestion = \"find-rate\""));
    let found = Case {
        control: "find-rate",
        ..too_lossy
    };
    assert!(sentence(&found).contains("no key of its own"));
}

#[test]
fn the_leg_that_the_other_waits_for_is_named() {
    assert!(sentence(&ORDINARY).contains("[leg.near] is the bottleneck"));
    let starved = Case {
        phases: [0.2, 9.5, 0.3],
        ..ORDINARY
    };
    let text = sentence(&starved);
    assert!(text.contains("[leg.far] is the bottleneck: the other leg waits for it 95 %"));
    assert!(text.contains("its bandwidth or its sender"));
}

#[test]
fn a_buffer_smaller_than_bandwidth_times_rtt_is_to_be_raised() {
    let small = Some(256 << 10);
    let used_up = Case {
        buffer: small,
        buffer_limited: 0.8,
        client_rtt: 0.5,
        ..ORDINARY
    };
    let text = sentence(&used_up);
    assert!(
        text.contains("buffer of 256KiB is used up 80 % of the time"),
        "{text}"
    );
    assert!(text.contains("buffer = \"512KiB\" or more"), "{text}");
    // 50 Mbit/s for half a second.
    let by_rate = Case {
        rate: Some(50_000_000),
        ..used_up
    };
    let text = sentence(&by_rate);
    assert!(text.contains("smaller than its rate × RTT"), "{text}");
    assert!(text.contains("buffer = \"3052KiB\" or more"), "{text}");
}

#[test]
fn a_receive_buffer_that_is_too_small_starves_the_other_leg() {
    // 256 KiB every 500 ms are 4.2 Mbit/s.
    let window = Case {
        phases: [0.2, 9.5, 0.3],
        goodput: 4e6,
        upstream_rtt: 0.5,
        buffer: Some(256 << 10),
        ..ORDINARY
    };
    let text = sentence(&window);
    assert!(
        text.contains("a buffer of 256KiB allows no more at its RTT of 500 ms"),
        "{text}"
    );
    assert!(text.contains("[leg.far] buffer = \"512KiB\""), "{text}");
    let wide = Case {
        buffer: Some(16 << 20),
        ..window
    };
    assert!(sentence(&wide).contains("its bandwidth or its sender"));
}

#[test]
fn where_splitting_gains_nothing_a_bypass_is_suggested() {
    let easy = Case {
        phases: [9.0, 0.5, 0.5],
        client_rtt: 0.0003,
        upstream_rtt: 0.0005,
        ..ORDINARY
    };
    assert!(sentence(&easy).contains("action = \"bypass\""));
    let lossy = Case {
        client_loss: 0.002,
        ..easy
    };
    assert_eq!(advice(&lossy), Vec::<String>::new());
}

#[test]
fn figures_that_support_nothing_give_no_advice() {
    let none = Vec::<String>::new();
    let free = Case {
        phases: [6.0, 2.0, 2.0],
        ..ORDINARY
    };
    let few_bytes = Case {
        goodput: 500_000.0,
        ..ORDINARY
    };
    let little_time = Case {
        phases: [0.1, 0.1, 2.0],
        ..ORDINARY
    };
    for case in [free, few_bytes, little_time] {
        assert_eq!(advice(&case), none);
    }
    assert_eq!(advise(&[], &[], &[]), none);
}

#[test]
fn sizes_are_written_as_the_configuration_reads_them() {
    assert_eq!(size(1), "1KiB");
    assert_eq!(size(256 << 10), "256KiB");
    assert_eq!(size(1 << 20), "1MiB");
    assert_eq!(size((10 << 20) + 1), "11MiB");
}
