//! SYNs that are held while the gate closes: those that repeat them come to a closed gate, and the
//! box's own socket from the client's port is still there.

use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use anyhow::Result;
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{Pair, kind, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, accepted, require, wait_until};
use rstest::rstest;
use socket2::SockRef;

use super::held_syn::{
    LIMIT, connect_meanwhile, connected, counter_in, end_of_silence, held, nothing_is_held,
    silence, wait_for_gate,
};
use crate::harness::PEPD;

/// The reason why the gate is closed although the daemon is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    /// There are as many connections as the limit allows.
    Full,
    /// There are as many from the client.
    SourceFull,
    /// The daemon is about to end, and waits for its connections.
    Draining,
}

impl Closed {
    fn config(self) -> String {
        let config = World::config().replace("drain = \"5s\"", "drain = \"300s\"");
        match self {
            Self::Full => format!("{config}\n[limits]\nconnections = 1\n"),
            Self::SourceFull => format!("{config}\n[limits]\nconnections_per_source = 1\n"),
            Self::Draining => config,
        }
    }
}

/// A listener of the server's at port 4000, which nobody reaches yet, and how many SYNs came to it
/// from the client itself: over a router, and not from the box.
struct Silent<'a> {
    server: &'a Netns,
    family: Family,
    listener: TcpListener,
}

impl<'a> Silent<'a> {
    fn open(world: &'a World, family: Family) -> Result<Self> {
        let server = world.server();
        let hops = over_a_router(family);
        silence(server, 4000)?;
        server.sh(&format!(
            "nft add counter inet silent syns; nft add counter inet silent routed; \
             nft insert rule inet silent c tcp dport 4000 counter name syns; \
             nft insert rule inet silent c tcp dport 4000 tcp flags syn {hops} counter name routed"
        ))?;
        let address = SocketAddr::new(World::server_address(family), 4000);
        let listener = listen(server, address)?;
        Ok(Self {
            server,
            family,
            listener,
        })
    }

    /// Connects the client, until the box has sent its own SYN.
    fn connect(&self, stage: &Stage) -> Result<JoinHandle<Result<TcpStream>>> {
        let attempt = connect_meanwhile(stage, self.listener.local_addr()?)?;
        wait_until(LIMIT, "the box has sent a SYN of its own", || {
            self.count("syns").is_ok_and(|syns| syns > 0)
        })?;
        Ok(attempt)
    }

    /// From here on the server answers what comes from the box.
    fn hear_the_box(&self) -> Result<()> {
        let Self { server, family, .. } = self;
        server.sh(&format!(
            "nft flush chain inet silent c; \
             nft add rule inet silent c tcp dport 4000 {} drop",
            over_a_router(*family)
        ))?;
        Ok(())
    }

    /// No connection waits to be accepted.
    fn nobody_waits(&self) -> Result<()> {
        self.listener.set_nonblocking(true)?;
        let waiting = self.listener.accept().map(|(_, peer)| peer);
        let kind = waiting.as_ref().map_err(std::io::Error::kind);
        assert_eq!(kind, Err(ErrorKind::WouldBlock));
        Ok(())
    }

    fn count(&self, name: &str) -> Result<u64> {
        counter_in(self.server, "silent", name)
    }
}

/// Returns what matches packets of the client's own.
fn over_a_router(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip ttl 63",
        Family::V6 => "ip6 hoplimit 63",
    }
}

/// Returns how many SYNs the client has sent to port 4000.
fn count_syns(hb: &Netns) -> Result<()> {
    hb.sh("nft add table inet seen; nft add counter inet seen syns; \
         nft add chain inet seen c '{ type filter hook prerouting priority -500; }'; \
         nft add rule inet seen c tcp dport 4000 tcp flags syn counter name syns")?;
    Ok(())
}

fn syns(hb: &Netns) -> u64 {
    counter_in(hb, "seen", "syns").unwrap_or(0)
}

/// The daemon that holds the first SYN is there: it holds those that repeat it. Routed, they would
/// meet the upstream leg's at the server, and each would spoil the other's answer.
#[rstest]
fn what_repeats_a_held_syn_is_held_though_the_gate_be_closed(
    #[values(Closed::Full, Closed::SourceFull, Closed::Draining)] closed: Closed,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::with_config(PEPD, &closed.config())?;
    let silent = Silent::open(&stage.world, family)?;
    let attempt = silent.connect(&stage)?;
    let world = &stage.world;
    let from = match closed {
        Closed::SourceFull => world.client(),
        Closed::Full | Closed::Draining => world.sibling(),
    };
    let other = Pair::open(from, world.server(), World::server_address(family))?;
    match closed {
        Closed::Full => wait_for_gate(world.hb(), false)?,
        Closed::SourceFull => wait_until(LIMIT, "the source is shut out", || {
            let full = world
                .hb()
                .sh("nft list set inet pepd full4; nft list set inet pepd full6");
            full.is_ok_and(|full| full.contains("expires"))
        })?,
        Closed::Draining => {
            stage.pepd.as_ref().unwrap().signal(Signal::SIGTERM)?;
            wait_for_gate(world.hb(), false)?;
        }
    }
    count_syns(world.hb())?;
    wait_until(LIMIT, "the client has sent its SYN again, twice", || {
        syns(world.hb()) >= 2
    })?;
    assert_eq!(
        silent.count("routed")?,
        0,
        "of {} SYNs",
        silent.count("syns")?
    );
    wait_until(LIMIT, "the last one waits", || held(world.hb()) == Some(1))?;
    let split = accepted(world.hb())?;
    end_of_silence(world.server())?;
    let pair = connected(attempt, &silent.listener)?;
    pair.exchange(100_000)?;
    // What its source has no place for is routed, now that the box's own SYN has been answered and reset.
    let is_split = accepted(world.hb())? > split;
    assert_eq!(is_split, closed != Closed::SourceFull);
    nothing_is_held(&stage)?;
    other.exchange(1000)?;
    drop((pair, other));
    if closed == Closed::Draining {
        let (status, log) = stage.pepd.take().unwrap().wait()?;
        assert!(status.success(), "{log}");
        return Ok(());
    }
    stage.world.pair(family)?;
    stage.finish()
}

/// So is the reply of a client that is answered by another way: else its SYNs would be held in
/// vain.
#[rstest]
fn answers_that_take_another_way_are_noticed_though_the_gate_be_closed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let config = Closed::Full.config();
    let stage = Stage::in_world(World::two_ways()?, Via::Pepd, PEPD, &config)?;
    let world = &stage.world;
    let silent = Silent::open(world, family)?;
    let attempt = silent.connect(&stage)?;
    let address = World::server_address(family);
    let other = Pair::open(world.sibling(), world.server(), address)?;
    wait_for_gate(world.hb(), false)?;
    end_of_silence(world.server())?;
    connected(attempt, &silent.listener)?.exchange(10_000)?;
    other.exchange(1000)?;
    nothing_is_held(&stage)?;
    stage.finish()
}

/// What becomes of a daemon that was paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Afterwards {
    Resumed,
    Killed,
}

/// The kernel goes on with the upstream leg of a paused daemon. Once that is connected, the client
/// waits for the daemon, and if that ends it is connected without. The leg's last ACK waits as well:
/// the server has one connection, whatever becomes of the daemon.
#[rstest]
fn a_destination_that_answers_a_paused_daemon_is_reached(
    #[values(Afterwards::Resumed, Afterwards::Killed)] afterwards: Afterwards,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let silent = Silent::open(&stage.world, family)?;
    let attempt = silent.connect(&stage)?;
    let world = &stage.world;
    let daemon = stage.pepd.take().unwrap();
    daemon.pause()?;
    wait_for_gate(world.hb(), false)?;
    // Of the two kinds of SYNs, only the box's are answered.
    silent.hear_the_box()?;
    wait_until(LIMIT, "the upstream leg is connected", || {
        let legs = world.hb().sh("ss -Htn state established dport = :4000");
        legs.is_ok_and(|legs| !legs.is_empty())
    })?;
    silent.nobody_waits()?;
    let pair = match afterwards {
        Afterwards::Resumed => {
            daemon.resume()?;
            stage.pepd = Some(daemon);
            connected(attempt, &silent.listener)?
        }
        Afterwards::Killed => {
            daemon.kill()?;
            // A SYN of the client's that met the leg's attempt there might be refused.
            wait_until(LIMIT, "the server has forgotten the leg", || {
                let legs = world.server().sh("ss -Htn state syn-recv sport = :4000");
                legs.is_ok_and(|legs| legs.is_empty())
            })?;
            end_of_silence(world.server())?;
            connected(attempt, &silent.listener)?
        }
    };
    pair.exchange(100_000)?;
    silent.nobody_waits()?;
    match afterwards {
        Afterwards::Resumed => stage.finish(),
        Afterwards::Killed => Ok(()),
    }
}

/// A destination that refuses while the daemon is paused: the routed SYN is refused, too.
#[rstest]
fn a_port_that_is_closed_looks_closed_during_a_pause(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(family)?;
    let silent = Silent::open(&stage.world, family)?;
    let attempt = silent.connect(&stage)?;
    stage.pepd.as_ref().unwrap().pause()?;
    wait_for_gate(stage.world.hb(), false)?;
    // Closing alone is not enough: what another test is about to execute may have the descriptor
    // for a moment yet.
    SockRef::from(&silent.listener).shutdown(Shutdown::Both)?;
    end_of_silence(stage.world.server())?;
    let error = attempt.join().unwrap().unwrap_err();
    assert_eq!(kind(&error), Some(ErrorKind::ConnectionRefused));
    stage.pepd()?.resume()?;
    nothing_is_held(&stage)?;
    stage.world.pair(family)?;
    stage.finish()
}
