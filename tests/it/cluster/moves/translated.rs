//! What the boxes translate moves as well: its server sees it come from the same address and port all the time.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::traffic::{Pair, accept, connect, listen};
use pepd_testbed::{Family, require, wait_until};
use rstest::rstest;
use socket2::{Domain, Socket, Type};

use super::ground::{BOXES, Ground};
use super::kinds::{both_ways, ping_pong};
use super::refused::fails;
use crate::harness::LIMIT;

/// The ports that the boxes have for what they translate.
pub(super) const PORTS: &str = "5000-5999";

/// An address of no host's, which is led to one of the boxes.
fn shared(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 99, 0, 1]),
        Family::V6 => IpAddr::from([0xfd00, 0x99, 0, 0, 0, 0, 0, 1]),
    }
}

/// Has a box translate what it sends to the server.
fn translate(ground: &Ground, at: usize, to: &str) -> Result<()> {
    ground.node(BOXES[at]).sh(&format!(
        "nft 'table inet nat {{
            chain post {{
                type nat hook postrouting priority srcnat
                meta l4proto tcp oifname to-right {to}
            }}
        }}'"
    ))?;
    Ok(())
}

/// Has both boxes translate it to the shared address, which is led to the first.
pub(super) fn share(ground: &Ground, family: Family, ports: &str) -> Result<()> {
    let to = match family {
        Family::V4 => format!("snat ip to {}:{ports}", shared(family)),
        Family::V6 => format!("snat ip6 to [{}]:{ports}", shared(family)),
    };
    translate(ground, 0, &to)?;
    translate(ground, 1, &to)?;
    lead_shared_to(ground, 0)
}

fn lead_shared_to(ground: &Ground, at: usize) -> Result<()> {
    let net = 10 * (at + 1) + 2;
    let (v4, v6) = (shared(Family::V4), shared(Family::V6));
    ground.node("right").sh(&format!(
        "ip route replace {v4} via 10.{net}.0.2; ip -6 route replace {v6} via fd00:{net}::2"
    ))?;
    Ok(())
}

/// Opens a connection, and gives where its server sees it come from.
fn open(ground: &Ground) -> Result<(Pair, SocketAddr)> {
    let listener = listen(ground.node("server"), SocketAddr::new(ground.server()?, 0))?;
    let client = connect(ground.node("client"), listener.local_addr()?)?;
    let (server, from) = accept(&listener)?;
    let pair = Pair { client, server };
    pair.exchange(1)?;
    Ok((pair, from))
}

pub(super) fn open_shared(ground: &Ground, family: Family) -> Result<Pair> {
    let (pair, from) = open(ground)?;
    ensure!(from.ip() == shared(family), "{from}");
    ensure!(from != pair.client.local_addr()?);
    Ok(pair)
}

/// Returns what a box's connection tracking knows of connections to the server's port.
pub(super) fn tracked(ground: &Ground, at: usize, pair: &Pair) -> Result<Vec<String>> {
    let known = ground.node(BOXES[at]).sh("cat /proc/net/nf_conntrack")?;
    let port = pair.server.local_addr()?.port();
    let port = format!("dport={port} ");
    let known = known.lines().filter(|line| line.contains(&port));
    Ok(known.map(str::to_owned).collect())
}

/// Gives the shared address to a box, as VRRP does, and takes it from the other.
fn give_shared_to(ground: &Ground, family: Family, at: usize) -> Result<()> {
    let address = match family {
        Family::V4 => format!("{}/32", shared(family)),
        // It is not to send from it of its own: keepalived has it like that, too.
        Family::V6 => format!("{}/128 nodad preferred_lft 0", shared(family)),
    };
    let (here, there) = (ground.node(BOXES[at]), ground.node(BOXES[1 - at]));
    there.sh(&format!(
        "ip addr del {} dev to-right || true",
        shared(family)
    ))?;
    here.sh(&format!("ip addr add {address} dev to-right"))?;
    Ok(())
}

/// Somebody's firewall empties the first box's tables in the midst of it: what comes there is routed until they are back,
/// and is translated all the same, so that its server does not take it for somebody else's.
#[rstest]
fn the_tables_are_emptied(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    share(&ground, family, PORTS)?;
    let [bulk, pings] = [(); 2].map(|()| open_shared(&ground, family));
    let (bulk, pings) = (bulk?, pings?);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let streams = [
            scope.spawn(|| both_ways(&bulk, &over)),
            scope.spawn(|| ping_pong(&pings, &over, |_| ())),
        ];
        let emptied = (|| {
            ground.all_move(0, 2)?;
            ground.node("one").sh(
                "echo 'delete table inet pepd; delete table ip pepd; delete table ip6 pepd' | nft -f -",
            )?;
            wait_until(LIMIT, "they are back", || {
                ground.logs().contains("it is there again")
            })
        })();
        over.store(true, Relaxed);
        let ended = streams.map(|it| it.join().unwrap());
        emptied?;
        ended.into_iter().collect::<Result<()>>()
    })?;
    ground.no_resets()
}

/// Whichever box it is at, and whichever the routers lead to: the address is routed to the boxes, or is the one's that
/// has it.
#[rstest]
fn it_moves_to_and_fro(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] is_had: bool,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    share(&ground, family, PORTS)?;
    if is_had {
        give_shared_to(&ground, family, 0)?;
    }
    let [bulk, pings, idle] = [(); 3].map(|()| open_shared(&ground, family));
    let (bulk, pings, idle) = (bulk?, pings?, idle?);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let streams = [
            ("both ways", scope.spawn(|| both_ways(&bulk, &over))),
            (
                "ping-pong",
                scope.spawn(|| ping_pong(&pings, &over, |_| ())),
            ),
        ];
        let moves = || {
            for turn in 0..7 {
                // By the second time the routers lead to the other box all the while.
                if turn == 3 {
                    ground.lead_to(1)?;
                    lead_shared_to(&ground, 1)?;
                    if is_had {
                        give_shared_to(&ground, family, 1)?;
                    }
                }
                ground
                    .all_move(turn % 2, 3)
                    .with_context(|| format!("move {turn}\n{}", ground.logs()))?;
                idle.exchange(20_000)
                    .with_context(|| format!("after move {turn}"))?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let moved = moves();
        over.store(true, Relaxed);
        for (kind, stream) in streams {
            stream.join().unwrap().context(kind)?;
        }
        moved
    })?;
    ground.nothing_is_routed()?;
    // It is at the other box, which needs the first one no longer.
    ground.node("one").sh("ip link set to-right down")?;
    idle.exchange(100_000)?;
    ground.no_resets()
}

/// Where the other box has nothing that translates, and where the address is the first one's own.
#[rstest]
fn what_would_come_from_elsewhere_stays(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    translate(&ground, 0, "masquerade")?;
    let (pair, from) = open(&ground)?;
    fails(&ground.moves(0, &["--dry-run"])?, 70, "translates none")?;
    fails(&ground.moves(0, &[])?, 70, "translates none")?;
    translate(&ground, 1, "masquerade")?;
    fails(&ground.moves(0, &["--dry-run"])?, 70, "one of its own")?;
    fails(&ground.moves(0, &[])?, 70, "one of its own")?;
    pair.exchange(5000)?;
    // Both have it.
    let address = from.ip();
    ground
        .node("two")
        .sh(&format!("ip addr add {address} dev lo"))?;
    ground.all_move(0, 1)?;
    pair.exchange(5000)?;
    ground.no_resets()
}

/// A box that translates, and has zones of connection tracking, may know of a connection where nobody looks.
#[rstest]
fn what_may_be_in_a_zone_stays(
    #[values(0, 1)] at: usize,
    #[values("nft", "iptables-nft")] by: &str,
) -> Result<()> {
    require!(root, program("nft"), program("iptables-nft"));
    let ground = Ground::open(Family::V4, ["", ""])?;
    let zones = match by {
        "nft" => {
            "nft 'table inet zones {
                chain from-left { type filter hook prerouting priority raw; iifname to-right ct zone set 5; }
                chain to-right { type filter hook output priority raw; oifname to-right ct zone set 5; }
            }'"
        }
        _ => "iptables-nft -t raw -A PREROUTING -i to-right -j CT --zone 5 &&
              iptables-nft -t raw -A OUTPUT -o to-right -j CT --zone 5",
    };
    let zoned = ground.node(BOXES[at]);
    zoned.sh(zones)?;
    share(&ground, Family::V4, PORTS)?;
    let pair = open_shared(&ground, Family::V4)?;
    fails(
        &ground.moves(0, &["--dry-run"])?,
        70,
        "zones of connection tracking",
    )?;
    fails(&ground.moves(0, &[])?, 70, "zones of connection tracking")?;
    pair.exchange(5000)?;
    // Without them it moves.
    match by {
        "nft" => zoned.sh("nft 'delete table inet zones'")?,
        _ => zoned.sh("iptables-nft -t raw -F")?,
    };
    if at == 1 {
        ground.all_move(0, 1)?;
        pair.exchange(5000)?;
    }
    ground.no_resets()
}

/// Something else on the other box has the address and port.
#[test]
fn what_is_taken_there_stays() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, ["", ""])?;
    share(&ground, Family::V4, "7000")?;
    let pair = open_shared(&ground, Family::V4)?;
    // A SYN that nobody answers with one.
    let server = pair.server.local_addr()?;
    let other = ground.node("two").run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&server.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            connected => anyhow::bail!("{connected:?}"),
        }
    })?;
    fails(&ground.moves(0, &[])?, 70, "the same address and port")?;
    pair.exchange(5000)?;
    drop(other);
    ground.no_resets()
}

/// Connection tracking on the box that takes knows what has come, and on the one that gives it has forgotten it.
#[rstest]
fn what_is_tracked_is_tracked_there(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    for name in BOXES {
        // Nothing lets in what has pepd's mark.
        ground.node(name).sh("nft 'table inet filter {
            chain input {
                type filter hook input priority 0
                ct state invalid drop
                ct state new tcp flags & (syn | ack) != syn drop
            }
            chain output {
                type filter hook output priority 0
                ct state invalid drop
                ct state new tcp flags & (syn | ack) != syn drop
            }
        }'")?;
    }
    let pair = ground.pair()?;
    for turn in 0..6 {
        let (from, to) = (turn % 2, 1 - turn % 2);
        ensure!(tracked(&ground, from, &pair)?.len() == 1);
        ground.all_move(from, 1)?;
        // What one box has seen makes nothing invalid there when it comes back.
        pair.exchange(3_000_000)
            .with_context(|| format!("move {turn}\n{}", ground.logs()))?;
        let known = tracked(&ground, to, &pair)?;
        ensure!(known.len() == 1, "{known:?}");
        ensure!(known[0].contains("ESTABLISHED"), "{known:?}");
        let known = tracked(&ground, from, &pair)?;
        ensure!(known.is_empty(), "{known:?}");
    }
    ground.no_resets()
}

/// Nobody's connections are tracked for having moved.
#[test]
fn what_is_not_tracked_is_not_tracked_there() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, ["", ""])?;
    let pair = ground.pair()?;
    ground.all_move(0, 1)?;
    pair.exchange(5000)?;
    ensure!(tracked(&ground, 1, &pair)?.is_empty());
    Ok(())
}
