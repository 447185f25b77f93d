//! What holds whatever happens.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pepd_packet::Rate;
use proptest::prelude::*;

use super::{LIMITS, World, ack, millis};
use crate::{Act, Limits, Report};

#[derive(Clone, Debug)]
enum Step {
    Hear(Report),
    Ack(u32),
    Sack(u32),
    Data(u32, usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Hear(Report::GoingDown(None))),
        Just(Step::Hear(Report::GoingDown(Some(Duration::from_secs(3))))),
        Just(Step::Hear(Report::Gone(None))),
        Just(Step::Hear(Report::Up(None))),
        Just(Step::Hear(Report::Up(Some(Rate(1_000_000))))),
        (0_u32..40).prop_map(|it| Step::Ack(it * 700)),
        (0_u32..40).prop_map(|it| Step::Sack(it * 700)),
        (0_u32..40, 0_usize..1400).prop_map(|(at, length)| Step::Data(at * 700, length)),
        (0_u64..3000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    /// Whatever happens, each packet is decided on once, none overtakes another of its direction that does not
    /// say the same as one that is kept, and what is counted as held is what is held.
    #[test]
    fn each_packet_is_decided_on_once(steps in steps(), packets in 1_usize..60) {
        let mut world = World::new(Limits { packets, ..LIMITS });
        let (mut direction, mut repeated, mut repeats) = (HashMap::new(), HashSet::new(), 0);
        for step in steps {
            match step {
                Step::Hear(report) => world.hear(report),
                Step::Ack(bytes) => _ = direction.insert(world.ack(bytes).0, true),
                Step::Sack(bytes) => {
                    let mut sack = ack(bytes);
                    sack.options = [&[1, 1, 5, 10][..], &[0; 8]].concat();
                    direction.insert(world.give(&sack, true).0, true);
                }
                Step::Data(at, length) => _ = direction.insert(world.data(at, length).0, false),
                Step::Wait(time) => world.wait(millis(time)),
            }
            let figures = world.holder.figures();
            if figures.repeated_total > repeats {
                repeats = figures.repeated_total;
                repeated.insert(world.last);
            }
            let parts = usize::try_from(figures.parts_total).unwrap();
            prop_assert!(figures.acks + figures.packets <= packets + parts);
        }
        world.hear(Report::Up(None));
        world.wait(Duration::from_secs(5));
        prop_assert!(!world.holder.is_needed());
        let figures = world.holder.figures();
        prop_assert_eq!((figures.acks, figures.packets, figures.bytes, figures.flows), (0, 0, 0, 0));
        let mut decided: Vec<u64> = world.done.iter().filter_map(|(_, act)| match act {
            Act::Release(id) | Act::Drop(id) => Some(id.0),
            Act::Send(_) => None,
        }).collect();
        let released = world.released();
        let acks: Vec<_> = released.iter().filter(|id| direction[id]).collect();
        prop_assert!(acks.is_sorted(), "{:?}", acks);
        if figures.beyond_total == 0 {
            let data: Vec<_> = released.iter().filter(|id| !direction[id] && !repeated.contains(id)).collect();
            prop_assert!(data.is_sorted(), "{:?}", data);
        }
        decided.sort_unstable();
        prop_assert_eq!(decided, (1..=world.last).collect::<Vec<_>>());
    }
}
