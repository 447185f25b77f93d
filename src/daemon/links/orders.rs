//! What the links are told by the rest of the daemon.

use pepd_admin::api::LinkOrder;
use pepd_config::Config;
use tokio::sync::{mpsc, oneshot};

/// Tells the links what somebody knows of one.
#[derive(Debug, Clone)]
pub struct LinkTeller(pub(super) mpsc::UnboundedSender<Order>);

/// Where whoever has told it hears whether there is such a leg; if not, which there are.
pub type LinkAnswer = oneshot::Sender<Result<(), Vec<String>>>;

/// One thing that they are told.
pub(super) enum Order {
    /// Follow the links of this configuration.
    Follow(Box<Config>),
    /// Somebody knows this of one.
    Told(LinkOrder, LinkAnswer),
}

impl LinkTeller {
    /// Tells what somebody knows of a link.
    pub fn tell(&self, order: LinkOrder, answer: LinkAnswer) {
        _ = self.0.send(Order::Told(order, answer));
    }
}
