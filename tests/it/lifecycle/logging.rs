//! The log: what it says, and that a standard error that takes no more is no reason to end, or to
//! stand still.

use anyhow::Result;
use nix::sys::signal::Signal;
use pepd_testbed::{Family, Pepd, Stage, Via, World, require, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

#[test]
fn a_filter_that_is_none_is_said_to_be() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let pepd = Pepd::builder(PEPD)
        .log("=nonsense=[")
        .start(world.hb(), &World::config())?;
    wait_until(LIMIT, "the log says so", || {
        pepd.log().contains("PEPD_LOG is no filter")
    })?;
    pepd.stop()?;
    Ok(())
}

/// A disk that is full, a log reader that has gone, and one that does not read: its pipe is
/// full from the start.
#[rstest]
#[case::the_disk_is_full("exec \"$@\" 2> /dev/full")]
#[case::the_reader_has_gone("mkfifo $0.fifo; (exec 3< $0.fifo) & exec \"$@\" 2> $0.fifo")]
#[case::the_reader_has_stopped(
    "mkfifo $0.fifo; exec 3<> $0.fifo; \
     dd if=/dev/zero of=$0.fifo oflag=nonblock bs=4096 count=16 2> /dev/null; \
     exec \"$@\" 2> $0.fifo"
)]
fn a_log_that_cannot_be_written_ends_nothing(#[case] script: &str) -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let scratch = tempfile::tempdir()?;
    let name = scratch.path().join("log").display().to_string();
    let mut pepd = Pepd::builder(PEPD)
        .wrapper(&["sh", "-c", script, &name])
        .log("debug")
        .start(world.hb(), &World::config())?;
    for family in Family::BOTH {
        let (pair, split) = world.probe(family)?;
        assert!(split);
        pair.exchange(1000)?;
    }
    pepd.reload(&World::config())?;
    pepd.signal(Signal::SIGTERM)?;
    let (status, _) = pepd.wait()?;
    assert_eq!(status.code(), Some(0));
    assert!(!world.kernel_state()?.contains("pepd"), "it cleaned up");
    wait_until(LIMIT, "routed again", || {
        world.probe(Family::V4).is_ok_and(|(_, split)| !split)
    })
}

#[test]
fn a_reload_says_what_waits_for_a_start() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let other = World::config().replace("[node]", "[log]\nformat = \"json\"\n[node]");
    // What has not been put into force is reported again the next time.
    for times in 1..=2 {
        stage.pepd()?.reload(&other)?;
        let pepd = stage.pepd()?;
        wait_until(LIMIT, "the log says so", || {
            let log = pepd.log();
            log.matches("[log] format takes effect at the next start")
                .count()
                == times
        })?;
    }
    assert!(stage.world.probe(Family::V4)?.1);
    stage.finish()
}
