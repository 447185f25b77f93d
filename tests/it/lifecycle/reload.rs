//! Reloading: no connection is lost by it, new ones follow the new file, and a bad one changes
//! nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use nix::sys::signal::Signal;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Stage, Via, World, require, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

#[rstest]
fn a_reload_under_load_loses_no_connection(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    const FLOWS: usize = 40;
    const RELOADS: usize = 5;
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let Stage { world, pepd, .. } = &mut stage;
    let pepd = pepd.as_mut().unwrap();
    let flows: Vec<Pair> = (0..FLOWS)
        .map(|_| world.pair(family))
        .collect::<Result<_>>()?;
    let (done, rounds, opened) = (
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let world = &*world;
    std::thread::scope(|scope| -> Result<()> {
        let keeps_on: Vec<_> = flows
            .chunks(10)
            .map(|some| {
                let (done, rounds) = (&done, &rounds);
                scope.spawn(move || -> Result<()> {
                    while !done.load(Ordering::Relaxed) {
                        for pair in some {
                            pair.exchange(20_000)?;
                        }
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let opens = scope.spawn(|| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                world.pair(family)?.exchange(1000)?;
                opened.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let reloads = (|| -> Result<()> {
            for count in 0..RELOADS {
                let congestion = if count % 2 == 0 {
                    "\"cubic\""
                } else {
                    "\"reno\""
                };
                let config = World::config().replace("\"reno\"", congestion);
                pepd.reload(&config)?;
                let before = (
                    rounds.load(Ordering::Relaxed),
                    opened.load(Ordering::Relaxed),
                );
                wait_until(LIMIT, "traffic goes on after a reload", || {
                    rounds.load(Ordering::Relaxed) >= before.0 + 8
                        && opened.load(Ordering::Relaxed) >= before.1 + 8
                })?;
            }
            Ok(())
        })();
        done.store(true, Ordering::Relaxed);
        // First report what broke, then that something was waited for in vain.
        for thread in keeps_on {
            thread.join().unwrap()?;
        }
        opens.join().unwrap()?;
        reloads
    })?;
    assert!(stage.world.probe(family)?.1);
    stage.finish()
}

#[test]
fn a_reload_takes_effect_on_new_connections() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let (live, split) = stage.world.probe(Family::V4)?;
    assert!(split);
    let bypass = "\n[[rule]]\nsource = [\"10.1.0.0/24\"]\naction = \"bypass\"\n";
    stage.pepd()?.reload(&(World::config() + bypass))?;
    assert!(
        !stage.world.probe(Family::V4)?.1,
        "the new rule does not hold"
    );
    assert!(stage.world.probe(Family::V6)?.1, "IPv6 has no such rule");
    live.exchange(10_000)?;
    stage.pepd()?.reload(&World::config())?;
    assert!(stage.world.probe(Family::V4)?.1);
    live.exchange(10_000)?;
    stage.finish()
}

/// Connections go on whose family no campus has any more, over a reload and over a death, and new ones are routed.
#[rstest]
fn a_family_that_goes_takes_no_connection_along(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let (live, split) = stage.world.probe(family)?;
    assert!(split);
    let kept = World::config();
    let (gone, other) = match family {
        Family::V4 => (["\"10.1.0.0/16\", ", "\"10.2.0.0/16\", "], Family::V6),
        Family::V6 => ([", \"fd00:a::/48\"", ", \"fd00:b::/48\""], Family::V4),
    };
    let config = gone
        .iter()
        .fold(kept.clone(), |config, it| config.replace(it, ""));
    assert!(config.len() < kept.len());
    stage.pepd()?.reload(&config)?;
    live.exchange(100_000)?;
    assert!(!stage.world.probe(family)?.1, "it has no campus any more");
    assert!(stage.world.probe(other)?.1);
    stage.pepd()?.dies(Signal::SIGKILL)?;
    live.exchange(100_000)?;
    assert!(!stage.world.probe(family)?.1, "it has no campus any more");
    assert!(stage.world.probe(other)?.1);
    stage.pepd()?.reload(&kept)?;
    assert!(stage.world.probe(family)?.1, "it has a campus again");
    live.exchange(100_000)?;
    stage.finish()
}

#[rstest]
#[case::a_syntax_error("[node\n", "pepd.toml")]
#[case::an_unknown_key("[nodes]\nname = \"x\"\n", "nodes")]
#[case::no_such_congestion_control("", "nonesuch")]
fn a_bad_file_changes_nothing_and_says_why(#[case] bad: &str, #[case] why: &str) -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let (live, _) = stage.world.probe(Family::V4)?;
    let before = stage.world.steady_state()?;
    let bad = if bad.is_empty() {
        World::config().replace("\"cubic\"", "\"nonesuch\"")
    } else {
        bad.to_owned()
    };
    stage.pepd()?.reload(&bad)?;
    // The log is written by a thread of its own, which may come later than the notification.
    let pepd = stage.pepd()?;
    wait_until(LIMIT, "the log says why", || {
        let log = pepd.log();
        log.contains("reload refused") && log.contains(why)
    })?;
    assert_eq!(stage.world.steady_state()?, before);
    live.exchange(10_000)?;
    assert!(stage.world.probe(Family::V6)?.1);
    stage.finish()
}
