use std::net::SocketAddr;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use rstest::rstest;

use super::*;

mod clients;

/// The share of each kind that is measured when all is known, and while it is found out.
const MEASURED: f64 = 0.04;
const EXPLORED: f64 = 0.25;

/// A campus whose connections come one by one and choose as the kernel does.
struct Campus {
    random: Xoshiro256PlusPlus,
    choice: Choice,
    now: Instant,
    /// The time of a transfer that is split, in seconds, how much longer it takes if it is not, and how
    /// much the logarithm of either scatters.
    time: f64,
    gain: f64,
    scatter: f64,
    bytes: u64,
    per_second: f64,
    /// Who connects.
    client: SocketAddr,
    changes: Vec<Duration>,
    begun: Instant,
}

impl Campus {
    fn new(seed: u64, gain: f64) -> Self {
        let now = Instant::now();
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            choice: Choice::new(now),
            now,
            time: 0.5,
            gain,
            scatter: 0.4,
            bytes: 50_000,
            per_second: 10.0,
            client: "10.1.0.2:4000".parse().unwrap(),
            changes: Vec::new(),
            begun: now,
        }
    }

    /// Makes a connection; returns whether it is split.
    fn connect(&mut self) -> bool {
        self.now += Duration::from_secs_f64(1.0 / self.per_second);
        self.choice.tick(self.now);
        let place: f64 = self.random.random();
        let measured = if self.choice.explores().is_some() {
            EXPLORED
        } else {
            MEASURED
        };
        let arm = if place < measured {
            Some(Arm::Unsplit)
        } else if (0.5..0.5 + measured).contains(&place) {
            Some(Arm::Split)
        } else {
            None
        };
        let Some(arm) = arm else {
            return self.choice.splits();
        };
        // A sum of uniform numbers is as good as normal here.
        let normal: f64 = (0..12).map(|_| self.random.random::<f64>()).sum::<f64>() - 6.0;
        let factor = if arm == Arm::Unsplit { self.gain } else { 1.0 };
        self.end(arm, self.time * factor * (normal * self.scatter).exp());
        arm == Arm::Split
    }

    /// Ends a connection that is measured, after so many seconds.
    fn end(&mut self, arm: Arm, seconds: f64) {
        let ended = Ended {
            client: self.client,
            server: "10.2.0.2:80".parse().unwrap(),
            arm,
            first_byte: Duration::from_millis(1),
            whole: Duration::from_secs_f64(seconds),
            bytes: self.bytes,
        };
        let decision = self.choice.add(&ended, self.now);
        if decision.is_some_and(|it| it.is_change) {
            self.changes.push(self.now - self.begun);
        }
    }

    fn connect_often(&mut self, times: usize) -> usize {
        (0..times).filter(|_| self.connect()).count()
    }
}

#[test]
fn what_gains_nothing_is_routed_within_200_connections() {
    let late = (0..200).filter(|seed| {
        let mut campus = Campus::new(*seed, 1.0);
        campus.scatter = 0.1;
        campus.connect_often(200);
        campus.choice.explores().is_some() || campus.connect_often(4000) > 200
    });
    let late = late.count();
    assert!(late <= 10, "{late} of 200");
}

#[test]
fn what_gains_is_split_within_200_connections() {
    let late = (0..200).filter(|seed| {
        let mut campus = Campus::new(*seed, 3.0);
        campus.connect_often(200);
        campus.choice.explores().is_some() || campus.connect_often(4000) < 3800
    });
    let late = late.count();
    assert!(late <= 10, "{late} of 200");
}

#[test]
fn a_path_that_becomes_another_is_followed_within_a_minute() {
    let late = (0..200).filter(|seed| {
        let mut campus = Campus::new(*seed, 1.0);
        campus.scatter = 0.2;
        campus.connect_often(3000);
        if campus.choice.splits() {
            return true;
        }
        // Longer, and more so if it is not split.
        (campus.time, campus.gain, campus.scatter) = (3.0, 3.0, 0.4);
        campus.connect_often(600);
        if !campus.choice.splits() {
            return true;
        }
        campus.connect_often(3000);
        (campus.time, campus.gain, campus.scatter) = (0.5, 1.0, 0.2);
        campus.connect_often(600);
        campus.choice.splits()
    });
    let late = late.count();
    assert!(late <= 20, "{late} of 200");
}

/// What was gained was no more than a third, and is nothing now.
#[test]
fn a_path_that_gained_a_little_is_followed_within_a_minute() {
    let late = (0..200).filter(|seed| {
        let mut campus = Campus::new(*seed, 1.35);
        (campus.time, campus.scatter, campus.bytes) = (0.8, 0.3, 200_000);
        campus.connect_often(3000);
        if !campus.choice.splits() {
            return true;
        }
        (campus.time, campus.gain, campus.scatter) = (0.01, 0.95, 0.1);
        campus.bytes = 10_000;
        campus.connect_often(600);
        campus.choice.splits()
    });
    let late = late.count();
    assert!(late <= 20, "{late} of 200");
}

/// A day of campuses where splitting makes no difference, or hardly any: 48 of them.
#[rstest]
#[case(0.95)]
#[case(1.0)]
#[case(1.05)]
#[case(1.1)]
fn noise_has_it_change_at_most_once_an_hour(#[case] gain: f64) {
    for seed in 0..12 {
        let mut campus = Campus::new(seed, gain);
        campus.per_second = 2.0;
        campus.connect_often(2 * 86_400);
        let hours = campus.changes.windows(2).map(|two| two[1] - two[0]);
        let least = hours.min().unwrap_or(Duration::MAX);
        assert!(least >= AGAIN, "{seed}: {:?}", campus.changes);
    }
}

/// Small ones gain nothing, and large ones much: whichever is known first, it is split.
#[test]
fn of_several_sizes_it_pays_for_one() {
    for seed in 0..100 {
        let mut campus = Campus::new(seed, 1.0);
        campus.scatter = 0.2;
        for connection in 0..1200 {
            (campus.bytes, campus.time, campus.gain) = match connection % 3 {
                0 => (5_000, 0.1, 1.0),
                1 => (50_000, 0.3, 1.3),
                _ => (500_000, 0.8, 1.6),
            };
            campus.connect();
        }
        assert!(campus.choice.splits(), "{seed}");
        assert!(campus.changes.is_empty(), "{seed}: {:?}", campus.changes);
    }
}

#[test]
fn it_is_found_out_anew_after_an_hour() {
    let mut campus = Campus::new(1, 3.0);
    campus.connect_often(1000);
    assert_eq!(campus.choice.explores(), None);
    campus.choice.tick(campus.now + AGAIN);
    assert_eq!(campus.choice.explores(), Some(Why::Hour));
    // Most go on as before.
    assert!(campus.choice.splits());
}

#[test]
fn transfers_of_another_size_are_found_out_anew() {
    let mut campus = Campus::new(1, 1.0);
    campus.scatter = 0.1;
    campus.connect_often(1000);
    assert_eq!(campus.choice.explores(), None);
    (campus.bytes, campus.time, campus.gain) = (500_000, 3.0, 3.0);
    let before = campus.now;
    while campus.choice.explores().is_none() && campus.now - before < AGAIN {
        campus.connect();
    }
    assert_eq!(campus.choice.explores(), Some(Why::OtherPath));
    campus.connect_often(300);
    assert!(campus.choice.splits());
}

/// Of the slow kind only the quick ones have ended at first.
#[test]
fn nothing_is_decided_before_the_slow_ones_may_have_ended() {
    let mut campus = Campus::new(1, 3.0);
    campus.time = 100.0;
    campus.per_second = 100.0;
    campus.connect_often(2000);
    assert_eq!(campus.choice.explores(), Some(Why::New));
    campus.now += Duration::from_secs(1000);
    campus.connect_often(10);
    assert_eq!(campus.choice.explores(), None);
}
