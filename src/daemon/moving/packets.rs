//! What is done with the packets of connections that move: dropped while they are under way, and sent on.
//!
//! What ends that must not fail for long: a connection whose packets are dropped, or sent to and fro between two boxes,
//! hangs. Where the kernel refuses it, it is owed, and tried again until it is done. And who no longer needs packets
//! to be dropped takes nothing from another move that does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pepd_net::{GateError, Moving};
use pepd_packet::FourTuple;
use tokio::time::sleep;

/// The time after which what is owed is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The packets of connections that move.
#[derive(Debug)]
pub(super) struct Packets {
    sets: Moving,
    /// How many moves have the packets of a connection dropped.
    frozen: RefCell<BTreeMap<FourTuple, usize>>,
    owed: RefCell<Owed>,
}

/// What is still to be done.
#[derive(Debug, Default)]
struct Owed {
    thaw: BTreeSet<FourTuple>,
    stay: BTreeSet<FourTuple>,
}

impl Packets {
    pub(super) fn new(sets: Moving) -> Self {
        Self {
            sets,
            frozen: RefCell::default(),
            owed: RefCell::default(),
        }
    }

    /// Has them be dropped for this move, too; whatever comes of it, they are to be thawed.
    pub(super) fn freeze(&self, flows: &[FourTuple], ttl: Duration) -> Result<(), GateError> {
        let mut frozen = self.frozen.borrow_mut();
        for flow in flows {
            *frozen.entry(*flow).or_default() += 1;
        }
        drop(frozen);
        self.sets.freeze(flows, ttl)
    }

    /// Has them be dropped for this move no longer.
    pub(super) fn thaw(&self, flows: &[FourTuple]) {
        let free = self.release(flows);
        if let Err(error) = self.sets.thaw(&free) {
            tracing::warn!(%error, "packets of connections go on being dropped; it is tried again");
            self.owed.borrow_mut().thaw.extend(free);
        }
    }

    /// Has them be sent on to a neighbor.
    pub(super) fn send_on(&self, neighbor: usize, flows: &[FourTuple]) -> Result<(), GateError> {
        let mut owed = self.owed.borrow_mut();
        owed.stay.retain(|flow| !flows.contains(flow));
        drop(owed);
        self.sets.send_on(neighbor, flows)
    }

    /// Has them be sent on no longer.
    pub(super) fn stay(&self, flows: &[FourTuple]) {
        if let Err(error) = self.sets.stay(flows) {
            tracing::warn!(%error, "what belongs to connections that are here may be sent on; it is tried again");
            self.owed.borrow_mut().stay.extend(flows);
        }
    }

    /// Has those of connections that are to be served here come here; what this move has had dropped is dropped for it
    /// no longer.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it: they are still dropped for this move.
    pub(super) fn arrive(&self, flows: &[FourTuple]) -> Result<(), GateError> {
        self.sets.arrive(flows)?;
        self.release(flows);
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

    /// Does what is owed, for ever.
    pub(super) async fn pay(&self) {
        loop {
            sleep(PAUSE).await;
            self.pay_once();
        }
    }

    fn pay_once(&self) {
        let mut owed = self.owed.borrow_mut();
        let frozen = self.frozen.borrow();
        // Another move may have them dropped since.
        owed.thaw.retain(|flow| !frozen.contains_key(flow));
        let list = |flows: &BTreeSet<FourTuple>| flows.iter().copied().collect::<Vec<_>>();
        if !owed.thaw.is_empty() && self.sets.thaw(&list(&owed.thaw)).is_ok() {
            owed.thaw.clear();
        }
        if !owed.stay.is_empty() && self.sets.stay(&list(&owed.stay)).is_ok() {
            owed.stay.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_move_has_dropped_stays_so() {
        let packets = Packets::new(Moving::open(1).unwrap());
        let flow = FourTuple {
            client: "10.1.0.2:40000".parse().unwrap(),
            server: "10.2.0.2:80".parse().unwrap(),
        };
        // There is no table here.
        assert!(packets.freeze(&[flow], PAUSE).is_err());
        assert!(packets.freeze(&[flow], PAUSE).is_err());
        assert!(packets.release(&[flow]).is_empty());
        assert_eq!(packets.release(&[flow]), [flow]);
        assert!(packets.frozen.borrow().is_empty());
    }
}
