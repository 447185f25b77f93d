//! Taking connections of another box.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pepd_config::Neighbor;
use pepd_move::machine::{Members, Taker, TakerAction, TakerEvent, TakerOutcome};
use pepd_move::session::Name;
use pepd_move::wire::{Frame, MoveId, Offer, Offered, Reason, Refused};
use pepd_packet::FourTuple;
use pepd_packet::snapshot::SplitSnapshot;
use pepd_relay::{NotRestored, Silent};
use pepd_telemetry::{Arrival, Throttle};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::sleep;

use super::filtered::filtered;
use super::give::FROZEN;
use super::tracking::{Ability, kernel};
use super::wire::{Ended, Wire, heard};
use super::{Ground, words};

/// Sessions at once from the addresses of one neighbor; further ones are refused. Whoever is there beside it, or is
/// translated to its address, is in the way of nobody else.
const OF_EACH: usize = 4;

/// Those of addresses that are no neighbor's: they may be one's all the same, and they may be anybody's, who says nothing
/// and is in the way of the others for as long.
const STRANGERS: usize = 4;

/// Returns how many sessions there may be at once with so many neighbors.
pub const fn sessions(neighbors: usize) -> usize {
    OF_EACH * neighbors + STRANGERS
}

/// How often it is tried to have the packets of connections come here.
const TRIES: usize = 3;

/// The pause before what could not be opened is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes what other boxes hand over, for ever.
pub(super) async fn listen(ground: Rc<Ground>, at: SocketAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    let listener = loop {
        match open(at) {
            Ok(listener) => break listener,
            Err(error) => {
                if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                    tracing::warn!(%at, %error, held_back,
                        "[move] listen: no connection is taken from other boxes; it is tried again");
                }
                sleep(PAUSE).await;
            }
        }
    };
    let of_each = ground.moves.neighbors.iter();
    let of_each: Vec<_> = of_each.map(|_| Arc::new(Semaphore::new(OF_EACH))).collect();
    let of_strangers = Arc::new(Semaphore::new(STRANGERS));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let of_neighbor =
                    neighbor_at(&ground, from.ip()).and_then(|place| of_each.get(place));
                let sessions = Arc::clone(of_neighbor.unwrap_or(&of_strangers));
                let Ok(session) = sessions.try_acquire_owned() else {
                    ground.figures.refused();
                    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                        tracing::warn!(%from, held_back,
                            "who would hand connections over was refused: too many others would, or say nothing");
                    }
                    continue;
                };
                let ground = Rc::clone(&ground);
                tokio::task::spawn_local(async move {
                    serve(&ground, stream, from).await;
                    drop(session);
                });
            }
            // No descriptor, or no memory.
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Returns the place of the neighbor that has an address.
fn neighbor_at(ground: &Ground, address: IpAddr) -> Option<usize> {
    ground.moves.neighbors.iter().position(|it| {
        let via = [it.v4.map(IpAddr::from), it.v6.map(IpAddr::from)];
        it.address.ip() == address || via.contains(&Some(address))
    })
}

fn open(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(at),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    // The address may come with the link.
    match at {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => {
            socket.set_freebind_v6(true)?;
            socket.set_only_v6(true)?;
        }
    }
    socket.bind(&at.into())?;
    socket.listen(64)?;
    TcpListener::from_std(socket.into())
}

async fn serve(ground: &Ground, stream: TcpStream, from: SocketAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    match Wire::answer(ground, stream).await {
        Ok((wire, peer, Frame::Offer(offer))) => Taking::take(ground, wire, &peer, offer).await,
        Ok((mut wire, _, Frame::Ask(id))) => {
            let asked = ground.taking.borrow().get(&id).cloned();
            let (answer, answered) = oneshot::channel();
            let mut serves = match asked.is_some_and(|asked| asked.send(answer).is_ok()) {
                true => answered.await.unwrap_or_default(),
                false => Members::new(),
            };
            serves.extend(ground.given.borrow().of(id));
            let answer = Frame::Answer(id, serves.into_iter().collect());
            // Whoever asked asks again.
            let _ = wire.send(&answer).await;
        }
        Ok((mut wire, ..)) => {
            let _ = wire.send(&Frame::Abort(Reason::Confused)).await;
        }
        // Somebody who looks whether anybody is here, such as `pepd doctor`.
        Err(Ended::Unheard) => {}
        Err(why) => {
            ground.figures.refused();
            if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                tracing::warn!(%from, %why, held_back, "who would hand connections over was refused");
            }
        }
    }
}

/// A move under way.
struct Taking<'a> {
    ground: &'a Ground,
    neighbor: &'a Neighbor,
    those: Vec<Offered>,
    /// Whether what comes is tracked here.
    is_tracked: io::Result<bool>,
    /// How many of them have been promised room under the limits.
    welcome: u32,
    /// Of these, those of which what comes is held, and since when.
    expected: Vec<FourTuple>,
    since: Instant,
    taker: Taker,
    actions: VecDeque<TakerAction>,
    wire: Option<Wire>,
    asks: UnboundedReceiver<oneshot::Sender<Members>>,
    silent: BTreeMap<u16, Silent>,
    /// Those that connection tracking was told of, and had not known.
    entered: BTreeMap<u16, FourTuple>,
    served: u64,
    /// Whether the other box has said that it gives nothing: then it sends nothing on here any more.
    is_told: bool,
}

impl<'a> Taking<'a> {
    async fn take(ground: &'a Ground, mut wire: Wire, peer: &Name, offer: Offer) {
        let mut neighbors = ground.moves.neighbors.iter();
        let neighbor = neighbors.find(|it| it.name == peer.as_str());
        let id = offer.id;
        let is_known =
            ground.taking.borrow().contains_key(&id) || !ground.given.borrow().of(id).is_empty();
        let Some(neighbor) = neighbor.filter(|_| !is_known) else {
            let _ = wire.send(&Frame::Abort(Reason::Confused)).await;
            return;
        };
        let (teller, asks) = unbounded_channel();
        ground.taking.borrow_mut().insert(id, teller);
        let those = offer.flows.clone();
        let session = wire.flow();
        let is_tracked = session.and_then(|session| ground.tracking.is_on(&session));
        let (taker, actions) = Taker::begin(offer, Instant::now());
        let mut taking = Taking {
            ground,
            neighbor,
            those,
            is_tracked,
            welcome: 0,
            expected: Vec::new(),
            since: Instant::now(),
            taker,
            actions: actions.into(),
            wire: Some(wire),
            asks,
            silent: BTreeMap::new(),
            entered: BTreeMap::new(),
            served: 0,
            is_told: false,
        };
        taking.run().await;
        ground.taking.borrow_mut().remove(&id);
        taking.finish();
    }

    async fn run(&mut self) {
        loop {
            while let Some(action) = self.actions.pop_front() {
                if let Some(event) = self.act(action).await {
                    self.actions.extend(self.taker.on(event, Instant::now()));
                }
            }
            if self.taker.outcome().is_some() {
                return;
            }
            let event = self.event().await;
            self.actions.extend(self.taker.on(event, Instant::now()));
        }
    }

    /// Waits for what happens next.
    async fn event(&mut self) -> TakerEvent {
        let deadline = self.taker.deadline();
        tokio::select! {
            heard = heard(&mut self.wire, self.ground, deadline) => match heard {
                Some(Ok(frame)) => {
                    self.is_told |= matches!(frame, Frame::Abort(_));
                    TakerEvent::Received(frame)
                }
                Some(Err(why)) => self.cut(&why),
                None => TakerEvent::Tick,
            },
            Some(asked) = self.asks.recv() => {
                self.actions.extend(self.taker.on(TakerEvent::Asked, Instant::now()));
                // What is said is a promise: it is kept before anything else is heard.
                let _ = asked.send(self.taker.will_serve());
                TakerEvent::Tick
            }
        }
    }

    fn cut(&mut self, why: &Ended) -> TakerEvent {
        tracing::debug!(neighbor = self.neighbor.name, %why, "a session about a move has ended");
        self.wire = None;
        TakerEvent::Cut
    }

    async fn act(&mut self, action: TakerAction) -> Option<TakerEvent> {
        match action {
            TakerAction::Send(frame) => match self.wire.as_mut()?.send(&frame).await {
                Ok(()) => None,
                Err(why) => Some(self.cut(&why)),
            },
            TakerAction::Consider(those) => {
                Some(TakerEvent::Considered(self.consider(&those).await))
            }
            TakerAction::Restore(index, connection) => {
                let refused = self.restore(index, &connection);
                Some(TakerEvent::Restored(index, refused))
            }
            TakerAction::Activate(id, members) => Some(self.activate(id, &members)),
            TakerAction::Discard => {
                self.silent.clear();
                self.forget();
                match self.is_told {
                    true => self.dismiss(),
                    false => {
                        let expected = std::mem::take(&mut self.expected);
                        self.ground.packets.dismiss_later(&expected);
                    }
                }
                None
            }
        }
    }

    /// Tells which of these are not welcome, and has the packets of the others held: those with the address that they
    /// are translated to as well, as connection tracking here is about to give them to sockets that are to say nothing.
    async fn consider(&mut self, those: &[Offered]) -> Vec<Refused> {
        let ground = self.ground;
        let filtered = filtered(self.neighbor, those).await;
        let ability = Ability::towards(those).await;
        let unknown = self.is_tracked.as_ref().err();
        let unknown = unknown.map(|error| kernel(error.raw_os_error()));
        let admission = ground.observer.admission();
        let room = admission.limits().connections;
        let room = room.saturating_sub(admission.live());
        // Others may be about to come in another session.
        let mut room = room.saturating_sub(ground.coming.get());
        let mut refused = Vec::new();
        let mut welcome = Vec::new();
        for (index, offered) in (0..).zip(those) {
            let why = if ground.is_ending.load(Relaxed) {
                Reason::Draining
            } else if !ground.mover.is_between_campuses(&offered.flow) {
                Reason::NoCampus
            } else if filtered.contains(&offered.flow) {
                Reason::Filtered
            } else if let Some(why) = ability.objection(offered).or(unknown) {
                why
            } else if room == 0 {
                Reason::Full
            } else {
                room -= 1;
                self.welcome += 1;
                welcome.extend(offered.tuples());
                continue;
            };
            refused.push(Refused { index, why });
        }
        ground.coming.set(ground.coming.get() + self.welcome);
        self.since = Instant::now();
        let expected = ground.packets.expect(&welcome, FROZEN);
        self.expected = welcome;
        match expected {
            Ok(()) => refused,
            Err(error) => {
                tracing::warn!(%error, "no connection is taken from another box");
                self.dismiss();
                let all = (0..).zip(those);
                let why = Reason::Kernel(0);
                all.map(|(index, _)| Refused { index, why }).collect()
            }
        }
    }

    fn restore(&mut self, index: u16, connection: &SplitSnapshot) -> Option<Reason> {
        let with = words(self.taker.id());
        match self.ground.mover.restore(connection, with, index) {
            Ok(silent) => {
                if let Err(why) = self.enter(index) {
                    return Some(why);
                }
                self.silent.insert(index, silent);
                None
            }
            Err(error) => {
                tracing::debug!(client = %connection.flow.client, server = %connection.flow.server,
                    %error, "a connection of another box is not restored");
                Some(match &error {
                    NotRestored::NoCampus(_) => Reason::NoCampus,
                    NotRestored::NoWorker => Reason::Draining,
                    _ => kernel(error.errno()),
                })
            }
        }
    }

    /// Tells connection tracking of a connection that is there, where it is on: by its own means it would take what it
    /// has not seen from the beginning for new, and translate it, or for invalid.
    fn enter(&mut self, index: u16) -> Result<(), Reason> {
        let Some(offered) = self.those.get(usize::from(index)) else {
            return Ok(());
        };
        let is_tracked = self.is_tracked.as_ref().is_ok_and(|it| *it);
        if (is_tracked || offered.translated.is_some()) && self.ground.tracking.enter(offered)? {
            self.entered.insert(index, offered.flow);
        }
        Ok(())
    }

    /// Has connection tracking forget those that are not served after all.
    fn forget(&mut self) {
        let entered = std::mem::take(&mut self.entered);
        self.ground.tracking.forget(entered.into_values());
    }

    /// Serves these, if what they send is let go; tells which are lost. What comes for them is held until they are
    /// served, and that it is sent on is what the kernel goes on to know: if this process dies meanwhile, they are at the other
    /// box, and reached, or here, and the next one has what belongs to them stay.
    fn activate(&mut self, id: MoveId, members: &Members) -> TakerEvent {
        let flows = self.tuples(members.iter().copied());
        if let Err(error) = self.arrive(&flows) {
            tracing::warn!(%error, "no connection is taken from another box");
            return TakerEvent::Unready(Reason::Route);
        }
        // And what came for others of them, which stay where they are.
        self.expected.retain(|flow| !flows.contains(flow));
        self.dismiss();
        let now = Instant::now();
        let arrival = Arrival {
            from: self.neighbor.name.as_str().into(),
            pause: now.saturating_duration_since(self.since),
            at: now,
        };
        let mut lost = Vec::new();
        for &index in members {
            let silent = self.silent.remove(&index);
            match silent.map(|it| it.activate(arrival.clone())) {
                Some(Ok(())) => {
                    self.ground.given.borrow_mut().remember(id, index);
                    self.entered.remove(&index);
                    self.served += 1;
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "a connection of another box was lost");
                    let why = Reason::Kernel(0);
                    lost.push(Refused { index, why });
                }
                None => {
                    let why = Reason::Ended;
                    lost.push(Refused { index, why });
                }
            }
        }
        let nobodys = self.tuples(lost.iter().map(|it| it.index));
        self.ground.packets.dismiss(&nobodys);
        self.ground.packets.let_in(&flows);
        TakerEvent::Activated(lost)
    }

    /// Gives what the packets of these have: see [`Offered::tuples`].
    fn tuples(&self, indices: impl Iterator<Item = u16>) -> Vec<FourTuple> {
        let those = indices.filter_map(|index| self.those.get(usize::from(index)));
        those.flat_map(Offered::tuples).collect()
    }

    /// Has what belongs to these be dropped no longer. A kernel that is out of memory has some again soon, perhaps.
    fn arrive(&self, flows: &[FourTuple]) -> Result<(), pepd_net::GateError> {
        let mut done = self.ground.packets.arrive(flows);
        for _ in 1..TRIES {
            if done.is_ok() {
                break;
            }
            done = self.ground.packets.arrive(flows);
        }
        done
    }

    fn dismiss(&mut self) {
        self.ground
            .packets
            .dismiss(&std::mem::take(&mut self.expected));
    }

    fn finish(mut self) {
        // What was never restored, or was lost.
        self.forget();
        self.dismiss();
        // Those that are here are counted as the others are.
        let coming = &self.ground.coming;
        coming.set(coming.get().saturating_sub(self.welcome));
        while let Ok(asked) = self.asks.try_recv() {
            let _ = asked.send(self.taker.will_serve());
        }
        let (name, taken) = (&self.neighbor.name, self.served);
        self.ground.figures.of(name, |it| it.taken += taken);
        match self.taker.outcome() {
            Some(TakerOutcome::Serves) => {
                tracing::info!(
                    neighbor = name,
                    taken,
                    "connections have come from another box"
                );
            }
            // The other box knows why, and may only have asked.
            Some(TakerOutcome::Never(Reason::Cancelled)) => {
                tracing::debug!(neighbor = name, "a move was cancelled");
            }
            Some(TakerOutcome::Never(why)) => {
                tracing::info!(neighbor = name, %why, "no connection has come from another box");
            }
            None => {}
        }
    }
}
