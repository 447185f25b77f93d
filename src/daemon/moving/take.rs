//! Taking connections of another box.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pepd_config::Neighbor;
use pepd_move::machine::{Members, Taker, TakerAction, TakerEvent, TakerOutcome};
use pepd_move::session::Name;
use pepd_move::wire::{Frame, MoveId, Offer, Offered, Reason, Refused};
use pepd_packet::FourTuple;
use pepd_packet::snapshot::SplitSnapshot;
use pepd_relay::{NotRestored, Silent};
use pepd_telemetry::Arrival;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::filtered::filtered;
use super::give::FROZEN;
use super::tracking::{Ability, kernel};
use super::wire::{Ended, Wire, heard};
use super::{Ground, Told, UnderWay, words};

/// How often it is tried to have the packets of connections come here.
const TRIES: usize = 3;

/// The time that a move has to end of which some connections are offered again.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// Ends what is under way here of the other box's that has some of these: it would be in the way of a move that offers
/// them again, and drop what comes for them when it is over at last.
async fn supersede(ground: &Ground, peer: &Name, flows: &BTreeSet<FourTuple>) {
    let ends: Vec<_> = {
        let taking = ground.taking.borrow();
        let those = taking.values();
        let those = those.filter(|it| it.from == *peer && !it.flows.is_disjoint(flows));
        let told = those.map(|it| {
            let (end, is_over) = oneshot::channel();
            // One that has ended meanwhile drops it.
            let _ = it.tells.send(Told::Superseded(end));
            is_over
        });
        told.collect()
    };
    for is_over in ends {
        let _ = timeout(MOST_WAIT, is_over).await;
    }
}

/// A move under way.
pub(super) struct Taking<'a> {
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
    told: UnboundedReceiver<Told>,
    /// Dropped once all that it has is given up.
    superseded: Option<Told>,
    silent: BTreeMap<u16, Silent>,
    /// Those that connection tracking was told of, and had not known.
    entered: BTreeMap<u16, FourTuple>,
    served: u64,
    /// How its session has broken off.
    broken: Option<String>,
    /// Whether the other box has said that it gives nothing: then it sends nothing on here any more.
    is_told: bool,
}

impl<'a> Taking<'a> {
    pub(super) async fn take(ground: &'a Ground, mut wire: Wire, peer: &Name, offer: Offer) {
        let mut neighbors = ground.moves.neighbors.iter();
        let neighbor = neighbors.find(|it| it.name == peer.as_str());
        let id = offer.id;
        let is_known =
            ground.taking.borrow().contains_key(&id) || !ground.given.borrow().of(id).is_empty();
        let Some(neighbor) = neighbor.filter(|_| !is_known) else {
            let _ = wire.send(&Frame::Abort(Reason::Confused)).await;
            return;
        };
        let those = offer.flows.clone();
        let flows: BTreeSet<_> = those.iter().map(|it| it.flow).collect();
        supersede(ground, peer, &flows).await;
        let (tells, told) = unbounded_channel();
        let under_way = UnderWay {
            from: peer.clone(),
            flows,
            tells,
        };
        ground.taking.borrow_mut().insert(id, under_way);
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
            told,
            superseded: None,
            silent: BTreeMap::new(),
            entered: BTreeMap::new(),
            served: 0,
            broken: None,
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
            heard = heard(&mut self.wire, deadline) => match heard {
                Some(Ok(frame)) => {
                    self.is_told |= matches!(frame, Frame::Abort(_));
                    TakerEvent::Received(frame)
                }
                Some(Err(why)) => self.cut(&why),
                None => TakerEvent::Tick,
            },
            Some(told) = self.told.recv() => match told {
                Told::Asked(asked) => {
                    self.actions.extend(self.taker.on(TakerEvent::Asked, Instant::now()));
                    // What is said is a promise: it is kept before anything else is heard.
                    let _ = asked.send(self.taker.will_serve());
                    TakerEvent::Tick
                }
                Told::Superseded(_) => {
                    self.superseded = Some(told);
                    // It had them come to itself again before it offered them again.
                    self.is_told = true;
                    self.cut(&Ended::Superseded)
                }
            }
        }
    }

    fn cut(&mut self, why: &Ended) -> TakerEvent {
        self.broken.get_or_insert_with(|| why.to_string());
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
                let why = Reason::Packets;
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
            return TakerEvent::Unready(Reason::Packets);
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
                    let why = kernel(error.errno());
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
        while let Ok(told) = self.told.try_recv() {
            if let Told::Asked(asked) = told {
                let _ = asked.send(self.taker.will_serve());
            }
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
            Some(TakerOutcome::Never(why)) => match (&self.broken, why) {
                (Some(why), _) => {
                    tracing::warn!(
                        neighbor = name,
                        why,
                        "a move has broken off: no connection has come"
                    );
                }
                // The other box knows why, and may only have asked.
                (None, Reason::Cancelled) => {
                    tracing::debug!(neighbor = name, "a move was cancelled");
                }
                (None, why) => {
                    tracing::info!(neighbor = name, %why, "no connection has come from another box");
                }
            },
            None => {}
        }
    }
}
