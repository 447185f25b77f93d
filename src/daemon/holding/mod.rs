//! Connections that stay end to end (`action = "hold-acks"`) while the link to one of their ends is gone:
//! a thread holds their packets, and [`pepd_hold`] says what becomes of each.
//!
//! The capture passes packets to the queue only while the set `away` says so, which the thread renews
//! again and again. So a daemon that is paused or killed holds nothing for long.

mod news;
mod thread;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pepd_admin::wire::Held;
use pepd_config::Config;
use pepd_hold::{Figures, Report};
use pepd_net::Away;
use pepd_relay::Injector;
use pepd_sys::nfqueue::{Kind, Queue, Room};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use self::news::News;
use self::thread::Thread;
use crate::daemon::latest::Latest;
use crate::daemon::wiring::HOLD_QUEUE;
use crate::exit::{Failure, Result};

/// The room for what is held: the headers are all that is read.
const ROOM: Room = Room {
    copied: 256,
    // More than is held, for those that are only read. Kernels look for each packet that has its verdict
    // among all that wait, the oldest first (find_dequeue_entry, net/netfilter/nfnetlink_queue.c).
    packets: 9_216,
    buffer: 8 << 20,
    kind: Kind::Single,
};

/// The thread that holds packets, while the configuration asks for it.
#[derive(Debug)]
pub struct Holding {
    thread: Option<Thread>,
    teller: HoldTeller,
    figures: HeldFigures,
    injector: Option<Arc<Injector>>,
}

/// Tells the thread, if there is one, what is heard of links.
#[derive(Debug, Clone, Default)]
pub struct HoldTeller(Arc<Mutex<Told>>);

/// What a teller has told.
#[derive(Debug, Default)]
struct Told {
    /// Where the thread takes orders, if there is one.
    orders: Option<UnboundedSender<Order>>,
    /// What it has not taken of what was heard.
    news: News,
}

/// What is held, for whoever asks; none where no rule asks for it.
pub type HeldFigures = Latest<Option<Held>>;

/// What the thread is told.
#[derive(Debug)]
enum Order {
    /// Take the news of the link under this leg.
    Hear(Arc<str>),
    Follow(Box<Config>),
    End,
}

/// What the thread takes over.
#[derive(Debug)]
pub struct Opened {
    queue: Queue,
    away: Away,
}

impl Holding {
    /// Makes one that holds nothing. By `injector` an ACK can be made several.
    pub fn new(injector: Option<Arc<Injector>>) -> Self {
        Self {
            thread: None,
            teller: HoldTeller::default(),
            figures: HeldFigures::default(),
            injector,
        }
    }

    /// Opens what another configuration needs, without touching what runs.
    ///
    /// # Errors
    ///
    /// If the queue is another program's, or the kernel has none.
    pub fn prepare(&self, config: &Config) -> Result<Option<Opened>> {
        let runs = self.thread.as_ref().is_some_and(Thread::runs);
        if !config.holds_acks() || runs {
            return Ok(None);
        }
        let queue = Queue::open(HOLD_QUEUE, ROOM).map_err(|error| refused(&error))?;
        let away = Away::open()?;
        Ok(Some(Opened { queue, away }))
    }

    /// Holds packets as another configuration asks, with what was opened for it.
    pub fn follow(&mut self, config: &Config, opened: Option<Opened>) {
        if !config.holds_acks() {
            self.end();
            return;
        }
        let Some(opened) = opened else {
            self.teller.order(Order::Follow(Box::new(config.clone())));
            return;
        };
        let (orders, inbox) = unbounded_channel();
        let handles = (self.teller(), self.figures());
        match Thread::start(opened, config, inbox, handles, self.injector.clone()) {
            Ok(thread) => self.thread = Some(thread),
            // The next reload tries again.
            Err(error) => tracing::error!(%error, "no packet is held while links are gone"),
        }
        self.teller.set(Some(orders));
    }

    /// Gives a handle by which it is told of links.
    pub fn teller(&self) -> HoldTeller {
        self.teller.clone()
    }

    /// Gives a handle on what is held.
    pub fn figures(&self) -> HeldFigures {
        self.figures.clone()
    }

    /// Lets go all packets, and ends.
    pub fn end(&mut self) {
        self.teller.order(Order::End);
        self.teller.set(None);
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
        self.figures.set(None);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.end();
    }
}

fn refused(error: &io::Error) -> Failure {
    let cure = match error.raw_os_error() {
        Some(libc::EBUSY) => "another program reads it: end that",
        _ => "take the rules with `action = \"hold-acks\"` out, or load the module nfnetlink_queue",
    };
    Failure::temporary(format!("NFQUEUE {HOLD_QUEUE}: {error}; {cure}"))
}

impl HoldTeller {
    /// Tells what is heard of the link under a leg.
    pub fn hear(&self, leg: &Arc<str>, report: Report) {
        let mut told = self.lock();
        // However much is heard, only the last of it waits, and one order for each leg.
        if told.orders.is_some() && told.news.hear(leg, report) {
            told.order(Order::Hear(Arc::clone(leg)));
        }
    }

    /// Takes the news of a leg, for the thread.
    fn take(&self, leg: &Arc<str>) -> Option<Report> {
        self.lock().news.take(leg)
    }

    fn order(&self, order: Order) {
        self.lock().order(order);
    }

    fn set(&self, orders: Option<UnboundedSender<Order>>) {
        let news = News::default();
        *self.lock() = Told { orders, news };
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            _ = orders.send(order);
        }
    }
}

/// Says what is held, for whoever asks.
fn held(figures: Figures) -> Held {
    Held {
        connections: figures.flows as u64,
        acks: figures.acks as u64,
        packets: figures.packets as u64,
        bytes: figures.bytes as u64,
        acks_total: figures.acks_total,
        parts_total: figures.parts_total,
        packets_total: figures.packets_total,
        repeated_total: figures.repeated_total,
        beyond_total: figures.beyond_total,
    }
}
