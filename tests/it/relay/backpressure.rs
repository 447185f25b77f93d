//! A receiver that does not read stops its sender, and the daemon's memory stays bounded.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::poll::PollFlags;
use pepd_testbed::traffic::{Pair, Pattern, accept, await_event, receive_exactly};
use pepd_testbed::{Family, Stage, Via, World, require};
use rstest::rstest;
use socket2::SockRef;

use crate::harness::{PEPD, many_descriptors};

/// What either leg may hold.
const BUFFER: u64 = 256 * 1024;
/// What an end host's own sockets hold: the sender's send and the receiver's receive buffer.
const HOSTS: i32 = 64 * 1024;
/// What the kernel adds to a configured buffer: it doubles the value for its bookkeeping
/// (socket(7), `SO_RCVBUF`), takes a whole packet wherever one byte has room, and a pipe of
/// 256 KiB lies between the two legs. Twice everything covers it.
const SLACK: u64 = 2;
/// A sender that has been stuck this long is stopped.
const STUCK: Duration = Duration::from_secs(2);

#[rstest]
fn a_sink_that_never_reads_stops_its_sender(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] upload: bool,
) -> Result<()> {
    require!(root);
    let stage = stage(via)?;
    let world = &stage.world;
    let pair = world.pair(family)?;
    let Pair {
        client: sender,
        server: sink,
    } = if upload { pair } else { pair.swapped() };
    bound(&sender, &sink)?;
    let accepted = fill(&sender, BUFFER * 100)?;
    let legs = if via == Via::Pepd {
        2 * BUFFER + 256 * 1024
    } else {
        0
    };
    let limit = SLACK * (legs + 4 * u64::try_from(HOSTS)?);
    assert!(
        accepted <= limit,
        "{accepted} bytes accepted, {limit} at most expected"
    );
    // Nothing of it is lost when the sink starts after all.
    receive_exactly(&sink, &Pattern::new(1), 0, accepted)?;
    stage.finish()
}

#[rstest]
fn a_thousand_stopped_flows_cost_bounded_memory(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    const FLOWS: usize = 1000;
    let _turn = many_descriptors()?;
    let mut stage = stage(Via::Pepd)?;
    let idle = stage.pepd()?.resident_bytes()?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let flows = open_many(&listener, world, FLOWS)?;
    let mut accepted = 0;
    for pair in &flows {
        bound(&pair.client, &pair.server)?;
        accepted += push_what_fits(&pair.client, 0)?;
    }
    // The first ones have had room again meanwhile.
    for pair in &flows {
        accepted += push_what_fits(&pair.client, 0)?;
    }
    assert!(
        accepted > FLOWS as u64 * 10_000,
        "only {accepted} bytes in {FLOWS} flows"
    );
    let busy = stage.pepd()?.resident_bytes()?;
    // What waits lies in the kernel's buffers. A connection costs the daemon its task and a
    // few hundred bytes around it.
    let each = busy.saturating_sub(idle) / FLOWS as u64;
    assert!(
        each < 64 * 1024,
        "{each} bytes of the daemon's memory for each stopped flow"
    );
    // The daemon serves others all the while.
    stage.world.pair(family)?;
    stage.finish()
}

fn stage(via: Via) -> Result<Stage> {
    let leg = |name: &str| format!("[leg.{name}]\nbuffer = \"{}KiB\"\n", BUFFER / 1024);
    let config = World::config()
        .replace("[leg.lan]\n", &leg("lan"))
        .replace("[leg.wan]\n", &leg("wan"));
    let limits = "\n[limits]\nconnections = 8000\nconnections_per_source = 8000\n";
    Stage::in_world(World::standard()?, via, PEPD, &(config + limits))
}

/// Gives the end hosts' sockets fixed buffers: otherwise they grow by themselves.
fn bound(sender: &TcpStream, sink: &TcpStream) -> Result<()> {
    SockRef::from(sender).set_send_buffer_size(usize::try_from(HOSTS)?)?;
    SockRef::from(sink).set_recv_buffer_size(usize::try_from(HOSTS)?)?;
    Ok(())
}

fn open_many(listener: &TcpListener, world: &World, count: usize) -> Result<Vec<Pair>> {
    let to = listener.local_addr()?;
    world.client().run(|| {
        (0..count)
            .map(|_| {
                let client = TcpStream::connect_timeout(&to, Duration::from_secs(60))?;
                Ok(Pair {
                    client,
                    server: accept(listener)?.0,
                })
            })
            .collect()
    })
}

/// Writes until the sender has been stuck for [`STUCK`], and returns what it got rid of.
fn fill(sender: &TcpStream, at_most: u64) -> Result<u64> {
    let mut accepted = 0;
    let mut moved = Instant::now();
    while moved.elapsed() < STUCK && accepted < at_most {
        let pushed = push_what_fits(sender, accepted)?;
        if pushed > 0 {
            accepted += pushed;
            moved = Instant::now();
        }
        await_event(sender, PollFlags::POLLOUT, STUCK)?;
    }
    Ok(accepted)
}

fn push_what_fits(mut sender: &TcpStream, from: u64) -> Result<u64> {
    let pattern = Pattern::new(1);
    sender.set_nonblocking(true)?;
    let mut at = from;
    loop {
        match sender.write(pattern.piece(at, 65_536)) {
            Ok(length) => at += length as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(at - from),
            Err(error) => return Err(error.into()),
        }
    }
}
