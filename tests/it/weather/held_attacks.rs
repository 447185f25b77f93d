//! Held ACKs and kept packets, attacked: floods, segments that are forged, and links of which something wrong
//! is said.

use std::net::{Shutdown, SocketAddr};
use std::ops::RangeFrom;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::forge::{Ear, Forger, Segment, flag};
use pepd_testbed::traffic::{Pattern, receive_exactly, send};
use pepd_testbed::{Family, World, require, run, wait_until};
use rstest::rstest;

use super::held_acks::{BYTES, HelperBox, KEPT};
use super::outages::Side;
use crate::harness::LIMIT;

/// A connection that is forged: its server is behind the link that is gone.
#[derive(Clone, Copy)]
struct Forged {
    server: SocketAddr,
    client: SocketAddr,
}

impl Forged {
    fn new(family: Family, number: u16) -> Self {
        Self {
            server: SocketAddr::new(World::server_address(family), number),
            client: SocketAddr::new(World::client_address(family), 9),
        }
    }

    /// An ACK of so many bytes.
    fn ack(self, bytes: u32) -> Segment {
        Segment {
            acknowledgement: bytes,
            window: 1000,
            ..Segment::new(flag::ACK, self.server, self.client, 7)
        }
    }
}

/// Gives what of something that is held there has been since the start.
fn total(it: &HelperBox, what: &str) -> Result<u64> {
    it.held()?[what].as_u64().context("a number")
}

/// Whoever forges ACKs of as many connections as he likes fills what is held, and no more; what comes then
/// passes, and is counted wherever one looks. Others are served meanwhile.
#[rstest]
fn a_flood_of_acks_fills_what_is_held_and_no_more(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const PACKETS: u64 = 8_192;
    const FLOWS: u16 = 4_000;
    const ACKS: u32 = 12;
    const MORE: u64 = 3_000;
    /// What the daemon may need for them.
    const MEMORY: u64 = 64 << 20;
    require!(root, program("nft"), program("curl"));
    let bypassed = "metrics = \"127.0.0.1:9730\"\n\
                    [[rule]]\ndestination_port = [\"32768-65535\"]\naction = \"bypass\"\n\
                    [[rule]]\ndestination_port = [\"1-32767\"]\naction = \"hold-acks\"\n";
    let it = HelperBox::with_rules(World::standard()?, bypassed)?;
    let pair = it.pair(family)?;
    let before = it.daemon.resident_bytes()?;
    let forger = Forger::new(it.world.server())?;
    let mut most = 0;
    wait_until(LIMIT, "no room is left", || {
        // Within five seconds, after which whoever is heard proves his link. Where the machine is too busy for
        // that, it begins again.
        it.tell("up").unwrap();
        it.tell("gone").unwrap();
        for flow in 1..=FLOWS {
            // Fewer bytes than a segment has: no ACK is made several.
            for number in 1..=ACKS {
                _ = forger.send(&Forged::new(family, flow).ack(number * 100));
            }
        }
        let held = it.held().unwrap_or_default();
        most = most.max(held["acks"].as_u64().unwrap_or_default());
        held["beyond_total"].as_u64() >= Some(MORE)
    })?;
    assert!((PACKETS / 2..=PACKETS).contains(&most), "{most}");
    let after = it.daemon.resident_bytes()?;
    assert!(after < before + MEMORY, "{before}, {after}");
    // Those of no rule are served as ever.
    pair.exchange(BYTES)?;
    let mut curl = it.world.hb().command("curl");
    let metrics = run(curl.args(["-sf", "http://127.0.0.1:9730/metrics"]), LIMIT)?.success()?;
    for what in ["acks", "beyond"] {
        let line = format!("pepd_held_total{{what=\"{what}\"}} ");
        let count = metrics.lines().find_map(|it| it.strip_prefix(&line));
        assert!(count.is_some_and(|it| it != "0"), "{line}{count:?}");
    }
    let status = it.daemon.subcommand(it.world.hb(), "status")?.success()?;
    assert!(status.contains("there was no room for "), "{status}");
    it.tell("up")?;
    pair.exchange(BYTES)?;
    it.wait_for_nothing()?;
    it.finish()
}

/// What may be done to an ACK so that it may not be held.
type Change = fn(&mut Segment);

const NEVER: [(&str, Change); 9] = [
    ("a duplicate", |it| it.acknowledgement = 1000),
    ("an old one", |it| it.acknowledgement = 900),
    ("a SACK", |it| {
        it.options = [&[1, 1, 5, 10][..], &[0, 0, 8, 0, 0, 0, 9, 0]].concat();
    }),
    ("a FIN", |it| it.flags |= flag::FIN),
    ("a RST", |it| it.flags |= flag::RST),
    ("data", |it| it.payload = vec![7; 100]),
    ("one out of order", |it| it.sequence = 77),
    ("one of more than is under way", |it| {
        it.acknowledgement = 1 << 30;
    }),
    ("an urgent one", |it| it.flags |= flag::URG),
];

/// Waits until a segment has arrived that is forged in its sender's name.
fn arrives(at: &Ear, by: &Forger, what: &str, segment: &Segment) -> Result<()> {
    by.send(segment)?;
    let packet = segment.packet().context("a packet")?;
    let tcp = &packet[packet.len() - 20 - segment.options.len() - segment.payload.len()..];
    wait_until(LIMIT, what, || {
        // Ports, numbers, offset and flags.
        at.heard()
            .is_ok_and(|heard| heard.iter().any(|it| it.header.starts_with(&tcp[..14])))
    })
}

/// Forges what may not be held of several connections, and what may of one, while the link is gone; returns
/// whether that has waited.
fn only_one_waits(it: &HelperBox, family: Family, ports: &mut RangeFrom<u16>) -> Result<bool> {
    let forger = Forger::new(it.world.server())?;
    let client = Ear::new(it.world.client(), family)?;
    let arrives = |what: &str, segment: &Segment| arrives(&client, &forger, what, segment);
    let waited = || total(it, "acks_total");
    for ((what, change), port) in NEVER.into_iter().zip(&mut *ports) {
        let flow = Forged::new(family, port);
        arrives("the first", &flow.ack(1000))?;
        let (before, mut segment) = (waited()?, flow.ack(1100));
        change(&mut segment);
        arrives(what, &segment)?;
        ensure!(waited()? == before, "{what} has waited");
    }
    let flow = Forged::new(family, ports.next().context("a port")?);
    arrives("the first", &flow.ack(1000))?;
    let (before, mut shut) = (waited()?, flow.ack(1000));
    shut.window = 0;
    arrives("a window that closes", &shut)?;
    arrives("a window that opens", &flow.ack(1100))?;
    ensure!(waited()? == before, "a window that opens has waited");
    arrives("one more", &flow.ack(1200))?;
    Ok(waited()? > before)
}

/// What may never be held is not: it arrives while the link is gone, and does not count as an ACK that has
/// waited. One that may, does.
#[rstest]
fn nothing_waits_that_may_not(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    let mut ports = 1..;
    // Who is heard for five seconds proves his link, and nothing of his waits any more: a machine that is too
    // busy for that begins again.
    wait_until(LIMIT, "all of it within five seconds", || {
        it.tell("gone").unwrap();
        let has_waited = only_one_waits(&it, family, &mut ports).unwrap();
        it.tell("up").unwrap();
        has_waited
    })?;
    it.wait_for_nothing()?;
    assert!(!it.world.probe(family)?.1, "it is routed as ever");
    it.finish()
}

/// Who forges ACKs of what was never sent, in a connection's own name and where it goes on, holds it up no
/// more than without a box, and no byte is lost, doubled or another.
#[rstest]
fn forged_acks_of_what_was_not_sent_harm_no_byte(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const MUCH: u64 = 2_000_000;
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    let pair = it.pair(family)?;
    pair.exchange(BYTES)?;
    let (client, server) = (pair.client.local_addr()?, pair.client.peer_addr()?);
    let heard = Ear::new(it.world.server(), family)?;
    let forger = Forger::new(it.world.server())?;
    let (pattern, over) = (Pattern::new(5), AtomicBool::new(false));
    let (tell_gone, gone) = mpsc::channel();
    std::thread::scope(|scope| -> Result<()> {
        it.tell("going-down")?;
        let (client_end, sent) = (&pair.client, &pattern);
        let sender = scope.spawn(move || {
            send(client_end, sent, 0, MUCH / 2)?;
            // The rest is for a host that is away.
            gone.recv()?;
            send(client_end, sent, MUCH / 2, MUCH / 2)
        });
        let receiver = scope.spawn(|| receive_exactly(&pair.server, &pattern, 0, MUCH));
        let attacker = scope.spawn(|| -> Result<u64> {
            let mut forged = 0;
            while !over.load(Relaxed) {
                let all = heard.heard()?;
                for it in all
                    .iter()
                    .filter(|it| it.from == client.port() && it.data > 0)
                {
                    for ahead in [3_000_000, 5 << 20, 1 << 30] {
                        let segment = Segment {
                            acknowledgement: it.next.wrapping_add(ahead),
                            ..Segment::new(flag::ACK, server, client, it.acknowledgement)
                        };
                        forger.send(&segment)?;
                        forged += 1;
                    }
                }
                std::thread::yield_now();
            }
            Ok(forged)
        });
        let done = (|| {
            it.wait_for("acks_total", 1)?;
            it.tell("gone")?;
            tell_gone.send(())?;
            // Kept, or taken for what has arrived by what the forged ones say.
            wait_until(LIMIT, "something comes for the host that is away", || {
                let total = |what| total(&it, what).unwrap_or_default();
                total("packets_total") + total("repeated_total") > 0
            })?;
            it.tell("up")
        })();
        drop(tell_gone);
        if done.is_err() {
            // It may have ended by itself; to return here would leave the attacker waiting for ever.
            _ = pair.client.shutdown(Shutdown::Both);
        }
        let sent = sender.join().ok().context("the sender panicked");
        let received = receiver.join().ok().context("the receiver panicked");
        over.store(true, Relaxed);
        let forged = attacker.join().ok().context("the attacker panicked")??;
        done?;
        ensure!(forged > 100, "{forged} were forged");
        sent??;
        received?
    })?;
    pair.exchange(BYTES)?;
    it.wait_for_nothing()?;
    it.finish()
}

/// Tiny segments of one connection, each another one, fill what may be kept of all and no more; the daemon's
/// memory does not grow, and who comes later is as without a box.
#[rstest]
fn tiny_segments_are_bounded(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    const PACKETS: u64 = 8_192;
    const MORE: u64 = 3_000;
    const MEMORY: u64 = 32 << 20;
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    it.tell("gone")?;
    let before = it.daemon.resident_bytes()?;
    let forger = Forger::new(it.world.client())?;
    let Forged { server, client } = Forged::new(family, 9);
    let mut sequence = 0_u32;
    wait_until(LIMIT, "no room is left", || {
        for _ in 0..PACKETS + MORE {
            sequence = sequence.wrapping_add(1);
            let segment = Segment {
                payload: vec![7],
                ..Segment::new(flag::ACK, client, server, sequence)
            };
            _ = forger.send(&segment);
        }
        it.held()
            .is_ok_and(|held| held["beyond_total"].as_u64() >= Some(MORE))
    })?;
    let held = it.held()?;
    assert!(held["packets"].as_u64() <= Some(PACKETS), "{held}");
    let after = it.daemon.resident_bytes()?;
    assert!(after < before + MEMORY, "{before}, {after}");
    it.tell("up")?;
    it.wait_for_nothing()?;
    it.pair(family)?.exchange(BYTES)?;
    it.finish()
}

/// A link that is said to be gone, and is not, keeps nobody from what it carries: neither who connects nor who
/// has said nothing for a while.
#[rstest]
fn a_link_that_is_there_after_all_serves(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let it = HelperBox::new(World::standard()?)?;
    let idle = it.pair(family)?;
    idle.exchange(BYTES)?;
    it.tell("gone")?;
    let new = it.pair(family)?;
    std::thread::scope(|scope| -> Result<()> {
        let others = scope.spawn(|| new.exchange(BYTES));
        idle.exchange(BYTES)?;
        others.join().ok().context("a thread panicked")?
    })?;
    let status = it.daemon.subcommand(it.world.hb(), "status")?.success()?;
    assert!(status.contains("GONE"), "{status}");
    it.tell("up")?;
    it.wait_for_nothing()?;
    it.finish()
}

/// Where the daemon's process dies while it holds something, the next one knows that the link is gone, and
/// holds what comes.
#[rstest]
fn who_takes_over_holds_on(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let (mut it, pair) = HelperBox::that_keeps(family)?;
    // While nobody reads the queue, all passes.
    Side::Server.lose(&it.world)?;
    it.daemon.dies(Signal::SIGKILL)?;
    // What its sender repeats, since the first was lost.
    it.wait_for("packets", 1)?;
    Side::Server.restore(&it.world)?;
    it.tell("up")?;
    receive_exactly(&pair.server, &Pattern::new(KEPT), 0, BYTES)?;
    pair.exchange(BYTES)?;
    it.wait_for_nothing()?;
    it.finish()
}
