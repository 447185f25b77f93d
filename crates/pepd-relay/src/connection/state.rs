//! How far a direction has come, and which of the two it is.

/// Which of a connection's two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the client.
    Up,
    /// To the client.
    Down,
}

/// The state of a direction: how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Bytes flow.
    Running,
    /// The source has sent its FIN; it is to be passed on.
    ShuttingDown,
    /// Everything has been delivered, and the FIN after it.
    Done,
    /// The source failed; everything that came before has been delivered.
    SourceFailed,
    /// The sink failed: what the source sends can no longer be delivered.
    SinkFailed,
}

impl State {
    /// Returns whether nothing more can happen.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::SourceFailed | Self::SinkFailed)
    }
}
