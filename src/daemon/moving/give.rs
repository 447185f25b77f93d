//! Giving connections to another box.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pepd_admin::wire::MoveReport;
use pepd_move::machine::{FROZEN_TIME, Giver, GiverAction, GiverEvent, GiverOutcome, Members};
use pepd_move::wire::{Frame, Head, MOST_DATA, Offered, Reason, Refused};
use pepd_packet::FourTuple;
use pepd_relay::{Frozen, Stays};
use tokio::time::timeout_at;

use super::order::{BYTES_TOGETHER, Destination, moved, stayed};
use super::select::Candidate;
use super::wire::{Ended, Wire, heard};
use crate::ui::format;

/// The time for which the kernel drops what belongs to a connection under way, if nobody says that it is to stop:
/// longer than any move takes, the other box being asked what has become of it included.
pub(super) const FROZEN: Duration = Duration::from_secs(90);

/// A move under way.
pub(super) struct Giving<'a> {
    to: &'a Destination<'a>,
    those: &'a [Candidate],
    giver: Giver,
    actions: VecDeque<GiverAction>,
    wire: Option<Wire>,
    frozen: BTreeMap<u16, Frozen>,
    /// Why some stay, in more words than the other box has.
    why: BTreeMap<u16, String>,
    /// The data that those have which were too much together.
    heavy: BTreeMap<u16, u64>,
    /// Whether it was given up as the daemon ends.
    is_given_up: bool,
    /// How the session that had the offer has broken off.
    broken: Option<String>,
    /// When they were frozen.
    since: Option<Instant>,
}

impl<'a> Giving<'a> {
    /// Begins one, over a session that is open.
    pub(super) fn begin(
        to: &'a Destination<'a>,
        those: &'a [Candidate],
        wire: Wire,
        (giver, actions): (Giver, Vec<GiverAction>),
    ) -> Self {
        Self {
            to,
            those,
            giver,
            actions: actions.into(),
            wire: Some(wire),
            frozen: BTreeMap::new(),
            why: BTreeMap::new(),
            heavy: BTreeMap::new(),
            is_given_up: false,
            broken: None,
            since: None,
        }
    }

    /// Goes on until it is over.
    pub(super) async fn run(&mut self) {
        loop {
            while let Some(action) = self.actions.pop_front() {
                if let Some(event) = self.act(action).await {
                    self.actions.extend(self.giver.on(event, Instant::now()));
                }
            }
            if self.giver.outcome().is_some() {
                return;
            }
            let event = self.event().await;
            self.actions.extend(self.giver.on(event, Instant::now()));
        }
    }

    /// Waits for what happens next.
    async fn event(&mut self) -> GiverEvent {
        let (deadline, ground) = (self.giver.deadline(), self.to.ground);
        tokio::select! {
            heard = heard(&mut self.wire, deadline) => match heard {
                Some(Ok(frame)) => GiverEvent::Received(frame),
                Some(Err(why)) => self.cut(&why),
                None => GiverEvent::Tick,
            },
            () = ground.is_given_up(), if !self.is_given_up => {
                self.is_given_up = true;
                GiverEvent::Cancelled
            }
        }
    }

    /// Ends it, as it has not been sent in time.
    fn is_too_slow(&mut self, members: &Members) -> GiverEvent {
        let frozen = self.frozen.values();
        let bytes: usize = frozen.map(|it| it.snapshot().data()).sum();
        let why = format!(
            "the other box did not have it within {} s: with {} others {} were under way",
            FROZEN_TIME.as_secs(),
            members.len().saturating_sub(1),
            format::bytes(bytes as u64)
        );
        self.why
            .extend(members.iter().map(|&index| (index, why.clone())));
        self.cut(&Ended::Late)
    }

    fn cut(&mut self, why: &Ended) -> GiverEvent {
        if self.broken.is_none() {
            tracing::warn!(neighbor = self.to.neighbor.name, %why, "the session about a move has broken off");
            self.broken = Some(format!("the session with the other box broke off: {why}"));
        }
        self.wire = None;
        GiverEvent::Cut
    }

    async fn act(&mut self, action: GiverAction) -> Option<GiverEvent> {
        let ground = self.to.ground;
        match action {
            GiverAction::Send(frame) => self.say(&frame).await,
            GiverAction::Freeze(members) => Some(GiverEvent::Frozen(self.freeze(&members).await)),
            GiverAction::Transfer(members) => {
                let deadline = self.giver.deadline().unwrap_or_else(Instant::now);
                let sent = tokio::select! {
                    sent = timeout_at(deadline.into(), self.transfer(&members)) => sent.ok(),
                    () = ground.is_given_up() => Some(GiverEvent::Cut),
                };
                // A session of which something was half sent is over.
                Some(match sent {
                    Some(GiverEvent::Cut) => self.cut(&Ended::Ending),
                    Some(event) => event,
                    None => self.is_too_slow(&members),
                })
            }
            GiverAction::Give(members) => {
                let given = members.iter().filter_map(|member| self.frozen.get(member));
                given.for_each(Frozen::give);
                None
            }
            GiverAction::Thaw(members) => {
                ground.packets.keep(&self.tuples(&members));
                for member in &members {
                    drop(self.frozen.remove(member));
                }
                None
            }
            GiverAction::Close(members) => {
                for member in &members {
                    if let Some(Err(error)) = self.frozen.remove(member).map(Frozen::close) {
                        tracing::warn!(%error, "a connection that has moved was not closed silently");
                    }
                }
                let those: Vec<_> = self.offered(&members).collect();
                ground.tracking.leave(&those);
                ground.packets.thaw(&self.tuples(&members));
                None
            }
            GiverAction::Connect => {
                let (name, at) = (&self.to.name, self.to.neighbor.address);
                Some(match Wire::open(ground, name, at).await {
                    Ok(wire) => {
                        self.wire = Some(wire);
                        GiverEvent::Connected
                    }
                    Err(why) => self.cut(&why),
                })
            }
        }
    }

    async fn say(&mut self, frame: &Frame) -> Option<GiverEvent> {
        match self.wire.as_mut()?.send(frame).await {
            Ok(()) => None,
            Err(why) => Some(self.cut(&why)),
        }
    }

    /// Freezes these, their packets first: what comes is sent on already, for the other box to hold, as whoever has sent it
    /// would repeat it only after a while. Gives those that could not be.
    async fn freeze(&mut self, members: &Members) -> Vec<Refused> {
        let ground = self.to.ground;
        self.since = Some(Instant::now());
        let flows = self.tuples(members);
        if let Err(error) = ground.packets.give(self.to.place, &flows, FROZEN) {
            ground.packets.keep(&flows);
            let refused = members.iter().map(|&index| {
                self.why.insert(index, error.to_string());
                let why = Reason::Unfit;
                Refused { index, why }
            });
            return refused.collect();
        }
        let freezing = members.iter().filter_map(|&index| {
            let candidate = self.those.get(usize::from(index))?;
            Some(async move { (index, candidate, ground.mover.freeze(candidate.id).await) })
        });
        let mut refused = Vec::new();
        let mut bytes = 0;
        for (index, candidate, frozen) in join_all(freezing).await {
            let why = match frozen.map(|frozen| (self.unfit(candidate, &frozen), frozen)) {
                Ok((None, frozen)) => {
                    // What was sampled may be a second old, or nothing yet where it has just come from another box.
                    let data = frozen.snapshot().data() as u64;
                    if bytes + data <= BYTES_TOGETHER || self.frozen.is_empty() {
                        bytes += data;
                        self.frozen.insert(index, frozen);
                        continue;
                    }
                    self.heavy.insert(index, data);
                    let why = "with the others it is more than moves at once".to_owned();
                    (Reason::Unfit, why)
                }
                // Dropped, it goes on.
                Ok((Some(why), _)) => (Reason::Unfit, why),
                Err(why @ Stays::Ended) => (Reason::Ended, why.to_string()),
                Err(why) => (Reason::Unfit, why.to_string()),
            };
            self.why.insert(index, why.1);
            refused.push(Refused { index, why: why.0 });
        }
        let stay = refused.iter().map(|it| it.index).collect();
        ground.packets.keep(&self.tuples(&stay));
        refused
    }

    /// Tells why something that was frozen cannot move, if it cannot.
    fn unfit(&self, candidate: &Candidate, frozen: &Frozen) -> Option<String> {
        let snapshot = frozen.snapshot();
        let upstream = &snapshot.legs[1];
        if upstream.local != snapshot.flow.client {
            Some("its upstream leg has another port than its client".to_owned())
        } else if snapshot.data() > MOST_DATA {
            Some("it has more data under way than is moved".to_owned())
        } else {
            self.to.ground.tracking.is_changed(&candidate.offered())
        }
    }

    async fn transfer(&mut self, members: &Members) -> GiverEvent {
        for member in members {
            let Some(frozen) = self.frozen.get(member) else {
                continue;
            };
            // It has been looked at that it is not too much.
            let Some((head, data)) = Head::part(*member, frozen.snapshot().clone()) else {
                return GiverEvent::Cancelled;
            };
            let head = Frame::Connection(Box::new(head));
            for frame in std::iter::once(head).chain(data) {
                if let Some(cut) = self.say(&frame).await {
                    return cut;
                }
            }
        }
        let said = self.say(&Frame::Transferred).await;
        said.unwrap_or(GiverEvent::Sent)
    }

    fn offered(&self, members: &Members) -> impl Iterator<Item = Offered> {
        let those = members.iter();
        let those = those.filter_map(|&index| self.those.get(usize::from(index)));
        those.map(Candidate::offered)
    }

    /// Gives what the packets of these have. Answers to what is translated come with what it is translated to: they are
    /// dropped, and sent on, as they are, before connection tracking here sees them, which would give them the client's
    /// address. At the other box its own connection tracking does that.
    fn tuples(&self, members: &Members) -> Vec<FourTuple> {
        let tuples = self.offered(members).map(|it| it.tuples());
        tuples.flatten().collect()
    }

    /// Enters what has become of them, and gives those that may be tried again.
    pub(super) fn finish(self, report: &mut MoveReport) -> Vec<(Candidate, String)> {
        let pause = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let (outcome, stay) = (self.giver.outcome(), self.giver.stay());
        let mut again = Vec::new();
        let mut counts = (0_u64, 0_u64);
        for (index, candidate) in self.those.iter().enumerate() {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            let words = |why: &Reason| {
                let broken = self.broken.as_ref().filter(|_| *why == Reason::Cancelled);
                let known = self.why.get(&index).or(broken);
                known.cloned().unwrap_or(why.to_string())
            };
            match (stay.get(&index), outcome) {
                (Some(why @ Reason::Unfit), _) => {
                    let mut candidate = candidate.clone();
                    candidate.bytes = self.heavy.get(&index).copied().unwrap_or(candidate.bytes);
                    again.push((candidate, words(why)));
                }
                (Some(why), _) => report.stayed.push(stayed(candidate, &words(why))),
                (None, Some(GiverOutcome::Moved { lost })) if !lost.contains(&index) => {
                    report.moved.push(moved(candidate, pause));
                    counts.0 += 1;
                }
                (None, Some(GiverOutcome::Stayed(why))) => {
                    report.stayed.push(stayed(candidate, &words(why)));
                }
                (None, _) => {
                    report.lost.push(moved(candidate, pause));
                    counts.1 += 1;
                }
            }
        }
        let (name, figures) = (&self.to.neighbor.name, &self.to.ground.figures);
        figures.of(name, |it| {
            it.given += counts.0;
            it.lost += counts.1;
            it.longest_pause = it.longest_pause.max(pause.as_secs_f64());
        });
        let (given, lost) = counts;
        if lost > 0 {
            tracing::error!(
                neighbor = name,
                given,
                lost,
                "connections were lost while they moved"
            );
        } else if given > 0 {
            tracing::info!(
                neighbor = name,
                given,
                ?pause,
                "connections have moved to another box"
            );
        }
        again
    }
}
