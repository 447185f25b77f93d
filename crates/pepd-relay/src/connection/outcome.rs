//! The way in which a connection ended.

use crate::connection::leg::Failure;

/// The way in which relaying came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions have ended.
    Own,
    /// The bytes that came before a failure could not be delivered in time.
    Cut,
}

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Both directions with a FIN, everything delivered.
    Closed,
    /// The connection ended with an error on the client leg, passed on.
    ClientFailed(Failure),
    /// The connection ended with an error on the upstream leg, passed on.
    UpstreamFailed(Failure),
    /// One leg had failed, and what had come before could not be delivered.
    Cut,
    /// It goes on elsewhere, or as another one here.
    GoesOn,
}
