//! What the table takes: SYNs, and dials that it can tell to end.

use std::fmt::Debug;

use pepd_packet::{FourTuple, SequenceNumber};

/// A dial under way.
pub(crate) trait Dial: Debug {
    /// A leg that has sent its SYN.
    type Leg: Clone;

    /// Tells it to end, without waiting for it.
    fn stop(&self);

    /// Notes that its leg has sent its SYN.
    fn leg_sent(&mut self, leg: Self::Leg);

    /// Returns its leg, if that has sent its SYN.
    fn leg(&self) -> Option<&Self::Leg>;
}

/// A client's SYN, as it comes.
#[derive(Debug)]
pub(crate) struct ReceivedSyn<P> {
    pub(crate) flow: FourTuple,
    pub(crate) number: SequenceNumber,
    pub(crate) packet: P,
    /// Whether it has waited for so long that one that repeats it may have been routed.
    pub(crate) late: bool,
}
