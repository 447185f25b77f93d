//! Two sides of a session, and those who would like to be one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::frames;
use crate::session::{Key, Name, Replays, Session, SessionError};
use crate::wire::{Frame, MoveId, Reason};

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn key(digit: char) -> Key {
    Key::parse(&format!("{}0", String::from(digit).repeat(63))).unwrap()
}

fn initiate(key: Key) -> Session {
    Session::initiate(&name("hb-a"), name("hb-b"), key)
}

fn listen() -> Session {
    let keys = BTreeMap::from([(name("hb-a"), key('1')), (name("hb-c"), key('3'))]);
    Session::listen(&name("hb-b"), Arc::new(keys))
}

/// What both sides have, and how many bytes at a time pass between them.
struct Wire {
    sides: [Session; 2],
    replays: Replays,
    at_a_time: usize,
    /// All that has gone to the side that listens.
    heard: Vec<u8>,
}

impl Wire {
    fn new(sides: [Session; 2]) -> Self {
        Self {
            sides,
            replays: Replays::default(),
            at_a_time: usize::MAX,
            heard: Vec::new(),
        }
    }

    /// Passes on what the sides say until neither says more; gives what they understood.
    fn pass(&mut self) -> Result<[Vec<Frame>; 2], (usize, SessionError)> {
        let mut understood = [Vec::new(), Vec::new()];
        loop {
            let mut quiet = true;
            for from in [0, 1] {
                let bytes = self.sides[from].take_output();
                quiet &= bytes.is_empty();
                if from == 0 {
                    self.heard.extend_from_slice(&bytes);
                }
                for piece in bytes.chunks(self.at_a_time.min(1 << 16)) {
                    let read = self.sides[1 - from].read(piece, &mut self.replays);
                    understood[1 - from].extend(read.map_err(|error| (1 - from, error))?);
                }
            }
            if quiet {
                return Ok(understood);
            }
        }
    }
}

#[test]
fn what_is_said_is_understood() {
    for at_a_time in [1, 7, 1000, usize::MAX] {
        let mut wire = Wire::new([initiate(key('1')), listen()]);
        wire.at_a_time = at_a_time;
        wire.pass().unwrap();
        assert_eq!(wire.sides[0].peer(), Some(&name("hb-b")));
        assert_eq!(wire.sides[1].peer(), None, "it may be a replay");
        assert_eq!(
            wire.sides[1].write(&Frame::Activate),
            Err(SessionError::NotOpen)
        );
        for frame in frames() {
            wire.sides[0].write(&frame).unwrap();
        }
        assert_eq!(wire.pass().unwrap()[1], frames());
        assert_eq!(wire.sides[1].peer(), Some(&name("hb-a")));
        for frame in frames() {
            wire.sides[1].write(&frame).unwrap();
        }
        assert_eq!(wire.pass().unwrap()[0], frames());
    }
}

#[test]
fn nobody_reads_along() {
    let mut wire = Wire::new([initiate(key('1')), listen()]);
    wire.pass().unwrap();
    let before = wire.heard.len();
    let secret = b"a secret that nobody reads along".to_vec();
    wire.sides[0].write(&Frame::Data(secret.clone())).unwrap();
    wire.pass().unwrap();
    let record = &wire.heard[before..];
    assert_eq!(record.len(), 2 + 1 + secret.len() + 16);
    assert!(
        !record
            .windows(8)
            .any(|window| secret.windows(8).any(|part| part == window))
    );
}

#[test]
fn who_does_not_have_the_key_is_refused() {
    let refused = |sides: [Session; 2]| Wire::new(sides).pass().unwrap_err();
    let wrong = (1, SessionError::WrongKey);
    assert_eq!(refused([initiate(key('2')), listen()]), wrong);
    // One that has the key of another pair.
    assert_eq!(refused([initiate(key('3')), listen()]), wrong);
    let unknown = Session::initiate(&name("hb-x"), name("hb-b"), key('1'));
    let error = SessionError::Unknown(name("hb-x"));
    assert_eq!(refused([unknown, listen()]), (1, error));
    let elsewhere = Session::initiate(&name("hb-a"), name("hb-z"), key('1'));
    let error = SessionError::Another(name("hb-b"));
    assert_eq!(refused([elsewhere, listen()]), (0, error));
}

/// Gives what the side that begins says to the one that listens, with one frame after the handshake.
fn recorded() -> (Vec<u8>, Replays) {
    let mut wire = Wire::new([initiate(key('1')), listen()]);
    wire.pass().unwrap();
    wire.sides[0].write(&Frame::Ask(MoveId([9; 16]))).unwrap();
    assert_eq!(wire.pass().unwrap()[1].len(), 1);
    (wire.heard, wire.replays)
}

#[test]
fn what_was_said_before_is_refused() {
    let (heard, mut replays) = recorded();
    assert_eq!(
        listen().read(&heard, &mut replays),
        Err(SessionError::Replay)
    );
    // And where nobody remembers it any more: after a restart.
    let mut side = listen();
    let read = side.read(&heard, &mut Replays::default());
    assert_eq!(read, Err(SessionError::Replay));
    assert_eq!(side.peer(), None);
    // A session that is over stays so.
    assert_eq!(side.read(&[], &mut replays), Err(SessionError::NotOpen));
    // Within a session, too.
    let mut wire = Wire::new([initiate(key('1')), listen()]);
    wire.pass().unwrap();
    wire.sides[0].write(&Frame::Abort(Reason::Late)).unwrap();
    let record = wire.sides[0].take_output();
    let side = &mut wire.sides[1];
    assert_eq!(side.read(&record, &mut replays).unwrap().len(), 1);
    assert_eq!(side.read(&record, &mut replays), Err(SessionError::Changed));
}

#[test]
fn what_one_side_says_is_not_said_back_to_it() {
    let mut side = initiate(key('1'));
    let said = side.take_output();
    let error = side.read(&said, &mut Replays::default()).unwrap_err();
    assert_eq!(error, SessionError::Another(name("hb-a")));
}

#[test]
fn whatever_is_changed_on_the_way_is_noticed() {
    let (heard, _) = recorded();
    for at in 0..heard.len() {
        let mut wire = Wire::new([initiate(key('1')), listen()]);
        let mut changed = 0;
        let mut frames = 0;
        let outcome = loop {
            let bytes = wire.sides[0].take_output();
            let mut bytes = bytes.clone();
            if let Some(byte) = at.checked_sub(changed).and_then(|at| bytes.get_mut(at)) {
                *byte ^= 1;
            }
            changed += bytes.len();
            match wire.sides[1].read(&bytes, &mut wire.replays) {
                Err(error) => break Err(error),
                Ok(some) => frames += some.len(),
            }
            let answer = wire.sides[1].take_output();
            if bytes.is_empty() && answer.is_empty() {
                break Ok(());
            }
            if let Err(error) = wire.sides[0].read(&answer, &mut wire.replays) {
                break Err(error);
            }
            if wire.sides[0].peer().is_some() && frames == 0 {
                let _ = wire.sides[0].write(&Frame::Ask(MoveId([9; 16])));
                frames = usize::MAX / 2;
            }
        };
        // Where it claims to be longer than it is, the rest is waited for.
        let waits = outcome.is_ok() && wire.sides[1].peer().is_none();
        assert!(outcome.is_err() || waits, "byte {at}: {outcome:?}");
    }
}

#[test]
fn another_version_is_told() {
    let replays = &mut Replays::default();
    let of_other_version =
        |name: &str| [&b"pepd-move"[..], &[0, 3, 0, 9, 4], name.as_bytes()].concat();
    let expected = SessionError::Version {
        lowest: 3,
        highest: 9,
    };
    assert_eq!(
        expected.to_string(),
        "it speaks versions 3 to 9, this box 2 to 2"
    );
    let mut side = listen();
    let error = side.read(&of_other_version("hb-a"), replays);
    assert_eq!(error, Err(expected.clone()));
    // It is told which ones this side speaks, and nobody else is.
    let said = side.take_output();
    assert!(said.starts_with(b"pepd-move\0\x02\0\x02"), "{said:?}");
    let mut side = listen();
    let error = side.read(&of_other_version("hb-z"), replays);
    assert_eq!(error, Err(SessionError::Unknown(name("hb-z"))));
    assert_eq!(side.take_output(), []);
    let error = initiate(key('1')).read(&of_other_version("hb-b"), replays);
    assert_eq!(error, Err(expected));
    let http = listen().read(b"GET / HTTP/1.1", replays);
    assert_eq!(http, Err(SessionError::Foreign));
}
