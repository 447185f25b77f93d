use super::*;

/// A download that its client reads slowly: the leg to it could carry more.
#[test]
fn hosts_that_take_no_more_are_not_the_legs_bandwidth() {
    let slow_reader = Case {
        window_limited: 0.98,
        ..ORDINARY
    };
    assert_eq!(
        sentence(&slow_reader),
        "from b to a, [leg.near] is the bottleneck: the other leg waits for it 95 % of the time; the hosts behind \
         it take no more: their receive windows are full 98 % of the time that there is something to send; a \
         program there reads slowly, or the host's receive buffer (on Linux net.ipv4.tcp_rmem) is smaller than \
         bandwidth × RTT (40.0 ms)"
    );
    // A full window is no reason to raise a buffer of the box's, which is full behind it.
    let with_buffer = Case {
        buffer: Some(64 << 10),
        ..slow_reader.clone()
    };
    assert!(!sentence(&with_buffer).contains("buffer = "));
    let now_and_then = Case {
        window_limited: 0.2,
        ..ORDINARY
    };
    assert!(sentence(&now_and_then).contains("no key of its own"));
}

#[test]
fn a_leg_that_carries_all_of_its_rate_is_held_back_by_that() {
    let one = Case {
        goodput: 19e6,
        rate: Some(20_000_000),
        ..ORDINARY
    };
    let text = sentence(&one);
    assert!(
        text.ends_with(
            "its rate of 20Mbit is the most that one connection sends: raise [leg.near] rate if its link carries \
             more"
        ),
        "{text}"
    );
    let below = Case {
        goodput: 8e6,
        ..one.clone()
    };
    assert!(sentence(&below).contains("no key of its own"));
    // What is each connection's says nothing of many; of the leg's own it is the sum that counts.
    for control in ["fixed-rate", "find-rate"] {
        let all = Case {
            control,
            rate: Some(50_000_000),
            near: Some(near(0.6, None, 0.0)),
            buffer: Some(64 << 20),
            ..below.clone()
        };
        let text = sentence(&all);
        assert!(
            text.contains("its rate of 50Mbit is the most that all its connections together send"),
            "{control}: {text}"
        );
    }
}
