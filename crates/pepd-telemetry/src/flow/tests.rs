use super::*;
use crate::HandshakeMode;
use crate::legs::{LegSecondFacts, Legs};
use crate::measurements::Measurements;
use crate::pairs::Pairs;
use crate::phase::Activity;

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    flow: Flow,
    legs: Legs,
    socket: Arc<std::fs::File>,
    start: Instant,
    budget: Arc<PointBudget>,
    seconds: u32,
}

impl Bench {
    fn new() -> Self {
        let start = Instant::now();
        let name = |name: &str| Arc::<str>::from(name);
        let info = FlowInfo {
            client: "10.1.0.2:4000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
            client_campus: name("a"),
            server_campus: name("b"),
            client_profile: name("lan"),
            upstream_profile: name("wan"),
            handshake: HandshakeMode::EndToEnd,
            accepted: start,
            came: None,
        };
        let pair = Pairs::default().get(&name("a"), &name("b"), start);
        let legs = Legs::default();
        let both = ["lan", "wan"].map(|leg| legs.get(&name(leg), &Measurements::default(), start));
        let socket = Arc::new(std::fs::File::open("/dev/null").unwrap());
        let weak: Weak<Socket> = Arc::downgrade(&socket) as Weak<Socket>;
        Self {
            flow: Flow::new(1, info, (pair, both), (weak.clone(), weak), start),
            legs,
            socket,
            start,
            budget: PointBudget::new(1000),
            seconds: 0,
        }
    }

    /// Reports a step at `ms` after which the up direction has written `bytes` and does
    /// `activity`.
    fn up(&self, ms: u64, bytes: u64, activity: Activity) {
        let at = self.start + Duration::from_millis(ms);
        let still = StepReport {
            bytes: 0,
            pipe: 0,
            unsent_after_wait: 0,
            activity: Activity::AwaitsSource { unsent: 0 },
        };
        let report = StepReport {
            bytes,
            activity,
            ..still
        };
        self.flow.report(at, at, report, still);
    }

    /// Ends the next second, with these figures on both legs; tells whether the sockets were
    /// sampled.
    fn sample(&mut self, tcp: TcpFigures) -> bool {
        self.sample_leg(SocketSample {
            tcp: Some(tcp),
            ..SocketSample::default()
        })
    }

    /// As [`Bench::sample`], with this sample of both legs.
    fn sample_leg(&mut self, leg: SocketSample) -> bool {
        self.seconds += 1;
        let now = self.start + SECOND * self.seconds;
        let mut sampled = false;
        self.flow
            .sample(now, self.seconds * 100, &self.budget, |_, _, _| {
                sampled = true;
                ConnectionSample {
                    client: leg,
                    upstream: leg,
                }
            });
        sampled
    }

    fn snapshot(&self) -> FlowSnapshot {
        let now = self.start + SECOND * self.seconds;
        self.flow.snapshot(now, self.start, 1e9)
    }
}

fn figures() -> TcpFigures {
    TcpFigures {
        rtt: 0.1,
        cwnd: 10,
        mss: 1000,
        ..TcpFigures::default()
    }
}

#[test]
fn only_connections_in_which_something_happened_are_looked_at() {
    let mut bench = Bench::new();
    assert!(bench.sample(figures()), "it is new");
    assert!(!bench.sample(figures()));
    bench.up(2500, 10, Activity::AwaitsSource { unsent: 10 });
    assert!(bench.sample(figures()));
    assert!(!bench.sample(figures()), "the first look saw it sent");
    bench.up(4500, 20, Activity::AwaitsSink);
    let in_flight = TcpFigures {
        unacked: 1,
        ..figures()
    };
    assert!(bench.sample(in_flight));
    assert!(bench.sample(in_flight), "it is held back");
    bench.up(6500, 20, Activity::Ended);
    assert!(bench.sample(in_flight));
    assert!(bench.sample(figures()), "something was in flight");
    assert!(!bench.sample(figures()));
    assert_eq!(bench.flow.history(0.0).len(), 6);
}

#[test]
fn the_first_second_is_not_a_few_milliseconds() {
    let bench = Bench::new();
    bench.up(10, 1000, Activity::AwaitsSink);
    let soon = bench.start + Duration::from_millis(20);
    let nobody_looks = |_: &Socket, _: &Socket, _| panic!("too early");
    assert_eq!(
        bench.flow.sample(soon, 2, &bench.budget, nobody_looks),
        (0, 0)
    );
    assert_eq!(bench.flow.finish(soon), (1000, 0), "told at the end");
}

#[test]
fn goodput_is_of_the_last_second_ten_seconds_and_life() {
    let mut bench = Bench::new();
    let source = Activity::AwaitsSource { unsent: 0 };
    bench.up(500, 1_000_000, source);
    bench.sample(figures());
    for _ in 0..19 {
        bench.sample(figures());
    }
    let seen = bench.snapshot().up;
    assert_eq!(seen.bytes, 1_000_000);
    assert!((seen.goodput.life - 400_000.0).abs() < 1.0);
    assert!(seen.goodput.last_ten_seconds.abs() < 1e-9);
    bench.up(20_500, 1_250_000, source);
    bench.sample(figures());
    let seen = bench.snapshot().up;
    assert!((seen.goodput.last_second - 2e6).abs() < 1.0);
    assert!((seen.goodput.last_ten_seconds - 2e5).abs() < 1.0);
}

#[test]
fn what_is_in_a_send_buffer_is_not_delivered() {
    let mut bench = Bench::new();
    let left = |unacknowledged| SocketSample {
        tcp: Some(figures()),
        unacknowledged,
        ..SocketSample::default()
    };
    bench.up(500, 1_000_000, Activity::AwaitsSource { unsent: 900_000 });
    bench.sample_leg(left(900_000));
    let seen = bench.snapshot().up;
    assert_eq!(seen.bytes, 100_000);
    assert!((seen.goodput.last_second - 8e5).abs() < 1.0);
    // Nothing more is written, and still it is looked at.
    assert!(bench.sample_leg(left(400_000)));
    assert_eq!(bench.snapshot().up.bytes, 600_000);
    bench.up(2500, 1_000_000, Activity::Ended);
    assert!(bench.sample_leg(left(1)), "the FIN");
    assert_eq!(bench.snapshot().up.bytes, 1_000_000);
}

#[test]
fn what_another_process_has_carried_is_no_seconds() {
    let mut bench = Bench::new();
    bench.flow.had_written([5_000_000, 0]);
    bench.up(500, 5_250_000, Activity::AwaitsSource { unsent: 0 });
    bench.sample(figures());
    let seen = bench.snapshot().up;
    assert_eq!(seen.bytes, 5_250_000);
    assert!((seen.goodput.last_second - 2e6).abs() < 1.0);
    assert!(seen.goodput.last_ten_seconds < 2.1e6);
}

#[test]
fn what_another_process_has_sent_a_leg_has_not_sent() {
    for (is_taken_over, sent) in [(true, 250_000), (false, 5_250_000)] {
        let mut bench = Bench::new();
        if is_taken_over {
            bench.flow.had_written([5_000_000, 0]);
        }
        for sent_bytes in [5_000_000, 5_250_000] {
            bench.up(500, 5_000_000, Activity::AwaitsSink);
            bench.sample(TcpFigures {
                sent_bytes: Some(sent_bytes),
                ..figures()
            });
        }
        let now = bench.start + SECOND * bench.seconds;
        bench
            .legs
            .end_second(now, 1000.0, |_| LegSecondFacts::default());
        let states = bench.legs.states(now);
        let sent_bytes: Vec<u64> = states.iter().map(|leg| leg.sent_bytes).collect();
        assert_eq!(sent_bytes, [sent, sent], "taken over: {is_taken_over}");
    }
}

#[test]
fn a_second_in_history_has_its_own_phases_and_retransmissions() {
    let mut bench = Bench::new();
    bench.up(400, 100, Activity::AwaitsSink);
    let lossy = |retransmitted_segments| TcpFigures {
        retransmitted_segments,
        ..figures()
    };
    bench.sample(lossy(5));
    bench.sample(lossy(7));
    let points = bench.flow.history(1000.0);
    assert!((points[0].time - 1001.0).abs() < 1e-9);
    let [first, second] = [points[0].up.phases, points[1].up.phases];
    assert!((first.starved - 0.4).abs() < 1e-3 && (first.backpressured - 0.6).abs() < 1e-3);
    assert!((second.backpressured - 1.0).abs() < 1e-3 && second.starved.abs() < 1e-3);
    assert_eq!(points[1].client_leg.retransmitted_segments, 2);
}

#[test]
fn what_was_unsent_at_the_start_of_a_wait_is_settled_by_the_next_look() {
    let mut bench = Bench::new();
    bench.up(0, 1, Activity::AwaitsSource { unsent: 0 });
    bench.sample(figures());
    // 100 kB/s: a window of 10,000 bytes every 100 ms.
    bench.up(1000, 2, Activity::AwaitsSource { unsent: 25_000 });
    bench.sample(figures());
    let seen = bench.snapshot().up;
    assert!((seen.phases.free - 0.25).abs() < 1e-3, "{seen:?}");
    assert_eq!(seen.queue_max, 25_000);
}

#[test]
fn a_socket_is_closed_by_its_owner_alone() {
    let mut bench = Bench::new();
    bench.sample(figures());
    assert_eq!(Arc::strong_count(&bench.socket), 1);
    bench.up(1500, 1, Activity::AwaitsSink);
    bench.socket = Arc::new(std::fs::File::open("/dev/null").unwrap());
    assert!(!bench.sample(figures()), "there is nothing to look at");
}

#[test]
fn the_pair_is_told_everything_once() {
    let mut bench = Bench::new();
    bench.up(500, 100, Activity::AwaitsSink);
    bench.sample(figures());
    bench.up(1500, 250, Activity::Ended);
    let end = bench.start + SECOND * 2;
    let sample = ConnectionSample::default();
    bench.flow.add_sample(end, sample, &bench.budget);
    assert_eq!(bench.flow.finish(end), (150, 0));
    let pair = bench.flow.pair.snapshot(end);
    assert_eq!(pair.up.bytes, 250);
    assert!((pair.up.phases.backpressured - 1.0).abs() < 1e-6);
    assert!((pair.up.phases.starved - 0.5).abs() < 1e-6);
}
