//! The links under the legs: whether they are there, who says so, and what the relay is told.
//!
//! An interface of this host tells, or the probes of a peer, or a modem ([`dlep`]), or whoever knows
//! more: `pepd link` ([`orders`]). A task of its own hears them all ([`follower`]; [`record`] is what it makes
//! of it), so that the relay hears of a link that is back whatever the daemon waits for. What it knows is
//! in [`states`], and [`noted`] for the process that goes on if this one dies.

mod dlep;
mod follower;
mod link;
mod noted;
mod orders;
mod record;
mod states;
mod watched;

use std::sync::Arc;

use pepd_config::Config;
use pepd_relay::LinkControl;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::follower::Follower;
use self::noted::LinkNotes;
pub use self::noted::gone_links;
pub use self::orders::LinkTeller;
use self::orders::Order;
pub use self::states::LinkStates;
use crate::daemon::holding::HoldTeller;
use crate::daemon::peers::PeerStates;
use crate::keeper::board::Board;

/// The links under the legs. Following them ends when this is dropped.
#[derive(Debug)]
pub struct Links {
    orders: mpsc::UnboundedSender<Order>,
    states: LinkStates,
    task: JoinHandle<()>,
}

impl Links {
    /// Begins to follow the links of this configuration, and to tell the relay and what holds packets, with
    /// what a process before has noted of them. To be called within a runtime.
    pub fn start(
        config: &Config,
        relay: LinkControl,
        holding: HoldTeller,
        peers: PeerStates,
        board: &Arc<Board>,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let states = LinkStates::default();
        let notes = LinkNotes::new(Arc::clone(board));
        let follower = Follower::new(relay, holding, peers, states.clone(), notes);
        let links = Self {
            orders,
            states,
            task: tokio::spawn(follower.run(inbox)),
        };
        links.follow(config);
        links
    }

    /// Follows the links of another configuration. What is known of a leg that stays, stays.
    pub fn follow(&self, config: &Config) {
        _ = self.orders.send(Order::Follow(Box::new(config.clone())));
    }

    /// Gives a handle on what is known of each link.
    pub fn states(&self) -> LinkStates {
        self.states.clone()
    }

    /// Gives a handle by which it is told what others know.
    pub fn teller(&self) -> LinkTeller {
        LinkTeller(self.orders.clone())
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.task.abort();
    }
}
