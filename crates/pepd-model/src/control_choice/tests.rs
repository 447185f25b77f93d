use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::law::{Control, Leg, Loss, PAYLOAD, WIRE, measured};

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// As far as what is seen reaches back, in looks.
const WINDOW: usize = 30;

const ALL: Candidates = Candidates {
    bbr: true,
    find_rate: true,
};
const NO_FIND_RATE: Candidates = Candidates {
    bbr: true,
    find_rate: false,
};

/// A leg on paper, over a link with a buffer of one round trip, that some transfers keep busy.
struct Path {
    random: Xoshiro256PlusPlus,
    choice: Choice,
    now: Instant,
    begun: Instant,
    /// Seconds, packets a second, and the share that is lost whatever is sent.
    rtt: f64,
    rate: f64,
    loss: f64,
    /// The part of a round trip that the link's buffer holds.
    buffer: f64,
    /// Whether a policer is there instead of a buffer, which drops what is too much.
    polices: bool,
    others: bool,
    transfers: f64,
    /// What was met in each look since the last choice: segments sent, sent again, bits delivered.
    looks: Vec<[f64; 3]>,
    added: f64,
    changes: Vec<(Duration, Change)>,
}

impl Path {
    fn new(seed: u64, loss: f64, candidates: Candidates) -> Self {
        let now = Instant::now();
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            choice: Choice::new(candidates, now),
            now,
            begun: now,
            rtt: 0.1,
            rate: 20e6 / 8.0 / WIRE,
            loss,
            buffer: 1.0,
            polices: false,
            others: false,
            transfers: 3.0,
            looks: Vec::new(),
            added: 0.0,
            changes: Vec::new(),
        }
    }

    /// Gives what is sent, packets a second, what of it is lost, and what waits, seconds.
    fn carried(&self) -> (f64, f64, f64) {
        match self.choice.chosen() {
            Chosen::Cubic => {
                let leg = Leg {
                    loss: Loss::per_packet(self.loss),
                    control: Control::Cubic,
                    ..Leg::new(self.rtt)
                };
                let law = self.transfers * leg.alone().throughput;
                if self.polices {
                    // A bucket without room: as random losses.
                    (0.8 * self.rate, self.loss + 0.01, 0.001)
                } else if law < self.rate {
                    (law, self.loss, 0.01 * self.rtt)
                } else {
                    // It fills the buffer, and loses a segment in each sawtooth.
                    let own = 0.0003;
                    (self.rate, self.loss + own, 0.7 * self.buffer * self.rtt)
                }
            }
            Chosen::Bbr if self.polices => (1.1 * self.rate, self.loss + 0.2, 0.001),
            Chosen::FindRate if self.polices => (0.97 * self.rate, self.loss, 0.001),
            Chosen::Bbr => {
                let share = measured::bbr_share(self.loss);
                (share * self.rate, self.loss, 0.05 * self.rtt)
            }
            Chosen::FindRate => (0.99 * self.rate, self.loss, 0.05 * self.rtt),
        }
    }

    fn look(&mut self) {
        self.now += LOOK;
        let (sent, loss, added) = self.carried();
        // Losses as they come, and what is sent from look to look.
        let sent = sent * LOOK.as_secs_f64() * (0.8 + 0.4 * self.random.random::<f64>());
        let mean = sent * loss;
        let normal: f64 = (0..12).map(|_| self.random.random::<f64>()).sum::<f64>() - 6.0;
        let resent = (mean + normal * mean.sqrt()).clamp(0.0, sent);
        self.looks
            .push([sent, resent, 8.0 * PAYLOAD * (sent - resent)]);
        if self.looks.len() > WINDOW {
            self.looks.remove(0);
        }
        self.added = added * (0.9 + 0.2 * self.random.random::<f64>());
        let sum = |at: usize| self.looks.iter().map(|it| it[at]).sum::<f64>();
        let busy = LOOK.as_secs_f64() * self.looks.iter().map(|_| 1.0).sum::<f64>();
        let seen = Seen {
            sent: sum(0),
            resent: sum(1),
            busy,
            goodput: Some(sum(2) / busy),
            added: Some(self.added),
            idle: Some(self.rtt),
            others: self.others && self.choice.chosen() == Chosen::FindRate,
        };
        if let Some(change) = self.choice.look(&seen, self.now) {
            self.changes.push((self.now - self.begun, change));
            self.looks.clear();
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.look();
        }
    }

    fn names(&self) -> Vec<(&'static str, &'static str)> {
        let name = |(_, change): &(Duration, Change)| (change.to.name(), change.why.name());
        self.changes.iter().map(name).collect()
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_path_that_loses_by_congestion_alone_keeps_cubic() {
    for seed in 0..5 {
        for buffer in [0.4, 1.0, 10.0] {
            let mut path = Path::new(seed, 0.0, ALL);
            path.buffer = buffer;
            path.pass(DAY);
            assert_eq!(path.names(), [], "{buffer}");
            assert_eq!(path.choice.why().name(), "clean");
        }
    }
}

#[test]
fn losses_with_a_queue_are_congestion() {
    let mut path = Path::new(1, 0.008, ALL);
    // So many that they fill the link all the same.
    path.transfers = 100.0;
    path.pass(DAY);
    assert_eq!(path.names(), []);
    let Why::Queue { loss, added } = path.choice.why() else {
        panic!("{:?}", path.choice);
    };
    assert!((0.006..0.011).contains(&loss) && added > 0.05);
}

#[test]
fn losses_without_a_queue_are_not_and_it_stays_so() {
    for (candidates, wanted) in [(ALL, "find-rate"), (NO_FIND_RATE, "bbr")] {
        for loss in [0.008, 0.02, 0.05] {
            for seed in 0..5 {
                let mut path = Path::new(seed, loss, candidates);
                path.pass(10 * MINUTE);
                assert_eq!(path.names(), [(wanted, "no_queue")], "{loss}");
                path.pass(DAY);
                assert_eq!(path.names().len(), 1, "{loss}: {:?}", path.changes);
                assert!(!path.choice.is_on_trial());
            }
        }
    }
}

#[test]
fn without_another_one_it_stays_cubic() {
    let mut path = Path::new(1, 0.05, Candidates::default());
    path.pass(DAY);
    assert_eq!(path.names(), []);
}

#[test]
fn a_path_that_becomes_clean_is_followed_within_ten_minutes() {
    for seed in 0..20 {
        let mut path = Path::new(seed, 0.02, NO_FIND_RATE);
        path.pass(Duration::from_secs(2 * 3600));
        assert_eq!(path.choice.chosen(), Chosen::Bbr);
        path.loss = 0.0;
        path.pass(10 * MINUTE);
        assert_eq!(path.choice.chosen(), Chosen::Cubic, "{seed}");
        path.loss = 0.02;
        path.pass(10 * MINUTE);
        assert_eq!(path.choice.chosen(), Chosen::Bbr, "{seed}");
    }
}

/// Losses between the two thresholds, and around each of them.
#[test]
fn it_does_not_flap() {
    for seed in 0..10 {
        let mut path = Path::new(seed, 0.0, NO_FIND_RATE);
        for _ in 0..24 * 12 {
            path.loss = 0.012 * path.random.random::<f64>().powi(2);
            path.pass(5 * MINUTE);
        }
        let hours = path.changes.windows(2).map(|two| two[1].0 - two[0].0);
        let least = hours.min().unwrap_or(DAY);
        assert!(least >= REST, "{:?}", path.changes);
        assert!(path.changes.len() <= 2 * 24, "{:?}", path.changes);
    }
}

#[test]
fn what_delivers_no_more_is_left_and_tried_less_and_less() {
    let mut path = Path::new(1, 0.0, NO_FIND_RATE);
    path.polices = true;
    path.pass(4 * DAY);
    let names = path.names();
    assert_eq!(names[..2], [("bbr", "no_queue"), ("cubic", "no_better")]);
    assert_eq!(path.choice.chosen(), Chosen::Cubic);
    // After an hour, two, four, eight, sixteen, and then each day.
    assert!((10..=18).contains(&names.len()), "{:?}", path.changes);
}

#[test]
fn beside_others_it_is_not_find_rate() {
    let mut path = Path::new(1, 0.02, ALL);
    path.pass(10 * MINUTE);
    assert_eq!(path.choice.chosen(), Chosen::FindRate);
    path.others = true;
    path.pass(10 * MINUTE);
    assert_eq!(path.names()[1..], [("bbr", "others")]);
    path.pass(DAY);
    assert_eq!(path.choice.chosen(), Chosen::Bbr);
}

#[test]
fn little_that_is_sent_says_nothing() {
    let mut path = Path::new(1, 0.02, ALL);
    path.rate = 0.5;
    path.pass(10 * MINUTE);
    assert_eq!(path.names(), []);
    assert_eq!(path.choice.why(), Why::New);
}

#[test]
fn what_is_gone_is_left_at_once() {
    let mut path = Path::new(1, 0.02, ALL);
    path.pass(10 * MINUTE);
    let now = path.now;
    assert_eq!(path.choice.choose_from(ALL, now), None);
    let change = path.choice.choose_from(NO_FIND_RATE, now).unwrap();
    assert_eq!((change.to, change.why.name()), (Chosen::Cubic, "gone"));
}
