//! Both machines against each other, over sessions that break, on boxes that fail and die.

mod world;

use proptest::collection::vec;
use proptest::prelude::*;

use self::world::{Happening, World};
use super::GiverOutcome;
use crate::wire::Reason;

fn happening() -> impl Strategy<Value = Happening> {
    use Happening::*;
    prop_oneof![
        30 => Just(GiverDoes(true)),
        2 => Just(GiverDoes(false)),
        30 => Just(TakerDoes(true)),
        2 => Just(TakerDoes(false)),
        20 => any::<u8>().prop_map(ReachesTaker),
        20 => Just(ReachesGiver),
        2 => Just(GiverSeesCut),
        2 => any::<u8>().prop_map(TakerSeesCut),
        2 => Just(GiverWaits),
        2 => Just(TakerWaits),
        1 => Just(GiverCrashes),
        1 => Just(TakerCrashes),
        5 => any::<u8>().prop_map(TakerCrashesBeginning),
        1 => Just(TakerDies),
        5 => Just(TakerIsUnready),
        1 => Just(Cancelled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// Never two boxes serve a connection; and in the end one does, but where the other box is lost, or
    /// has said that it has lost it.
    #[test]
    fn exactly_one_box_serves(happenings in vec(happening(), 0..150)) {
        let mut world = World::begin(3);
        for happening in happenings {
            world.happens(happening);
            prop_assert!(!world.both_serve(), "{world:#?}");
        }
        prop_assert!(world.settles(), "{world:#?}");
        for index in 0..3 {
            let serve = world.serves(index);
            prop_assert!(serve != (true, true));
            let may_be_lost = world.outcome() == Some(&GiverOutcome::Unknown)
                || world.is_lost(index);
            prop_assert!(serve != (false, false) || may_be_lost, "{index}: {world:#?}");
        }
    }
}

#[test]
fn what_goes_well_moves() {
    let mut world = World::begin(3);
    assert!(world.settles());
    let moved = GiverOutcome::Moved { lost: [].into() };
    assert_eq!(world.outcome(), Some(&moved));
    assert!((0..3).all(|index| world.serves(index) == (false, true)));
    assert!(world.given_away.is_empty());
}

/// Does so many things, each as it should be, and then what is asked for.
fn after(steps: usize, happening: Happening) -> World {
    let mut world = World::begin(3);
    for _ in 0..steps {
        world.next();
    }
    world.happens(happening);
    world
}

/// The steps after which the box that gives has said that the other one is to serve.
fn steps_to_activate() -> usize {
    (0..)
        .find(|steps| {
            let mut world = World::begin(3);
            for _ in 0..*steps {
                world.next();
            }
            !world.given_away.is_empty()
        })
        .unwrap()
}

#[test]
fn whatever_fails_before_leaves_the_old_box_serving() {
    use Happening::*;
    let failures = [
        GiverDoes(false),
        TakerDoes(false),
        GiverSeesCut,
        TakerSeesCut(0),
        GiverWaits,
        TakerWaits,
        GiverCrashes,
        TakerCrashes,
        Cancelled,
    ];
    for steps in 0..steps_to_activate() {
        for failure in failures {
            let mut world = after(steps, failure);
            assert!(world.settles(), "{steps} {failure:?}: {world:#?}");
            for index in 0..3 {
                // What one step fails at may concern one of them only, and the others move.
                let serves = world.serves(index);
                assert!(
                    serves.0 != serves.1,
                    "{steps} {failure:?} {index}: {world:#?}"
                );
            }
        }
    }
}

#[test]
fn a_box_that_dies_takes_only_along_what_it_was_given() {
    let mut taken = 0;
    for steps in 0..steps_to_activate() + 3 {
        let mut world = after(steps, Happening::TakerDies);
        assert!(world.settles());
        let unknown = world.outcome() == Some(&GiverOutcome::Unknown);
        taken += usize::from(unknown);
        // Where the other box has not heard yet that it is dead, it may give them to it all the same.
        let given = unknown || matches!(world.outcome(), Some(GiverOutcome::Moved { .. }));
        let serves = (!given, false);
        assert!(
            (0..3).all(|index| world.serves(index) == serves),
            "{steps}: {world:#?}"
        );
    }
    assert!(taken > 0);
}

#[test]
fn who_is_told_by_nobody_asks() {
    // The order gets lost; the other box says that it never came.
    let mut world = after(steps_to_activate(), Happening::TakerSeesCut(0));
    assert!(world.settles());
    let stayed = GiverOutcome::Stayed(Reason::Cancelled);
    assert_eq!(world.outcome(), Some(&stayed));
    assert!((0..3).all(|index| world.serves(index) == (true, false)));
    // A process that dies with it under way goes on.
    let mut world = after(steps_to_activate() + 1, Happening::GiverCrashes);
    assert!(world.settles());
    assert!((0..3).all(|index| {
        let (giver, taker) = world.serves(index);
        giver != taker
    }));
}

#[test]
fn who_dies_while_it_begins_serves_what_it_has_begun_with() {
    let begins = (0..)
        .find(|steps| {
            let world = after(*steps, Happening::GiverSeesCut);
            world.is_about_to_serve()
        })
        .unwrap();
    for count in 0..=3 {
        let mut world = after(begins, Happening::TakerCrashesBeginning(count));
        assert!(world.settles());
        for index in 0..3 {
            let is_served_there = index < u16::from(count);
            let serves = (!is_served_there, is_served_there);
            assert_eq!(world.serves(index), serves, "{count} {index}: {world:#?}");
        }
    }
}
