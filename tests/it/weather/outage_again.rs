//! How long a link stays empty that is gone again soon after it was back: on the guest's virtual clock.

use std::time::Duration;

use anyhow::{Result, ensure};
use pepd_testbed::link::{QueueLimit, Rate, Shape};
use pepd_testbed::{Family, World, require};
use rstest::rstest;

use super::outage_times::{Crossing, FAR, NEAR, RATE, payload};
use crate::harness::pass;
use crate::streams::watch;

/// A link that goes again before what was sent at its return is answered is used at once by its next return, too: of what was
/// sent twice the kernel knows nothing yet, and its timer may be longer than the second outage.
#[rstest]
#[case(Family::V4, 1, "\"cubic\"")]
#[case(Family::V6, 1, "\"bbr\"")]
#[case(Family::V6, 5, "\"cubic\"")]
fn a_link_that_goes_again_at_once_is_used_at_once(
    #[case] family: Family,
    #[case] flows: usize,
    #[case] control: &str,
    #[values(60, 80, 100, 130, 160, 200, 300)] up: u64,
) -> Result<()> {
    /// What is carried in this time after the second return is what is asked for, and so much of it.
    const AFTER: Duration = Duration::from_secs(3);
    const SHARE: f64 = 0.6;
    const AGAIN: Duration = Duration::from_millis(700);
    require!(root, virtual_time, program("nft"));
    let shape = |delay| Shape {
        queue: QueueLimit::Packets(100),
        ..Shape::new(delay, Rate::mbit(RATE))
    };
    let config = World::config().replace("\"cubic\"", control);
    let crossing = Crossing::start((shape(NEAR), shape(FAR)), &config, family, flows)?;
    let bytes = crossing.while_filled(|| {
        watch(&crossing.pairs, 2 * AFTER)?;
        for (gone, up) in [
            (2 * AGAIN, Duration::from_millis(up)),
            (AGAIN, Duration::ZERO),
        ] {
            crossing.be("gone")?;
            pass(gone);
            crossing.be("up")?;
            pass(up);
        }
        let (_, bytes) = watch(&crossing.pairs, AFTER)?;
        Ok(bytes)
    })?;
    let carried = AFTER.as_secs_f64() * RATE as f64 * 1e6 / 8.0 * payload(family);
    let share = bytes as f64 / carried;
    println!("{family}, {flows} flows, {control}, up for {up} ms: {share:.2} of the rate");
    ensure!(share >= SHARE, "{share}");
    crossing.stop()
}
