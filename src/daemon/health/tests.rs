//! The judgement on a host on which time passes second by second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pepd_admin::wire::Alarm;
use pepd_net::{Cause, Family, Finding, Passage, Tally};

use super::record::{Passing, Record};
use super::streak::Sample;

/// A host on which time passes second by second.
struct Host {
    record: Record,
    sample: Sample,
    counts: BTreeMap<(Passage, bool), (u64, u64)>,
    now: Instant,
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            record: Record::new(),
            sample: Sample::default(),
            counts: BTreeMap::new(),
            now: Instant::now(),
        };
        host.second(Passage::Input, Family::V4, 0, 0);
        host
    }

    fn second(&mut self, passage: Passage, family: Family, entered: u64, left: u64) {
        let count = self
            .counts
            .entry((passage, family == Family::V6))
            .or_default();
        *count = (count.0 + entered, count.1 + left);
        self.sample.tally = self.sample.tally.with(passage, family, *count);
        self.now += Duration::from_secs(1);
        self.record.observe(self.sample, self.now);
    }

    /// A connection comes through.
    fn comes(&mut self) {
        self.sample.accepted += 1;
        self.second(Passage::Completion, Family::V4, 1, 0);
    }

    fn idle(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.second(Passage::Input, Family::V4, 0, 0);
        }
    }

    fn found(&mut self, findings: &[Finding]) {
        self.record.found(findings.to_vec(), self.now);
    }
}

fn finding(cause: Cause, certain: bool) -> Finding {
    Finding {
        cause,
        certain,
        text: format!("{cause} {certain}"),
        cure: "mend it".to_owned(),
    }
}

#[test]
fn a_flood_that_is_delivered_closes_nothing() {
    let mut host = Host::new();
    for _ in 0..100 {
        host.second(Passage::Input, Family::V4, 5000, 5000);
        // A few are under way while they are counted.
        host.second(Passage::Input, Family::V6, 5000, 4990);
    }
    // None of them completes a handshake, and none is accepted.
    host.second(Passage::Completion, Family::V4, 5000, 0);
    host.idle(3);
    assert!(host.record.allows() && host.record.alarms().is_empty());
}

#[test]
fn what_the_reverse_path_check_drops_closes_nothing() {
    let mut host = Host::new();
    for _ in 0..10 {
        host.sample.tally.martians += 100;
        host.second(Passage::Input, Family::V4, 100, 0);
    }
    assert!(host.record.allows());
}

#[test]
fn the_fewer_it_takes_the_more_is_known() {
    for (findings, enough) in [
        (vec![], 8),
        (vec![finding(Cause::Input, false)], 3),
        // A firewall is believed before.
        (vec![finding(Cause::Routing, true)], 1),
        // They explain something else.
        (vec![finding(Cause::Conntrack, true)], 8),
        (vec![finding(Cause::Forwarding, true)], 8),
    ] {
        let mut host = Host::new();
        host.found(&findings);
        host.idle(3);
        for _ in 1..enough {
            host.second(Passage::Input, Family::V6, 1, 0);
        }
        host.idle(2);
        assert!(host.record.allows(), "{findings:?}");
        host.second(Passage::Input, Family::V6, 1, 0);
        host.idle(2);
        assert!(!host.record.allows(), "{findings:?}");
        assert!(!host.record.alarms().is_empty());
    }
}

#[test]
fn losses_long_ago_or_between_successes_do_not_add_up() {
    let mut host = Host::new();
    for _ in 0..20 {
        host.second(Passage::Input, Family::V4, 7, 0);
        host.second(Passage::Input, Family::V4, 1, 1);
        host.second(Passage::Input, Family::V4, 7, 0);
        host.idle(70);
    }
    assert!(host.record.allows());
}

#[test]
fn a_chain_that_lets_one_port_in_is_noticed() {
    let mut host = Host::new();
    host.found(&[finding(Cause::Input, false)]);
    for _ in 0..5 {
        host.second(Passage::Input, Family::V4, 20, 1);
    }
    assert!(!host.record.allows());
}

#[test]
fn it_opens_again_once_the_cause_is_gone() {
    let mut host = Host::new();
    host.found(&[finding(Cause::Input, true)]);
    host.second(Passage::Input, Family::V4, 4, 0);
    assert!(!host.record.allows());
    host.idle(100);
    assert!(!host.record.allows(), "it is still there");
    host.found(&[]);
    assert_eq!(host.record.passing(), Passing::OnTrial, "a trial");
    host.comes();
    assert!(host.record.passing() == Passing::Through && host.record.alarms().is_empty());
}

#[test]
fn trials_grow_rare() {
    let mut host = Host::new();
    let mut trials = Vec::new();
    for second in 0..2000 {
        let lost = if host.record.allows() { 8 } else { 0 };
        let was_blocked = host.record.passing() != Passing::Through;
        if was_blocked && host.record.allows() {
            trials.push(second);
        }
        host.second(Passage::Dials, Family::V4, lost, 0);
    }
    trials.dedup_by(|later, earlier| *later - *earlier < 5);
    assert!(trials.len() < 14, "{trials:?}");
    let gaps: Vec<_> = trials.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.is_sorted(), "{gaps:?}");
}

#[test]
fn a_cause_that_stops_nothing_is_disbelieved() {
    let mut host = Host::new();
    host.found(&[finding(Cause::Input, true)]);
    host.second(Passage::Input, Family::V4, 1, 0);
    assert!(!host.record.allows());
    host.idle(301);
    assert!(host.record.allows(), "a trial");
    host.comes();
    assert!(host.record.passing() == Passing::Through && host.record.alarms().is_empty());
    host.second(Passage::Input, Family::V4, 1, 0);
    assert!(host.record.allows());
}

#[test]
fn counters_that_begin_anew_are_no_loss() {
    let mut host = Host::new();
    host.second(Passage::Input, Family::V4, 100, 100);
    host.sample.tally = Tally::default();
    host.counts.clear();
    host.idle(3);
    host.second(Passage::Input, Family::V4, 1, 1);
    assert!(host.record.allows());
}

#[test]
fn acknowledgements_that_are_lost_need_a_suspicion() {
    let mut host = Host::new();
    host.second(Passage::Completion, Family::V4, 100, 0);
    host.idle(2);
    assert!(host.record.allows());
    host.found(&[finding(Cause::Input, false)]);
    assert!(!host.record.allows());
}

/// The copy of a SYN comes by the loopback device, where its source is not validated. What the
/// client acknowledges with is.
#[test]
fn acknowledgements_that_a_certain_cause_stops_close_the_gate() {
    for cause in [Cause::SourceValidation, Cause::Routing] {
        let mut host = Host::new();
        host.found(&[finding(cause, false)]);
        host.second(Passage::Completion, Family::V4, 100, 0);
        host.idle(3);
        assert!(host.record.allows(), "{cause}: it only may");

        let mut host = Host::new();
        host.found(&[finding(cause, true)]);
        host.second(Passage::Input, Family::V4, 5000, 5000);
        host.idle(3);
        assert!(
            host.record.allows(),
            "{cause}: forged SYNs are not acknowledged"
        );
        host.second(Passage::Completion, Family::V4, 1, 0);
        assert!(host.record.allows(), "{cause}: it may be accepted yet");
        host.idle(1);
        assert!(!host.record.allows(), "{cause}");
        host.idle(3);
        host.found(&[]);
        assert_eq!(host.record.passing(), Passing::OnTrial, "a trial");
        host.sample.accepted += 1;
        host.second(Passage::Completion, Family::V4, 1, 0);
        assert_eq!(host.record.passing(), Passing::Through, "{cause}");
    }
}

#[test]
fn an_acknowledgement_is_accepted_a_moment_later() {
    let mut host = Host::new();
    host.found(&[finding(Cause::SourceValidation, true)]);
    for _ in 0..20 {
        host.second(Passage::Completion, Family::V4, 1, 0);
        host.sample.accepted += 1;
        host.idle(1);
    }
    assert!(host.record.allows());
}

#[test]
fn a_firewall_is_believed_before_a_connection_is_lost() {
    for (cause, certain, allows) in [
        (Cause::Input, true, false),
        (Cause::Output, true, false),
        (Cause::Input, false, true),
        (Cause::SourceValidation, true, true),
        (Cause::Forwarding, true, true),
    ] {
        let mut host = Host::new();
        host.found(&[finding(cause, certain)]);
        assert_eq!(host.record.allows(), allows, "{cause} {certain}");
        let mut host = Host::new();
        host.second(Passage::Input, Family::V4, 7, 7);
        host.found(&[finding(cause, certain)]);
        assert_eq!(host.record.allows(), allows, "{cause} {certain}, later");
    }
    // What comes over `lo` passes, and is no reason to disbelieve.
    let mut host = Host::new();
    host.second(Passage::Input, Family::V4, 10, 10);
    host.found(&[finding(Cause::Input, true)]);
    assert!(!host.record.allows());
    host.idle(3);
    host.found(&[]);
    assert_eq!(host.record.passing(), Passing::OnTrial);
}

#[test]
fn what_was_lost_before_a_repair_is_forgotten() {
    let mut host = Host::new();
    host.second(Passage::Input, Family::V4, 7, 0);
    host.found(&[finding(Cause::Routing, true)]);
    assert!(!host.record.allows());
    host.record.repaired();
    assert_eq!(host.record.passing(), Passing::OnTrial);
    // Some of what was lost is counted later.
    host.second(Passage::Input, Family::V4, 5, 0);
    host.second(Passage::Input, Family::V4, 1, 1);
    assert_eq!(host.record.passing(), Passing::Through);
}

#[test]
fn answers_that_nobody_asked_for_close_nothing() {
    let mut host = Host::new();
    host.found(&[finding(Cause::Input, false)]);
    for _ in 0..20 {
        // A connection of its own a second, and forged answers to it, which a filter drops.
        host.second(Passage::Dials, Family::V4, 1, 1);
        host.second(Passage::Returns, Family::V4, 1, 1);
        host.second(Passage::Returns, Family::V4, 10_000, 0);
    }
    assert!(host.record.allows());
    for _ in 0..4 {
        host.second(Passage::Dials, Family::V4, 1, 1);
        host.second(Passage::Returns, Family::V4, 1, 0);
    }
    assert!(!host.record.allows(), "those that were asked for count");
}

#[test]
fn each_cause_has_a_metric() {
    assert_eq!(Cause::ALL.map(Cause::name), Alarm::CAUSES);
}
