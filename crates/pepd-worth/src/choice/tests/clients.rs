//! Campuses of several clients, of which one is hostile or connects more than all others.

use super::*;

/// The honest ones.
const HONEST: u32 = 20;

/// What a hostile client does that is nine in ten connections.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// It is slow where that has splitting look as it is not.
    Slow,
    /// The same, with transfers of a size that nobody else has.
    OtherSize,
    /// Its times are others again and again, so that the path seems to be.
    Restless,
    /// It is slow so as to have it never be long enough.
    Endless,
}

impl Attack {
    const ALL: [Self; 4] = [Self::Slow, Self::OtherSize, Self::Restless, Self::Endless];
}

struct Attacked {
    campus: Campus,
    attack: Attack,
    /// How many explorations have begun.
    explorations: usize,
    connections: u32,
}

impl Attacked {
    fn new(seed: u64, gain: f64, attack: Attack) -> Self {
        let mut campus = Campus::new(seed, gain);
        campus.scatter = if gain > 1.1 { 0.4 } else { 0.1 };
        Self {
            campus,
            attack,
            explorations: 1,
            connections: 0,
        }
    }

    /// Makes one of the ten connections a second.
    fn connect(&mut self) {
        let explored = self.campus.choice.explores().is_some();
        match self.campus.random.random_bool(0.9) {
            true => self.attack(),
            false => self.be_honest(),
        }
        let explores = self.campus.choice.explores().is_some();
        self.explorations += usize::from(explores && !explored);
    }

    fn be_honest(&mut self) {
        let host = self.campus.random.random_range(0..HONEST);
        self.campus.client = format!("10.1.0.{}:4000", host + 10).parse().unwrap();
        self.campus.connect();
    }

    /// Makes a connection whose port is such that it is measured.
    fn attack(&mut self) {
        let campus = &mut self.campus;
        campus.now += Duration::from_secs_f64(1.0 / campus.per_second);
        campus.choice.tick(campus.now);
        campus.client = "10.1.0.2:4000".parse().unwrap();
        let arm = match self.connections % 2 {
            0 => Arm::Split,
            _ => Arm::Unsplit,
        };
        let looks_worse = if campus.gain > 1.1 {
            Arm::Split
        } else {
            Arm::Unsplit
        };
        let slow = if arm == looks_worse { 20.0 } else { 0.1 };
        let (bytes, seconds) = match self.attack {
            Attack::Slow => (campus.bytes, slow),
            Attack::OtherSize => (500_000, slow),
            Attack::Restless if (self.connections / 16).is_multiple_of(2) => (campus.bytes, slow),
            Attack::Restless => (campus.bytes, 0.5),
            Attack::Endless => (campus.bytes, 10_000.0),
        };
        self.connections += 1;
        let honest = std::mem::replace(&mut campus.bytes, bytes);
        campus.end(arm, seconds);
        campus.bytes = honest;
    }

    fn connect_often(&mut self, times: usize) {
        (0..times).for_each(|_| self.connect());
    }

    fn is_right(&self) -> bool {
        self.campus.choice.splits() == (self.campus.gain > 1.1)
    }
}

/// Whatever one client does, it is decided as it is for the twenty others, and not found out all the time.
#[test]
fn one_client_of_many_does_not_decide() {
    let mut wrong = 0;
    for attack in Attack::ALL {
        for gain in [1.0, 3.0] {
            for seed in 0..6 {
                let mut campus = Attacked::new(seed, gain, attack);
                // Seven minutes, and then an hour, after which it is found out anew.
                campus.connect_often(4_200);
                let is_known = campus.campus.choice.explores().is_none() && campus.is_right();
                campus.connect_often(36_000);
                wrong += usize::from(!(is_known && campus.is_right()));
                let explorations = campus.explorations;
                assert!(explorations <= 3, "{attack:?}, {gain}: {explorations}");
            }
        }
    }
    assert!(wrong <= 2, "{wrong} of 48");
}

/// Who is alone at first decides, and no longer than until others have come.
#[test]
fn who_was_alone_does_not_decide_for_others() {
    let wrong = (0..100).filter(|seed| {
        let mut campus = Attacked::new(*seed, 3.0, Attack::Slow);
        (0..600).for_each(|_| campus.attack());
        assert!(campus.campus.choice.explores().is_none() && !campus.is_right());
        campus.connect_often(6_000);
        !campus.is_right()
    });
    let wrong = wrong.count();
    assert!(wrong <= 2, "{wrong} of 100");
}

/// A path that becomes another is followed also where one client has most connections.
#[test]
fn what_many_and_one_that_has_most_see_is_followed() {
    let wrong = (0..50).filter(|seed| {
        let mut campus = Campus::new(*seed, 1.0);
        campus.scatter = 0.2;
        let connect_often = |campus: &mut Campus, times| {
            for _ in 0..times {
                let host = match campus.random.random_bool(0.9) {
                    true => 2,
                    false => campus.random.random_range(10..10 + HONEST),
                };
                campus.client = format!("10.1.0.{host}:4000").parse().unwrap();
                campus.connect();
            }
        };
        connect_often(&mut campus, 3_000);
        if campus.choice.splits() {
            return true;
        }
        (campus.time, campus.gain) = (3.0, 3.0);
        connect_often(&mut campus, 9_000);
        !campus.choice.splits()
    });
    let wrong = wrong.count();
    assert!(wrong <= 2, "{wrong} of 50");
}

/// One connects ninety-nine times as often as the only other one.
#[test]
fn it_is_not_waited_for_ever_for_others() {
    for gain in [1.0, 3.0] {
        let mut campus = Campus::new(1, gain);
        campus.scatter = 0.2;
        for connection in 0..6_100 {
            let host = u32::from(connection % 100 == 0);
            campus.client = format!("10.1.0.{}:4000", host + 2).parse().unwrap();
            campus.connect();
        }
        assert_eq!(campus.choice.explores(), None);
        assert_eq!(campus.choice.splits(), gain > 1.1);
    }
}
