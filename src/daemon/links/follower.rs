//! The task that hears of all links, and tells the relay and what holds packets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use pepd_admin::api::LinkOrder;
use pepd_admin::wire::{LinkReport, Liveness};
use pepd_config::{Config, LinkSource, Rate};
use pepd_dlep::session::Link as Said;
use pepd_hold::Report;
use pepd_net::{InterfaceChange, Interfaces};
use pepd_relay::LinkControl;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::dlep::Modems;
use super::link::{Link, beside};
use super::noted::LinkNotes;
use super::orders::Order;
use super::record::{Heard, State};
use super::states::LinkStates;
use super::watched::Watched;
use crate::daemon::holding::HoldTeller;
use crate::daemon::peers::PeerStates;

/// The time for which a link has to be up until nothing is left to do for its connections, besides that for which
/// they may wait for an acknowledgement.
const RESTARTED_FOR: Duration = Duration::from_secs(60);

/// Who tells where somebody has.
const TOLD: &str = "pepd link";

/// The task that hears of all links.
pub(super) struct Follower {
    relay: LinkControl,
    holding: HoldTeller,
    peers: PeerStates,
    modems: Modems,
    /// What each modem was heard to say last.
    said: BTreeMap<String, Said>,
    states: LinkStates,
    legs: BTreeMap<Arc<str>, Link>,
    notes: LinkNotes,
    /// Whether each interface that there is carries packets, as was heard last.
    interfaces: BTreeMap<String, bool>,
}

impl Follower {
    /// Begins with no link but what is in `notes`, and says what it knows in `states`.
    pub(super) fn new(
        relay: LinkControl,
        holding: HoldTeller,
        peers: PeerStates,
        states: LinkStates,
        notes: LinkNotes,
    ) -> Self {
        Self {
            relay,
            holding,
            peers,
            modems: Modems::default(),
            said: BTreeMap::new(),
            states,
            legs: BTreeMap::new(),
            notes,
            interfaces: BTreeMap::new(),
        }
    }

    /// Hears and tells until nobody gives orders any more.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        let mut interfaces = follow_interfaces().await;
        let modems = self.modems.changes();
        while let Some(change) = interfaces.as_mut().and_then(Interfaces::heard) {
            self.interface(change);
        }
        loop {
            let deadline = self.legs.values().filter_map(|link| link.record.deadline());
            let deadline = deadline.min();
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Follow(config)) => self.follow(&config),
                    Some(Order::Told(order, answer)) => _ = answer.send(self.told(&order)),
                    None => return,
                },
                change = next(&mut interfaces) => self.interface(change),
                () = self.peers.changed() => self.peers(),
                () = modems.notified() => self.modems(),
                () = at(deadline) => self.tick(),
            }
            self.notes.note(&self.legs);
            self.publish();
        }
    }

    fn follow(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.legs);
        let (mut known, mut changed) = (BTreeSet::new(), BTreeSet::new());
        for Watched {
            leg,
            source,
            rate,
            patience,
        } in Watched::all(config)
        {
            let mut link = match before.remove(&leg) {
                Some(link) if link.source == source => {
                    known.insert(Arc::clone(&leg));
                    link
                }
                Some(link) => {
                    changed.insert(Arc::clone(&leg));
                    self.relay.set_rate(&leg, None);
                    Link { source, ..link }
                }
                None => self.go_on(&leg, Link::new(source), patience),
            };
            link.rate = rate;
            self.tell_holding(&leg, &link);
            self.legs.insert(leg, link);
        }
        for leg in self.notes.take_the_rest() {
            // Who waits for a leg that is no more does not for ever.
            self.relay.up(&leg);
        }
        let new = self.legs.iter().filter(|(leg, _)| !known.contains(*leg));
        // What somebody has told holds until something else is heard, also what the process before was told.
        let new = new.filter(|(leg, link)| {
            let is_up = link.record.state() == State::Up;
            link.by.as_deref() != Some(TOLD) || (is_up && changed.contains(*leg))
        });
        let new: Vec<_> = new
            .map(|(leg, link)| (Arc::clone(leg), link.source.clone()))
            .collect();
        for (leg, link) in before {
            if link.record.state() != State::Up {
                self.relay.up(&leg);
                self.holding.hear(&leg, Report::Up(None));
            }
            self.relay.set_rate(&leg, None);
        }
        self.modems.follow(config);
        let modems: BTreeSet<_> = self
            .modems
            .links()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        self.said.retain(|name, _| modems.contains(name));
        // Of the others something else may have been told since.
        for (leg, source) in new {
            match source {
                Some(source) => self.begin(&leg, &source),
                // What told of it does so no longer: it is not gone for ever.
                None => self.hear(&leg, Heard::Up, "a reload"),
            }
        }
    }

    /// Goes on with what a process before has known of the link of a leg, if there was one.
    fn go_on(&mut self, leg: &Arc<str>, mut link: Link, patience: Duration) -> Link {
        let Some(noted) = self.notes.take(leg) else {
            return link;
        };
        link.go_on(noted);
        let Some(gone) = link.gone else {
            return link;
        };
        let name = &**leg;
        match (link.record.state(), link.back) {
            (State::GoingDown | State::Gone, _) => {
                tracing::warn!(leg = name, "the link is still gone");
                self.relay.gone(leg, gone, link.carried);
            }
            // Its connections were being restarted, and some may not have got back what they had before.
            (State::Up, Some(back)) if back.elapsed() < RESTARTED_FOR + patience => {
                tracing::info!(leg = name, "the link has been up for a moment");
                self.relay.gone(leg, gone, link.carried);
                self.relay.up(leg);
            }
            (State::Up, _) => {}
        }
        link
    }

    /// Takes over what is known already by what tells of the link of a leg that is new.
    fn begin(&mut self, leg: &Arc<str>, source: &LinkSource) {
        let is_up = match source {
            LinkSource::Interface(name) => {
                let carries = self.interfaces.get(name).copied();
                if carries.is_none() {
                    tracing::warn!(
                        interface = name,
                        "there is no such interface now, so the link that it tells of counts as gone \
                         (`ip -br link` names those that there are)"
                    );
                }
                // One that is not there carries nothing.
                Some(carries.unwrap_or_default())
            }
            LinkSource::Peer(name) => {
                let peers = self.peers.get();
                let peer = peers.iter().find(|peer| peer.name == *name);
                peer.and_then(|peer| answers(peer.liveness))
            }
            LinkSource::Dlep(name) => self.said.get(name).map(|said| {
                self.relay.set_rate(leg, said.metrics.transmit.map(Rate));
                said.is_up
            }),
        };
        if let Some(is_up) = is_up {
            let heard = if is_up { Heard::Up } else { Heard::Gone };
            self.hear(leg, heard, &self.named(source));
        }
        if let Some(link) = self.legs.get(leg) {
            self.tell_holding(leg, link);
        }
    }

    fn told(&mut self, order: &LinkOrder) -> Result<(), Vec<String>> {
        let heard = match order.report {
            LinkReport::Up => Heard::Up,
            LinkReport::Gone => Heard::Gone,
            LinkReport::GoingDown => Heard::GoingDown(order.time),
        };
        let Some((leg, _)) = self.legs.get_key_value(order.leg.as_str()) else {
            return Err(self.legs.keys().map(|leg| leg.to_string()).collect());
        };
        let leg = Arc::clone(leg);
        self.hear(&leg, heard, TOLD);
        // Who tells is seen also where that changes nothing.
        if let Some(link) = self.legs.get_mut(&leg) {
            link.by.get_or_insert_with(|| TOLD.to_owned());
        }
        // For how long it will be gone may be news though it is known that it is.
        if let Some(link) = self.legs.get(&leg) {
            self.tell_holding(&leg, link);
        }
        Ok(())
    }

    fn interface(&mut self, change: InterfaceChange) {
        let InterfaceChange {
            name,
            is_there,
            carries,
        } = change;
        match is_there {
            true => _ = self.interfaces.insert(name.clone(), carries),
            false => _ = self.interfaces.remove(&name),
        }
        let heard = if carries { Heard::Up } else { Heard::Gone };
        let source = LinkSource::Interface(name);
        let by = self.named(&source);
        for leg in self.legs_of(&source) {
            self.hear(&leg, heard, &by);
            // It may have been gone before, for another reason.
            if let Some(link) = self.legs.get_mut(&leg).filter(|_| !is_there) {
                link.by = Some(by.clone());
            }
        }
    }

    fn peers(&mut self) {
        for peer in self.peers.get() {
            let Some(is_up) = answers(peer.liveness) else {
                continue;
            };
            let heard = if is_up { Heard::Up } else { Heard::Gone };
            self.hear_of(&LinkSource::Peer(peer.name), heard);
        }
    }

    fn modems(&mut self) {
        for (name, said) in self.modems.links() {
            let Some(said) = said else { continue };
            let before = self.said.insert(name.clone(), said);
            let source = LinkSource::Dlep(name);
            if before.map(|before| before.metrics) != Some(said.metrics) {
                for leg in self.legs_of(&source) {
                    self.relay.set_rate(&leg, said.metrics.transmit.map(Rate));
                    if let Some(link) = self.legs.get(&leg) {
                        self.tell_holding(&leg, link);
                    }
                }
            }
            // Once only: who says otherwise meanwhile knows more.
            if before.map(|before| before.is_up) != Some(said.is_up) {
                let heard = if said.is_up { Heard::Up } else { Heard::Gone };
                self.hear_of(&source, heard);
            }
        }
    }

    /// Names what tells, and says of an interface if there is none of this name.
    fn named(&self, source: &LinkSource) -> String {
        match source {
            LinkSource::Interface(name) if !self.interfaces.contains_key(name) => {
                format!("{source}, which does not exist")
            }
            _ => source.to_string(),
        }
    }

    /// Returns the legs of which this tells.
    fn legs_of(&self, source: &LinkSource) -> Vec<Arc<str>> {
        let is_its = |link: &Link| link.source.as_ref() == Some(source);
        let legs = self.legs.iter().filter(|(_, link)| is_its(link));
        legs.map(|(leg, _)| Arc::clone(leg)).collect()
    }

    fn hear_of(&mut self, source: &LinkSource, heard: Heard) {
        for leg in self.legs_of(source) {
            self.hear(&leg, heard, &source.to_string());
        }
    }

    fn hear(&mut self, leg: &Arc<str>, heard: Heard, by: &str) {
        let Some(link) = self.legs.get_mut(leg) else {
            return;
        };
        let now = Instant::now();
        if let Some(state) = link.record.hear(heard, now) {
            return self.enter(leg, state, by);
        }
        let up_at = link.record.deadline().filter(|_| link.record.flaps());
        if let (Some(at), false) = (up_at, link.is_said_to_flap) {
            link.is_said_to_flap = true;
            tracing::info!(
                leg = &**leg,
                by,
                after = ?at.saturating_duration_since(now),
                "the link is up again, but flaps: it is used when it has been up for longer"
            );
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let legs = self.legs.iter_mut();
        let due = legs.filter_map(|(leg, link)| {
            let by = match link.record.flaps() {
                true => "it has flapped, and was up for long enough",
                false => "its time is over",
            };
            Some((Arc::clone(leg), link.record.tick(now)?, by))
        });
        for (leg, state, by) in due.collect::<Vec<_>>() {
            self.enter(&leg, state, by);
        }
    }

    /// Tells the relay and the log that a link is in another state.
    fn enter(&mut self, leg: &Arc<str>, state: State, by: &str) {
        if let Some(link) = self.legs.get_mut(leg) {
            link.enter(state, by, SystemTime::now());
            if state != State::Up {
                link.carried = self.relay.carried(leg);
            }
        }
        // Before the relay does anything about it.
        self.notes.note(&self.legs);
        let gone = self.legs.get(leg).and_then(|link| link.gone);
        let gone = gone.unwrap_or_else(Instant::now);
        if let Some(link) = self.legs.get(leg) {
            self.tell_holding(leg, link);
        }
        let leg_name = &**leg;
        match state {
            State::Up => {
                tracing::info!(leg = leg_name, by, "the link is up");
                self.relay.up(leg);
                // They cannot know of it yet.
                self.peers.ask();
                return;
            }
            State::GoingDown => tracing::info!(leg = leg_name, by, "the link is about to go"),
            State::Gone => tracing::warn!(leg = leg_name, by, "the link is gone"),
        }
        self.relay.gone(leg, gone, None);
    }

    /// Tells what holds packets how a link is.
    fn tell_holding(&self, leg: &Arc<str>, link: &Link) {
        let now = Instant::now();
        let left = link.record.deadline();
        let left = left.map(|at| at.saturating_duration_since(now));
        let report = match link.record.state() {
            State::Up => {
                let said = match &link.source {
                    Some(LinkSource::Dlep(modem)) => self.said.get(modem),
                    _ => None,
                };
                let said = said.and_then(|said| said.metrics.transmit.map(Rate));
                let split = self.relay.claimed(leg);
                Report::Up(link.rate.or(said).map(|rate| beside(rate, split)))
            }
            State::GoingDown => Report::GoingDown(left),
            State::Gone => Report::Gone(left),
        };
        self.holding.hear(leg, report);
    }

    fn publish(&self) {
        let is_told = |link: &Link| link.source.is_some() || link.by.is_some();
        let told = self.legs.iter().filter(|(_, link)| is_told(link));
        let states = told.map(|(leg, link)| {
            let modem = match &link.source {
                Some(LinkSource::Dlep(name)) => self.modems.state(name),
                _ => None,
            };
            link.describe(leg, modem, Instant::now(), SystemTime::now())
        });
        self.states.set(states.collect());
    }
}

/// Returns whether a peer answers, if that is known.
fn answers(liveness: Liveness) -> Option<bool> {
    match liveness {
        Liveness::Answering => Some(true),
        Liveness::Silent => Some(false),
        Liveness::Unknown | Liveness::Unprobed => None,
    }
}

async fn follow_interfaces() -> Option<Interfaces> {
    match Interfaces::follow().await {
        Ok(interfaces) => Some(interfaces),
        Err(error) => {
            tracing::warn!(%error, "no leg hears of its interface");
            None
        }
    }
}

async fn next(interfaces: &mut Option<Interfaces>) -> InterfaceChange {
    match interfaces {
        Some(interfaces) => interfaces.next().await,
        None => std::future::pending().await,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
