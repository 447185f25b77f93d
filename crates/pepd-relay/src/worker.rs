//! A worker: a thread, its runtime, its listeners and its pipes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pepd_packet::Rate;
use pepd_sys::nfqueue::Queue;
use tokio::sync::mpsc::{
    Sender, UnboundedReceiver, UnboundedSender, WeakUnboundedSender, channel, unbounded_channel,
};
use tokio::task::{AbortHandle, JoinSet};

use crate::accept::{self, accept_on};
use crate::connection;
use crate::essential::essential;
use crate::first_window::Flights;
use crate::handshake::{expiry, queue};
use crate::listener::Listener;
use crate::moving::asked::{FreezeOrder, GoOn};
use crate::moving::{Frozen, Stays};
use crate::outage::{LinkTasks, Went};
use crate::pipe_pool::PipePool;
use crate::remains::Share;
use crate::runtime_thread;
use crate::sample;
use crate::shared::{Context, Shared};
use crate::slots::found::FoundConnection;

/// A command to a worker.
#[derive(Debug)]
enum Command {
    /// Accept on these, and for a while on those before them: handshakes may be under way.
    Listen(Vec<Listener>),
    /// Read this queue from now on.
    ReadQueue(Queue),
    /// The link under the leg of this name is gone, since then.
    LinkGone(Arc<str>, Went),
    /// It is back.
    LinkUp(Arc<str>),
    /// Freeze the connection with this id, if it is one of this worker's.
    Freeze(u64, FreezeOrder),
    /// Go on with this connection.
    GoOn(Box<FoundConnection>),
    /// End; what is not finished is reset.
    Quit,
}

/// The time for which replaced listeners go on: a client's SYN is retransmitted for some time, and
/// a listener that is closed resets the handshakes it has begun.
const RETIREMENT: Duration = Duration::from_secs(60);

/// The sets of replaced listeners that go on; where reloads follow each other faster, the oldest is
/// closed at once.
const RETIRED_SETS: usize = 2;

/// The sets of listeners that a worker may have open at once: the one in force, those that retire,
/// and the one that a reload prepares.
pub const LISTENER_SETS: usize = 1 + RETIRED_SETS + 1;

/// The interval at which a worker says that it lives.
const BEAT: Duration = Duration::from_millis(250);

/// A running worker.
#[derive(Debug)]
pub(crate) struct Worker {
    commands: UnboundedSender<Command>,
    thread: JoinHandle<()>,
    pub(crate) pool: Arc<PipePool>,
    beat: Arc<Beat>,
}

/// What the workers are told about the links under the legs, by whatever thread hears of them.
#[derive(Clone, Debug)]
pub struct LinkControl {
    shared: Arc<Shared>,
    workers: Vec<UnboundedSender<Command>>,
}

impl LinkControl {
    /// Takes the workers to tell.
    pub(crate) fn new(shared: Arc<Shared>, workers: &[Worker]) -> Self {
        let workers = workers.iter().map(|worker| worker.commands.clone());
        Self {
            shared,
            workers: workers.collect(),
        }
    }

    /// The link under the leg of this name is gone, `since` then: no connection of that leg is given up. Of one that went
    /// before this process was there it is known what it `carried` at most, in bytes a second, if anything did.
    pub fn gone(&self, leg: &Arc<str>, since: Instant, carried: Option<u64>) {
        self.shared.links.gone(leg);
        self.tell(|| Command::LinkGone(Arc::clone(leg), Went { since, carried }));
    }

    /// Returns what arrived over it in the best two seconds of the last minute in which it was up, in bytes a second.
    pub fn carried(&self, leg: &str) -> Option<u64> {
        self.shared.flows.most_delivered(leg)
    }

    /// It is back: the connections of that leg go on at once.
    pub fn up(&self, leg: &Arc<str>) {
        self.shared.links.up(leg);
        self.tell(|| Command::LinkUp(Arc::clone(leg)));
    }

    /// It says how fast it is: at that rate its connections begin again where the leg has none of its
    /// own. None if it does not say any more.
    pub fn set_rate(&self, leg: &Arc<str>, rate: Option<Rate>) {
        self.shared.links.set_rate(leg, rate);
    }

    /// Returns what the leg's connections claim of its link, all together: at most so fast they go on.
    pub fn claimed(&self, leg: &str) -> Rate {
        Rate(self.shared.links.noted(leg).rate.saturating_mul(8))
    }

    fn tell(&self, command: impl Fn() -> Command) {
        for worker in &self.workers {
            // A worker that is gone shows in `responsive`.
            let _ = worker.send(command());
        }
    }
}

/// What freezes a worker's connections, and has it go on with others, for any thread. A worker that is gone
/// has reset its own.
#[derive(Clone, Debug)]
pub(crate) struct Hand(WeakUnboundedSender<Command>);

impl Hand {
    /// Has the worker freeze a connection, if it is one of its own; else `answer` is dropped.
    pub(crate) fn freeze(&self, id: u64, answer: Sender<Result<Frozen, Stays>>) {
        let go_on = self.go_on();
        if let Some(commands) = self.0.upgrade() {
            let _ = commands.send(Command::Freeze(id, FreezeOrder { answer, go_on }));
        }
    }

    /// Returns what has the worker go on with a connection.
    pub(crate) fn go_on(&self) -> GoOn {
        let commands = self.0.clone();
        GoOn::new(move |connection| {
            if let Some(commands) = commands.upgrade() {
                let _ = commands.send(Command::GoOn(Box::new(connection)));
            }
        })
    }
}

/// The time at which the worker last had nothing better to do, in milliseconds since it was
/// started.
#[derive(Debug)]
struct Beat {
    started: Instant,
    last: AtomicU64,
}

impl Worker {
    /// Starts a worker that accepts on `listeners`, has at most `pipes` pipes, and goes on with its
    /// `share` of what another process has left.
    pub(crate) fn start(
        index: usize,
        shared: Arc<Shared>,
        listeners: Vec<Listener>,
        pipes: usize,
        share: Share,
    ) -> io::Result<Self> {
        let (commands, inbox) = unbounded_channel();
        let beat = Arc::new(Beat {
            started: Instant::now(),
            last: AtomicU64::new(0),
        });
        let pool = Arc::new(PipePool::new(pipes));
        let context = Arc::new(Context {
            index,
            shared,
            pool: Arc::clone(&pool),
            watched: Arc::default(),
            flights: Flights::default(),
        });
        let worker_beat = Arc::clone(&beat);
        // When it ends it drops every connection, and so resets it.
        let thread = runtime_thread::spawn(format!("worker-{index}"), move || {
            essential(run(context, listeners, share, inbox, worker_beat))
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
    pub(crate) fn read_queue(&self, queue: Queue) {
        let _ = self.commands.send(Command::ReadQueue(queue));
    }

    /// Returns what freezes its connections, and has it go on with others.
    pub(crate) fn hand(&self) -> Hand {
        Hand(self.commands.downgrade())
    }

    /// Returns whether the worker has shown a sign of life within `time`.
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
    mut share: Share,
    mut inbox: UnboundedReceiver<Command>,
    beat: Arc<Beat>,
) {
    // First of all: they have waited.
    let connections = std::mem::take(&mut share.connections);
    let (begins, all_begun) = channel(1);
    let going_on = connection::go_on_with_all(Arc::clone(&context), connections, begins);
    tokio::spawn(essential(going_on));
    accept::serve_all(&context, std::mem::take(&mut share.clients));
    tokio::spawn(essential(async move {
        let mut interval = tokio::time::interval(BEAT);
        loop {
            interval.tick().await;
            let now = beat.started.elapsed().as_millis();
            beat.last
                .store(u64::try_from(now).unwrap_or(u64::MAX), Relaxed);
        }
    }));
    tokio::spawn(essential(expiry::run(Arc::clone(&context))));
    tokio::spawn(essential(sample::sample_all(Arc::clone(&context))));
    let mut accepting = accept_on(&context, listeners);
    let mut retiring: VecDeque<AbortHandle> = VecDeque::new();
    let mut reading = JoinSet::new();
    let mut links = LinkTasks::new(all_begun);
    loop {
        let Some(command) = inbox.recv().await else {
            // The process is about to end, and not as it was asked to: the connections go on until it
            // does, and then with the next one.
            return std::future::pending().await;
        };
        match command {
            Command::Listen(listeners) => {
                let retired = std::mem::replace(&mut accepting, accept_on(&context, listeners));
                let retirement = tokio::spawn(async move {
                    tokio::time::sleep(RETIREMENT).await;
                    drop(retired);
                });
                retiring.push_back(retirement.abort_handle());
                while retiring.len() > RETIRED_SETS {
                    retiring.pop_front().inspect(AbortHandle::abort);
                }
            }
            Command::ReadQueue(queue) => {
                reading.abort_all();
                let read = queue::read(Arc::clone(&context), Arc::new(queue));
                reading.spawn(essential(read));
            }
            Command::LinkGone(leg, went) => links.gone(&context, leg, went).await,
            Command::LinkUp(leg) => links.up(&context, leg).await,
            Command::Freeze(id, order) => freeze(&context, id, order),
            Command::GoOn(connection) => go_on(&context, *connection),
            Command::Quit => return,
        }
    }
}

/// Asks a connection to be frozen, if it is one of this worker's.
fn freeze(context: &Context, id: u64, order: FreezeOrder) {
    if let Some(asked) = context.watched.asked(id) {
        asked.freeze(order);
    }
}

/// Goes on with a connection that has been thawed, or has come from another box.
fn go_on(context: &Arc<Context>, connection: FoundConnection) {
    tokio::spawn(connection::go_on(Arc::clone(context), connection));
}
