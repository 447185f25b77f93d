//! Connections that go to another box, or come from one, by way of [`SplitSnapshot`].
//!
//! The one box [freezes](crate::Relay::freeze) a connection: between two of its steps its worker takes it out
//! of its sockets, and it is a [`Frozen`] one, which goes on here when that is dropped, or is closed without
//! a word. The other box [restores](crate::Relay::restore) it: it is a [`Silent`] one, which closes without a
//! word when that is dropped, or goes on there. Both go on as connections do whose process has died
//! (`connection/take_over.rs`).
//!
//! Its packets are to be dropped at both boxes from before it is frozen until it goes on at one of them; that
//! is for others to see to, and so is where they go then.
//!
//! Nothing of the daemon's uses this yet, and until it does, whoever goes on after a crash has to learn two
//! things. A connection that is frozen when its process dies has sockets in repair mode, which are to be given
//! back. And one that has come from another box counts its bytes from there on, and may have had a FIN that
//! its socket does not know: its notes have to say so (`slots/layout.rs`).

pub(crate) mod asked;
mod frozen;
mod silent;

use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

pub(crate) use self::frozen::freeze;
pub use self::frozen::{Frozen, Stays};
pub(crate) use self::silent::restore;
pub use self::silent::{NotRestored, Silent};

/// The time in which a connection is to be frozen: one that is ending does not hear that it is to be.
const MOST_TIME: Duration = Duration::from_secs(2);

/// Waits until a connection is frozen, or is not going to be.
pub(crate) async fn frozen(mut answered: Receiver<Result<Frozen, Stays>>) -> Result<Frozen, Stays> {
    let answer = timeout(MOST_TIME, answered.recv()).await;
    answer.ok().flatten().unwrap_or(Err(Stays::Ended))
}
