//! The names that operators, dashboards and the gate find in the table: they stay as they are.

use std::fmt;

use crate::prefix::Family;

/// The table's name, in the `inet` family.
pub(crate) const TABLE: &str = "pepd";

/// The prefix of the counter of a tunnel's filter, before the peer's name.
pub(crate) const GUARD: &str = "guard-";
/// The counter of IP in IP from no peer.
pub(crate) const STRANGERS: &str = "strangers";

/// The fields that tell one SYN from another. The addresses are left out: without them no two
/// connections are alike either, since a client chooses its first sequence number at random (RFC
/// 6528), and whoever guesses another's gets it routed, no more.
pub(crate) const SYN_KEY: &str = "tcp sport . tcp dport . tcp sequence";

/// The counters, in the order in which they are listed, each with its comment in the table.
pub(crate) const COUNTERS: [(&str, &str); 7] = [
    ("captured", "connections handed to the listener"),
    ("bypassed", "connections that a rule exempts"),
    ("gate_closed", "routed: the daemon was not there or full"),
    ("source_full", "routed: the source has its share"),
    ("repeated", "routed: it repeats a SYN that was"),
    ("no_listener", "routed: nobody listens"),
    ("refused_direct", "connections straight to the listener"),
];

/// The counters that are there only where SYNs are held.
pub(crate) const HOLD_COUNTERS: [(&str, &str); 3] = [
    ("detoured", "routed: the answers take another way"),
    ("held", "SYNs that wait for their destination's answer"),
    ("unread", "routed: held, but nobody read them"),
];

/// The counters at both ends of what a split connection passes through on this host: see
/// [`super::passage`]. Each has one for IPv4 and one for IPv6.
pub(crate) const PASSAGE_COUNTERS: [(&str, &str); 16] = [
    ("captured4", "SYNs handed to the listener, IPv4"),
    ("captured6", "SYNs handed to the listener, IPv6"),
    ("delivered4", "of these, SYNs that passed input"),
    ("delivered6", "of these, SYNs that passed input"),
    ("answering4", "SYN-ACKs on their way to clients"),
    ("answering6", "SYN-ACKs on their way to clients"),
    ("answered4", "of these, SYN-ACKs that passed output"),
    ("answered6", "of these, SYN-ACKs that passed output"),
    ("dialing4", "SYNs of upstream legs on their way"),
    ("dialing6", "SYNs of upstream legs on their way"),
    ("dialed4", "of these, SYNs that passed output"),
    ("dialed6", "of these, SYNs that passed output"),
    ("returning4", "SYN-ACKs that came to upstream legs"),
    ("returning6", "SYN-ACKs that came to upstream legs"),
    ("returned4", "of these, SYN-ACKs that passed input"),
    ("returned6", "of these, SYN-ACKs that passed input"),
];

/// The counter of packets that come to sockets of pepd's in a handshake or in TIME_WAIT.
pub(crate) const COMPLETING: (&str, &str) =
    ("completing", "packets to handshakes, or to TIME_WAIT");

/// The counters of SYNs that went on unsplit, and what an operator is told about each.
pub(crate) const UNSPLIT: [(&str, &str); 7] = [
    ("bypassed", "SYNs routed: a rule exempts them"),
    (
        "gate_closed",
        "SYNs routed: the daemon was full, ending, or not well",
    ),
    ("source_full", "SYNs routed: their source has its share"),
    ("repeated", "SYNs routed: they repeat one that was"),
    ("no_listener", "SYNs routed: nobody listened"),
    ("detoured", "SYNs routed: their answers take another way"),
    ("unread", "SYNs routed: held, but nobody read them"),
];

/// A set whose elements come and go while the table stays. Its `Display` is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DynamicSet {
    /// The first of the two sets that hold `tcp` while the daemon is well; see [`GATES`].
    Gate,
    /// The second of them.
    SecondGate,
    /// Holds `tcp` while the workers read what is held, whether the gate is open or closed. Where a
    /// packet misses the element as described at [`GATES`], it is treated as if they did not.
    Readers,
    /// The sources of a family that are over their limit.
    FullSources(Family),
    /// The pairs of source and destination of a family whose answers take another way.
    AsymmetricRoutes(Family),
    /// The SYNs that were routed, of both families, by their ports and sequence number.
    RoutedSyns,
    /// The SYNs that are held, in the same way.
    HeldSyns,
}

/// The two sets of the gate. They are renewed in turn: while an element is replaced, a packet that
/// looks for it may find neither the old one nor the new one: it has read which generation is in
/// force just before the next one is, and the old element is gone when it looks (nft_rhash_lookup,
/// net/netfilter/nft_set_hash.c; newer kernels look again).
pub(crate) const GATES: [DynamicSet; 2] = [DynamicSet::Gate, DynamicSet::SecondGate];

impl DynamicSet {
    /// Every dynamic set, in the order in which a table has them.
    pub(crate) const ALL: [DynamicSet; 9] = [
        DynamicSet::Gate,
        DynamicSet::SecondGate,
        DynamicSet::Readers,
        DynamicSet::FullSources(Family::V4),
        DynamicSet::FullSources(Family::V6),
        DynamicSet::AsymmetricRoutes(Family::V4),
        DynamicSet::AsymmetricRoutes(Family::V6),
        DynamicSet::RoutedSyns,
        DynamicSet::HeldSyns,
    ];

    /// Returns the set's name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            DynamicSet::Gate => "gate",
            DynamicSet::SecondGate => "second_gate",
            DynamicSet::Readers => "readers",
            DynamicSet::FullSources(Family::V4) => "full4",
            DynamicSet::FullSources(Family::V6) => "full6",
            DynamicSet::AsymmetricRoutes(Family::V4) => "detour4",
            DynamicSet::AsymmetricRoutes(Family::V6) => "detour6",
            DynamicSet::RoutedSyns => "routed",
            DynamicSet::HeldSyns => "waiting",
        }
    }

    /// Returns the dynamic set with this name; none if a set's elements stay, or it is not pepd's.
    pub(crate) fn named(name: &str) -> Option<DynamicSet> {
        DynamicSet::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Returns the type of the elements that the daemon puts in; none where the rules themselves
    /// do.
    pub(crate) const fn element_type(self) -> Option<&'static str> {
        match self {
            DynamicSet::Gate | DynamicSet::SecondGate | DynamicSet::Readers => Some("inet_proto"),
            DynamicSet::FullSources(Family::V4) => Some("ipv4_addr"),
            DynamicSet::FullSources(Family::V6) => Some("ipv6_addr"),
            DynamicSet::AsymmetricRoutes(Family::V4) => Some("ipv4_addr . ipv4_addr"),
            DynamicSet::AsymmetricRoutes(Family::V6) => Some("ipv6_addr . ipv6_addr"),
            DynamicSet::RoutedSyns | DynamicSet::HeldSyns => None,
        }
    }
}

impl fmt::Display for DynamicSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
