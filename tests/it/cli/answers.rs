//! What the commands say that ask no daemon, and what they cannot be asked.

use std::process::Command;

use anyhow::Result;
use pepd_testbed::{World, run};
use rstest::rstest;

use super::commands::pepd_with;
use crate::harness::{LIMIT, PEPD};

#[rstest]
#[case::an_outage_told_too_late("link radio gone --for 10s", "going-down")]
#[case::an_outage_too_long("link radio going-down --for 2days", "up to a day")]
#[case::no_time("link radio going-down --for nonsense", "up to a day")]
#[case::as_good_as_no_time("link radio going-down --for 1ns", "a millisecond at least")]
#[case::no_time_at_all("link radio going-down --for 0s", "a millisecond at least")]
#[case::less_than_no_time("link radio going-down --for -5s", "up to a day")]
#[case::no_number("flow abc", "an ID is a number")]
#[case::no_legs("model", "--in LEG")]
#[case::no_bound("model --in rtt=10ms --out rtt=20ms,loss=1%", "the leg --in")]
#[case::not_measured(
    "model --in rtt=10ms --out rtt=9ms,loss=25%,control=bbr --rate 9Mbit",
    "of bbr"
)]
fn what_cannot_be_asked_is_exit_64(#[case] line: &str, #[case] says: &str) -> Result<()> {
    let finished = run(Command::new(PEPD).args(line.split(' ')), LIMIT)?;
    assert_eq!(finished.status.code(), Some(64), "{finished:?}");
    assert!(finished.stderr.contains(says), "{finished:?}");
    Ok(())
}

#[rstest]
#[case::a_share(
    "[measure]\nunsplit = \"2%\"\n",
    "2% of the connections that would be split are routed"
)]
#[case::by_itself(
    "[capture]\nsplit = \"auto\"\n",
    "split between campuses where it pays; 4%"
)]
fn check_says_what_is_measured(#[case] more: &str, #[case] says: &str) -> Result<()> {
    let campuses = "[node]\nname = \"x\"\n[[campus]]\nname = \"a\"\nprefixes = [\"10.1.0.0/16\"]\n\
                    [[campus]]\nname = \"b\"\nprefixes = [\"10.2.0.0/16\"]\n";
    let said = pepd_with(&format!("{campuses}{more}"), "check")?.success()?;
    assert!(said.contains(says), "{said}");
    Ok(())
}

/// What new connections do while a leg's link is gone, where they do not wait.
#[rstest]
#[case::they_are_refused("while_gone = \"refuse\"", Some("refuses while its link is gone"))]
#[case::they_are_routed("while_gone = \"route\"", Some("routes while its link is gone"))]
#[case::they_wait("while_gone = \"wait\"", None)]
fn check_says_what_a_leg_does_while_its_link_is_gone(
    #[case] key: &str,
    #[case] says: Option<&str>,
) -> Result<()> {
    let config = World::config().replace("[leg.wan]\n", &format!("[leg.wan]\n{key}\n"));
    let said = pepd_with(&config, "check")?.success()?;
    assert_eq!(said.contains("while its link is gone"), says.is_some());
    assert!(said.contains(says.unwrap_or_default()), "{said}");
    Ok(())
}

/// Where what is learned is kept, and that it cannot be where the directory is not there.
#[test]
fn check_says_what_keeps_what_is_learned() -> Result<()> {
    for (path, says) in [
        ("/dev/shm/state", None),
        (
            "/nonexistent/pepd/state",
            Some("/nonexistent/pepd is no directory"),
        ),
    ] {
        let node = format!("[node]\nstate = \"{path}\"\n");
        let config = World::config().replace("[node]\n", &node);
        let said = pepd_with(&config, "check")?.success()?;
        let kept = format!("what is learned of the legs' paths is kept in {path}");
        assert!(said.contains(&kept), "{said}");
        assert_eq!(said.contains("is no directory"), says.is_some(), "{said}");
        assert!(says.is_none_or(|says| said.contains(says)), "{said}");
    }
    let config = World::config().replace("[node]\n", "[node]\nstate = \"state\"\n");
    let refused = pepd_with(&config, "check")?;
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    Ok(())
}
