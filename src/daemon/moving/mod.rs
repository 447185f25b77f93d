//! Live connections that move to other boxes, and come from them (`[move]`, `[[neighbor]]`; docs/move.md): a
//! thread waits for other boxes, and gives them connections when it is told to. What the boxes say to each other
//! and in which order is [`pepd_move`]'s; here it is done.
//!
//! [`order`] is what is asked for, [`mod@sessions`] are those of other boxes, [`give`] carries out what
//! [`pepd_move::machine::Giver`] says, [`take`] what [`pepd_move::machine::Taker`] does, each over a [`wire`]. The packets are dropped and sent on by [`pepd_net::Moving`], the connections taken
//! out of their sockets and put into others by [`pepd_relay::Mover`], and connection tracking is told of them by [`tracking`].

mod coming;
mod evacuation;
mod figures;
mod filtered;
mod give;
pub mod keys;
mod order;
mod packets;
mod select;
mod sessions;
mod take;
mod tracking;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pepd_admin::api::{MoveOrder, NotMoved};
use pepd_admin::wire::MoveReport;
use pepd_config::{Config, Moves};
use pepd_move::machine::{Given, Members};
use pepd_move::session::{Name, Replays};
use pepd_move::wire::MoveId;
use pepd_packet::FourTuple;
use pepd_relay::{Mover, Observer, Relay, runtime_thread};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::sleep;

pub use self::evacuation::Evacuation;
pub use self::figures::MoveFigures;
pub use self::keys::Keys;
use self::packets::Packets;
pub use self::sessions::sessions;
use self::tracking::Tracking;
pub use self::wire::prove;
use crate::exit::{Failure, Result};

/// The answer to an order: what has become of it, or why nothing has.
pub type Answer = oneshot::Sender<std::result::Result<MoveReport, NotMoved>>;

/// The time in which what is being given is to stay when the daemon ends.
const MOST_PATIENCE: Duration = Duration::from_secs(2);

/// The thread by which connections move, while the configuration has neighbors.
#[derive(Debug, Default)]
pub struct Moving {
    running: Option<(JoinHandle<()>, MoveTeller)>,
    is_ending: Arc<AtomicBool>,
    /// Whether what is being given is to stay.
    gives_up: watch::Sender<bool>,
    /// Whether the kernel's tables are new, and what is sent on is to be entered again.
    renewed: Arc<AtomicBool>,
    figures: MoveFigures,
}

/// What tells the thread to move connections.
#[derive(Clone, Debug)]
pub struct MoveTeller {
    orders: UnboundedSender<(MoveOrder, Answer)>,
    /// Whether an order is being carried out.
    is_busy: Arc<AtomicBool>,
    /// The names of the neighbors.
    names: Arc<[String]>,
}

impl MoveTeller {
    /// Gives the place of the neighbor of this name.
    ///
    /// # Errors
    ///
    /// If there is none, in words.
    pub fn place_of(&self, name: &str) -> std::result::Result<usize, String> {
        place_of(self.names.iter().map(String::as_str), name)
    }

    /// Gives the name of the neighbor at this place.
    pub fn name(&self, place: usize) -> Option<&str> {
        self.names.get(place).map(String::as_str)
    }

    /// Has an order carried out, unless another one is; who waits for the answer hears when it is.
    pub fn tell(&self, order: MoveOrder, answer: Answer) {
        if !self.orders.is_closed() && self.is_busy.swap(true, Relaxed) {
            // Whoever asked may have gone.
            let _ = answer.send(Err(NotMoved::UnderWay));
            return;
        }
        // Where the thread has ended the answer is dropped with it, which says so.
        let _ = self.orders.send((order, answer));
    }
}

/// Gives the place of a name among those of the neighbors, or says that it has none.
fn place_of<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
    name: &str,
) -> std::result::Result<usize, String> {
    let place = names.clone().position(|it| it == name);
    place.ok_or_else(|| {
        let names: Vec<_> = names.collect();
        let names = names.join(", ");
        format!("no [[neighbor]] is named {name}; there are: {names}")
    })
}

impl Moving {
    /// Starts the thread, if the configuration has neighbors.
    ///
    /// # Errors
    ///
    /// If the kernel has no socket or thread for it.
    pub fn start(config: &Config, keys: Option<Keys>, relay: &Relay) -> Result<Self> {
        let mut moving = Self::default();
        let (Some(keys), Some(own)) = (keys, Name::new(&config.node.name)) else {
            return Ok(moving);
        };
        let (orders, inbox) = unbounded_channel();
        let neighbors = config.moves.neighbors.iter();
        let names = neighbors.map(|it| it.name.clone()).collect();
        let (moves, mover, observer) = (config.moves.clone(), relay.mover(), relay.observer());
        let sets = pepd_net::Moving::open(moves.neighbors.len())?;
        let packets = Packets::new(sets, Arc::clone(&moving.renewed), config.capture.mark.mask);
        let gives_up = moving.gives_up.subscribe();
        let (is_ending, figures) = (Arc::clone(&moving.is_ending), moving.figures.clone());
        let is_busy = Arc::new(AtomicBool::new(false));
        let busy = Arc::clone(&is_busy);
        let begin = move || {
            let ground = Ground {
                own,
                keys,
                moves,
                mover,
                observer,
                packets,
                is_ending,
                gives_up,
                figures,
                replays: Rc::default(),
                tracking: Tracking::open(),
                given: RefCell::default(),
                taking: RefCell::default(),
                coming: Cell::new(0),
            };
            run(Rc::new(ground), inbox, busy)
        };
        let failed =
            |error: io::Error| Failure::internal("start the thread that moves connections", error);
        let thread = runtime_thread::spawn("mover".to_owned(), begin);
        let teller = MoveTeller {
            orders,
            is_busy,
            names,
        };
        moving.running = Some((thread.map_err(failed)?, teller));
        Ok(moving)
    }

    /// Gives what tells the thread, where there is one.
    pub fn teller(&self) -> Option<MoveTeller> {
        self.running.as_ref().map(|(_, teller)| teller.clone())
    }

    /// Gives a handle on what has moved.
    pub fn figures(&self) -> MoveFigures {
        self.figures.clone()
    }

    /// Says that the kernel's tables were made anew: what is sent on is to be entered again.
    pub fn renewed(&self) {
        self.renewed.store(true, Relaxed);
    }

    /// Has what is being given stay, and waits until it does: the daemon ends, and sockets that are silent would end without a
    /// word.
    pub async fn give_up(&self) {
        self.gives_up.send_replace(true);
        let deadline = Instant::now() + MOST_PATIENCE;
        while self.figures.under_way() > 0 && Instant::now() < deadline {
            sleep(MOST_PATIENCE / 200).await;
        }
    }

    /// Takes no more connections of others: the daemon is to end.
    pub fn take_no_more(&self) {
        self.is_ending.store(true, Relaxed);
    }
}

/// What all moves have in common.
struct Ground {
    own: Name,
    keys: Keys,
    moves: Moves,
    mover: Mover,
    observer: Observer,
    packets: Packets,
    is_ending: Arc<AtomicBool>,
    gives_up: watch::Receiver<bool>,
    figures: MoveFigures,
    replays: Rc<RefCell<Replays>>,
    tracking: Tracking,
    /// The connections that have been taken.
    given: RefCell<Given>,
    /// Those that are being taken.
    taking: RefCell<BTreeMap<MoveId, UnderWay>>,
    /// How many connections have been promised room here, and are not here yet.
    coming: Cell<u32>,
}

impl Ground {
    /// Waits until what is being given is to stay.
    async fn is_given_up(&self) {
        if self.gives_up.clone().wait_for(|it| *it).await.is_err() {
            // Nobody is there any more who could say so.
            std::future::pending().await
        }
    }
}

/// A move of another box's that is under way here.
struct UnderWay {
    /// The other box.
    from: Name,
    flows: BTreeSet<FourTuple>,
    tells: UnboundedSender<Told>,
}

/// What a move that is under way here is told in another session.
enum Told {
    /// Say which of them will be served here.
    Asked(oneshot::Sender<Members>),
    /// The other box offers some of them again, and so gives none of them by this one; what this holds is dropped once it
    /// is over.
    Superseded(#[expect(dead_code, reason = "its end is what it says")] oneshot::Sender<()>),
}

async fn run(
    ground: Rc<Ground>,
    mut inbox: UnboundedReceiver<(MoveOrder, Answer)>,
    is_busy: Arc<AtomicBool>,
) {
    // Connections that a process before this one has taken.
    for (id, place) in ground.mover.moves() {
        ground.given.borrow_mut().remember(move_id(id), place);
    }
    let neighbors = ground.moves.neighbors.iter();
    ground.figures.begin(neighbors.map(|it| it.name.as_str()));
    ground.figures.gave_before(ground.packets.recall());
    stay_here(&ground);
    let tasks = LocalSet::new();
    let debtor = Rc::clone(&ground);
    tasks.spawn_local(async move { debtor.packets.pay().await });
    let holder = Rc::clone(&ground);
    tasks.spawn_local(async move { holder.packets.hold().await });
    if let Some(listen) = ground.moves.listen {
        tasks.spawn_local(sessions::listen(Rc::clone(&ground), listen));
    }
    tasks
        .run_until(async {
            // One after the other: two that are told the same would have each other's.
            while let Some((order, answer)) = inbox.recv().await {
                let done = order::carry_out(&ground, &order).await;
                order::log(&order, &done);
                is_busy.store(false, Relaxed);
                // Whoever asked may have gone.
                let _ = answer.send(done.map_err(NotMoved::Because));
            }
        })
        .await;
}

/// Has what belongs to the connections that are here come here: a process before this one may have died while
/// some were on their way, and they go on.
fn stay_here(ground: &Ground) {
    let flows = ground.observer.flows().flows(Instant::now());
    let flows = flows.iter().map(|flow| FourTuple {
        client: flow.client,
        server: flow.server,
    });
    let flows: Vec<_> = flows.collect();
    ground.packets.go_on(&ground.tracking.tuples(&flows));
}

/// A move's id in the words in which it is noted beside its connections.
fn words(id: MoveId) -> [u64; 2] {
    let all = u128::from_be_bytes(id.0);
    [all >> 64, all & u128::from(u64::MAX)].map(|word| u64::try_from(word).unwrap_or(0))
}

fn move_id([first, second]: [u64; 2]) -> MoveId {
    MoveId((u128::from(first) << 64 | u128::from(second)).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_from_its_words() {
        let id = MoveId(std::array::from_fn(|at| u8::try_from(at * 17).unwrap()));
        assert_eq!(move_id(words(id)), id);
    }
}
