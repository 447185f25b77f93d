//! The clients and the server, thousands of each on a thread.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, tcp};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::account::{Account, Conversation};
use super::plan::{Finish, PORTS, SILENT, Side, Streams};
use crate::traffic::{End, Rng};
use crate::world::{Family, World};

/// Nothing that is waited for takes longer, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The time after which a client gives up who is not answered.
const SILENCE: Duration = Duration::from_millis(1500);

/// The mark of the packets that a rule on their own host drops.
pub const VANISHED: u32 = 0xdead;

/// What clients, server and weather share.
#[derive(Debug)]
pub struct Shared {
    /// What is sent.
    pub streams: Streams,
    /// Grows whenever the daemon is killed, and when it is there again.
    pub epoch: AtomicU64,
    /// The clients of this round that are over.
    pub clients_over: AtomicUsize,
    /// The server's ends that go on.
    pub serving: AtomicUsize,
    /// Connections that no client of ours has opened.
    pub strangers: AtomicU64,
    /// The connections of this round, by the server's address and the client's port.
    round: Mutex<HashMap<(SocketAddr, u16), Arc<Conversation>>>,
}

impl Shared {
    /// Begins with no connection.
    pub fn new(seed: u64) -> Self {
        Self {
            streams: Streams::new(seed),
            epoch: AtomicU64::new(0),
            clients_over: AtomicUsize::new(0),
            serving: AtomicUsize::new(0),
            strangers: AtomicU64::new(0),
            round: Mutex::default(),
        }
    }

    /// Makes the connections of a round known to the server.
    pub fn expect(&self, conversations: &[Arc<Conversation>]) {
        let expected = conversations
            .iter()
            .map(|it| ((it.plan.to, it.plan.client_port), Arc::clone(it)));
        *self.round.lock().unwrap_or_else(PoisonError::into_inner) = expected.collect();
        self.clients_over.store(0, Relaxed);
    }

    fn find(&self, to: SocketAddr, client: SocketAddr) -> Option<Arc<Conversation>> {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        if client.ip() != World::client_address(family) {
            return None;
        }
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.get(&(to, client.port())).cloned()
    }
}

/// Opens the server's listeners, in its namespace.
pub fn listen() -> Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for family in Family::BOTH {
        for port in PORTS {
            let socket = new_socket(SocketAddr::new(World::server_address(family), port))?;
            socket.listen(4096)?;
            listeners.push(TcpListener::from(socket));
        }
    }
    Ok(listeners)
}

/// Serves until `over`.
pub async fn serve(
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    over: oneshot::Receiver<()>,
) -> Result<()> {
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let at = listener.local_addr();
            loop {
                if let (Ok((stream, peer)), Ok(at)) = (listener.accept().await, &at) {
                    take(&shared, *at, stream, peer);
                }
            }
        });
    }
    let _ = over.await;
    Ok(())
}

fn take(shared: &Arc<Shared>, at: SocketAddr, stream: TcpStream, peer: SocketAddr) {
    let Some(it) = shared.find(at, peer) else {
        shared.strangers.fetch_add(1, Relaxed);
        let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        return;
    };
    let account = it.begin_to_serve();
    shared.serving.fetch_add(1, Relaxed);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let plan = &it.plan;
        converse(&shared, stream, &plan.server, &plan.client, &account).await;
        it.last_epoch.fetch_max(shared.epoch.load(Relaxed), Relaxed);
        shared.serving.fetch_sub(1, Relaxed);
    });
}

/// Opens all connections of a round, so many at a time, and returns when the clients are over.
pub async fn ask(shared: Arc<Shared>, round: Vec<Arc<Conversation>>, at_a_time: usize) {
    let places = Arc::new(Semaphore::new(at_a_time));
    for it in round {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            it.first_epoch.store(shared.epoch.load(Relaxed), Relaxed);
            match connect(&it).await {
                Ok(stream) => {
                    let plan = &it.plan;
                    converse(&shared, stream, &plan.client, &plan.server, &it.client).await;
                }
                Err(error) => it.client.end(End::Error(error.kind())),
            }
            it.last_epoch.fetch_max(shared.epoch.load(Relaxed), Relaxed);
            shared.clients_over.fetch_add(1, Relaxed);
            drop(place);
        });
    }
    let all = u32::try_from(at_a_time).unwrap_or(u32::MAX);
    let _all = places.acquire_many(all).await;
}

async fn connect(it: &Conversation) -> io::Result<TcpStream> {
    let family = if it.plan.to.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let from = SocketAddr::new(World::client_address(family), it.plan.client_port);
    let socket = TcpSocket::from_std_stream(new_socket(from)?.into());
    let limit = if it.plan.to.port() == SILENT {
        SILENCE
    } else {
        PATIENCE
    };
    match timeout(limit, socket.connect(it.plan.to)).await {
        Ok(connected) => connected,
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// Returns a socket bound to `address`, that learns by itself of a peer that is no more: without
/// the daemon nobody else would.
fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_out_of_band_inline(true)?;
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5));
    let keepalive = keepalive
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(Duration::from_secs(20)))?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

async fn converse(
    shared: &Shared,
    mut stream: TcpStream,
    mine: &Side,
    theirs: &Side,
    did: &Account,
) {
    let (reader, writer) = stream.split();
    let (say_end, end) = oneshot::channel();
    let reading = async {
        read(shared, reader, theirs, mine, did).await;
        let _ = say_end.send(());
    };
    let writing = async {
        if mine.answers {
            let _ = end.await;
        }
        write(shared, writer, mine, did).await;
    };
    if mine.finish == Finish::Orderly {
        tokio::join!(reading, writing);
    } else {
        tokio::pin!(reading);
        tokio::pin!(writing);
        let mut reads = true;
        loop {
            tokio::select! {
                () = &mut reading, if reads => reads = false,
                () = &mut writing => break,
            }
        }
    }
    let socket = SockRef::from(&stream);
    match mine.finish {
        Finish::Orderly | Finish::Close => {}
        Finish::Reset => _ = socket.set_linger(Some(Duration::ZERO)),
        Finish::Vanish => {
            if let Err(error) = socket.set_mark(VANISHED) {
                did.accuse(format!("a socket could not vanish: {error}"));
            }
        }
    }
}

async fn write(shared: &Shared, mut writer: tcp::WriteHalf<'_>, mine: &Side, did: &Account) {
    let (pattern, start) = shared.streams.of(mine);
    let mut rng = Rng::new(mine.seed);
    let mut at = 0;
    while at < mine.length {
        let limit = rng.between(1, 100_000).min(mine.length - at);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let last = mine.length - at == 1;
        // The last byte is sent by itself where it is urgent.
        let limit = if mine.urgent && !last {
            limit.min(at_most(mine.length - at - 1))
        } else {
            limit
        };
        let piece = pattern.piece(start + at, limit);
        let urgent = mine.urgent && last;
        let sent = async {
            if urgent {
                match SockRef::from(writer.as_ref()).send_out_of_band(piece) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    sent => return sent,
                }
            }
            writer.write(piece).await
        };
        match timeout(PATIENCE, sent).await {
            Ok(Ok(length)) => at += length as u64,
            Ok(Err(_)) => {
                did.told.store(true, Relaxed);
                return;
            }
            Err(_) => return did.accuse(format!("nothing could be sent at {at}")),
        }
        did.sent.store(at, Relaxed);
        dawdle(mine, &mut rng).await;
    }
    if mine.finish == Finish::Orderly {
        let _ = writer.shutdown().await;
    }
}

async fn read(
    shared: &Shared,
    mut reader: tcp::ReadHalf<'_>,
    theirs: &Side,
    mine: &Side,
    did: &Account,
) {
    let (pattern, start) = shared.streams.of(theirs);
    let mut rng = Rng::new(mine.seed ^ 1);
    let mut buffer = vec![0; at_most(theirs.length).clamp(1, 32_768)];
    let mut at = 0;
    loop {
        match timeout(PATIENCE, reader.read(&mut buffer)).await {
            Ok(Ok(0)) => return did.end(End::Fin),
            Ok(Ok(length)) => {
                if let Err(error) = pattern.verify(start + at, &buffer[..length]) {
                    did.accuse(format!("from {start}: {error}"));
                }
                at += length as u64;
            }
            Ok(Err(error)) => return did.end(End::Error(error.kind())),
            Err(_) => return did.accuse(format!("nothing came at {at}")),
        }
        did.received.store(at, Relaxed);
        dawdle(mine, &mut rng).await;
    }
}

async fn dawdle(mine: &Side, rng: &mut Rng) {
    if mine.slow && rng.between(0, 1) == 0 {
        sleep(Duration::from_millis(rng.between(1, 60))).await;
    }
}

fn at_most(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}
