//! A link that goes away and comes back: nothing is given up meanwhile, and its connections go on at
//! once.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use pepd_testbed::traffic::{Pair, Pattern, connect, kind, receive_exactly, send};
use pepd_testbed::{Family, Netns, Stage, Via, World, require, run, wait_until};
use rstest::rstest;

use super::timers::{Timer, time_left, timer_of, wait_for_doublings};
use super::{LOSE, RESTORE};
use crate::harness::{LIMIT, PEPD};

/// What is under way when the link goes.
pub(super) const BYTES: u64 = 16 * 1024;

/// The side of the box that has the outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn leg(self) -> &'static str {
        match self {
            Self::Client => "lan",
            Self::Server => "wan",
        }
    }

    fn host(self, world: &World) -> &Netns {
        match self {
            Self::Client => world.client(),
            Self::Server => world.server(),
        }
    }

    /// Loses everything that comes to this side's host by its link, or that it sends, unseen by the box.
    pub(super) fn lose(self, world: &World) -> Result<()> {
        self.host(world).sh(LOSE).map(drop)
    }

    /// Loses the same, and has this side's host not know of it: what an `output` chain drops it does not
    /// take for sent, and has another timer for that (TCP_RESOURCE_PROBE_INTERVAL).
    fn lose_unseen(self, world: &World) -> Result<()> {
        let host = self.host(world);
        host.sh("nft 'add table inet outage; \
             add chain inet outage in { type filter hook prerouting priority raw; policy drop; }'
             gateways() { ip $1 route show default | cut -d ' ' -f 3; }
             for gateway in $(gateways -4) $(gateways -6); do
                 ip neighbour replace $gateway dev to-hb lladdr 02:00:00:00:00:99 nud permanent
             done")
            .map(drop)
    }

    fn find_again(self, world: &World) -> Result<()> {
        self.host(world)
            .sh("ip neighbour flush dev to-hb nud permanent")?;
        self.restore(world)
    }

    pub(super) fn restore(self, world: &World) -> Result<()> {
        self.host(world).sh(RESTORE).map(drop)
    }
}

/// Returns the timer of the box's socket towards a side of a client's connection, if one runs.
pub(super) fn timer(world: &World, client: &TcpStream, at: Side) -> Result<Option<Timer>> {
    let (client, server) = (client.local_addr()?, client.peer_addr()?);
    match at {
        Side::Client => timer_of(world.hb(), server, client),
        Side::Server => timer_of(world.hb(), client, server),
    }
}

/// Asks the daemon, or tells it something.
pub(super) fn ask(stage: &Stage, words: impl fmt::Display) -> Result<String> {
    let pepd = stage.pepd.as_ref().context("the daemon")?;
    let command = format!("{PEPD} {words} -c {}", pepd.config_file().display());
    let mut shell = stage.world.hb().command("sh");
    run(shell.args(["-ec", &command]), LIMIT)?.success()
}

pub(super) fn tell(stage: &Stage, words: impl fmt::Display) -> Result<String> {
    ask(stage, format!("link {words}"))
}

pub(super) fn status(stage: &Stage) -> Result<String> {
    ask(stage, "status")
}

/// Starts a daemon with an admin socket, and more in the section of its leg `wan`.
pub(super) fn open(via: Via, more: &str) -> Result<Stage> {
    let config = match via {
        Via::Early => World::early_config(),
        Via::Pepd | Via::Routing => World::config(),
    };
    let (before, wan) = config.split_once("[leg.wan]\n").context("the leg")?;
    let world = World::standard()?;
    let config = format!("{before}[leg.wan]\n{more}{wan}{}", world.admin());
    Stage::in_world(world, via, PEPD, &config)
}

pub(super) fn wait_for_log(stage: &Stage, words: &str) -> Result<()> {
    let pepd = stage.pepd.as_ref().context("the daemon")?;
    wait_until(LIMIT, words, || pepd.log().contains(words))
}

/// Returns the end that sends towards a side, and the one there that receives.
pub(super) fn towards(pair: &Pair, side: Side) -> (&TcpStream, &TcpStream) {
    match side {
        Side::Client => (&pair.server, &pair.client),
        Side::Server => (&pair.client, &pair.server),
    }
}

/// Sends until nobody has any room any more; returns the bytes that it has sent.
pub(super) fn fill(
    mut from: &TcpStream,
    pattern: &Pattern,
    is_full: impl Fn() -> bool,
) -> Result<u64> {
    from.set_nonblocking(true)?;
    let mut sent = 0;
    wait_until(LIMIT, "nobody has any room", || {
        while let Ok(some @ 1..) = from.write(pattern.piece(sent, 65_536)) {
            sent += some as u64;
        }
        is_full()
    })?;
    Ok(sent)
}

/// What the kernel would have waited for some seconds more is there at once.
#[rstest]
fn what_had_stopped_goes_on_when_its_link_is_up(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Side::Client, Side::Server)] side: Side,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    // Without an outage that is known it would be given up after two seconds.
    let stage = open(via, "user_timeout = \"2s\"\n")?;
    let world = &stage.world;
    let pair = world.pair(family)?;
    pair.exchange(BYTES)?;
    let leg = side.leg();
    assert_eq!(
        tell(&stage, format!("{leg} gone"))?,
        format!("{leg}: gone\n")
    );
    assert!(status(&stage)?.contains("GONE"));
    let flows: serde_json::Value = serde_json::from_str(&ask(&stage, "flows --json")?)?;
    let links = ["client_leg", "upstream_leg"].map(|leg| flows["flows"][0][leg]["link"].clone());
    let states = match side {
        Side::Client => ["gone", "up"],
        Side::Server => ["up", "gone"],
    };
    assert_eq!(links, states, "{flows}");
    side.lose(world)?;
    let pattern = Pattern::new(9);
    let (from, to) = towards(&pair, side);
    send(from, &pattern, 0, BYTES)?;
    let timer = wait_for_doublings(|| timer(world, &pair.client, side), "on")?;
    side.restore(world)?;
    let back = Instant::now();
    tell(&stage, format!("{leg} up"))?;
    receive_exactly(to, &pattern, 0, BYTES)?;
    let took = back.elapsed();
    assert!(took < timer.left, "{took:?}, and the kernel: {timer:?}");
    pair.exchange(BYTES)?;
    wait_for_log(&stage, "legs are restarted")?;
    let status: serde_json::Value = serde_json::from_str(&ask(&stage, "status --json")?)?;
    let outage = &status["links"][0]["outages"][0];
    assert!(
        outage["ended"].as_f64() > outage["begun"].as_f64(),
        "{status}"
    );
    stage.finish()
}

/// So is what the kernel would have waited for because its timer is longer than the outage was, so that nothing has been
/// sent again yet.
#[rstest]
fn what_had_not_expired_goes_on_too(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Side::Client, Side::Server)] side: Side,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    /// More than a window of what is sent first.
    const MANY: u64 = 1 << 20;
    let stage = open(Via::Pepd, "")?;
    let world = &stage.world;
    world.hb().sh("for family in -4 -6; do
             ip $family route show | grep -v ^fe80 | while read -r route; do
                 ip $family route replace $route rto_min 60s
             done
         done")?;
    let pair = world.pair(family)?;
    pair.exchange(BYTES)?;
    let leg = side.leg();
    tell(&stage, format!("{leg} gone"))?;
    side.lose(world)?;
    let pattern = Pattern::new(9);
    let (from, to) = towards(&pair, side);
    thread::scope(|scope| -> Result<()> {
        let sender = scope.spawn(|| send(from, &pattern, 0, MANY));
        let timer = || timer(world, &pair.client, side).ok().flatten();
        let mut begun = None;
        wait_until(LIMIT, "a timer that goes on for long", || {
            // One that is shorter sends a probe (tcp_schedule_loss_probe, net/ipv4/tcp_output.c).
            let is_long = |it: &Timer| it.kind == "on" && it.left > Duration::from_secs(30);
            let Some(now) = timer().filter(is_long) else {
                return false;
            };
            // By then nothing has been acknowledged for a while; `ss` shows whole seconds.
            now.left + Duration::from_secs(1) < *begun.get_or_insert(now.left)
        })?;
        let timer = timer().context("a timer")?;
        assert_eq!(timer.doublings, 0, "{timer:?}");
        side.restore(world)?;
        let back = Instant::now();
        tell(&stage, format!("{leg} up"))?;
        receive_exactly(to, &pattern, 0, MANY)?;
        let took = back.elapsed();
        assert!(took < timer.left, "{took:?}, and the kernel: {timer:?}");
        sender.join().map_err(|_| anyhow!("the sender panicked"))?
    })?;
    wait_for_log(&stage, "legs are restarted")?;
    stage.finish()
}

/// When the link is told to be up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    InTime,
    /// Once too early, and then again, so that the last outage is shorter than the wait.
    Again,
    /// Too early, and not again.
    Early,
}

/// So is what a host behind the link has waited for: its timer was doubled, too.
#[rstest]
fn a_host_behind_the_link_goes_on_too(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Side::Client, Side::Server)] side: Side,
    #[values(Told::InTime, Told::Again, Told::Early)] told: Told,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(via, "")?;
    let world = &stage.world;
    let pair = world.pair(family)?;
    pair.exchange(BYTES)?;
    let leg = side.leg();
    tell(&stage, format!("{leg} gone"))?;
    side.lose_unseen(world)?;
    let pattern = Pattern::new(9);
    let (to, from) = towards(&pair, side);
    send(from, &pattern, 0, BYTES)?;
    let (ours, theirs) = (from.local_addr()?, from.peer_addr()?);
    let timer = || timer_of(side.host(world), ours, theirs);
    let mut last = wait_for_doublings(timer, "on")?;
    if told != Told::InTime {
        tell(&stage, format!("{leg} up"))?;
    }
    if told == Told::Again {
        tell(&stage, format!("{leg} gone"))?;
    }
    if told == Told::Early {
        let doublings = last.doublings;
        wait_until(LIMIT, "it waits for twice as long", || {
            let now = timer().ok().flatten();
            now.is_some_and(|now| {
                last = now;
                last.doublings > doublings
            })
        })?;
    }
    side.find_again(world)?;
    let back = Instant::now();
    if told != Told::Early {
        tell(&stage, format!("{leg} up"))?;
    }
    receive_exactly(to, &pattern, 0, BYTES)?;
    let took = back.elapsed();
    assert!(took < last.left, "{took:?}, and the kernel: {last:?}");
    pair.exchange(BYTES)?;
    stage.finish()
}

/// Where the peer had no room, and its word that it has some again was lost, it is asked at once.
#[rstest]
fn a_peer_that_had_no_room_is_asked_again(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(Via::Pepd, "")?;
    let world = &stage.world;
    let pair = world.pair(family)?;
    let (side, pattern) = (Side::Server, Pattern::new(9));
    let (from, to) = towards(&pair, side);
    let sent = fill(from, &pattern, || {
        // And not for a moment only, until the peer's buffer has grown once more.
        let is_asking = |it: Timer| it.kind == "persist" && it.left > Duration::from_secs(1);
        timer(world, &pair.client, side).is_ok_and(|timer| timer.is_some_and(is_asking))
    })?;
    tell(&stage, "wan gone")?;
    side.lose(world)?;
    let timer = wait_for_doublings(|| timer(world, &pair.client, side), "persist")?;
    // It makes room, and says so into the void.
    let mut room = vec![0; usize::try_from(sent)?];
    to.set_nonblocking(true)?;
    let mut read = 0;
    while let Ok(some @ 1..) = (&mut &*to).read(&mut room[read..]) {
        read += some;
    }
    pattern.verify(0, &room[..read])?;
    side.restore(world)?;
    let back = Instant::now();
    tell(&stage, "wan up")?;
    to.set_nonblocking(false)?;
    receive_exactly(to, &pattern, read as u64, sent - read as u64)?;
    let took = back.elapsed();
    assert!(took < timer.left, "{took:?}, and the kernel: {timer:?}");
    stage.finish()
}

/// Has the link come back for the one client that waits for it, which is served then. Gives after what time.
fn serve_who_waits(
    stage: &Stage,
    client: thread::ScopedJoinHandle<'_, Result<Pair>>,
) -> Result<Duration> {
    let said = status(stage)?;
    assert!(said.contains("GONE, 1 waiting"), "{said}");
    Side::Server.restore(&stage.world)?;
    let back = Instant::now();
    tell(stage, "wan up")?;
    let pair = client.join().unwrap()?;
    let took = back.elapsed();
    pair.exchange(BYTES)?;
    Ok(took)
}

/// Who connects while the link is gone waits for it, and is served when it is back: before the kernel
/// would have sent the SYN again that was lost.
#[rstest]
fn who_connects_meanwhile_waits(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(via, "")?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let to = listener.local_addr()?;
    tell(&stage, "wan gone")?;
    Side::Server.lose(world)?;
    thread::scope(|scope| -> Result<()> {
        let client = scope.spawn(|| Pair::through(&listener, world.client()));
        let mut left = Duration::ZERO;
        wait_until(LIMIT, "the kernel waits for longer and longer", || {
            let list = world.hb().sh(&format!("ss -Htno state syn-sent dst {to}"));
            left = list
                .ok()
                .and_then(|list| time_left(list.split_once("timer:(on,")?.1.split_once(',')?.0))
                .unwrap_or_default();
            left > Duration::from_secs(3)
        })?;
        let took = serve_who_waits(&stage, client)?;
        assert!(took < left, "{took:?}, and the kernel: {left:?}");
        Ok(())
    })?;
    stage.finish()
}

/// That it has waited for longer than the leg waits for an answer ends nothing while the link is gone: nobody can answer.
#[rstest]
fn who_connects_meanwhile_waits_for_as_long_as_that_takes(
    #[values(Via::Pepd, Via::Early)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
    #[values("connect_timeout", "user_timeout")] given: &str,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = open(via, &format!("{given} = \"1s\"\n"))?;
    let world = &stage.world;
    let listener = world.listen(family)?;
    let to = listener.local_addr()?;
    tell(&stage, "wan gone")?;
    Side::Server.lose(world)?;
    thread::scope(|scope| -> Result<()> {
        let client = scope.spawn(|| Pair::through(&listener, world.client()));
        for (what, is_there) in [("it is dialed", true), ("that is given up", false)] {
            wait_until(LIMIT, what, || {
                let list = world.hb().sh(&format!("ss -Htn state syn-sent dst {to}"));
                list.is_ok_and(|list| list.trim().is_empty() != is_there)
            })?;
        }
        serve_who_waits(&stage, client).map(drop)
    })?;
    let said = status(&stage)?;
    assert!(!said.contains("unanswered"), "{said}");
    stage.finish()
}

#[rstest]
fn who_connects_meanwhile_is_refused_or_routed_if_that_is_asked_for(
    #[values("refuse", "route")] while_gone: &str,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let stage = open(Via::Pepd, &format!("while_gone = \"{while_gone}\"\n"))?;
    let world = &stage.world;
    assert!(world.probe(family)?.1);
    tell(&stage, "wan gone")?;
    let listener = world.listen(family)?;
    if while_gone == "refuse" {
        let refused = connect(world.client(), listener.local_addr()?).unwrap_err();
        assert_eq!(kind(&refused), Some(ErrorKind::ConnectionRefused));
        wait_until(LIMIT, "it is counted", || {
            status(&stage).is_ok_and(|said| said.contains("refused: their leg's link was gone"))
        })?;
        // Nobody has asked the destination.
        assert!(!status(&stage)?.contains("whose destination refused"));
    } else {
        // There is another way: the link of this test was not gone.
        let (pair, split) = world.probe(family)?;
        assert!(!split);
        pair.exchange(BYTES)?;
        // What `pepd link` has looked at is remembered for a moment.
        wait_until(LIMIT, "it is counted", || {
            status(&stage).is_ok_and(|said| said.contains("their leg's link was gone"))
        })?;
    }
    tell(&stage, "wan up")?;
    assert!(world.probe(family)?.1);
    stage.finish()
}
