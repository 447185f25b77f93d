//! The numbers by which pepd's rules and routes are known: tables, preferences, the protocol.

use std::fmt;

/// The routing protocol number (`FRA_PROTOCOL`, `rtm_protocol`) on every rule and route of
/// pepd's: what carries it is pepd's own, what does not is never touched. The number is
/// free in iproute2's `rt_protos`.
pub const PROTOCOL: u8 = 73;

/// The type of service of the echo requests that probe a tunnel, which the answers have as well
/// (net/ipv4/icmp.c, `icmp_reply`). It distinguishes them from all other ICMP between two boxes. It
/// has no meaning as a code point (RFC 2474: 000100).
pub const PROBE_TOS: u8 = 0x10;

/// `lo` in every network namespace (LOOPBACK_IFINDEX, include/net/flow.h).
pub(super) const LOOPBACK: u32 = 1;
pub(super) const LOOPBACK_NAME: &str = "lo";

/// The place of an `ip rule` among all rules (`FRA_PRIORITY`); the least comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Preference(pub u32);

impl Preference {
    /// The rules for captured packets. Early, so that they decide before the operator's own
    /// policy routing (which sees captured packets' mark bits as ever, but must not send the
    /// packets away), and after `local` at 0.
    pub const CAPTURE: Preference = Preference(73);

    /// The rules for probes, which name both ends of a tunnel: before all others, since a campus
    /// may hold these addresses, too.
    pub const PROBE: Preference = Preference(Self::CAPTURE.0 - 1);

    /// The rules of the next-hop tables: after the capture, which takes what is for this box.
    pub const NEXT_HOP: Preference = Preference(Self::CAPTURE.0 + 1);

    /// The rules that lead to routes with an initcwnd: after the next-hop tables, whose routes
    /// have their own.
    pub const INITCWND: Preference = Preference(Self::NEXT_HOP.0 + 1);

    /// Returns whether it is one of the kernel's own rules: `local`, `main` and `default`
    /// (net/ipv4/fib_rules.c, net/ipv6/fib6_rules.c).
    pub(super) fn is_kernels(self) -> bool {
        matches!(self.0, 0 | 32766 | 32767)
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a routing table (`RTA_TABLE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteTable(pub u32);

impl RouteTable {
    /// The table of the host's own routes (RT_TABLE_MAIN, include/uapi/linux/rtnetlink.h).
    pub(crate) const MAIN: RouteTable = RouteTable(254);

    /// Returns whether it cannot be used: it is unspecified, or the kernel's own (compat, default,
    /// main and local; include/uapi/linux/rtnetlink.h).
    pub(crate) fn is_kernels(self) -> bool {
        matches!(self.0, 0 | 252..=255)
    }

    /// Gives the table so many numbers further on, or the last that there is.
    fn plus(self, offset: u32) -> RouteTable {
        RouteTable(self.0.saturating_add(offset))
    }
}

impl fmt::Display for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The tables of one plan, numbered from the configured one on:
///
/// | table | what it is for |
/// | --- | --- |
/// | first | captured packets: everything is delivered here |
/// | + 1 | where there are peers: what comes from this box and from behind it |
/// | + 2 … | one for each peer: what comes through its tunnel |
/// | then | the other ends of the tunnels, for the probes |
/// | then | where a campus wants it: the host's routes with an initcwnd |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteTables {
    pub(crate) first: RouteTable,
    pub(crate) peers: usize,
    pub(crate) has_initcwnd: bool,
}

impl RouteTables {
    /// All tables, and any that an earlier configuration had, are within so many numbers.
    const MOST: u32 = 300;

    /// Gives the table of the capture.
    pub(crate) fn capture(self) -> RouteTable {
        self.first
    }

    /// Gives the table for what comes from this box and from the campuses behind it.
    pub(crate) fn here(self) -> RouteTable {
        self.first.plus(1)
    }

    /// Gives the table for what comes through the tunnel to the peer with this index.
    pub(crate) fn behind(self, peer: usize) -> RouteTable {
        self.first.plus(2).plus(count(peer))
    }

    /// Gives the table with the other ends of the tunnels.
    pub(crate) fn probes(self) -> RouteTable {
        self.first.plus(2).plus(count(self.peers))
    }

    /// Gives the table of the host's routes with an initcwnd; none if no campus needs one.
    pub(crate) fn initcwnd(self) -> Option<RouteTable> {
        self.has_initcwnd
            .then(|| self.first.plus(1).plus(count(self.next_hop().len())))
    }

    /// Lists the next-hop tables, of which there are two more than peers; none without peers.
    pub(crate) fn next_hop(self) -> Vec<RouteTable> {
        if self.peers == 0 {
            return Vec::new();
        }
        (self.here().0..=self.probes().0).map(RouteTable).collect()
    }

    /// Lists all of them: none may hold anything but pepd's routes.
    pub(crate) fn all(self) -> Vec<RouteTable> {
        let mut tables = vec![self.capture()];
        tables.extend(self.next_hop());
        tables.extend(self.initcwnd());
        tables
    }

    /// Returns whether a configuration that begins with `first` may have had this table.
    pub(super) fn may_include(first: RouteTable, table: RouteTable) -> bool {
        (first..=first.plus(Self::MOST)).contains(&table)
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(peers: usize, has_initcwnd: bool) -> RouteTables {
        RouteTables {
            first: RouteTable(7300),
            peers,
            has_initcwnd,
        }
    }

    #[test]
    fn the_tables_of_a_plan_follow_one_another() {
        let numbers = |peers, has_initcwnd| {
            let all = tables(peers, has_initcwnd).all();
            all.into_iter().map(|table| table.0).collect::<Vec<_>>()
        };
        assert_eq!(numbers(0, false), [7300]);
        assert_eq!(numbers(0, true), [7300, 7301]);
        assert_eq!(numbers(2, false), [7300, 7301, 7302, 7303, 7304]);
        assert_eq!(numbers(2, true), [7300, 7301, 7302, 7303, 7304, 7305]);
    }

    #[test]
    fn no_two_uses_share_a_table() {
        let tables = tables(2, true);
        let uses = [
            tables.capture(),
            tables.here(),
            tables.behind(0),
            tables.behind(1),
            tables.probes(),
        ];
        assert_eq!(tables.all()[..5], uses);
        assert_eq!(tables.initcwnd(), tables.all().last().copied());
    }
}
