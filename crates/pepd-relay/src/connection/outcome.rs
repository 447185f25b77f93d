//! How a connection ended.

use crate::connection::leg::Failure;

/// How relaying came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions have ended.
    Own,
    /// What came before a failure could not be delivered in time.
    Cut,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Both directions with a FIN, everything delivered.
    Closed,
    /// With an error on the client leg, passed on.
    ClientFailed(Failure),
    /// With an error on the upstream leg, passed on.
    UpstreamFailed(Failure),
    /// One leg had failed, and what had come before could not be delivered.
    Cut,
}
