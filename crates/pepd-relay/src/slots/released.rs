//! What a released version has noted, word by word, and how this one reads it.
//!
//! A change of the layout that does not change [`Slots::VERSION`] would have an upgrade go on with
//! connections that it misunderstands. With a new version these words change, too.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pepd_sys::pipe::Pipe;
use pepd_telemetry::HandshakeMode;

use super::found::noted;
use super::layout::{FIRST_SLOT, RELAYED, STATE, WAYS};
use super::slot::{Identity, Slot};
use super::{Former, Slots};
use crate::connection::leg::Failure;
use crate::connection::memo::Memo as _;
use crate::connection::recovery::Noted;
use crate::connection::state::{State, Way};
use crate::fast_open::Key;

/// The version that the words below are of.
const RELEASED: u32 = 1;

/// The first line of the memory: slots used, generation, both halves of the key, workers.
const HEAD: [u64; 5] = [2, 3, 0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 2];

/// The second worker has the second slot in hand.
const HANDS: [u64; 2] = [0, 2];

/// The words of the second slot of two, without those that are this process's own: descriptors, their
/// cookies, and inodes.
const SLOT: [(usize, u64); 15] = [
    (0, 1),
    (4, 0x5a_0000 | 1 << 9),
    (7, 1 | 1 << 8),
    (10, 104 | 32 << 32),
    (11, 1_000_000_007),
    (12, 42),
    (13, 0xfd00_000a_0000_0000),
    (14, 2),
    (15, 0xfd00_000b_0000_0000),
    (16, 3),
    (17, 4321 | 443 << 16 | 1 << 32 | 1 << 33),
    (18, 0),
    (19, 0),
    (20, 0),
    (23, 0),
];

fn identity() -> Identity {
    Identity {
        id: 42,
        client: "[fd00:a::2]:4321".parse().unwrap(),
        server: "[fd00:b::3]:443".parse().unwrap(),
        handshake: HandshakeMode::Early,
        accepted: Duration::from_nanos(1_000_000_007),
    }
}

fn key() -> Key {
    Key::known(std::array::from_fn(|place| u8::try_from(place).unwrap()))
}

/// Gives the words as the released version left them, and as a process of this one finds them.
fn of_the_release() -> Arc<Slots> {
    let slots = Slots::unshared(2);
    for (word, value) in HEAD.into_iter().enumerate() {
        slots.words[word].store(value, Relaxed);
    }
    for (hand, value) in (1..).zip(HANDS) {
        slots.words[hand * 8].store(value, Relaxed);
    }
    for (word, value) in SLOT {
        slots.words[FIRST_SLOT + 24 + word].store(value, Relaxed);
    }
    Slots::new(slots.words)
}

#[test]
fn this_version_notes_what_the_released_one_did() {
    assert_eq!(Slots::VERSION, RELEASED, "the words here are of another");
    let slots = Slots::unshared(2);
    slots.note_relay(2, 3, &key());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let begin = || Slot::begin(&slots, &identity(), [socket.as_fd(), socket.as_fd()], None);
    let (_first, slot) = (begin(), begin());
    let pipe = Pipe::new(4096).unwrap();
    slot.note_pipe(Way::Down, Some(&pipe));
    slot.note_pipe(Way::Down, None);
    slot.note_urgent(Way::Up, Some(0x5a));
    slot.note_copying(Way::Down, true);
    slot.note_state(Way::Down, State::ShuttingDown);
    slot.note_failures([Some(Failure(104)), Some(Failure(32))]);
    slots.take_in_hand(1, slot.index());
    let word = |at: usize| slots.words[at].load(Relaxed);
    assert_eq!(std::array::from_fn(word), HEAD);
    assert_eq!([word(8), word(16)], HANDS);
    for (at, value) in SLOT {
        assert_eq!(word(FIRST_SLOT + 24 + at), value, "word {at}");
    }
}

#[test]
fn this_version_reads_what_the_released_one_noted() {
    let slots = of_the_release();
    let Former {
        generation,
        key: found,
    } = slots.former().unwrap();
    assert_eq!((generation, found.bytes()), (3, key().bytes()));
    assert_eq!(slots.used(), 2);
    assert!(slots.take_hands().contains(&1));
    assert_eq!(slots.word(1, STATE).unwrap().load(Relaxed), RELAYED);
    let slot = Slot::found(&slots, 1);
    assert_eq!(slot.identity(), identity());
    let up = Noted {
        state: State::Running,
        urgent: Some(0x5a),
        copies: false,
        in_pipe: None,
    };
    let down = Noted {
        state: State::ShuttingDown,
        urgent: None,
        copies: true,
        in_pipe: None,
    };
    assert_eq!(noted(&slot, WAYS[0], None), up);
    assert_eq!(noted(&slot, WAYS[1], None), down);
}
