//! The names that operators, dashboards and the gate find in the table: they stay as they are.

use std::fmt;

use crate::prefix::Family;

/// The name of the table in the `inet` family, and of those in `ip` and `ip6` beside it.
pub(crate) const TABLE: &str = "pepd";

/// The prefix of the counter of a tunnel's filter, before the peer's name.
pub(crate) const GUARD: &str = "guard-";
/// The prefix of the counter of what says that a peer cannot be reached, before the peer's name.
pub(crate) const UNREACHABLE: &str = "unreachable-";
/// The counter of IP in IP from no peer.
pub(crate) const STRANGERS: &str = "strangers";

/// The fields that tell one SYN from another. The addresses are left out: without them no two
/// connections are alike either, since a client chooses its first sequence number at random (RFC
/// 6528), and whoever guesses another's gets it routed, no more.
pub(crate) const SYN_KEY: &str = "tcp sport . tcp dport . tcp sequence";

/// The longest that a client waits before it sends a SYN again and has not given up (the sixth
/// time, by RFC 6298 and net.ipv4.tcp_syn_retries). Each repetition starts the time again.
const SYN_SECONDS: u64 = 64;

/// The longest that a client's acknowledgement may be on its way: a round trip by way of a
/// satellite or two, and the client's first repetitions of data that it sent with it. Each SYN
/// starts the time again.
const HALF_OPEN_SECONDS: u64 = 10;

/// The longest that a segment may be on its way to a connection that a RST has ended, its sender's
/// first repetitions of it included.
const ENDED_SECONDS: u64 = 10;

/// The most sources of a family that can be shut out at once. More are split beyond their share,
/// and the limit of all connections holds.
pub const FULL_SOURCES: usize = 1024;

/// The most pairs of addresses of a family that can be known to have an asymmetric route.
pub const ASYMMETRIC_ROUTES: usize = 4096;

/// The most destinations of a family that can be known to be flooded. What leads to others goes on
/// to the queue, which lets pass what it has no room for.
pub const FLOODED_DESTINATIONS: usize = 1024;

/// The time for which the rate of what repeats a held SYN is remembered.
const SYN_RATE_SECONDS: u64 = 8;

/// The counters, in the order in which they are listed, each with its comment in the table.
pub(crate) const COUNTERS: [(&str, &str); 11] = [
    ("captured", "connections handed to the listener"),
    ("bypassed", "connections that a rule exempts"),
    ("gate_closed", "routed: the daemon was not there or full"),
    ("source_full", "routed: the source has its share"),
    ("repeated", "routed: it repeats a SYN that was"),
    (
        "translated",
        "routed: the host sends it to another destination",
    ),
    (
        "no_listener",
        "dropped: nobody listened, and the gate is shut",
    ),
    ("refused_direct", "connections straight to the listener"),
    ("half_open", "routed: too many handshakes are not finished"),
    ("cookies", "acknowledgements of SYN cookies"),
    ("late", "refused: a RST has ended their connection"),
];

/// The counters that are there only where SYNs are held.
pub(crate) const HOLD_COUNTERS: [(&str, &str); 5] = [
    ("detoured", "routed: the answers take another way"),
    ("flooded", "routed: the destination is flooded"),
    ("excess", "dropped: it repeats a held SYN too often"),
    ("held", "SYNs that wait for their destination's answer"),
    ("unread", "routed: held, but nobody read them"),
];

/// The counter that is there only where a rule is about connections whose ACKs are held.
pub(crate) const HOLD_ACKS: (&str, &str) =
    ("hold_acks", "connections whose ACKs are held in an outage");

/// The counter that is there only where some connections are routed to see what splitting is worth.
pub(crate) const MEASURED: (&str, &str) = ("measured", "routed: to see what splitting is worth");

/// The counter that is there only where it is decided by path whether splitting pays.
pub(crate) const AUTO: (&str, &str) = ("auto", "routed: splitting does not pay on their path");

/// The most pairs of ranges of addresses between which connections can be routed because splitting does not
/// pay there.
pub const AUTO_RANGES: usize = 1024;

/// What NFLOG says with the first SYN of a connection that is routed and watched.
pub const WATCHED_ROUTED: &str = "routed";

/// What it says with that of one that is to be split.
pub const WATCHED_SPLIT: &str = "split";

/// The counter that is there only where connections move to other boxes.
pub(crate) const SENT_ON: (&str, &str) = ("sent_on", "packets of connections that have moved");

/// The most boxes to which connections move, as the marks of pepd's have room for.
pub const NEIGHBORS: usize = 4;

/// The most connections of a family that can be known to have moved to one box, and to be frozen.
pub const MOVED: usize = 65_536;

/// The time for which it is remembered that a connection has moved, from its last packet here on: in it, whoever
/// keeps connections alive has shown that they live (RFC 9293, section 3.8.4, asks for two hours at least, and
/// pepd's own legs do so each minute).
pub(crate) const MOVED_SECONDS: u64 = 3 * 3600;

/// The time for which it is remembered how much was said of a connection that is watched.
const WATCHED_SECONDS: u64 = 30;

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
pub(crate) const UNSPLIT: [(&str, &str); 14] = [
    ("bypassed", "SYNs routed: a rule exempts them"),
    (
        "hold_acks",
        "SYNs routed: their ACKs are held when a link goes",
    ),
    ("measured", "SYNs routed: to see what splitting is worth"),
    ("auto", "SYNs routed: splitting does not pay on their path"),
    (
        "gate_closed",
        "SYNs routed: the daemon was full, flooded, ending, or not well",
    ),
    ("source_full", "SYNs routed: their source has its share"),
    ("repeated", "SYNs routed: they repeat one that was"),
    (
        "translated",
        "SYNs routed: this host translates their destination",
    ),
    ("no_listener", "SYNs dropped: nobody listened any more"),
    ("detoured", "SYNs routed: their answers take another way"),
    ("flooded", "SYNs routed: their destination is flooded"),
    ("excess", "SYNs dropped: they repeat a held one too often"),
    ("unread", "SYNs routed: held, but nobody read them"),
    (
        "half_open",
        "SYNs routed: too many handshakes were not finished",
    ),
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
    /// Holds `tcp` while the daemon holds packets because a link is away. A packet that misses the
    /// element as described at [`GATES`] is routed: its sender sends it again.
    Away,
    /// The sources of a family that are over their limit.
    FullSources(Family),
    /// The pairs of source and destination of a family whose answers take another way.
    AsymmetricRoutes(Family),
    /// The destinations of a family to which more SYNs lead than can be held.
    FloodedDestinations(Family),
    /// The rates of what repeats held SYNs, by ports and sequence number.
    SynRates,
    /// The SYNs that were routed, of both families, by their ports and sequence number.
    RoutedSyns,
    /// The SYNs that are held, in the same way.
    HeldSyns,
    /// The SYNs of a family that were handed to a listener and are not yet acknowledged, by their
    /// addresses and ports.
    HalfOpen(Family),
    /// The connections of a family that a RST has ended on one side, by the addresses and ports of
    /// what may still come from there.
    Ended(Family),
    /// How much was said of the connections of a family that are watched, by the addresses and ports of
    /// each direction.
    Watched(Family),
    /// The pairs of ranges of source and destination of a family between which splitting does not pay.
    Auto(Family),
    /// The pairs between which it is being found out whether it does.
    Explored(Family),
    /// The connections of a family that are on their way to another box or from one, by the addresses and
    /// ports of what belongs to them: it is dropped.
    Frozen(Family),
    /// Those that are on their way from one, in the same way: what comes for them is held.
    Coming(Family),
    /// The connections of a family that have moved to this neighbor, in the same way: what belongs to them
    /// is sent on to it.
    Moved(Family, u8),
}

/// The two sets of the gate. They are renewed in turn: while an element is replaced, a packet that
/// looks for it may find neither the old one nor the new one: it has read which generation is in
/// force just before the next one is, and the old element is gone when it looks (nft_rhash_lookup,
/// net/netfilter/nft_set_hash.c; newer kernels look again).
pub(crate) const GATES: [DynamicSet; 2] = [DynamicSet::Gate, DynamicSet::SecondGate];

impl DynamicSet {
    /// Every dynamic set, in the order in which a table has them.
    pub(crate) const ALL: [DynamicSet; 35] = [
        DynamicSet::Gate,
        DynamicSet::SecondGate,
        DynamicSet::Readers,
        DynamicSet::Away,
        DynamicSet::FullSources(Family::V4),
        DynamicSet::FullSources(Family::V6),
        DynamicSet::AsymmetricRoutes(Family::V4),
        DynamicSet::AsymmetricRoutes(Family::V6),
        DynamicSet::FloodedDestinations(Family::V4),
        DynamicSet::FloodedDestinations(Family::V6),
        DynamicSet::SynRates,
        DynamicSet::RoutedSyns,
        DynamicSet::HeldSyns,
        DynamicSet::HalfOpen(Family::V4),
        DynamicSet::HalfOpen(Family::V6),
        DynamicSet::Ended(Family::V4),
        DynamicSet::Ended(Family::V6),
        DynamicSet::Watched(Family::V4),
        DynamicSet::Watched(Family::V6),
        DynamicSet::Auto(Family::V4),
        DynamicSet::Auto(Family::V6),
        DynamicSet::Explored(Family::V4),
        DynamicSet::Explored(Family::V6),
        DynamicSet::Frozen(Family::V4),
        DynamicSet::Frozen(Family::V6),
        DynamicSet::Coming(Family::V4),
        DynamicSet::Coming(Family::V6),
        DynamicSet::Moved(Family::V4, 0),
        DynamicSet::Moved(Family::V6, 0),
        DynamicSet::Moved(Family::V4, 1),
        DynamicSet::Moved(Family::V6, 1),
        DynamicSet::Moved(Family::V4, 2),
        DynamicSet::Moved(Family::V6, 2),
        DynamicSet::Moved(Family::V4, 3),
        DynamicSet::Moved(Family::V6, 3),
    ];

    /// Returns whether its elements are true whichever daemon there is: SYNs that were routed, which their
    /// clients repeat, connections that are another box's, and those of which something is still sent on here.
    pub(crate) const fn outlives_the_daemon(self) -> bool {
        matches!(
            self,
            DynamicSet::RoutedSyns | DynamicSet::Moved(..) | DynamicSet::Coming(_)
        )
    }

    /// Returns the set's name in the table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            DynamicSet::Gate => "gate",
            DynamicSet::SecondGate => "second_gate",
            DynamicSet::Readers => "readers",
            DynamicSet::Away => "away",
            DynamicSet::FullSources(Family::V4) => "full4",
            DynamicSet::FullSources(Family::V6) => "full6",
            DynamicSet::AsymmetricRoutes(Family::V4) => "detour4",
            DynamicSet::AsymmetricRoutes(Family::V6) => "detour6",
            DynamicSet::FloodedDestinations(Family::V4) => "flooded4",
            DynamicSet::FloodedDestinations(Family::V6) => "flooded6",
            DynamicSet::SynRates => "syn_rates",
            DynamicSet::RoutedSyns => "routed",
            DynamicSet::HeldSyns => "waiting",
            DynamicSet::HalfOpen(Family::V4) => "half_open4",
            DynamicSet::HalfOpen(Family::V6) => "half_open6",
            DynamicSet::Ended(Family::V4) => "ended4",
            DynamicSet::Ended(Family::V6) => "ended6",
            DynamicSet::Watched(Family::V4) => "watched4",
            DynamicSet::Watched(Family::V6) => "watched6",
            DynamicSet::Auto(Family::V4) => "auto4",
            DynamicSet::Auto(Family::V6) => "auto6",
            DynamicSet::Explored(Family::V4) => "explored4",
            DynamicSet::Explored(Family::V6) => "explored6",
            DynamicSet::Frozen(Family::V4) => "frozen4",
            DynamicSet::Frozen(Family::V6) => "frozen6",
            DynamicSet::Coming(Family::V4) => "coming4",
            DynamicSet::Coming(Family::V6) => "coming6",
            DynamicSet::Moved(Family::V4, 0) => "moved4_0",
            DynamicSet::Moved(Family::V6, 0) => "moved6_0",
            DynamicSet::Moved(Family::V4, 1) => "moved4_1",
            DynamicSet::Moved(Family::V6, 1) => "moved6_1",
            DynamicSet::Moved(Family::V4, 2) => "moved4_2",
            DynamicSet::Moved(Family::V6, 2) => "moved6_2",
            DynamicSet::Moved(Family::V4, _) => "moved4_3",
            DynamicSet::Moved(Family::V6, _) => "moved6_3",
        }
    }

    /// Returns the flags of a set. The rules themselves may shut the gate.
    pub(crate) const fn flags(self) -> &'static str {
        match self {
            DynamicSet::Gate
            | DynamicSet::SecondGate
            | DynamicSet::SynRates
            | DynamicSet::RoutedSyns
            | DynamicSet::HeldSyns
            | DynamicSet::HalfOpen(_)
            | DynamicSet::Ended(_)
            | DynamicSet::Watched(_)
            | DynamicSet::Moved(..) => "dynamic, timeout",
            DynamicSet::Readers
            | DynamicSet::Away
            | DynamicSet::FullSources(_)
            | DynamicSet::AsymmetricRoutes(_)
            | DynamicSet::FloodedDestinations(_)
            | DynamicSet::Frozen(_)
            | DynamicSet::Coming(_) => "timeout",
            DynamicSet::Auto(_) | DynamicSet::Explored(_) => "interval, timeout",
        }
    }

    /// Returns the dynamic set with this name; none if a set's elements stay, or it is not pepd's.
    pub(crate) fn named(name: &str) -> Option<DynamicSet> {
        DynamicSet::ALL.into_iter().find(|set| set.name() == name)
    }

    /// Returns how many elements there is room for. An element that has expired takes its place
    /// until the kernel looks after it, once a second (nft_rhash_gc,
    /// net/netfilter/nft_set_hash.c), so that there is more room than the daemon uses.
    pub(crate) const fn size(self) -> usize {
        match self {
            DynamicSet::Gate | DynamicSet::SecondGate | DynamicSet::Readers | DynamicSet::Away => {
                64
            }
            DynamicSet::FullSources(_) => 2 * FULL_SOURCES,
            DynamicSet::AsymmetricRoutes(_) => 2 * ASYMMETRIC_ROUTES,
            DynamicSet::FloodedDestinations(_) => 2 * FLOODED_DESTINATIONS,
            DynamicSet::SynRates | DynamicSet::RoutedSyns | DynamicSet::HeldSyns => 16384,
            DynamicSet::HalfOpen(_) | DynamicSet::Ended(_) | DynamicSet::Watched(_) => 65536,
            DynamicSet::Auto(_) | DynamicSet::Explored(_) => 2 * AUTO_RANGES,
            // An element for each direction.
            DynamicSet::Frozen(_) | DynamicSet::Coming(_) | DynamicSet::Moved(..) => 2 * MOVED,
        }
    }

    /// Returns the key of the elements that the rules put in; none where the daemon does.
    pub(crate) const fn key(self) -> Option<&'static str> {
        match self {
            DynamicSet::SynRates | DynamicSet::RoutedSyns | DynamicSet::HeldSyns => Some(SYN_KEY),
            DynamicSet::HalfOpen(Family::V4)
            | DynamicSet::Ended(Family::V4)
            | DynamicSet::Watched(Family::V4) => {
                Some("ip saddr . ip daddr . tcp sport . tcp dport")
            }
            DynamicSet::HalfOpen(Family::V6)
            | DynamicSet::Ended(Family::V6)
            | DynamicSet::Watched(Family::V6) => {
                Some("ip6 saddr . ip6 daddr . tcp sport . tcp dport")
            }
            _ => None,
        }
    }

    /// Returns the seconds that an element lasts which the rules put in.
    pub(crate) const fn timeout(self) -> Option<u64> {
        match self {
            DynamicSet::SynRates => Some(SYN_RATE_SECONDS),
            DynamicSet::RoutedSyns | DynamicSet::HeldSyns => Some(SYN_SECONDS),
            DynamicSet::HalfOpen(_) => Some(HALF_OPEN_SECONDS),
            DynamicSet::Ended(_) => Some(ENDED_SECONDS),
            DynamicSet::Watched(_) => Some(WATCHED_SECONDS),
            _ => None,
        }
    }

    /// Returns the type of the elements that the daemon puts in; none where the rules themselves
    /// do.
    pub(crate) const fn element_type(self) -> Option<&'static str> {
        match self {
            DynamicSet::Gate | DynamicSet::SecondGate | DynamicSet::Readers | DynamicSet::Away => {
                Some("inet_proto")
            }
            DynamicSet::FullSources(Family::V4) | DynamicSet::FloodedDestinations(Family::V4) => {
                Some("ipv4_addr")
            }
            DynamicSet::FullSources(Family::V6) | DynamicSet::FloodedDestinations(Family::V6) => {
                Some("ipv6_addr")
            }
            DynamicSet::AsymmetricRoutes(Family::V4)
            | DynamicSet::Auto(Family::V4)
            | DynamicSet::Explored(Family::V4) => Some("ipv4_addr . ipv4_addr"),
            DynamicSet::AsymmetricRoutes(Family::V6)
            | DynamicSet::Auto(Family::V6)
            | DynamicSet::Explored(Family::V6) => Some("ipv6_addr . ipv6_addr"),
            DynamicSet::Frozen(Family::V4)
            | DynamicSet::Coming(Family::V4)
            | DynamicSet::Moved(Family::V4, _) => {
                Some("ipv4_addr . ipv4_addr . inet_service . inet_service")
            }
            DynamicSet::Frozen(Family::V6)
            | DynamicSet::Coming(Family::V6)
            | DynamicSet::Moved(Family::V6, _) => {
                Some("ipv6_addr . ipv6_addr . inet_service . inet_service")
            }
            DynamicSet::SynRates
            | DynamicSet::RoutedSyns
            | DynamicSet::HeldSyns
            | DynamicSet::HalfOpen(_)
            | DynamicSet::Ended(_)
            | DynamicSet::Watched(_) => None,
        }
    }
}

impl fmt::Display for DynamicSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
