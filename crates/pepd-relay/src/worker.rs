//! A worker: a thread, its runtime, its listeners and its pipes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pepd_sys::nfqueue::Queue;
use pepd_sys::{reactor, stream};
use pepd_telemetry::{Counters, FlowTable, Throttle};
use socket2::{Domain, SockRef, Socket};
use tokio::io::Interest;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::connection::access_log::EndedLines;
use crate::connection::{Accepted, Upstream, serve};
use crate::fast_open::Key;
use crate::gate_history::GateWatch;
use crate::handshake::evicted::Evicted;
use crate::handshake::packet::Flow;
use crate::handshake::table::Claim;
use crate::handshake::{Decision, Held, Waiting, queue};
use crate::limits::Admission;
use crate::listener::Listener;
use crate::pipe_pool::PipePool;
use crate::sample;
use crate::settings::{Dscp, Leg, Settings};
use crate::sockopts;

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) gate: GateWatch,
    pub(crate) held: Held,
    pub(crate) fast_open_key: Key,
    pub(crate) flows: Arc<FlowTable>,
    pub(crate) ended_lines: EndedLines,
    /// For a destination that a reload has just taken out of every campus.
    pub(crate) unnamed_leg: Leg,
}

impl Shared {
    /// Decides about a held SYN.
    pub(crate) fn decide(&self, waiting: Waiting, decision: Decision) {
        let marks = self.settings.load().hold.map(|hold| hold.marks);
        waiting.decide(decision, marks, &self.counters);
    }

    /// Shows how many flows are pending.
    pub(crate) fn note_pending(&self) {
        self.counters.pending.set(self.held.len() as u64);
    }
}

/// What one worker's connections share.
#[derive(Debug)]
pub(crate) struct Context {
    /// Which worker it is.
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<PipePool>,
}

/// What a worker is told.
enum Command {
    /// Accept on these, and for a while on those before them: handshakes may be under way.
    Listen(Vec<Listener>),
    /// Read this queue from now on.
    Hold(Queue),
    /// End; what is not finished is reset.
    Quit,
}

/// How long replaced listeners go on: a client's SYN is retransmitted for some time, and a
/// listener that is closed resets the handshakes it has begun.
const RETIREMENT: Duration = Duration::from_secs(60);

/// How often a worker says that it lives.
const BEAT: Duration = Duration::from_millis(250);

/// How often upstream legs without a client are looked for.
const EXPIRY: Duration = Duration::from_secs(1);

/// A worker that has not looked for so long was paused.
const PAUSED: Duration = EXPIRY.saturating_mul(2);

/// How long after a pause nobody is said to have given up: what has come meanwhile, the clients' SYNs
/// and their destinations' answers, is read first.
const AFTER_PAUSE: Duration = Duration::from_secs(3);

/// How long accepting pauses when descriptors have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections accepted in a row before those accepted earlier have their turn.
const ACCEPTS_PER_TURN: u32 = 32;

/// A running worker.
#[derive(Debug)]
pub(crate) struct Worker {
    commands: UnboundedSender<Command>,
    thread: JoinHandle<()>,
    pub(crate) pool: Arc<PipePool>,
    beat: Arc<Beat>,
}

/// When the worker last had nothing better to do, in milliseconds since it was started.
#[derive(Debug)]
struct Beat {
    started: Instant,
    last: AtomicU64,
}

impl Worker {
    /// Starts a worker that accepts on `listeners` and has at most `pipes` pipes.
    pub(crate) fn start(
        index: usize,
        shared: Arc<Shared>,
        listeners: Vec<Listener>,
        pipes: usize,
    ) -> io::Result<Self> {
        let (commands, inbox) = unbounded_channel();
        let beat = Arc::new(Beat {
            started: Instant::now(),
            last: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let pool = Arc::new(PipePool::new(pipes));
        let context = Arc::new(Context {
            index,
            shared,
            pool: Arc::clone(&pool),
        });
        let worker_beat = Arc::clone(&beat);
        let thread = std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || {
                runtime.block_on(run(context, listeners, inbox, worker_beat));
                // Dropping the runtime drops every connection, and so resets it.
            })?;
        Ok(Self {
            commands,
            thread,
            pool,
            beat,
        })
    }

    /// Has the worker accept on other listeners from now on.
    pub(crate) fn listen(&self, listeners: Vec<Listener>) {
        // A worker that is gone shows in `responsive`.
        let _ = self.commands.send(Command::Listen(listeners));
    }

    /// Has the worker read the SYNs that are held in `queue`.
    pub(crate) fn hold(&self, queue: Queue) {
        let _ = self.commands.send(Command::Hold(queue));
    }

    /// Whether the worker has shown a sign of life within `time`.
    pub(crate) fn responsive(&self, time: Duration) -> bool {
        let last = Duration::from_millis(self.beat.last.load(Relaxed));
        !self.thread.is_finished() && self.beat.started.elapsed().saturating_sub(last) < time
    }

    /// Ends the worker and waits for it.
    pub(crate) fn stop(self) {
        let _ = self.commands.send(Command::Quit);
        if self.thread.join().is_err() {
            tracing::error!("a worker had panicked");
        }
    }
}

async fn run(
    context: Arc<Context>,
    listeners: Vec<Listener>,
    mut inbox: UnboundedReceiver<Command>,
    beat: Arc<Beat>,
) {
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(BEAT);
        loop {
            interval.tick().await;
            let now = beat.started.elapsed().as_millis();
            beat.last
                .store(u64::try_from(now).unwrap_or(u64::MAX), Relaxed);
        }
    });
    tokio::spawn(expire(Arc::clone(&context)));
    tokio::spawn(sample::check_all(Arc::clone(&context)));
    let mut accepting = accept_on(&context, listeners);
    let mut reading = JoinSet::new();
    while let Some(command) = inbox.recv().await {
        match command {
            Command::Listen(listeners) => {
                let retired = std::mem::replace(&mut accepting, accept_on(&context, listeners));
                tokio::spawn(async move {
                    tokio::time::sleep(RETIREMENT).await;
                    drop(retired);
                });
            }
            Command::Hold(queue) => {
                reading.abort_all();
                reading.spawn(queue::read(Arc::clone(&context), Arc::new(queue)));
            }
            Command::Quit => return,
        }
    }
}

/// Gives up upstream legs whose clients do not come, and SYNs whose clients have given up.
async fn expire(context: Arc<Context>) {
    let mut interval = tokio::time::interval(EXPIRY);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut before, mut from) = (Instant::now(), Instant::now());
    loop {
        interval.tick().await;
        let now = Instant::now();
        if now.saturating_duration_since(std::mem::replace(&mut before, now)) > PAUSED {
            from = now + AFTER_PAUSE;
        }
        if now < from {
            continue;
        }
        let shared = &context.shared;
        let Evicted {
            packets, upstreams, ..
        } = shared.held.expire(now);
        shared.counters.unclaimed.add(upstreams.len() as u64);
        for waiting in packets {
            shared.decide(waiting, Decision::Silence);
        }
        shared.note_pending();
    }
}

/// Accepts on every listener until the set is dropped.
fn accept_on(context: &Arc<Context>, listeners: Vec<Listener>) -> JoinSet<()> {
    let mut set = JoinSet::new();
    for listener in listeners {
        set.spawn(accept_loop(Arc::clone(context), listener));
    }
    set
}

async fn accept_loop(context: Arc<Context>, listener: Listener) {
    let Listener {
        socket,
        domain,
        dscp,
    } = listener;
    let socket = match reactor::register(socket.into(), Interest::READABLE) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%error, "register a listener; its connections are not split");
            return;
        }
    };
    let mut spare = None;
    loop {
        let Ok(mut guard) = socket.readable().await else {
            return;
        };
        for _ in 0..ACCEPTS_PER_TURN {
            match accept(&context, socket.as_fd(), &mut spare, domain, dscp) {
                Ok(accepted) => drop(tokio::spawn(serve(Arc::clone(&context), accepted))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    guard.clear_ready();
                    break;
                }
                Err(error) if is_shortage(&error) => {
                    report_shortage(&context, &error);
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    report_failure(&error);
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Accepts only with a socket for the upstream leg in hand, kept in `spare` until it is used.
fn accept(
    context: &Arc<Context>,
    listener: BorrowedFd<'_>,
    spare: &mut Option<Socket>,
    domain: Domain,
    dscp: Dscp,
) -> io::Result<Accepted> {
    let socket = if let Some(socket) = spare.take() {
        socket
    } else {
        let socket = sockopts::new_socket(domain)?;
        // Said already here: there may be nothing to accept, now or ever again while the gate
        // is closed.
        context.shared.admission.recovered();
        socket
    };
    let accepted = stream::accept(listener).and_then(|(client, peer)| {
        let destination = SockRef::from(&client).local_addr()?.as_socket();
        Ok((client, peer, destination))
    });
    let (client, peer, destination) = match accepted {
        Ok((client, peer, Some(destination))) => (client, peer, destination),
        Ok(_) => return Err(io::ErrorKind::Unsupported.into()),
        Err(error) => {
            // accept(2) takes a descriptor before it looks whether there is anybody: where
            // nobody is, there was one.
            if error.kind() == io::ErrorKind::WouldBlock {
                context.shared.admission.recovered();
            }
            *spare = Some(socket);
            return Err(error);
        }
    };
    context.shared.admission.recovered();
    let permit = context.shared.admission.admit(peer.ip());
    let flow = Flow {
        client: peer,
        server: destination,
    };
    let upstream = match context.shared.held.claim(flow, Instant::now()) {
        Claim::Answered(answered) => {
            context.shared.note_pending();
            *spare = Some(socket);
            Upstream::Answered(answered)
        }
        Claim::Asking(waiting, attempt) => {
            context.shared.note_pending();
            waiting.supersede();
            Upstream::Spare(socket, attempt)
        }
        Claim::Unknown => Upstream::Spare(socket, None),
    };
    Ok(Accepted {
        client,
        peer,
        destination,
        upstream,
        domain,
        dscp,
        permit,
    })
}

/// EMFILE, ENFILE, ENOBUFS, ENOMEM: nothing wrong with the connection, which waits.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12))
}

/// The client has left, or its network failed (accept(2)).
fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable, TimedOut,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
            | TimedOut
    )
}

fn report_failure(error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "accept a connection");
    }
}

fn report_shortage(context: &Context, error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    context.shared.counters.accept_pauses.increment();
    context.shared.admission.exhausted();
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %error, held_back,
            "accepting pauses, and new connections are routed unsplit, until some have ended; \
             raise the limit of open files (LimitNOFILE=) or lower [limits] connections"
        );
    }
}
