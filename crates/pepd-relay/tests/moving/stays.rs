//! What does not move goes on where it is.

use std::os::fd::AsFd as _;

use anyhow::{Result, ensure};
use pepd_relay::Stays;
use pepd_sys::stream;
use pepd_testbed::traffic::{Pattern, receive_exactly, send};
use pepd_testbed::{Family, require};

use crate::ground::Ground;

#[test]
fn what_is_thawed_goes_on() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4)?;
    let (pair, flow) = ground.pair()?;
    pair.exchange(100_000)?;
    for turn in 0..3_u64 {
        ground.drop_packets(0, &[flow])?;
        let frozen = ground.freeze(0, flow)??;
        let delivered = frozen.snapshot().ways[0].delivered;
        ensure!(delivered == (turn + 1) * 100_000, "{delivered}");
        let pattern = Pattern::new(turn);
        send(&pair.client, &pattern, 0, 5000)?;
        // Another box has had it for a while, and nobody has heard of it.
        drop(ground.restore(1, frozen.snapshot())?);
        ground.drop_packets(0, &[])?;
        match turn {
            0 => frozen.thaw(),
            _ => drop(frozen),
        }
        receive_exactly(&pair.server, &pattern, 0, 5000)?;
        pair.exchange(95_000)?;
    }
    ground.no_resets()
}

#[test]
fn what_is_not_there_is_not_frozen() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4)?;
    let (pair, flow) = ground.pair()?;
    let unknown = ground.freeze_number(0, 1_000_000)?;
    ensure!(matches!(unknown, Err(Stays::Ended)), "{unknown:?}");
    // What is closed is gone, and nobody hears of it.
    ground.drop_packets(0, &[flow])?;
    ground.freeze(0, flow)??.close()?;
    ensure!(ground.id(0, flow)?.is_none());
    drop(pair);
    let (pair, _) = ground.pair()?;
    pair.exchange(1000)?;
    ground.no_resets()
}

#[test]
fn urgent_data_goes_first() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V6)?;
    let (pair, flow) = ground.pair()?;
    // The server does not read: what the client sends fills everything, and then comes the urgent byte.
    let pattern = Pattern::new(1);
    send(&pair.client, &pattern, 0, 1000)?;
    stream::send_urgent(pair.client.as_fd(), b'!')?;
    receive_exactly(&pair.server, &pattern, 0, 1000)?;
    // It has come through, or is on its way: both are told, and neither is lost.
    match ground.freeze(0, flow)? {
        Ok(frozen) => frozen.thaw(),
        Err(Stays::Urgent | Stays::Kernel { .. }) => {}
        Err(why) => return Err(why.into()),
    }
    send(&pair.client, &pattern, 1000, 1000)?;
    receive_exactly(&pair.server, &pattern, 1000, 1000)?;
    ground.no_resets()
}
