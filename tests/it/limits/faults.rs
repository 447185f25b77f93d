//! Calls of the workers that fail because the kernel lacks memory for a moment: no byte is lost by
//! it, no connection, and no held SYN stays behind.

use std::io::Read;
use std::net::TcpStream;
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{Pair, accept, connect};
use pepd_testbed::{Family, Pepd, Stage, Via, World, require, wait_until};
use rstest::rstest;

use crate::faults::Faults;
use crate::harness::{LIMIT, PEPD};

/// The threads that carry connections.
const WORKERS: &str = "worker-";

/// Both directions at once and both ends, whichever of the calls fail.
#[rstest]
#[case::every_splice(&["splice:error=ENOMEM"])]
#[case::each_third_splice(&["splice:error=ENOMEM:when=2+3"])]
#[case::every_other_splice(&["splice:error=ENOBUFS:when=1+2"])]
#[case::interrupted(&["splice,recvfrom,sendto:error=EINTR:when=1+2"])]
#[case::copying_as_well(
    &["splice:error=ENOMEM", "recvfrom,sendto,read,shutdown,ioctl:error=ENOMEM:when=3+4"]
)]
fn without_memory_for_splice_every_byte_arrives(
    #[case] faults: &[&str],
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("strace"));
    let mut stage = Stage::open(Via::Early, PEPD)?;
    let pairs = [(); 2].map(|()| stage.world.probe(family));
    let faults = Faults::inject(stage.pepd()?.daemon()?, WORKERS, faults)?;
    for pair in pairs {
        let (pair, split) = pair?;
        ensure!(split, "not split");
        thread::scope(|scope| -> Result<()> {
            let reverse = Pair {
                client: pair.server.try_clone()?,
                server: pair.client.try_clone()?,
            };
            let other = scope.spawn(move || reverse.exchange(300_000));
            other.join().unwrap()
        })?;
        pair.stream(1_500_000)?;
        // A clean end, both ways.
        ensure!((&pair.client).read(&mut [0])? == 0, "more than was sent");
    }
    faults.end()?;
    stage.finish()
}

/// A verdict that the kernel does not take is given later: until then the SYN waits in the kernel,
/// and for ever if it never is.
#[rstest]
#[case::no_buffer("sendto:error=ENOBUFS:when=1+2")]
#[case::no_memory("sendto:error=ENOMEM:when=1+2")]
#[case::would_block("sendto:error=EAGAIN:when=2+3")]
fn a_verdict_that_fails_is_given_again(
    #[case] fault: &str,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("strace"));
    const CLIENTS: usize = 40;
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let faults = Faults::inject(stage.pepd()?.daemon()?, WORKERS, &[fault])?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let to = listener.local_addr()?;
    let pairs = thread::scope(|scope| -> Result<Vec<Pair>> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| connect(world.client(), to)))
            .collect();
        let servers = (0..CLIENTS).map(|_| Ok(accept(&listener)?.0));
        let mut servers: Vec<_> = servers.collect::<Result<_>>()?;
        let mut pairs = Vec::new();
        for client in clients {
            let client = client.join().unwrap()?;
            let is_its = |server: &TcpStream| server.peer_addr().ok() == client.local_addr().ok();
            let at = servers.iter().position(is_its).context("no such client")?;
            let server = servers.swap_remove(at);
            pairs.push(Pair { client, server });
        }
        Ok(pairs)
    })?;
    wait_until(LIMIT, "nothing is held any more", || {
        waiting(world).is_ok_and(|waiting| waiting == 0)
    })?;
    faults.end()?;
    for pair in &pairs {
        pair.exchange(1000)?;
    }
    stage.finish()
}

/// A SYN that the kernel was to send on to the listener, and was not told so before that went, is
/// not sent there later: its client repeats it, and is routed.
#[rstest]
fn at_the_end_a_verdict_that_is_due_splits_nothing(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("strace"));
    let world = World::standard()?;
    let pepd = Pepd::start(PEPD, world.hb(), &World::config())?;
    ensure!(world.probe(family)?.1);
    let faults = Faults::inject(pepd.daemon()?, WORKERS, &["sendto:error=ENOBUFS"])?;
    let listener = world.listen(family)?;
    let to = listener.local_addr()?;
    thread::scope(|scope| -> Result<()> {
        let client = scope.spawn(|| connect(world.client(), to));
        wait_until(LIMIT, "a verdict is due", || {
            waiting(&world).is_ok_and(|waiting| waiting > 0)
                && pepd.log().contains("the kernel takes no verdicts")
        })?;
        pepd.signal(Signal::SIGTERM)?;
        let (status, _) = pepd.wait()?;
        ensure!(status.code() == Some(0), "{status}");
        let client = client.join().unwrap()?;
        // The box's own attempt may be there before it, and has been reset.
        let is_its = |server: &TcpStream| server.peer_addr().ok() == client.local_addr().ok();
        loop {
            let server = accept(&listener)?.0;
            let pair = Pair {
                client: client.try_clone()?,
                server,
            };
            if is_its(&pair.server) && pair.exchange(1000).is_ok() {
                return Ok(());
            }
        }
    })?;
    faults.ended()
}

/// Returns how many packets the kernel holds in the helper box's queues (the third column of
/// /proc/net/netfilter/nfnetlink_queue).
fn waiting(world: &World) -> Result<u64> {
    let queues = world.hb().sh("cat /proc/net/netfilter/nfnetlink_queue")?;
    let held = queues.lines().map(|line| {
        let column = line.split_whitespace().nth(2).context("no third column")?;
        Ok(column.parse::<u64>()?)
    });
    held.sum()
}
