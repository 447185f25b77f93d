//! An authenticated and encrypted session between two boxes, over any stream of bytes.
//!
//! ```text
//!  the box that gives                        the box that takes
//!  hello: versions, its name        ───────▶  knows the name, and so the key
//!  hello: versions, its name       ◀───────
//!  Noise, first message             ───────▶  proves the key
//!                                  ◀───────  Noise, second message: proves the key
//!  records                          ◀──────▶  records; the first one proves that the first
//!                                             message was no replay
//! ```
//!
//! Noise is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` (The Noise Protocol Framework, revision 34): both boxes
//! prove that they have the pair's key, and every session has keys of its own, which are gone with it. Both
//! hellos are its prologue: a name or a version that somebody changes on the way has the handshake fail,
//! and so does what one session's box has said when it is said back to it.

mod key;
mod open;
mod replays;

pub use key::{Key, KeyError};
pub use open::Session;
pub use replays::Replays;

use crate::wire::FrameError;

/// The versions of the protocol that this crate speaks. In 1 an offer did not say what is translated.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 2..=2;

/// The name of a box: 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

/// The longest name of a box, in bytes.
const LONGEST_NAME: usize = 64;

impl Name {
    /// Takes a name, if it is one.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let printable = name.chars().all(|letter| letter.is_ascii_graphic());
        (printable && (1..=LONGEST_NAME).contains(&name.len())).then(|| Self(name.to_owned()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a session has ended. All of it but the last is what a stranger may bring about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The other side does not speak this protocol.
    #[error("it does not speak the protocol by which connections move")]
    Foreign,
    /// It speaks other versions only.
    #[error("it speaks versions {lowest} to {highest}, this box {} to {}", VERSIONS.start(), VERSIONS.end())]
    Version {
        /// The lowest that it speaks.
        lowest: u16,
        /// The highest.
        highest: u16,
    },
    /// There is no key for the name that it gives.
    #[error("there is no key for a box of its name, `{}`", .0.as_str())]
    Unknown(Name),
    /// It is not the box that was meant.
    #[error("it is `{}`, and not the box that was meant", .0.as_str())]
    Another(Name),
    /// It does not have the key, or something on the way has changed what it said.
    #[error("it does not have the key")]
    WrongKey,
    /// It says what another session has begun with, or has not shown that it does not.
    #[error("it says again what was said before")]
    Replay,
    /// A record is not what the other box has said.
    #[error("a record has been changed on the way")]
    Changed,
    /// The other box has the key, and says what is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The session is over, or has not begun.
    #[error("the session is not open")]
    NotOpen,
}
