//! Whoever has sent something while his connection was on its way need not send it again: it was held.

use std::fs;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_packet::QueueNumber;
use pepd_sys::nfqueue::{Queue, Room};
use pepd_sys::tcp_info::tcp_info;
use pepd_testbed::traffic::{Pair, read};
use pepd_testbed::{Family, Pepd, install, require};
use rstest::rstest;
use socket2::SockRef;

use super::ground::{Ground, digit};
use super::kinds::{both_ways, ping_pong};
use crate::harness::{LIMIT, PEPD};

/// The moves, to and fro, and the connections.
const MOVES: usize = 20;
const PAIRS: usize = 8;

/// Says how many segments an end has sent again that had not come. Where a move takes longer than its timer, it sends again
/// what has, which the box says then.
fn lost(end: &TcpStream) -> Result<i64> {
    let info = tcp_info(end.as_fd())?;
    let doubled = info.doubled_segments.context("Linux 4.19")?;
    Ok(i64::from(info.retransmitted_segments) - i64::from(doubled))
}

/// Has all move so often, to and fro, while a byte goes to and fro over each.
fn move_under_pings(ground: &Ground, pairs: &[Pair], moves: usize) -> Result<()> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let pings = pairs.iter();
        let pings = pings.map(|pair| scope.spawn(move || ping_pong(pair, over, |_| ())));
        let pings: Vec<_> = pings.collect();
        let moved = (0..moves).try_for_each(|turn| {
            let moved = ground.all_move(turn % 2, pairs.len()).map(drop);
            moved.with_context(|| format!("move {turn}\n{}", ground.logs()))
        });
        over.store(true, Relaxed);
        for pings in pings {
            pings.join().unwrap()?;
        }
        moved
    })
}

#[rstest]
fn what_comes_meanwhile_is_not_sent_again(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    let ends = || {
        pairs
            .iter()
            .flat_map(|Pair { client, server }| [client, server])
    };
    let before: i64 = ends().map(lost).sum::<Result<_>>()?;
    move_under_pings(&ground, &pairs, MOVES)?;
    // What is said of the last is there.
    pairs.iter().try_for_each(|pair| pair.exchange(1))?;
    let after: i64 = ends().map(lost).sum::<Result<_>>()?;
    let lost = after - before;
    // What is between the tables and a socket at that very moment may be; where nothing is held it is half of them.
    let all = i64::try_from(MOVES * PAIRS)?;
    ensure!(
        lost * 20 <= all,
        "{lost} segments were lost in {MOVES} moves of {PAIRS}\n{}",
        ground.logs()
    );
    ground.no_resets()
}

/// Where nothing on the box that takes can hold packets, or another program reads what would be held, all is as well, but for
/// what is sent again.
#[rstest]
fn connections_move_where_nothing_is_held(#[values(false, true)] is_read: bool) -> Result<()> {
    const EARLY: &str = "[capture]\nhandshake = \"early\"\n";
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, [EARLY, EARLY])?;
    let (status, log) = ground.daemons[1].take().context("a daemon")?.stop()?;
    ensure!(status.success(), "{log}");
    // Where nft has no queue, this is what there is of iptables.
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let mut search = std::env::var("PATH")?;
    let reader = if is_read {
        let open = || Ok(Queue::open(QueueNumber(7298), Room::SYNS)?);
        Some(ground.node("two").run(open)?)
    } else {
        for name in ["iptables", "ip6tables"] {
            install("/bin/false".as_ref(), &folder.path().join(name))?;
        }
        search = format!("{}:{search}", folder.path().display());
        None
    };
    let pepd = Pepd::builder(PEPD).wrapper(&["env", &format!("PATH={search}")]);
    ground.daemons[1] = Some(pepd.start(ground.node("two"), &(ground.config(1) + EARLY))?);
    let pairs: Vec<_> = (0..PAIRS).map(|_| ground.pair()).collect::<Result<_>>()?;
    move_under_pings(&ground, &pairs, 4)?;
    let log = ground.daemon(1)?.log();
    ensure!(log.contains("NFQUEUE 7298") == is_read, "{log}");
    drop(reader);
    ground.no_resets()
}

/// Nobody sends a RST again: the other end hears of one that has come while the connection was on its way.
#[rstest]
fn a_reset_that_comes_meanwhile_arrives(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(false, true)] is_the_clients: bool,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    let busy = ground.pair()?;
    let Pair { client, server } = ground.pair()?;
    let (leaves, stays) = match is_the_clients {
        true => (client, server),
        false => (server, client),
    };
    stays.set_read_timeout(Some(LIMIT))?;
    // What the busy one has does not get over.
    ground.hold_back()?;
    let over = AtomicBool::new(false);
    let heard = thread::scope(|scope| {
        let stream = scope.spawn(|| both_ways(&busy, &over));
        let heard: Result<_> = (|| {
            // What comes is sent on.
            let moving = ground.gets_under_way(scope, 0, &format!("moved{}_0", digit(family)))?;
            SockRef::from(&leaves).set_linger(Some(Duration::ZERO))?;
            drop(leaves);
            ground.node("two").sh("nft 'delete table inet hold'")?;
            moving.join().unwrap()?;
            Ok(read(&stays, &mut [0]))
        })();
        over.store(true, Relaxed);
        stream.join().unwrap()?;
        heard
    })?;
    let why = heard.err().and_then(|it| it.raw_os_error());
    ensure!(why == Some(libc::ECONNRESET), "{why:?}\n{}", ground.logs());
    Ok(())
}
