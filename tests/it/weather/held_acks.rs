//! Connections that stay end to end (`action = "hold-acks"`) while the link to one of their ends is gone.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::forge::{Forger, Segment, flag};
use pepd_testbed::link::{Rate, Shape};
use pepd_testbed::traffic::{Pair, Pattern, receive_exactly, send};
use pepd_testbed::{Family, Netns, Pepd, World, ask, require, wait_until};
use rstest::rstest;
use serde_json::Value;

use super::outages::Side;
use super::timers::{timer_of, wait_for_doublings};
use super::{LOSE, RESTORE};
use crate::harness::{LIMIT, PEPD};
use crate::streams::{fill, watch};

/// Less than a first window, so that all of it is sent whatever becomes of it.
pub(super) const BYTES: u64 = 10_000;

/// What is sent while a link is gone.
pub(super) const KEPT: u64 = 9;

/// A box with a daemon, whose connections to ports of the system's own choice are not split.
pub(super) struct HelperBox {
    pub(super) world: World,
    pub(super) daemon: Pepd,
    pub(super) socket: std::path::PathBuf,
}

impl HelperBox {
    pub(super) fn new(world: World) -> Result<Self> {
        let every = "[[rule]]\ndestination_port = [\"1-65535\"]\naction = \"hold-acks\"\n";
        Self::with_rules(world, every)
    }

    pub(super) fn with_rules(world: World, rules: &str) -> Result<Self> {
        let socket = world.admin_socket();
        let config = format!("{}\n{}{rules}", World::config(), world.admin());
        let daemon = Pepd::start(PEPD, world.hb(), &config)?;
        Ok(Self {
            world,
            daemon,
            socket,
        })
    }

    /// Makes one that keeps something of a connection for a server that it takes for gone.
    pub(super) fn that_keeps(family: Family) -> Result<(Self, Pair)> {
        let it = Self::new(World::standard()?)?;
        let pair = it.pair(family)?;
        pair.exchange(BYTES)?;
        it.tell("gone")?;
        send(&pair.client, &Pattern::new(KEPT), 0, BYTES)?;
        it.wait_for("packets", 1)?;
        Ok((it, pair))
    }

    /// Opens a connection that stays end to end.
    pub(super) fn pair(&self, family: Family) -> Result<Pair> {
        let (pair, split) = self.world.probe(family)?;
        ensure!(!split, "the connection was split");
        Ok(pair)
    }

    pub(super) fn tell(&self, state: &str) -> Result<()> {
        ask(&self.socket, &format!("POST /v1/link/{state}?leg=wan"))?;
        match state {
            "up" => Ok(()),
            _ => self.wait_for_capture(),
        }
    }

    /// Waits until the capture passes packets to the daemon.
    pub(super) fn wait_for_capture(&self) -> Result<()> {
        wait_until(LIMIT, "packets go to the queue", || {
            let away = self.world.hb().sh("nft list set inet pepd away");
            away.is_ok_and(|away| away.contains("elements"))
        })
    }

    pub(super) fn held(&self) -> Result<Value> {
        let status: Value = serde_json::from_str(&ask(&self.socket, "GET /v1/status")?)?;
        Ok(status["held"].clone())
    }

    /// Waits until so much of something is held.
    pub(super) fn wait_for(&self, what: &str, least: u64) -> Result<()> {
        wait_until(LIMIT, what, || {
            self.held()
                .is_ok_and(|held| held[what].as_u64().is_some_and(|it| it >= least))
        })
    }

    /// Waits until nothing is held, and the capture passes no more packets to the daemon.
    pub(super) fn wait_for_nothing(&self) -> Result<()> {
        wait_until(LIMIT, "nothing is held", || {
            let none = |held: Value| {
                ["connections", "acks", "packets", "bytes"]
                    .iter()
                    .all(|it| held[it] == 0)
            };
            let away = self.world.hb().sh("nft list set inet pepd away");
            self.held().is_ok_and(none) && away.is_ok_and(|away| !away.contains("elements"))
        })
    }

    pub(super) fn finish(self) -> Result<()> {
        let (status, log) = self.daemon.stop()?;
        ensure!(status.success() && !log.contains("panicked"), "{log}");
        Ok(())
    }
}

/// What comes for a host that is away is kept once, however often its sender repeats it, and is there as
/// soon as the link is: without the box the sender's timer would have to run out first.
#[rstest]
fn what_comes_for_a_host_that_is_away_is_kept(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let it = HelperBox::new(World::standard()?)?;
    let pair = it.pair(family)?;
    pair.exchange(BYTES)?;
    it.tell("gone")?;
    Side::Server.lose(&it.world)?;
    let pattern = Pattern::new(9);
    send(&pair.client, &pattern, 0, BYTES)?;
    let (ours, theirs) = (pair.client.local_addr()?, pair.client.peer_addr()?);
    let timer = wait_for_doublings(|| timer_of(it.world.client(), ours, theirs), "on")?;
    let held = it.held()?;
    assert!(held["repeated_total"].as_u64() > Some(0), "{held}");
    assert!(held["bytes"].as_u64() < Some(2 * BYTES), "{held}");
    Side::Server.restore(&it.world)?;
    let back = Instant::now();
    it.tell("up")?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    let took = back.elapsed();
    assert!(
        took < timer.left,
        "{took:?}, and the sender's kernel: {timer:?}"
    );
    pair.exchange(BYTES)?;
    it.wait_for_nothing()?;
    it.finish()
}

/// While the link is about to go, the ACKs of the host behind it wait; no byte is lost by that, nor by what
/// comes after.
#[rstest]
fn acks_wait_for_a_link_that_goes(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    const MUCH: u64 = 3_000_000;
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    let pair = it.pair(family)?;
    pair.exchange(BYTES)?;
    let pattern = Pattern::new(3);
    std::thread::scope(|scope| -> Result<()> {
        it.tell("going-down")?;
        let sender = scope.spawn(|| send(&pair.client, &pattern, 0, MUCH));
        let receiver = scope.spawn(|| receive_exactly(&pair.server, &pattern, 0, MUCH));
        it.wait_for("acks_total", 1)?;
        it.tell("gone")?;
        Side::Server.lose(&it.world)?;
        it.wait_for("packets", 1)?;
        Side::Server.restore(&it.world)?;
        it.tell("up")?;
        sender.join().ok().context("the sender panicked")??;
        receiver.join().ok().context("the receiver panicked")??;
        Ok(())
    })?;
    pair.exchange(BYTES)?;
    it.wait_for_nothing()?;
    it.finish()
}

/// What a host whose link is gone has sent before, and what is for others, passes; so does all where no rule
/// asks for it, and connections that are split are as ever.
#[rstest]
fn others_pass(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let rules = "[[rule]]\ndestination_port = [1]\naction = \"hold-acks\"\n\
                 [[rule]]\naction = \"bypass\"\n";
    let it = HelperBox::with_rules(World::standard()?, rules)?;
    let bypassed = it.pair(family)?;
    bypassed.exchange(BYTES)?;
    it.tell("gone")?;
    bypassed.exchange(BYTES)?;
    let held = it.held()?;
    assert_eq!(held["packets_total"], 0, "{held}");
    it.finish()
}

/// A daemon that is killed while it holds something holds nothing any more: what it held is lost like any
/// packet, and the rest passes.
#[rstest]
fn a_daemon_that_is_killed_holds_nothing(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let (it, pair) = HelperBox::that_keeps(family)?;
    let pattern = Pattern::new(KEPT);
    let HelperBox {
        world: _world,
        daemon,
        ..
    } = it;
    daemon.kill()?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    pair.exchange(BYTES)?;
    Ok(())
}

/// One that is paused holds what it has; what comes later passes.
#[rstest]
fn a_daemon_that_is_paused_holds_nothing_new(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    let pair = it.pair(family)?;
    pair.exchange(BYTES)?;
    it.tell("gone")?;
    it.daemon.pause()?;
    pair.exchange(BYTES)?;
    it.daemon.resume()?;
    it.tell("up")?;
    it.wait_for_nothing()?;
    it.finish()
}

/// With the rule goes what it holds.
#[rstest]
fn a_reload_without_the_rule_lets_go(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let (mut it, pair) = HelperBox::that_keeps(family)?;
    let pattern = Pattern::new(KEPT);
    let config = std::fs::read_to_string(it.daemon.config_file())?;
    it.daemon.reload(&config.replace("hold-acks", "bypass"))?;
    receive_exactly(&pair.server, &pattern, 0, BYTES)?;
    assert_eq!(it.held()?, Value::Null);
    // With it, what is known of the link counts again.
    it.daemon.reload(&config)?;
    it.wait_for_capture()?;
    send(&pair.client, &pattern, BYTES, BYTES)?;
    it.wait_for("packets", 1)?;
    it.tell("up")?;
    receive_exactly(&pair.server, &pattern, BYTES, BYTES)?;
    it.finish()
}

/// One way over the link that goes away, and over the other one; what they carry, in Mbit/s.
const FAR: Duration = Duration::from_millis(50);
const NEAR: Duration = Duration::from_millis(5);
const RATE: u64 = 4;
/// The time from when a link is said to go until it has.
const MOMENT: Duration = Duration::from_secs(1);
/// The time for which a link that is back is watched.
const WATCHED: Duration = Duration::from_secs(3);

/// Gives how often timers of a host's TCP have run out.
fn timeouts(host: &Netns) -> Result<u64> {
    let script = "awk '/^TcpExt:/ { if (n++) print $c; else for (i = 1; i <= NF; i++) \
                  if ($i == \"TCPTimeouts\") c = i }' /proc/net/netstat";
    Ok(host.sh(script)?.trim().parse()?)
}

/// A sender behind a box that holds its ACKs does not time out, for as long as the link is gone; on the
/// guest's virtual clock, since a timer of two tenths of a second is not to wait for a busy machine.
#[rstest]
fn its_sender_does_not_time_out(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(2, 10, 100)] seconds: u64,
    #[values(true, false)] is_known: bool,
) -> Result<()> {
    require!(root, virtual_time, program("nft"));
    let shape = |delay| Shape::new(delay, Rate::mbit(RATE));
    let world = World::emulated(shape(NEAR), shape(FAR))?;
    world.hosts_use("cubic")?;
    let it = HelperBox::new(world)?;
    let pairs = [it.pair(family)?];
    pairs[0].server.set_nonblocking(true)?;
    let outage = Duration::from_secs(seconds);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let sender = scope.spawn(|| fill(&pairs[0].client, &over));
        let measured = (|| -> Result<()> {
            watch(&pairs, WATCHED)?;
            let (_, usual) = watch(&pairs, WATCHED)?;
            let before = timeouts(it.world.client())?;
            let expected = (outage + MOMENT).as_secs();
            let length = if is_known {
                format!("&for={expected}")
            } else {
                String::new()
            };
            ask(
                &it.socket,
                &format!("POST /v1/link/going-down?leg=wan{length}"),
            )?;
            watch(&pairs, MOMENT)?;
            it.world.server().sh(LOSE)?;
            it.tell("gone")?;
            let held = it.held()?;
            watch(&pairs, outage)?;
            it.world.server().sh(RESTORE)?;
            it.tell("up")?;
            let (first, bytes) = watch(&pairs, WATCHED)?;
            let timeouts = timeouts(it.world.client())? - before;
            println!(
                "{family}, {outage:?}, known: {is_known}: {held}, then {:?}; first after {first:?}, {:.2} of the \
                 usual in {WATCHED:?}, {timeouts} timeouts",
                it.held()?,
                bytes as f64 / usual as f64
            );
            ensure!(timeouts == 0, "{timeouts} timeouts");
            Ok(())
        })();
        over.store(true, Relaxed);
        sender.join().ok().context("the sender panicked")??;
        measured
    })?;
    it.finish()
}

/// Whoever forges segments of as many connections as he likes fills what is held, and no more: what comes then
/// passes, and is counted; so it is for others as without a box.
#[rstest]
fn a_flood_fills_what_is_held_and_no_more(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const PACKETS: u16 = 8_192;
    const MORE: u16 = 3_000;
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    let pair = it.pair(family)?;
    pair.exchange(BYTES)?;
    it.tell("gone")?;
    let forger = Forger::new(it.world.client())?;
    let to = SocketAddr::new(World::server_address(family), 9);
    let most = PACKETS + MORE;
    wait_until(LIMIT, "no room is left", || {
        // What does not reach the daemon because it is too much at once passes, too.
        for port in 1..=most {
            let from = SocketAddr::new(World::client_address(family), port);
            _ = forger.send(&Segment::new(flag::ACK, from, to, port.into()));
        }
        it.held()
            .is_ok_and(|held| held["beyond_total"].as_u64() >= Some(u64::from(MORE)))
    })?;
    let held = it.held()?;
    assert!(held["packets"].as_u64() <= Some(PACKETS.into()), "{held}");
    pair.exchange(BYTES)?;
    it.tell("up")?;
    pair.exchange(BYTES)?;
    it.wait_for_nothing()?;
    it.finish()
}
