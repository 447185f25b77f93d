mod held_back;

use super::*;
use crate::wire::{
    BufferFigures, Carried, DirectionSnapshot, Goodput, HandshakeMode, LegBuffers, LinkReport,
    LoadedRtt, PhaseSeconds, QueueBytes, TcpFigures,
};

/// What a case says of the last ten seconds; the rest is ordinary.
#[derive(Clone)]
struct Case {
    /// Seconds free, starved and backpressured, downwards.
    phases: [f64; 3],
    goodput: f64,
    client_loss: f64,
    client_rtt: f64,
    upstream_rtt: f64,
    control: &'static str,
    buffer: Option<u64>,
    /// Why an automatic buffer has its size.
    automatic: Option<SizedBy>,
    rate: Option<u64>,
    buffer_limited: f64,
    window_limited: f64,
    /// The leg near, as all its connections have shown it.
    near: Option<LegState>,
    /// The legs whose link was gone lately.
    away: Vec<String>,
}

const ORDINARY: Case = Case {
    phases: [0.2, 0.3, 9.5],
    goodput: 8e6,
    client_loss: 0.0,
    client_rtt: 0.04,
    upstream_rtt: 0.02,
    control: "cubic",
    buffer: None,
    automatic: None,
    rate: None,
    buffer_limited: 0.0,
    window_limited: 0.0,
    near: None,
    away: Vec::new(),
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
        sent_bytes: 100_000_000,
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
        automatic: case.automatic.is_some(),
        rate: case.rate,
    };
    let states: Vec<_> = case.near.clone().into_iter().collect();
    let legs = [facts("near"), facts("far")];
    advise(&[pair], &[flow(case)], &legs, &states, &case.away)
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
            receive_window_limited: Some(10.0 * case.window_limited),
            ..TcpFigures::default()
        }),
        buffers: case.automatic.map(|why| {
            let buffer = BufferFigures {
                held: 0,
                size: 1 << 20,
                why,
            };
            LegBuffers {
                send: buffer,
                receive: buffer,
            }
        }),
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
        came: None,
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
        ..lossy.clone()
    };
    let text = sentence(&already);
    assert!(
        text.ends_with(
            "5.0 % of its bytes are sent again: where most of what its narrow place carries is yours, \
             set [leg.near] congestion = \"find-rate\", which neither slows down for what is lost nor \
             loses by sending too much"
        ),
        "{text}"
    );
    let too_lossy = Case {
        client_loss: 0.15,
        ..already.clone()
    };
    let text = sentence(&too_lossy);
    assert!(text.contains("15.0 % of its bytes are sent again, and bbr slows down"));
    assert!(text.ends_with("set [leg.near] congestion = \"find-rate\""));
    let found = Case {
        control: "find-rate",
        ..too_lossy.clone()
    };
    let text = sentence(&found);
    assert!(
        text.contains("15.0 % of its bytes are sent again, since its path loses them at any rate"),
        "{text}"
    );
    let fixed = Case {
        control: "fixed-rate",
        ..found.clone()
    };
    assert!(sentence(&fixed).contains("with a lower [leg.near] rate"));
}

#[test]
fn an_automatic_buffer_wants_memory_where_it_is_short_and_nothing_else() {
    let by = |why| Case {
        automatic: Some(why),
        buffer_limited: 0.8,
        ..ORDINARY
    };
    assert_eq!(
        sentence(&by(SizedBy::Memory)),
        "from b to a, [leg.near] is the bottleneck: the other leg waits for it 95 % of the time; its buffers \
         have no more than their part of what is left of [limits] memory, and use it up 80 % of the time: \
         raise [limits] memory"
    );
    assert!(sentence(&by(SizedBy::Path)).contains("no key of its own would help"));
}

/// cubic at 600 ms and a loss of one in a hundred: next to nothing comes through, which is no reason to say
/// nothing.
#[test]
fn little_is_carried_where_much_is_lost() {
    let slow = Case {
        goodput: 240_000.0,
        client_rtt: 0.6,
        client_loss: 0.0097,
        ..ORDINARY
    };
    let text = sentence(&slow);
    assert!(
        text.contains("1.0 % of its bytes are sent again, and cubic takes every loss"),
        "{text}"
    );
}

#[test]
fn no_key_would_help_is_not_said_while_segments_are_sent_again() {
    for control in ["bbr", "cubic", "vegas", "find-rate", "fixed-rate"] {
        for share in [0.011, 0.27] {
            let lossy = Case {
                control,
                near: Some(near(0.6, None, share)),
                ..ORDINARY
            };
            let text = sentence(&lossy);
            assert!(!text.contains("no key of its own"), "{control}: {text}");
            assert!(text.contains("% of its bytes are sent again"), "{text}");
        }
    }
    let clean = Case {
        near: Some(near(0.6, None, 0.001)),
        ..ORDINARY
    };
    assert!(sentence(&clean).contains("no key of its own would help"));
}

/// The leg near, with 50 Mbit/s: its least round trip, and the median under load, in seconds.
fn near(least: f64, loaded: Option<f64>, resent: f64) -> LegState {
    LegState {
        leg: "near".to_owned(),
        sent: 50e6 / (1.0 - resent),
        resent: Some(resent),
        sent_bytes: 1_000_000_000,
        resent_bytes: 0,
        busy_seconds: 60.0,
        least_rtt: Some(least),
        loaded_rtt: loaded.map(|median| LoadedRtt {
            median,
            p95: 1.2 * median,
            added: median - least,
            samples: 300,
        }),
        carried: loaded.map(|_| Carried {
            median: 50e6,
            bytes: 400_000_000,
        }),
    }
}

/// An upload of 8 Mbit/s that ended eleven seconds ago, and one that goes on.
#[test]
fn the_rate_that_is_named_is_that_of_the_busy_time() {
    let busy = Carried {
        median: 7.7e6,
        bytes: 10_000_000,
    };
    let after = |sent, carried| LegState {
        sent,
        carried,
        ..near(0.1, Some(0.9), 0.0)
    };
    let idle = |near| Case {
        phases: [0.0, 0.0, 0.0],
        goodput: 0.0,
        near: Some(near),
        ..ORDINARY
    };
    for sent in [0.0, 760e3] {
        let text = sentence(&idle(after(sent, Some(busy))));
        assert!(
            text.starts_with("[leg.near]: while it is busy its round trips take 900 ms")
                && text.contains(
                    "\"fixed-rate\" with rate = \"7730kbit\", just below what it carries"
                ),
            "{text}"
        );
    }
    let goes_on = Case {
        goodput: 7.6e6,
        near: Some(after(7.7e6, Some(busy))),
        ..ORDINARY
    };
    assert!(sentence(&goes_on).contains("set [leg.near] rate = \"7730kbit\", just below"));
    // Nobody knows, or it was next to nothing.
    let little = Carried {
        median: 4e3,
        bytes: 20_000,
    };
    for carried in [None, Some(little)] {
        let none: Vec<String> = Vec::new();
        assert_eq!(advice(&idle(after(0.0, carried))), none);
    }
}

/// What waited for a link that was gone waited for no queue.
#[test]
fn an_outage_is_no_bottleneck() {
    let of = |leg: &str| Case {
        away: vec![leg.to_owned()],
        ..ORDINARY
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(advice(&of("near")), none);
    assert_eq!(advice(&of("far")), none);
    assert_eq!(advice(&of("another")).len(), 1);
}

#[test]
fn a_queue_of_the_legs_own_making_is_to_be_kept_short() {
    // Measured: 27 % sent again, round trips of 1.00 s where 0.6 are the least.
    let bloated = Case {
        goodput: 50e6,
        client_rtt: 1.0,
        control: "bbr",
        near: Some(near(0.6, Some(1.0), 0.27)),
        ..ORDINARY
    };
    assert_eq!(
        sentence(&bloated),
        "from b to a, [leg.near] is the bottleneck: the other leg waits for it 95 % of the time; while it \
         is busy its round trips take 1.00 s (one in twenty more than 1.20 s), 400 ms more than at the \
         least and 27.0 % of its bytes are sent again; that is a queue of its own making: set [leg.near] \
         rate = \"50Mbit\", just below what it carries, or congestion = \"find-rate\" where most of what \
         its narrow place carries is yours"
    );
    // A rate is each connection's, so of many it is to be all of theirs.
    let of_many = Case {
        goodput: 5e6,
        ..bloated.clone()
    };
    let text = sentence(&of_many);
    assert!(
        text.contains("congestion = \"find-rate\", or \"fixed-rate\" with rate = \"50Mbit\""),
        "{text}"
    );
    // More buffer would be more queue.
    let with_buffer = Case {
        buffer: Some(4 << 20),
        buffer_limited: 0.9,
        near: Some(near(0.6, Some(1.0), 0.0)),
        ..of_many.clone()
    };
    let text = sentence(&with_buffer);
    assert!(
        text.contains("a queue of its own making") && !text.contains("buffer"),
        "{text}"
    );
    let fixed = Case {
        control: "fixed-rate",
        ..with_buffer.clone()
    };
    assert!(sentence(&fixed).contains("its rate is more than its narrow place has room for"));
    let found = Case {
        control: "find-rate",
        ..fixed.clone()
    };
    let text = sentence(&found);
    assert!(
        text.contains("short and many, set [leg.") && text.contains("others' that wait there"),
        "{text}"
    );
    // With a rate that it is kept to already, a lower one helps nobody.
    let kept = Case {
        rate: Some(50_000_000),
        ..found
    };
    let text = sentence(&kept);
    assert!(
        text.contains("rate = \"50Mbit\" keeps its own queue short already")
            && !text.contains("set ["),
        "{text}"
    );
}

#[test]
fn round_trips_that_nobody_feels_are_no_news() {
    for (least, loaded) in [(0.02, 0.06), (0.6, 0.8), (0.6, 0.6)] {
        let case = Case {
            near: Some(near(least, Some(loaded), 0.0)),
            ..ORDINARY
        };
        assert!(
            sentence(&case).contains("no key of its own"),
            "{loaded} of {least}"
        );
    }
    let mut once = near(0.02, Some(0.5), 0.0);
    once.loaded_rtt.as_mut().unwrap().samples = 9;
    let case = Case {
        near: Some(once),
        ..ORDINARY
    };
    assert!(sentence(&case).contains("no key of its own"));
}

/// A leg may be full of what is nobody's bottleneck by the phases.
#[test]
fn a_queue_is_told_of_where_no_direction_is_limited() {
    let free = Case {
        phases: [6.0, 2.0, 2.0],
        goodput: 50e6,
        near: Some(near(0.02, Some(0.3), 0.0)),
        ..ORDINARY
    };
    let text = sentence(&free);
    assert!(
        text.starts_with("[leg.near]: while it is busy its round trips take 300 ms"),
        "{text}"
    );
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
    assert!(
        text.contains(
            "buffer = \"auto\", which follows what its path needs, or \"512KiB\" or more"
        ),
        "{text}"
    );
    // Measured: 4.6 of 50 Mbit/s at 600 ms, with nothing said by the kernel.
    let near_it = Case {
        goodput: 4.6e6,
        client_rtt: 0.6,
        buffer_limited: 0.0,
        ..used_up.clone()
    };
    let text = sentence(&near_it);
    assert!(
        text.contains("337KiB under way of the 256KiB that its buffer allows at its RTT of 600 ms"),
        "{text}"
    );
    assert!(
        text.contains(
            "buffer = \"auto\", which follows what its path needs, or \"512KiB\" or more"
        ),
        "{text}"
    );
    let the_kernels = Case {
        buffer: None,
        goodput: 40e6,
        ..used_up.clone()
    };
    let text = sentence(&the_kernels);
    assert!(
        text.contains("net.ipv4.tcp_wmem) is used up 80 % of the time"),
        "{text}"
    );
    // 50 Mbit/s for half a second.
    let by_rate = Case {
        rate: Some(50_000_000),
        ..used_up.clone()
    };
    let text = sentence(&by_rate);
    assert!(text.contains("smaller than its rate × RTT"), "{text}");
    assert!(text.contains("buffer = \"3052KiB\" or more"), "{text}");
}

/// The leg near as the model is told of it: what was sent over it, and the share that was sent again.
fn seen(share: f64) -> LegState {
    let sent = 1_000_000_000_000_u64;
    LegState {
        sent_bytes: sent,
        resent_bytes: ceil(share * sent as f64),
        ..near(0.2, None, share)
    }
}

/// 1 MiB at 200 ms, where CUBIC's law leaves 60 Mbit/s.
fn modelled(control: &'static str, share: f64) -> Case {
    Case {
        goodput: 40e6,
        client_rtt: 0.2,
        control,
        buffer: Some(1 << 20),
        buffer_limited: 0.8,
        near: Some(seen(share)),
        ..ORDINARY
    }
}

#[test]
fn where_the_model_holds_it_is_said_what_a_buffer_would_give() {
    assert_eq!(
        sentence(&modelled("cubic", 2e-5)),
        "from b to a, [leg.near] is the bottleneck: the other leg waits for it 95 % of the time; its buffer of \
         1MiB is used up 80 % of the time and so smaller than bandwidth × RTT (200 ms): set [leg.near] buffer \
         = \"2MiB\", which would give 96 % of the 61Mbit that cubic can have at its RTT of 200 ms and 0.002 % \
         of loss; now it is 64 %"
    );
    // Nothing is lost: the rate alone.
    for control in ["reno", "fixed-rate"] {
        let by_rate = Case {
            rate: Some(100_000_000),
            ..modelled(control, 0.0)
        };
        let text = sentence(&by_rate);
        assert!(
            text.contains("its buffer of 1MiB is smaller than its rate × RTT: set [leg.near] buffer = \"4MiB\""),
            "{text}"
        );
        assert!(
            text.ends_with(&format!(
                "which would give 100 % of the 96Mbit that {control} can have at its RTT of 200 ms; now it is 43 %"
            )),
            "{text}"
        );
    }
}

#[test]
fn where_the_model_does_not_hold_no_figure_is_given() {
    let good = modelled("cubic", 2e-5);
    let same_loss_no_longer = LegState {
        resent: Some(1e-4),
        ..seen(2e-5)
    };
    let few_losses = LegState {
        sent_bytes: 1_000_000_000,
        resent_bytes: 20_000,
        ..seen(2e-5)
    };
    let cases = [
        ("bbr", modelled("bbr", 2e-5)),
        ("no law", modelled("vegas", 2e-5)),
        ("found", modelled("find-rate", 2e-5)),
        ("nothing that binds", modelled("cubic", 0.0)),
        (
            "another goodput than it says",
            Case {
                goodput: 20e6,
                ..good.clone()
            },
        ),
        (
            "losses that are others now",
            Case {
                near: Some(same_loss_no_longer),
                ..good.clone()
            },
        ),
        (
            "too few losses",
            Case {
                near: Some(few_losses),
                ..good.clone()
            },
        ),
        (
            "few packets",
            Case {
                buffer: Some(64 << 10),
                goodput: 2.6e6,
                ..good.clone()
            },
        ),
        (
            "nothing known of the leg",
            Case {
                near: None,
                ..good.clone()
            },
        ),
    ];
    for (why, case) in cases {
        let text = sentence(&case);
        assert!(text.ends_with("or more"), "{why}: {text}");
        assert!(!text.contains("would give"), "{why}: {text}");
    }
}

#[test]
fn what_a_law_leaves_is_said_where_it_is_what_is_measured() {
    let lossy = Case {
        goodput: 1.4e6,
        client_rtt: 0.15,
        near: Some(seen(0.005)),
        client_loss: 0.02,
        ..ORDINARY
    };
    let text = sentence(&lossy);
    assert!(
        text.contains(
            "takes every loss for congestion (the law of cubic leaves a connection 1390kbit at its RTT of 150 ms)"
        ),
        "{text}"
    );
    let other = Case {
        goodput: 4e6,
        ..lossy.clone()
    };
    assert!(!sentence(&other).contains("the law"));
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
    assert!(
        text.contains(
            "[leg.far] buffer = \"auto\", which follows what its path needs, or \"512KiB\""
        ),
        "{text}"
    );
    let wide = Case {
        buffer: Some(16 << 20),
        ..window.clone()
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
        ..easy.clone()
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
        phases: [0.2, 9.5, 0.3],
        goodput: 500_000.0,
        ..ORDINARY
    };
    let nothing = Case {
        goodput: 0.0,
        ..ORDINARY
    };
    let little_time = Case {
        phases: [0.1, 0.1, 2.0],
        ..ORDINARY
    };
    for case in [free, few_bytes, nothing, little_time] {
        assert_eq!(advice(&case), none);
    }
    assert_eq!(advise(&[], &[], &[], &[], &[]), none);
}

#[test]
fn sizes_are_written_as_the_configuration_reads_them() {
    assert_eq!(size(1), "1KiB");
    assert_eq!(size(256 << 10), "256KiB");
    assert_eq!(size(1 << 20), "1MiB");
    assert_eq!(size((10 << 20) + 1), "11MiB");
}
