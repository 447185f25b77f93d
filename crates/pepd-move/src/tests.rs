//! Frames and sessions.

mod sessions;

use proptest::prelude::*;

use crate::examples::{connection, flow, offered};
use crate::wire::{
    Assembly, Frame, FrameError, Head, LONGEST_FRAME, MOST_CONNECTIONS, MoveId, Offer, Offered,
    Reason, Refused, Translated,
};

/// A frame of every kind.
fn frames() -> Vec<Frame> {
    let id = MoveId([0x5a; 16]);
    let flows = (0..7).map(offered).collect();
    let refused = vec![
        Refused {
            index: 0,
            why: Reason::Full,
        },
        Refused {
            index: 4,
            why: Reason::Kernel(99),
        },
    ];
    let (head, data) = Head::part(3, connection(flow(3))).unwrap();
    let mut frames = vec![
        Frame::Offer(Offer { id, flows }),
        Frame::Accept(Vec::new()),
        Frame::Accept(refused.clone()),
        Frame::Connection(Box::new(head)),
        Frame::Transferred,
        Frame::Restored(refused.clone()),
        Frame::Activate,
        Frame::Activated(refused),
        Frame::Ask(id),
        Frame::Answer(id, vec![0, 3, 1023]),
        Frame::Answer(id, Vec::new()),
    ];
    frames.extend(data);
    let reasons = [
        Reason::Full,
        Reason::NoCampus,
        Reason::Draining,
        Reason::Kernel(0),
        Reason::Ended,
        Reason::Unfit,
        Reason::Packets,
        Reason::Late,
        Reason::Cancelled,
        Reason::Confused,
        Reason::Address,
        Reason::Untranslated,
        Reason::Taken,
        Reason::Filtered,
        Reason::Zones,
    ];
    frames.extend(reasons.map(Frame::Abort));
    frames
}

#[test]
fn a_frame_is_read_as_it_was_written() {
    for frame in frames() {
        let bytes = frame.to_bytes();
        assert!(bytes.len() <= LONGEST_FRAME);
        assert_eq!(Frame::read(&bytes).as_ref(), Ok(&frame));
        for cut in 0..bytes.len().min(400) {
            let read = Frame::read(&bytes[..cut]);
            // Less data is data as well.
            assert!(
                read.is_err() || matches!(frame, Frame::Data(_)),
                "{frame:?} cut at {cut}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Frame::read(&longer).is_err() || matches!(frame, Frame::Data(_)));
    }
}

#[test]
fn a_connection_comes_together_again() {
    let whole = connection(flow(1));
    let (head, data) = Head::part(1, whole.clone()).unwrap();
    assert_eq!(head.data(), whole.data());
    assert_eq!(data.len(), 3, "150,000 bytes");
    let mut assembly = Assembly::begin(head.clone());
    for frame in &data {
        assert!(!assembly.is_complete());
        let Frame::Data(bytes) = frame else {
            panic!("{frame:?}")
        };
        assembly.add(bytes).unwrap();
    }
    assert!(assembly.is_complete());
    assert!(assembly.add(&[0]).is_err(), "too much");
    assert_eq!(assembly.finish(), Ok((1, whole)));
    assert!(Assembly::begin(head).finish().is_err(), "too little");
}

#[test]
fn what_is_out_of_bounds_is_no_frame() {
    let all = u16::try_from(MOST_CONNECTIONS).unwrap();
    let offer = |flows| {
        Frame::Offer(Offer {
            id: MoveId([1; 16]),
            flows,
        })
        .to_bytes()
    };
    // The longest, each of them.
    let long = |number: u16| {
        let (flow, own) = (flow(2 * number + 1), false);
        let source = flow.client;
        let translated = Some(Translated { source, own });
        Offered { flow, translated }
    };
    let most = offer((0..all).map(long).collect());
    assert!(most.len() <= LONGEST_FRAME && Frame::read(&most).is_ok());
    assert!(Frame::read(&offer((0..=all).map(offered).collect())).is_err());
    assert!(Frame::read(&offer(Vec::new())).is_err());
    assert!(
        Frame::read(&offer(vec![offered(1), offered(2), offered(1)])).is_err(),
        "twice"
    );
    let mut other = offered(3);
    let source = flow(2).client;
    other.translated = Some(Translated { source, own: false });
    assert!(Frame::read(&offer(vec![other])).is_err(), "another family");
    let why = Reason::Full;
    let refused = [2, 1].map(|index| Refused { index, why }).to_vec();
    assert!(
        Frame::read(&Frame::Accept(refused).to_bytes()).is_err(),
        "out of order"
    );
    assert_eq!(Frame::read(&[]), Err(FrameError::Length(0)));
    assert_eq!(Frame::read(&[99]), Err(FrameError::Kind(99)));
    assert_eq!(
        Frame::read(&vec![4; LONGEST_FRAME + 1]),
        Err(FrameError::Length(LONGEST_FRAME + 1))
    );
    let mut other = connection(flow(1));
    other.legs[0].peer.set_port(1);
    let (head, _) = Head::part(1, other).unwrap();
    let bytes = Frame::Connection(Box::new(head)).to_bytes();
    assert_eq!(
        Frame::read(&bytes),
        Err(FrameError::Malformed(3)),
        "another client's leg"
    );
}

proptest! {
    #[test]
    fn bytes_are_a_frame_or_an_error(bytes: Vec<u8>, kind in 0_u8..13) {
        let bytes = [&[kind], &bytes[..]].concat();
        if let Ok(frame) = Frame::read(&bytes) {
            prop_assert_eq!(frame.to_bytes(), bytes);
        }
    }
}
