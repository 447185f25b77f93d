//! 500 slow readers and writers at once, that pause and close when they like: every byte
//! arrives or an error does, and no stream ends short with a clean FIN.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::traffic::{End, PATIENCE, Pattern, Rng};
use pepd_testbed::{Family, Stage, Via, World, require};
use rstest::rstest;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, tcp};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::harness::PEPD;

const CONNECTIONS: u16 = 500;
const PORT: u16 = 5000;
/// Connection `i` comes from port `FIRST_PORT + i`: the server knows by that whom it is talking to.
const FIRST_PORT: u16 = 20_000;
const SEED: u64 = 0x5eed;

#[rstest]
fn every_byte_or_an_error(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root);
    let seed = std::env::var("PEPD_SEED").map_or(Ok(SEED), |seed| seed.parse())?;
    let stage = Stage::open(via, PEPD)?;
    scenario(&stage.world, family, seed)
        .with_context(|| format!("repeat it with PEPD_SEED={seed}"))?;
    stage.finish()
}

/// The way in which an end finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// It sends a FIN when it has sent everything, and reads to the end.
    Orderly,
    /// It closes when it has sent everything, whatever it has read by then: a FIN, or a RST
    /// where bytes are unread or still to come.
    Close,
    /// It closes with a RST when it has sent everything (and "everything" may be little).
    Reset,
}

/// What one end of one connection will do.
#[derive(Clone, Debug)]
struct Plan {
    send: u64,
    finish: Finish,
    seed: u64,
}

/// What one end of one connection did.
#[derive(Debug, Default)]
struct Account {
    /// Bytes that its kernel accepted.
    sent: AtomicU64,
    received: AtomicU64,
    ended: Mutex<Option<End>>,
    /// A write failed. The kernel reports a RST once (`sk_err`): a writer that was told takes
    /// it from the reader, who then sees a plain end.
    told: AtomicBool,
    wrong: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Conversation {
    client: Plan,
    server: Plan,
    client_did: Account,
    server_did: Account,
}

fn scenario(world: &World, family: Family, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let swarm: Arc<Vec<Conversation>> =
        Arc::new((0..CONNECTIONS).map(|_| plan(&mut rng)).collect());
    let server = SocketAddr::new(World::server_address(family), PORT);
    let listener = world.server().run(|| {
        let domain = socket2::Domain::for_address(server);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.bind(&server.into())?;
        socket.listen(4096)?;
        socket.set_nonblocking(true)?;
        Ok(std::net::TcpListener::from(socket))
    })?;
    let (asked_all, all_asked) = oneshot::channel();
    let serving = {
        let swarm = Arc::clone(&swarm);
        world
            .server()
            .spawn(move || runtime()?.block_on(serve(listener, swarm, all_asked)))?
    };
    let client = World::client_address(family);
    let asked = Arc::clone(&swarm);
    world
        .client()
        .run(|| runtime()?.block_on(ask(client, server, asked)))?;
    drop(asked_all);
    serving.join().unwrap()?;
    for (index, conversation) in swarm.iter().enumerate() {
        judge(conversation).with_context(|| format!("connection {index}: {conversation:?}"))?;
    }
    Ok(())
}

fn plan(rng: &mut Rng) -> Conversation {
    let mut side = || {
        let send = match rng.between(0, 9) {
            0 => 0,
            1 => 1,
            2..=5 => rng.between(2, 20_000),
            6..=8 => rng.between(20_000, 300_000),
            _ => rng.between(300_000, 3_000_000),
        };
        let finish = match rng.between(0, 9) {
            0..=5 => Finish::Orderly,
            6..=7 => Finish::Close,
            _ => Finish::Reset,
        };
        Plan {
            send,
            finish,
            seed: rng.bits(),
        }
    };
    let (client, server) = (side(), side());
    Conversation {
        client,
        server,
        client_did: Account::default(),
        server_did: Account::default(),
    }
}

/// Serves as many connections as there are, until all clients have finished.
async fn serve(
    listener: std::net::TcpListener,
    swarm: Arc<Vec<Conversation>>,
    mut all_asked: oneshot::Receiver<()>,
) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut tasks = Vec::new();
    for _ in 0..swarm.len() {
        // A connection that its client resets at once may never be established.
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            _ = &mut all_asked => break,
        };
        let (stream, peer) = accepted?;
        let index = usize::from(peer.port().wrapping_sub(FIRST_PORT));
        ensure!(
            index < swarm.len(),
            "a connection from {peer}, which is nobody's"
        );
        let swarm = Arc::clone(&swarm);
        tasks.push(tokio::spawn(async move {
            let it = &swarm[index];
            converse(stream, &it.server, &it.client, &it.server_did).await;
        }));
    }
    for task in tasks {
        task.await?;
    }
    Ok(())
}

async fn ask(client: IpAddr, server: SocketAddr, swarm: Arc<Vec<Conversation>>) -> Result<()> {
    let failed = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (index, port) in (FIRST_PORT..).enumerate().take(swarm.len()) {
        let swarm = Arc::clone(&swarm);
        let failed = Arc::clone(&failed);
        tasks.push(tokio::spawn(async move {
            let it = &swarm[index];
            let mut rng = Rng::new(it.client.seed ^ 1);
            sleep(Duration::from_millis(rng.between(0, 500))).await;
            let connected = async {
                let socket = if server.is_ipv4() {
                    TcpSocket::new_v4()
                } else {
                    TcpSocket::new_v6()
                }?;
                socket.bind(SocketAddr::new(client, port))?;
                socket.connect(server).await
            };
            match connected.await {
                Ok(stream) => converse(stream, &it.client, &it.server, &it.client_did).await,
                // The server's RST, or its FIN and then its RST, can be there before the
                // client has looked.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                    ) =>
                {
                    *it.client_did.ended.lock().unwrap() = Some(End::Error(error.kind()));
                }
                Err(error) => failed.lock().unwrap().push(error),
            }
        }));
    }
    for task in tasks {
        task.await?;
    }
    let failed = failed.lock().unwrap();
    ensure!(
        failed.is_empty(),
        "connections did not come about: {failed:?}"
    );
    Ok(())
}

async fn converse(stream: TcpStream, mine: &Plan, theirs: &Plan, did: &Account) {
    let (reader, writer) = stream.into_split();
    let reading = read(reader, Pattern::new(theirs.seed), mine.seed ^ 2, did);
    match mine.finish {
        Finish::Orderly => {
            let (_, mut writer) = tokio::join!(reading, write(writer, mine, did));
            let _ = writer.shutdown().await;
        }
        Finish::Close | Finish::Reset => {
            tokio::pin!(reading);
            let writing = write(writer, mine, did);
            tokio::pin!(writing);
            let mut reads = true;
            let writer = loop {
                tokio::select! {
                    () = &mut reading, if reads => reads = false,
                    writer = &mut writing => break writer,
                }
            };
            if mine.finish == Finish::Reset {
                let _ = SockRef::from(writer.as_ref()).set_linger(Some(Duration::ZERO));
            }
            // Dropped, this half would send a FIN ahead.
            writer.forget();
        }
    }
}

async fn write(mut writer: tcp::OwnedWriteHalf, mine: &Plan, did: &Account) -> tcp::OwnedWriteHalf {
    let pattern = Pattern::new(mine.seed);
    let mut rng = Rng::new(mine.seed ^ 3);
    let mut at = 0;
    while at < mine.send {
        let limit = usize::try_from(rng.between(1, 100_000).min(mine.send - at)).unwrap();
        match timeout(PATIENCE, writer.write(pattern.piece(at, limit))).await {
            Ok(Ok(length)) => at += length as u64,
            Ok(Err(_)) => {
                did.told.store(true, Ordering::Relaxed);
                break;
            }
            Err(_) => {
                *did.wrong.lock().unwrap() = Some(format!("nothing could be sent at {at}"));
                break;
            }
        }
        did.sent.store(at, Ordering::Relaxed);
        if rng.between(0, 3) == 0 {
            sleep(Duration::from_millis(rng.between(0, 40))).await;
        }
    }
    if mine.finish == Finish::Orderly {
        let _ = writer.shutdown().await;
    }
    writer
}

async fn read(mut reader: tcp::OwnedReadHalf, pattern: Pattern, seed: u64, did: &Account) {
    let mut rng = Rng::new(seed);
    let mut buffer = vec![0; 65_536];
    let mut at = 0;
    // One in four lets everything fill up before it starts.
    if rng.between(0, 3) == 0 {
        sleep(Duration::from_millis(rng.between(0, 3000))).await;
    }
    let ended = loop {
        let limit = usize::try_from(rng.between(1, 65_536)).unwrap();
        match timeout(PATIENCE, reader.read(&mut buffer[..limit])).await {
            Ok(Ok(0)) => break Some(End::Fin),
            Ok(Ok(length)) => {
                if let Err(error) = pattern.verify(at, &buffer[..length]) {
                    *did.wrong.lock().unwrap() = Some(error.to_string());
                }
                at += length as u64;
            }
            Ok(Err(error)) => break Some(End::Error(error.kind())),
            Err(_) => {
                *did.wrong.lock().unwrap() = Some(format!("nothing came at {at}"));
                break None;
            }
        }
        did.received.store(at, Ordering::Relaxed);
        if rng.between(0, 3) == 0 {
            sleep(Duration::from_millis(rng.between(0, 40))).await;
        }
    };
    *did.ended.lock().unwrap() = ended;
}

fn judge(it: &Conversation) -> Result<()> {
    for (did, peer, mine, theirs) in [
        (&it.client_did, &it.server_did, &it.client, &it.server),
        (&it.server_did, &it.client_did, &it.server, &it.client),
    ] {
        if let Some(wrong) = &*did.wrong.lock().unwrap() {
            anyhow::bail!("{wrong}");
        }
        let received = did.received.load(Ordering::Relaxed);
        let sent = peer.sent.load(Ordering::Relaxed);
        ensure!(received <= sent, "{received} bytes received, {sent} sent");
        let ended = *did.ended.lock().unwrap();
        if ended == Some(End::Fin) && !did.told.load(Ordering::Relaxed) {
            ensure!(
                received == sent,
                "a clean end after {received} of {sent} bytes"
            );
            ensure!(theirs.finish != Finish::Reset, "a RST arrived as FIN");
        }
        if mine.finish == Finish::Orderly && theirs.finish == Finish::Orderly {
            ensure!(
                ended == Some(End::Fin),
                "two orderly ends, and yet {ended:?}"
            );
            ensure!(
                sent == theirs.send,
                "two orderly ends, and yet {sent} bytes sent"
            );
        }
    }
    Ok(())
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
