//! What a counter counts by: enums whose variants carry their name and what they mean, and
//! counters indexed by them. A new variant is written here and where it happens, nowhere else.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;

use crate::counter::Counter;

/// A reason, or an outcome, that is counted.
pub trait Reason: Copy + fmt::Debug + 'static {
    /// All of them, in the order in which they are told.
    const ALL: &'static [Self];

    /// Gives its place in [`Reason::ALL`].
    fn index(self) -> usize;

    /// Gives its name: the value of the metric's label.
    fn name(self) -> &'static str;

    /// Says what it means, for people.
    fn help(self) -> &'static str;
}

/// A counter for each [`Reason`].
#[derive(Debug)]
pub struct CountersBy<R> {
    counters: Box<[Counter]>,
    reason: PhantomData<R>,
}

impl<R: Reason> CountersBy<R> {
    /// Gives all reasons with their numbers now.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> {
        let reasons = R::ALL.iter().copied();
        reasons.map(|reason| (reason, self[reason].get()))
    }

    /// Adds the numbers of all reasons up.
    pub fn total(&self) -> u64 {
        self.counters.iter().map(Counter::get).sum()
    }
}

impl<R: Reason> Default for CountersBy<R> {
    fn default() -> Self {
        Self {
            counters: R::ALL.iter().map(|_| Counter::default()).collect(),
            reason: PhantomData,
        }
    }
}

impl<R: Reason> Index<R> for CountersBy<R> {
    type Output = Counter;

    fn index(&self, reason: R) -> &Counter {
        &self.counters[reason.index()]
    }
}

/// Defines a [`Reason`] from the name and the help beside each variant, so that no list of them
/// can lack one.
macro_rules! reasons {
    (
        $(#[$about:meta])*
        pub enum $reason:ident {
            $($(#[$meaning:meta])* $variant:ident = ($name:literal, $help:literal),)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $reason {
            $($(#[$meaning])* $variant,)+
        }

        impl Reason for $reason {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            fn help(self) -> &'static str {
                match self {
                    $(Self::$variant => $help,)+
                }
            }
        }
    };
}

reasons! {
    /// The reasons why a connection whose SYN was held is routed and not split.
    pub enum UnsplitReason {
        /// Too many SYNs were pending: it made room for a newer one, or found none.
        Full = ("full", "held SYNs routed unsplit: too many were pending"),
        /// The listeners had no room for another handshake: clients had not ended so many.
        Backlog = (
            "backlog",
            "held SYNs routed unsplit: the listeners' queues had no room"
        ),
        /// Its source had as many connections as `connections_per_source` says.
        SourceFull = (
            "source_full",
            "held SYNs routed unsplit: their source had as many connections as it may"
        ),
        /// Too many upstream legs were tried in vain.
        Budget = ("budget", "held SYNs routed unsplit: too many attempts in vain"),
        /// The client's address and port, a route or a descriptor were not available.
        NotPossible = (
            "not_possible",
            "held SYNs routed unsplit: no address, route or descriptor"
        ),
        /// It had waited unread while others were routed, because the daemon had been paused or a
        /// limit had been reached: its connection may be there already.
        Late = ("late", "held SYNs routed unsplit: unread while others were routed"),
        /// The destination's answers to the client take another way.
        AsymmetricRoute = (
            "detour",
            "held SYNs routed unsplit: the destination's answers take another way"
        ),
        /// Split connections do not come through this host.
        Blocked = ("blocked", "held SYNs routed unsplit: split ones do not come through"),
        /// The packet is not a SYN that can be read.
        Unreadable = ("odd", "held packets routed unsplit: no SYN that can be read"),
        /// The link of its upstream leg was gone, and the leg's `while_gone` is "route".
        LinkGone = ("link_gone", "held SYNs routed unsplit: their leg's link was gone"),
        /// The daemon ended.
        Ending = ("ending", "held SYNs routed unsplit: the daemon ended"),
    }
}

reasons! {
    /// The ways in which a held SYN became no connection.
    pub enum HeldSynFailure {
        /// The destination refused, and its client got a RST before any SYN-ACK.
        Refused = ("refused", "held SYNs whose destination refused"),
        /// The link of its upstream leg was gone, and the leg's `while_gone` is "refuse".
        LinkGone = (
            "link_gone",
            "held SYNs that the box refused: their leg's link was gone"
        ),
        /// The client got the ICMP error that the destination gave.
        Unreachable = (
            "unreachable",
            "held SYNs answered with the destination's ICMP error"
        ),
        /// The destination never answered.
        Unanswered = ("unanswered", "held SYNs whose destination never answered"),
        /// The client never came to the upstream leg that was there for it: it had given up, or the
        /// leg had to make room.
        Unclaimed = ("unclaimed", "upstream legs whose client never came"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let counters = CountersBy::<UnsplitReason>::default();
        for (place, &reason) in UnsplitReason::ALL.iter().enumerate() {
            counters[reason].add(1 << place);
        }
        assert_eq!(counters.total(), (1 << UnsplitReason::ALL.len()) - 1);
        for (place, (reason, count)) in counters.iter().enumerate() {
            assert_eq!((reason.index(), count), (place, 1 << place));
        }
    }
}
