//! What is done with the packets of connections that move: what is to be sent is dropped while they are under way; what comes
//! is sent on to the other box, which holds it ([`Coming`]).
//!
//! What ends that must not fail for long: a connection whose packets are dropped, or sent to and fro between two boxes,
//! hangs. Where the kernel refuses it, it is owed, and tried again until it is done. And who no longer needs packets
//! to be dropped takes nothing from another move that does. Where somebody has emptied the kernel's tables
//! (`nft flush ruleset`), what was sent on is sent on again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pepd_net::{GateError, Moving};
use pepd_packet::{FourTuple, MarkMask};
use pepd_telemetry::Throttle;
use tokio::time::sleep;

use super::coming::Coming;

/// The time after which what is owed is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The time in which another box, or the process after its own, has nothing be sent on here any more after a move that has
/// broken off: a process that is made anew on a slow box takes some seconds until it has said so.
const LATER: Duration = Duration::from_secs(30);

/// For how long what is sent on is known here: as long as the kernel does at least.
const KNOWN: Duration = Duration::from_hours(3);

/// Of how many, so that there is a bound.
const MOST_KNOWN: usize = 100_000;

/// The packets of connections that move.
#[derive(Debug)]
pub(super) struct Packets {
    sets: Moving,
    /// How many moves have the packets of a connection dropped.
    frozen: RefCell<BTreeMap<FourTuple, usize>>,
    coming: Coming,
    owed: RefCell<Owed>,
    /// What is sent on, as [`either`] has it: to which neighbor, and since when.
    away: RefCell<BTreeMap<FourTuple, (usize, Instant)>>,
    /// Whether the kernel's tables were made anew, without that.
    renewed: Arc<AtomicBool>,
}

/// Gives a connection with its lower end first, as it is read back from the kernel's sets ([`Moving::sent_on`]).
pub(super) fn either(flow: &FourTuple) -> FourTuple {
    FourTuple {
        client: flow.client.min(flow.server),
        server: flow.client.max(flow.server),
    }
}

/// What is still to be done.
#[derive(Debug, Default)]
struct Owed {
    thaw: BTreeSet<FourTuple>,
    dismiss: BTreeSet<FourTuple>,
    /// And when.
    stay: BTreeMap<FourTuple, Instant>,
}

impl Packets {
    pub(super) fn new(sets: Moving, renewed: Arc<AtomicBool>, mask: MarkMask) -> Self {
        Self {
            sets,
            frozen: RefCell::default(),
            coming: Coming::new(mask),
            owed: RefCell::default(),
            away: RefCell::default(),
            renewed,
        }
    }

    /// Has what comes for these be sent on to a neighbor, for it to hold, and what is sent dropped for this move, too;
    /// whatever comes of it, they are to be [kept](Packets::keep), or to be thawed.
    pub(super) fn give(
        &self,
        neighbor: usize,
        flows: &[FourTuple],
        ttl: Duration,
    ) -> Result<(), GateError> {
        let mut frozen = self.frozen.borrow_mut();
        for flow in flows {
            *frozen.entry(*flow).or_default() += 1;
        }
        drop(frozen);
        self.is_owed_no_more(flows);
        self.sets.send_on(neighbor, flows)?;
        self.note_away(neighbor, flows);
        // Not at once: what was already on its way to a socket gets there.
        self.sets.freeze(flows, ttl)
    }

    /// Has all packets of these go to and fro again: they stay here.
    pub(super) fn keep(&self, flows: &[FourTuple]) {
        self.stay(flows);
        self.thaw(flows);
    }

    /// Has what is sent be dropped for this move no longer.
    pub(super) fn thaw(&self, flows: &[FourTuple]) {
        let free = self.release(flows);
        if let Err(error) = self.sets.thaw(&free) {
            tracing::warn!(%error, "packets of connections go on being dropped; it is tried again");
            self.owed.borrow_mut().thaw.extend(free);
        }
    }

    /// Has what comes for those of another box be held, for this move, too; whatever comes of it, they are to be
    /// dismissed, or [let in](Packets::let_in).
    pub(super) fn expect(&self, flows: &[FourTuple], ttl: Duration) -> Result<(), GateError> {
        self.coming.expect(flows);
        self.is_owed_no_more(flows);
        self.sets.expect(flows, ttl)
    }

    /// Has what is held of those that this move has expected be dropped, and nothing more be held: nothing is sent on here.
    pub(super) fn dismiss(&self, flows: &[FourTuple]) {
        let free = self.coming.dismiss(flows);
        self.hold_no_more(&free);
    }

    /// The same where it may go on being sent on here for a moment: it is dropped as long. Routed, it would come to the ends
    /// with what is between them and the box; and where it was sent on from here before, it would go to and fro.
    pub(super) fn dismiss_later(&self, flows: &[FourTuple]) {
        let free = self.coming.dismiss(flows);
        if let Err(error) = self.sets.expect(&free, LATER) {
            tracing::warn!(%error, "what belongs to connections that have not come is dropped for a while");
        }
    }

    /// Lets in what was held of connections that are served here now, and what still comes: it is sent on no longer. As long
    /// as it is held none of it has the kernel remember to send it on.
    pub(super) fn let_in(&self, flows: &[FourTuple]) {
        self.coming.let_in(flows);
        self.stay(flows);
        // What came meanwhile; as long as it comes to the queue there is no end of it.
        self.coming.read();
        self.hold_no_more(flows);
        self.coming.read_all();
    }

    fn hold_no_more(&self, flows: &[FourTuple]) {
        if let Err(error) = self.sets.dismiss(flows) {
            tracing::warn!(%error, "packets of connections go on being held; it is tried again");
            self.owed.borrow_mut().dismiss.extend(flows);
        }
    }

    /// Has what is still to be done about these not be done: it is something else now.
    fn is_owed_no_more(&self, flows: &[FourTuple]) {
        let mut owed = self.owed.borrow_mut();
        for flow in flows {
            owed.stay.remove(flow);
            owed.dismiss.remove(flow);
        }
    }

    /// Reads what is to be held, for ever.
    pub(super) async fn hold(&self) {
        self.coming.run().await;
    }

    fn note_away(&self, neighbor: usize, flows: &[FourTuple]) {
        let (mut away, now) = (self.away.borrow_mut(), Instant::now());
        if away.len() + flows.len() > MOST_KNOWN {
            away.retain(|_, (_, since)| now.duration_since(*since) < KNOWN);
        }
        let room = MOST_KNOWN.saturating_sub(away.len());
        let known = flows.iter().take(room);
        away.extend(known.map(|flow| (either(flow), (neighbor, now))));
    }

    /// Has them be sent on no longer.
    pub(super) fn stay(&self, flows: &[FourTuple]) {
        self.forget(flows);
        if let Err(error) = self.sets.stay(flows) {
            tracing::warn!(%error, "what belongs to connections that are here may be sent on; it is tried again");
        }
        self.stay_again(flows);
    }

    /// Has the same be done once more in a moment: a packet that was being sent on meanwhile may have entered its connection
    /// again, as each keeps it remembered.
    fn stay_again(&self, flows: &[FourTuple]) {
        let due = Instant::now() + PAUSE;
        let mut owed = self.owed.borrow_mut();
        owed.stay.extend(flows.iter().map(|flow| (*flow, due)));
    }

    /// Has what connections send that are about to be served here be dropped no longer, for whatever move: they may have
    /// been given away a moment ago. What comes for them is held until it is [let in](Packets::let_in).
    ///
    /// # Errors
    ///
    /// If the kernel refuses it: they are still dropped for this move.
    pub(super) fn arrive(&self, flows: &[FourTuple]) -> Result<(), GateError> {
        let (frozen, owed) = (self.frozen.borrow(), self.owed.borrow());
        let is_frozen = |flow: &&FourTuple| frozen.contains_key(*flow) || owed.thaw.contains(*flow);
        let those: Vec<_> = flows.iter().filter(is_frozen).copied().collect();
        drop((frozen, owed));
        self.sets.thaw(&those)?;
        self.release(&those);
        Ok(())
    }

    /// Takes this move from those that have these dropped; gives those that no other has dropped.
    fn release(&self, flows: &[FourTuple]) -> Vec<FourTuple> {
        let mut frozen = self.frozen.borrow_mut();
        let mut free = Vec::new();
        for flow in flows {
            match frozen.get_mut(flow) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    frozen.remove(flow);
                    free.push(*flow);
                }
            }
        }
        free
    }

    fn forget(&self, flows: &[FourTuple]) {
        let mut away = self.away.borrow_mut();
        for flow in flows {
            away.remove(&either(flow));
        }
    }

    /// Takes note of what a process before this one has sent on, as the kernel still does; gives the neighbors.
    pub(super) fn recall(&self) -> BTreeSet<usize> {
        match self.sets.sent_on() {
            Ok(all) => {
                let (mut away, now) = (self.away.borrow_mut(), Instant::now());
                let known = all.into_iter().take(MOST_KNOWN);
                away.extend(known.map(|(flow, neighbor)| (flow, (neighbor, now))));
            }
            Err(error) => {
                tracing::warn!(%error, "what has moved before is not known: should somebody empty the tables of nft, it ends");
            }
        }
        self.away
            .borrow()
            .values()
            .map(|(neighbor, _)| *neighbor)
            .collect()
    }

    /// Has what belongs to these that are here come to them, which a process before this one had on their way here or to
    /// other boxes; what is sent on here for others that it had on their way is dropped for a moment, as by
    /// [`Packets::dismiss_later`].
    pub(super) fn go_on(&self, here: &[FourTuple]) {
        let known: BTreeSet<_> = here.iter().map(either).collect();
        self.stay(here);
        match self.sets.expected() {
            Ok(expected) => {
                let (served, others): (Vec<_>, Vec<_>) =
                    expected.into_iter().partition(|flow| known.contains(flow));
                self.hold_no_more(&served);
                if let Err(error) = self.sets.expect(&others, LATER) {
                    tracing::warn!(%error, "what belongs to connections that have not come is dropped for a while");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "what was on its way here when the process died is not known");
            }
        }
    }

    /// Has everything be sent on that was, the kernel's tables being new.
    fn send_on_again(&self) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
        let mut away = self.away.borrow_mut();
        away.retain(|_, (_, since)| since.elapsed() < KNOWN);
        let mut those: BTreeMap<usize, Vec<FourTuple>> = BTreeMap::new();
        for (flow, (neighbor, _)) in &*away {
            those.entry(*neighbor).or_default().push(*flow);
        }
        for (neighbor, flows) in those {
            if let Err(error) = self.sets.send_on(neighbor, &flows) {
                if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                    tracing::warn!(%error, held_back,
                        "what belongs to connections that have moved is not sent on; it is tried again");
                }
                self.renewed.store(true, Relaxed);
                return;
            }
        }
    }

    /// Does what is owed, for ever.
    pub(super) async fn pay(&self) {
        loop {
            sleep(PAUSE).await;
            self.pay_once();
            if self.renewed.swap(false, Relaxed) {
                self.send_on_again();
            }
        }
    }

    fn pay_once(&self) {
        let mut owed = self.owed.borrow_mut();
        let frozen = self.frozen.borrow();
        // Another move may have them dropped since.
        owed.thaw.retain(|flow| !frozen.contains_key(flow));
        let thaw: Vec<_> = owed.thaw.iter().copied().collect();
        if !thaw.is_empty() && self.sets.thaw(&thaw).is_ok() {
            owed.thaw.clear();
        }
        let dismiss: Vec<_> = owed.dismiss.iter().copied().collect();
        if !dismiss.is_empty() && self.sets.dismiss(&dismiss).is_ok() {
            owed.dismiss.clear();
        }
        let now = Instant::now();
        let is_due = |(flow, due): (&FourTuple, &Instant)| (*due <= now).then_some(*flow);
        let stay: Vec<_> = owed.stay.iter().filter_map(is_due).collect();
        if !stay.is_empty() && self.sets.stay(&stay).is_ok() {
            owed.stay.retain(|_, due| *due > now);
        }
        let unpaid = owed.dismiss.iter().map(either).collect();
        self.coming.tend(now, &unpaid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_move_has_dropped_stays_so() {
        let packets = Packets::new(Moving::open(1).unwrap(), Arc::default(), MarkMask(7));
        let flow = FourTuple {
            client: "10.1.0.2:40000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
        };
        // There is no table here.
        assert!(packets.give(0, &[flow], PAUSE).is_err());
        assert!(packets.give(0, &[flow], PAUSE).is_err());
        assert!(packets.release(&[flow]).is_empty());
        assert_eq!(packets.release(&[flow]), [flow]);
        assert!(packets.frozen.borrow().is_empty());
    }
}
