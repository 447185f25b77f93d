use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn well() -> Sight {
    Sight {
        workers: true,
        blocked: None,
        forwards: true,
        trouble: None,
        exhausted: false,
        dying: false,
        limits: connections(0),
        campuses: ["a", "b", "c"].map(|name| way(name, Seen::Well)).into(),
    }
}

fn connections(used: u64) -> Vec<Use> {
    vec![Use {
        name: "connections",
        used,
        limit: 100,
    }]
}

fn way(name: &str, seen: Seen) -> CampusSight {
    CampusSight {
        name: name.to_owned(),
        seen,
        waits: false,
    }
}

fn silent() -> Seen {
    Seen::Ill("the peer hb-i is silent".to_owned())
}

/// A record that has seen a box that is well.
fn fit_record(now: Instant) -> Record {
    let mut record = Record::new(None, ["a", "b", "c"].map(str::to_owned));
    record.see(well(), now);
    record
}

/// Whether it is fit for new connections, and for those that there are.
fn verdict(record: &Record) -> (bool, bool) {
    let Readiness { new, live, .. } = record.judge();
    (new.fit, live.fit)
}

#[test]
fn a_box_that_has_seen_nothing_is_not_fit_and_one_that_sees_all_well_is_at_once() {
    let now = Instant::now();
    let record = Record::new(None, ["a", "b"].map(str::to_owned));
    assert_eq!(verdict(&record), (false, false));
    let record = fit_record(now);
    assert_eq!(record.judge().new, Fit::yes());
    assert!(
        record
            .judge()
            .campuses
            .iter()
            .all(|it| it.new.fit && it.live.fit)
    );
}

/// What is seen otherwise than when all is well, and whether the box is fit for new connections and for those that
/// there are then.
type Case = (fn(&mut Sight), (bool, bool));

#[test]
fn what_stands_in_the_way_of_all_counts_for_both_and_the_rest_for_new_ones() {
    let cases: [Case; 8] = [
        (|sight| sight.workers = false, (false, true)),
        (|sight| sight.exhausted = true, (false, true)),
        (|sight| sight.dying = true, (false, true)),
        (|sight| sight.limits = connections(90), (false, true)),
        (
            |sight| sight.blocked = Some("input".to_owned()),
            (false, false),
        ),
        (|sight| sight.forwards = false, (false, true)),
        (
            |sight| sight.trouble = Some(Trouble::Broken("gone".to_owned())),
            (false, false),
        ),
        (
            |sight| sight.trouble = Some(Trouble::Unseen("nft fails".to_owned())),
            (false, true),
        ),
    ];
    for (index, (change, expected)) in cases.into_iter().enumerate() {
        let now = Instant::now();
        let mut record = fit_record(now);
        let mut sight = well();
        change(&mut sight);
        record.see(sight.clone(), now);
        record.see(sight, now + 3 * SECOND);
        assert_eq!(verdict(&record), expected, "case {index}");
        // No campus is better off than the box.
        for campus in record.judge().campuses {
            assert_eq!((campus.new.fit, campus.live.fit), expected, "case {index}");
        }
        record.see(well(), now + 4 * SECOND);
        record.see(well(), now + 14 * SECOND);
        assert_eq!(verdict(&record), (true, true), "case {index}");
    }
}

#[test]
fn what_is_broken_is_no_better_for_not_being_seen() {
    let now = Instant::now();
    let mut record = fit_record(now);
    let mut sight = well();
    sight.trouble = Some(Trouble::Broken("gone".to_owned()));
    record.see(sight.clone(), now);
    record.see(sight.clone(), now + 3 * SECOND);
    sight.trouble = Some(Trouble::Unseen("nft fails".to_owned()));
    record.see(sight.clone(), now + 4 * SECOND);
    record.see(sight, now + 100 * SECOND);
    assert_eq!(verdict(&record), (false, false));
}

#[test]
fn between_nine_and_eight_tenths_it_stays_what_it_was() {
    let now = Instant::now();
    let mut record = fit_record(now);
    let mut fit = |used| {
        let mut sight = well();
        sight.limits = connections(used);
        record.see(sight, now);
        record.judge().new.fit
    };
    let use_and_fit = [(89, true), (90, false), (80, false), (79, true), (89, true)];
    for (used, expected) in use_and_fit {
        assert_eq!(fit(used), expected, "{used}");
    }
}

#[test]
fn one_campus_out_of_reach_is_that_campus_and_two_of_three_are_the_box() {
    let now = Instant::now();
    let mut record = fit_record(now);
    let mut sight = well();
    sight.campuses[1].seen = silent();
    record.see(sight.clone(), now);
    record.see(sight.clone(), now + 2 * SECOND);
    assert_eq!(record.judge().new.why, None, "a moment does not count");
    record.see(sight.clone(), now + 3 * SECOND);
    let judged = record.judge();
    let but = "but not for campus b: the peer hb-i is silent";
    assert_eq!(
        (judged.new.fit, judged.new.why.as_deref()),
        (true, Some(but))
    );
    let fit: Vec<_> = judged.campuses.iter().map(|it| it.new.fit).collect();
    assert_eq!(fit, [true, false, true]);
    sight.campuses[2].seen = silent();
    record.see(sight.clone(), now + 3 * SECOND);
    record.see(sight, now + 6 * SECOND);
    assert_eq!(verdict(&record), (false, false));
}

#[test]
fn connections_that_wait_for_their_link_are_left_here() {
    let now = Instant::now();
    let mut record = fit_record(now);
    let mut sight = well();
    for campus in &mut sight.campuses[1..] {
        (campus.seen, campus.waits) = (silent(), true);
    }
    record.see(sight.clone(), now);
    record.see(sight, now + 3 * SECOND);
    assert_eq!(verdict(&record), (false, true));
}

#[test]
fn whoever_goes_on_thinks_what_the_one_before_thought() {
    let now = Instant::now();
    let names = || ["a", "b", "c"].map(str::to_owned);
    let mut before = fit_record(now);
    assert_eq!(before.noted(), Noted::default());
    // It does not wait until it has seen all.
    let after = Record::new(Some(before.noted()), names());
    assert_eq!(verdict(&after), (true, true));
    let mut sight = well();
    sight.campuses[1].seen = silent();
    sight.limits = connections(95);
    before.see(sight.clone(), now);
    before.see(sight, now + 3 * SECOND);
    let mut after = Record::new(Some(before.noted()), names());
    assert_eq!(verdict(&after), (false, true));
    let mut sight = well();
    sight.limits = connections(85);
    for campus in &mut sight.campuses {
        campus.seen = Seen::Unknown;
    }
    after.see(sight, now + 4 * SECOND);
    assert_eq!(verdict(&after), (false, true), "85 is still too many");
    let fit: Vec<_> = after
        .judge()
        .campuses
        .iter()
        .map(|it| it.live.fit)
        .collect();
    assert_eq!(fit, [true, false, true]);
}

#[test]
fn a_file_that_is_read_again_may_have_other_campuses() {
    let now = Instant::now();
    let mut record = fit_record(now);
    let mut sight = well();
    sight.campuses = vec![
        way("c", Seen::Well),
        way("d", Seen::Unknown),
        way("a", Seen::Well),
    ];
    record.see(sight, now);
    let judged = record.judge();
    let fit: Vec<_> = judged
        .campuses
        .iter()
        .map(|it| (&*it.name, it.new.fit))
        .collect();
    assert_eq!(fit, [("c", true), ("d", false), ("a", true)]);
    assert!(judged.new.fit);
}
