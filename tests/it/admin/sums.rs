//! Bytes and outcomes are the same in the flows, the sums by campus pair, the counters and the
//! log, and they are those that the hosts counted.
//!
//! A connection's bytes are those that the outgoing leg's peer has acknowledged. Where both ends finish
//! in order these are the bytes that one host sent and the other received. Where an end resets, it may
//! have received what it has not acknowledged yet, or acknowledged what its program never reads: then
//! the count is only no more than what was sent.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::traffic::{PATIENCE, Rng};
use pepd_testbed::{Family, Netns, Pepd, World, require, run, wait_until};
use serde_json::Value;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::harness::PEPD;

const CONNECTIONS: usize = 1000;
/// The number of conversations at once.
const CONCURRENT: usize = 100;
const SEED: u64 = 0x5eed;

/// What one end does: sends so many bytes, and then a FIN or a RST.
#[derive(Clone, Copy, Debug)]
struct Plan {
    send: usize,
    reset: bool,
}

/// What one end did.
#[derive(Clone, Copy, Debug, Default)]
struct Did {
    sent: u64,
    received: u64,
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    client: Plan,
    server: Plan,
}

impl Conversation {
    /// Tells whether both ends finish in order.
    fn is_orderly(self) -> bool {
        !self.client.reset && !self.server.reset
    }
}

#[test]
fn every_sum_is_what_the_hosts_counted() -> Result<()> {
    require!(root);
    let seed = std::env::var("PEPD_SEED").map_or(Ok(SEED), |seed| seed.parse())?;
    scenario(seed).with_context(|| format!("repeat it with PEPD_SEED={seed}"))
}

fn scenario(seed: u64) -> Result<()> {
    let world = World::standard()?;
    let config = format!(
        "{}\n[log]\nformat = \"json\"\nconnections = 1000000\n\n{}",
        World::config(),
        world.admin()
    );
    let pepd = Pepd::start(PEPD, world.hb(), &config)?;
    let mut rng = Rng::new(seed);
    let plans: Arc<Vec<Conversation>> =
        Arc::new((0..CONNECTIONS).map(|_| plan(&mut rng)).collect());
    let hosts = converse(&world, &plans)?;
    wait_until(
        Duration::from_secs(120),
        "the last connection's end",
        || {
            status(world.hb(), &pepd).is_ok_and(|status| {
                status["pairs"][0]["live"] == 0 && counter(&status, "accepted") == ended(&status)
            })
        },
    )?;
    let status = status(world.hb(), &pepd)?;
    let (exit, log) = pepd.stop()?;
    ensure!(exit.success(), "{exit}");
    let lines: Vec<Value> = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["message"] == "connection ended")
        .collect();
    assert_eq!(lines.len(), CONNECTIONS);
    each_line_is_what_its_hosts_counted(&lines, hosts, &plans)?;
    the_sums_agree(&lines, &status);
    Ok(())
}

fn plan(rng: &mut Rng) -> Conversation {
    let mut side = || Plan {
        send: match rng.between(0, 9) {
            0 => 0,
            1..=6 => usize::try_from(rng.between(1, 20_000)).unwrap(),
            _ => usize::try_from(rng.between(20_000, 600_000)).unwrap(),
        },
        reset: rng.between(0, 9) == 0,
    };
    Conversation {
        client: side(),
        server: side(),
    }
}

/// What the client and the server did in each conversation, by the client's address and the number: a port that is free again
/// may be the next one's.
type Hosts = HashMap<SocketAddr, BTreeMap<usize, [Did; 2]>>;

fn converse(world: &World, plans: &Arc<Vec<Conversation>>) -> Result<Hosts> {
    let address = SocketAddr::new(World::server_address(Family::V4), 0);
    let listener = world.server().run(|| {
        let listener = std::net::TcpListener::bind(address)?;
        SockRef::from(&listener).listen(1024)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    let address = listener.local_addr()?;
    let hosts: Arc<Mutex<Hosts>> = Arc::default();
    let serving = {
        let (plans, hosts) = (Arc::clone(plans), Arc::clone(&hosts));
        world
            .server()
            .spawn(move || runtime()?.block_on(serve(listener, plans, hosts)))?
    };
    let (plans, asking) = (Arc::clone(plans), Arc::clone(&hosts));
    world
        .client()
        .run(|| runtime()?.block_on(ask(address, plans, asking)))?;
    serving.join().unwrap()?;
    Ok(Arc::into_inner(hosts).unwrap().into_inner().unwrap())
}

async fn serve(
    listener: std::net::TcpListener,
    plans: Arc<Vec<Conversation>>,
    hosts: Arc<Mutex<Hosts>>,
) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut tasks = Vec::new();
    for _ in 0..plans.len() {
        let (mut stream, peer) = timeout(PATIENCE, listener.accept()).await??;
        let (plans, hosts) = (Arc::clone(&plans), Arc::clone(&hosts));
        tasks.push(tokio::spawn(async move {
            // The first four bytes say which conversation it is; a client that resets sends them
            // and waits for one back.
            let mut number = [0; 4];
            stream.read_exact(&mut number).await?;
            stream.write_all(&[1]).await?;
            let number = usize::try_from(u32::from_be_bytes(number))?;
            let did = talk(stream, plans[number].server).await?;
            let mut hosts = hosts.lock().unwrap();
            let of_it = hosts.entry(peer).or_default();
            of_it.entry(number).or_default()[1] = did;
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn ask(
    server: SocketAddr,
    plans: Arc<Vec<Conversation>>,
    hosts: Arc<Mutex<Hosts>>,
) -> Result<()> {
    let places = Arc::new(Semaphore::new(CONCURRENT));
    let mut tasks = Vec::new();
    for number in 0..plans.len() {
        let place = Arc::clone(&places).acquire_owned().await?;
        let (plans, hosts) = (Arc::clone(&plans), Arc::clone(&hosts));
        tasks.push(tokio::spawn(async move {
            let mut stream = TcpStream::connect(server).await?;
            stream
                .write_all(&u32::try_from(number)?.to_be_bytes())
                .await?;
            stream.read_exact(&mut [0]).await?;
            let address = stream.local_addr()?;
            let did = talk(stream, plans[number].client).await?;
            let mut hosts = hosts.lock().unwrap();
            let of_it = hosts.entry(address).or_default();
            of_it.entry(number).or_default()[0] = did;
            drop(place);
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Sends as planned and reads what comes, until both are over or one of them fails.
async fn talk(mut stream: TcpStream, plan: Plan) -> Result<Did> {
    let mut did = Did::default();
    let (mut reader, mut writer) = stream.split();
    let (mut sent, mut received) = (0, 0);
    let writing = async {
        let block = vec![7; 16 * 1024];
        while sent < plan.send {
            let piece = block.len().min(plan.send - sent);
            match timeout(PATIENCE, writer.write(&block[..piece])).await {
                Ok(Ok(length)) => sent += length,
                _ => return,
            }
        }
        if !plan.reset {
            let _ = writer.shutdown().await;
        }
    };
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(Ok(length @ 1..)) = timeout(PATIENCE, reader.read(&mut buffer)).await {
            received += length;
        }
    };
    if plan.reset {
        // It does not wait for the other end's.
        tokio::select! {
            () = writing => {}
            () = async { reading.await; std::future::pending().await } => {}
        }
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    } else {
        tokio::join!(writing, reading);
    }
    did.sent += sent as u64;
    did.received += received as u64;
    Ok(did)
}

fn each_line_is_what_its_hosts_counted(
    lines: &[Value],
    mut hosts: Hosts,
    plans: &[Conversation],
) -> Result<()> {
    let mut orderly = 0;
    for line in lines {
        let client: SocketAddr = line["client"].as_str().context("no client")?.parse()?;
        let of_it = hosts
            .get_mut(&client)
            .with_context(|| format!("{line:#}"))?;
        // What is exact is asked first.
        let mut numbers: Vec<_> = of_it.keys().copied().collect();
        numbers.sort_by_key(|&number| !plans[number].is_orderly());
        let is_of = |&number: &usize| is_what_they_counted(line, plans[number], of_it[&number]);
        let number = numbers.into_iter().find(is_of);
        let about = || {
            let plans: Vec<_> = of_it.keys().map(|&number| plans[number]).collect();
            format!("{plans:?} {of_it:?} {line:#}")
        };
        let number = number.with_context(about)?;
        of_it.remove(&number);
        orderly += usize::from(plans[number].is_orderly());
    }
    assert!(orderly > CONNECTIONS / 2, "{orderly}");
    assert!(orderly < CONNECTIONS, "nobody reset");
    Ok(())
}

/// Tells whether a line of the log is about a conversation in which the client and the server did that.
fn is_what_they_counted(line: &Value, plan: Conversation, [client, server]: [Did; 2]) -> bool {
    // The conversation's number, and the byte that confirms it.
    let figure = |name, preamble: u64| figure(line, name).saturating_sub(preamble);
    let (up, down) = (figure("bytes_up", 4), figure("bytes_down", 1));
    let is_no_more = up <= client.sent && down <= server.sent;
    is_no_more
        && match plan.is_orderly() {
            true => {
                let is_all = up == plan.client.send as u64 && down == plan.server.send as u64;
                is_all && line["ended"] == "closed"
            }
            false => line["ended"] != "cut",
        }
}

fn the_sums_agree(lines: &[Value], status: &Value) {
    let pair = &status["pairs"][0];
    assert_eq!(status["pairs"].as_array().map(Vec::len), Some(1));
    assert_eq!(pair["accepted"], CONNECTIONS);
    assert_eq!(pair["live"], 0);
    for (name, direction) in [("bytes_up", "up"), ("bytes_down", "down")] {
        let logged: u64 = lines.iter().map(|line| figure(line, name)).sum();
        assert_eq!(counter(status, name), logged);
        assert_eq!(pair[direction]["bytes"].as_u64(), Some(logged));
    }
    let logged = |ended: &str, side: &str| {
        let of = |line: &&Value| line["ended"] == ended && line["side"].as_str() == Some(side);
        lines.iter().filter(of).count() as u64
    };
    for (name, side) in [("client_failed", "client"), ("upstream_failed", "upstream")] {
        assert_eq!(counter(status, name), logged("failed", side));
        let by_errno: u64 = status["failures"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|failure| failure["side"] == side)
            .map(|failure| figure(failure, "count"))
            .sum();
        assert_eq!(by_errno, counter(status, name));
    }
}

fn figure(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {value:#}"))
}

/// Returns how many connections have ended, whatever way.
fn ended(status: &Value) -> u64 {
    [
        "closed",
        "client_failed",
        "upstream_failed",
        "cut",
        "unreachable",
    ]
    .map(|name| counter(status, name))
    .iter()
    .sum()
}

fn counter(status: &Value, name: &str) -> u64 {
    let counters = status["counters"].as_array().unwrap();
    let counter = counters.iter().find(|counter| counter["name"] == name);
    figure(counter.unwrap(), "count")
}

fn status(hb: &Netns, pepd: &Pepd) -> Result<Value> {
    let mut command = hb.command(PEPD);
    command.args(["status", "--json", "-c"]);
    command.arg(pepd.config_file());
    let status = run(&mut command, Duration::from_secs(120))?.success()?;
    Ok(serde_json::from_str(&status)?)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
