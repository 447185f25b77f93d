//! Between which campuses connections are routed because splitting does not pay there.

use std::time::Duration;

use anyhow::Result;
use pepd_net::{Action, Choices, LogGroup, Measure, PerMyriad, Plan, Request};
use pepd_testbed::require;

use super::netns::{Netns, request, rule};

const TTL: Duration = Duration::from_secs(60);

fn measuring(auto: bool) -> Request {
    let mut request = request();
    request.measure = Some(Measure {
        unsplit: PerMyriad(100),
        group: LogGroup(7300),
        auto,
    });
    request
}

#[test]
fn the_plan_that_measures_and_chooses() {
    let mut request = measuring(true);
    request.rules = vec![rule(&[], &[], &[443..=443], Action::Split)];
    insta::assert_snapshot!(Plan::new(&request));
}

/// A rule chooses where the rest is split; and where nothing is measured there is nothing to choose by.
#[test]
fn a_rule_chooses() {
    let mut request = measuring(false);
    request.rules = vec![rule(&[], &[], &[443..=443], Action::Auto)];
    let shown = Plan::new(&request).to_string();
    let chosen = "tcp dport { 443 } counter goto choose_early comment \"rule 1: auto\"";
    assert!(shown.contains(chosen), "{shown}");
    assert!(shown.contains("\tgoto early\n"), "{shown}");
    request.measure = None;
    let shown = Plan::new(&request).to_string();
    assert!(
        shown.contains("counter goto early comment \"rule 1: auto\""),
        "{shown}"
    );
    assert!(
        !shown.contains("jhash") && !shown.contains("choose"),
        "{shown}"
    );
}

#[test]
fn it_is_installed_verified_and_leaves_no_trace() -> Result<()> {
    require!(root);
    for auto in [false, true] {
        Netns::new().leaves_no_trace(&measuring(auto));
    }
    Ok(())
}

#[test]
fn pairs_of_campuses_are_told_again_and_taken_back() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let request = measuring(true);
    let installed = netns.install(&request).unwrap();
    let plan = Plan::new(&request);
    let choices = netns.run(|| Choices::open().unwrap());
    let set = |routed: &[(usize, usize)], explored: &[(usize, usize)]| {
        choices.set(&plan, [routed, explored], TTL).unwrap();
        let state = netns.state();
        let holds = |set: &str| {
            let text = state.split(&format!("set {set} {{")).nth(1).unwrap();
            text.split("\n\t}").next().unwrap().contains("elements")
        };
        ["auto4", "auto6", "explored4", "explored6"].map(holds)
    };
    assert_eq!(set(&[], &[]), [false; 4]);
    assert_eq!(set(&[(0, 1)], &[]), [true, true, false, false]);
    for _ in 0..3 {
        assert_eq!(set(&[(0, 1), (1, 0)], &[(0, 1)]), [true; 4]);
    }
    assert_eq!(set(&[(1, 0)], &[]), [true, true, false, false]);
    // Campuses that there are not are none.
    assert_eq!(set(&[(7, 8)], &[]), [false; 4]);
    netns.block_on(|| installed.remove()).unwrap();
    Ok(())
}
