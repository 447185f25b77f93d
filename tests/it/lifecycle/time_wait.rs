//! A client may use a port again whose last connection was split, when connections no longer are:
//! what the relay's closed sockets leave in the kernel for a minute must not stand in the way.

use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::{End, Pair, Pattern, accept, connect, connect_from, listen, receive};
use pepd_testbed::{Family, Pepd, Stage, Via, World, require, run, wait_until};
use rstest::rstest;

use crate::harness::{LIMIT, PEPD};

const PORT: u16 = 34_567;

/// SYNs that the client may have to send again. The kernel gives up after six, and a minute.
const MOST_REPEATS: u32 = 2;

/// The end that closes first: the sockets towards the other one are then in TIME_WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Client,
    Server,
}

/// Has connections routed from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// SIGTERM, and the daemon has ended.
    Ended,
    /// SIGKILL, and `pepd down`.
    KilledAndDown,
    /// A reload with a `bypass` rule.
    Bypass,
    /// As many connections as there may be.
    Full,
}

fn client_address(family: Family) -> SocketAddr {
    SocketAddr::new(World::client_address(family), PORT)
}

fn connect_from_port(world: &World, family: Family, to: &TcpListener) -> Result<TcpStream> {
    connect_from(world.client(), client_address(family), to.local_addr()?)
}

/// Opens a connection from the port and ends it in order.
fn use_port(world: &World, family: Family, listener: &TcpListener, first: First) -> Result<()> {
    let client = connect_from_port(world, family, listener)?;
    let (server, peer) = accept(listener)?;
    assert_eq!(peer, client_address(family));
    let pair = Pair { client, server };
    pair.exchange(1000)?;
    let (closes, other) = match first {
        First::Client => (pair.client, pair.server),
        First::Server => (pair.server, pair.client),
    };
    drop(closes);
    assert_eq!(receive(&other, &Pattern::new(0), 0)?, (0, End::Fin));
    drop(other);
    wait_until(
        LIMIT,
        "the box has a socket in TIME_WAIT, and no other",
        || {
            let sockets = world.hb().sh("ss -tanH").unwrap();
            let mut ours = sockets
                .lines()
                .filter(|line| line.contains(&format!(":{PORT}")))
                .peekable();
            ours.peek().is_some() && ours.all(|line| line.starts_with("TIME-WAIT"))
        },
    )?;
    // The hosts' own: a client that insists on its port has them go as well.
    for host in [world.client(), world.server()] {
        host.sh(&format!(
            "ss -K -tan state time-wait '( sport = :{PORT} or dport = :{PORT} )'"
        ))?;
    }
    Ok(())
}

/// Returns how often the client has sent its SYN again.
fn repeats(world: &World) -> Result<u32> {
    let info = world.client().sh(&format!("ss -tinH sport = :{PORT}"))?;
    let Some((_, after)) = info.split_once("retrans:0/") else {
        return Ok(0);
    };
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().context("retrans")
}

#[rstest]
fn a_port_is_used_again_when_connections_are_no_longer_split(
    #[values(Until::Ended, Until::KilledAndDown, Until::Bypass, Until::Full)] until: Until,
    #[values(First::Client, First::Server)] first: First,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let config = match until {
        Until::Full => World::config() + "\n[limits]\nconnections = 1\n",
        _ => World::config(),
    };
    let mut stage = Stage::with_config(PEPD, &config)?;
    let listener = stage.world.listen(family)?;
    use_port(&stage.world, family, &listener, first)?;
    let _fills = route(&mut stage, family, until)?;

    let client = connect_from_port(&stage.world, family, &listener)?;
    let repeats = repeats(&stage.world)?;
    assert!(repeats <= MOST_REPEATS, "{repeats} SYNs were in vain");
    let (server, peer) = accept(&listener)?;
    assert_eq!(peer, client_address(family));
    Pair { client, server }.exchange(10_000)?;
    Ok(())
}

/// Gives what must live on so that it stays so.
fn route(stage: &mut Stage, family: Family, until: Until) -> Result<Option<Pair>> {
    match until {
        Until::Ended => {
            let (status, log) = stage.pepd.take().unwrap().stop()?;
            assert_eq!(status.code(), Some(0), "{log}");
            assert_eq!(closing(&stage.world)?, "", "{log}");
        }
        Until::KilledAndDown => {
            let pepd = stage.pepd.take().unwrap();
            let file = tempfile::NamedTempFile::new()?;
            std::fs::copy(pepd.config_file(), file.path())?;
            pepd.kill()?;
            let mut down = stage.world.hb().command(PEPD);
            let said = run(down.args(["down", "-c"]).arg(file.path()), LIMIT)?.success()?;
            assert!(said.contains("sockets of closed connections"), "{said}");
            assert_eq!(closing(&stage.world)?, "");
        }
        Until::Bypass => {
            let rule = "\n[[rule]]\naction = \"bypass\"\n";
            stage.pepd()?.reload(&(World::config() + rule))?;
        }
        Until::Full => {
            let fills = stage.world.pair(family)?;
            wait_until(LIMIT, "the gate is closed", || {
                let set = stage.world.hb().sh("nft list set inet pepd gate").unwrap();
                !set.contains("expires")
            })?;
            return Ok(Some(fills));
        }
    }
    Ok(None)
}

/// Lists the box's sockets that nobody has open any more.
fn closing(world: &World) -> Result<String> {
    world.hb().sh(
        "ss -tanH state time-wait state fin-wait-1 state fin-wait-2 state last-ack state closing",
    )
}

/// What another program of the box has closed is its own.
#[test]
fn sockets_of_others_stay() -> Result<()> {
    require!(root, program("ss"));
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(Family::V4)?.exchange(1000)?;
    let at = SocketAddr::new(World::hb_address(Family::V4), 0);
    let listener = listen(stage.world.hb(), at)?;
    let client = connect(stage.world.client(), listener.local_addr()?)?;
    let (served, _) = accept(&listener)?;
    drop(served);
    assert_eq!(receive(&client, &Pattern::new(0), 0)?, (0, End::Fin));
    drop(client);
    let port = format!(":{}", listener.local_addr()?.port());
    wait_until(LIMIT, "the operator's socket is in TIME_WAIT", || {
        closing(&stage.world).unwrap().contains(&port)
    })?;
    let pepd: Pepd = stage.pepd.take().unwrap();
    pepd.signal(Signal::SIGTERM)?;
    let (status, log) = pepd.wait()?;
    assert_eq!(status.code(), Some(0), "{log}");
    let left = closing(&stage.world)?;
    assert!(left.contains(&port), "{left}");
    assert_eq!(left.lines().count(), 1, "{left}");
    Ok(())
}
