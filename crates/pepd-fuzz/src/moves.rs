//! What another box sends when connections are to move, or whoever claims to be one: a session's first
//! bytes, and frames, each after its length.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pepd_move::machine::{Members, Taker, TakerAction, TakerEvent};
use pepd_move::session::{Key, Name, Replays, Session};
use pepd_move::wire::{Frame, LONGEST_FRAME};

/// A frame is made of the bytes that it was read of; a stranger learns nothing and gets nowhere; and whoever
/// has the key, and says what it likes, has a box do little for each frame, restore what it has said
/// once, and serve that once, and only after it was restored.
pub fn run(bytes: &[u8]) {
    stranger(bytes);
    if let Ok(frame) = Frame::read(bytes) {
        assert_eq!(frame.to_bytes(), bytes);
    }
    let mut box_that_takes = TakingBox::default();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((frame, after)) = after.split_at_checked(length) else {
            break;
        };
        rest = after;
        if let Ok(frame) = Frame::read(frame) {
            assert!(frame.to_bytes().len() <= LONGEST_FRAME);
            box_that_takes.hears(frame);
        }
    }
}

/// Has a stranger speak to a box that listens, and to one that has begun a session.
fn stranger(bytes: &[u8]) {
    let name = |name| Name::new(name).expect("a name");
    let text = "0123456789abcdef".repeat(4);
    let key = Key::parse(&text).expect("a key");
    let keys = Arc::new(BTreeMap::from([(name("hb-a"), key.clone())]));
    let listens = Session::listen(&name("hb-b"), keys);
    let begins = Session::initiate(&name("hb-a"), name("hb-b"), key);
    for mut session in [listens, begins] {
        let mut replays = Replays::default();
        let read = session.read(bytes, &mut replays);
        // It would have to know the key.
        assert!(read.is_err() || read.is_ok_and(|frames| frames.is_empty()));
        assert!(session.peer().is_none());
        // A hello, and a message of the handshake.
        assert!(session.take_output().len() <= 256);
    }
}

#[derive(Default)]
struct TakingBox {
    taker: Option<Taker>,
    restored: Members,
    serves: bool,
}

impl TakingBox {
    fn hears(&mut self, frame: Frame) {
        let now = Instant::now();
        let actions = match (&mut self.taker, frame) {
            (None, Frame::Offer(offer)) => {
                let (taker, actions) = Taker::begin(offer, now);
                self.taker = Some(taker);
                actions
            }
            (None, _) => return,
            (Some(taker), frame) => taker.on(TakerEvent::Received(frame), now),
        };
        self.act(actions, now);
    }

    fn act(&mut self, actions: Vec<TakerAction>, now: Instant) {
        assert!(actions.len() <= 2, "{actions:?}");
        for action in actions {
            let event = match action {
                TakerAction::Send(_) => continue,
                TakerAction::Consider(flows) => {
                    assert!(!flows.is_empty());
                    TakerEvent::Considered(Vec::new())
                }
                TakerAction::Restore(index, _) => {
                    assert!(self.restored.insert(index), "twice");
                    TakerEvent::Restored(index, None)
                }
                TakerAction::Activate(_, members) => {
                    assert!(!std::mem::replace(&mut self.serves, true), "twice");
                    assert_eq!(members, self.restored);
                    TakerEvent::Activated(Vec::new())
                }
                TakerAction::Discard => {
                    assert!(!self.serves);
                    continue;
                }
            };
            if let Some(taker) = &mut self.taker {
                let more = taker.on(event, now);
                self.act(more, now);
            }
        }
    }
}
