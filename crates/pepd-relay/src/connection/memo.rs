//! What a connection notes for whoever goes on with it if this process dies.
//!
//! The kernel has all of its bytes, but for one that is urgent, and nearly all of its state. What it
//! does not tell is noted before it is used, and taken back before it is given up, so that there is
//! no instruction at which to die would be wrong ([`recovery`](super::recovery)).

use crate::connection::leg::Failure;
use crate::connection::state::{State, Way};

/// Where a connection's notes are taken. None of them waits, or fails.
pub(crate) trait Memo {
    /// The pipe that bytes pass through.
    type Pipe: ?Sized;

    /// The direction uses this pipe, or none any more: it holds nothing then.
    fn note_pipe(&self, way: Way, pipe: Option<&Self::Pipe>);

    /// The urgent byte is about to be taken from the source; or has been delivered, or stays there.
    fn note_urgent(&self, way: Way, byte: Option<u8>);

    /// Bytes are about to be sent that are only then taken away from where they are; or have been.
    fn note_copying(&self, way: Way, copies: bool);

    /// The direction has come so far.
    fn note_state(&self, way: Way, state: State);

    /// What the legs have failed with, the client's first.
    fn note_failures(&self, failures: [Option<Failure>; 2]);
}
