//! Prefixes to disjoint ranges.
//!
//! nft's interval sets refuse overlapping elements, and a verdict map cannot say "the
//! longest prefix wins". Nested prefixes are therefore cut into disjoint ranges before they
//! reach the kernel. Prefixes are either nested or disjoint, so one sweep with a stack does.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(crate) const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// Gives that of an address.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Gives the length of a whole address, in bits.
    pub(crate) fn length(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// Gives the prefix of the default route: every address.
    pub(crate) fn everything(self) -> IpNet {
        let any: IpAddr = match self {
            Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Zero is a length that every family has.
        IpNet::new(any, 0).unwrap_or_else(|_| IpNet::from(any))
    }

    /// Names the family, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// Gives the option by which `ip` is told the family.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }

    fn bits(self) -> u32 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// Addresses of one family, `first` and `last` included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) family: Family,
    pub(crate) first: u128,
    pub(crate) last: u128,
}

impl Range {
    /// Gives the first address as it is in a packet.
    pub(crate) fn first_bytes(&self) -> Vec<u8> {
        self.bytes(self.first)
    }

    /// Gives the last address as it is in a packet.
    pub(crate) fn last_bytes(&self) -> Vec<u8> {
        self.bytes(self.last)
    }

    /// Gives the address behind the last one; none if that is the last of all.
    pub(crate) fn end_bytes(&self) -> Option<Vec<u8>> {
        let most = u128::MAX >> (u128::BITS - self.family.bits());
        (self.last < most).then(|| self.bytes(self.last + 1))
    }

    fn bytes(&self, address: u128) -> Vec<u8> {
        let bytes = address.to_be_bytes();
        let unused = bytes.len() - (self.family.bits() / 8) as usize;
        bytes.get(unused..).unwrap_or_default().to_vec()
    }
}

impl From<IpNet> for Range {
    fn from(net: IpNet) -> Range {
        Range {
            family: Family::of(net.addr()),
            first: number(net.network()),
            last: number(net.broadcast()),
        }
    }
}

impl fmt::Display for Range {
    /// Writes an nft set element: a prefix where the range is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host_bits = self.first ^ self.last;
        let is_prefix = host_bits & host_bits.wrapping_add(1) == 0 && self.first & host_bits == 0;
        let first = address(self.family, self.first);
        if self.first == self.last {
            write!(f, "{first}")
        } else if is_prefix {
            let length = self.family.bits() - host_bits.count_ones();
            write!(f, "{first}/{length}")
        } else {
            write!(f, "{first}-{}", address(self.family, self.last))
        }
    }
}

/// Cuts `prefixes` of one family into disjoint ranges in ascending order, each with the
/// owner of the longest prefix that holds it; of two equal prefixes the first one's.
/// Neighbouring ranges of one owner are joined.
pub(crate) fn longest_prefix<O: Copy + PartialEq>(
    family: Family,
    prefixes: impl IntoIterator<Item = (IpNet, O)>,
) -> Vec<(Range, O)> {
    let mut prefixes: Vec<(IpNet, O)> = prefixes
        .into_iter()
        .filter(|(net, _)| Family::of(net.addr()) == family)
        .map(|(net, owner)| (net.trunc(), owner))
        .collect();
    prefixes.sort_by_key(|(net, _)| (number(net.network()), net.prefix_len()));
    prefixes.dedup_by_key(|(net, _)| *net);

    let mut sweep = Sweep {
        family,
        cursor: Some(0),
        open: Vec::new(),
        out: Vec::new(),
    };
    for (net, owner) in prefixes {
        sweep.enter(Range::from(net), owner);
    }
    while sweep.close_innermost() {}
    sweep.out
}

/// Unites the prefixes of one family into disjoint ranges in ascending order.
pub(crate) fn union(family: Family, prefixes: impl IntoIterator<Item = IpNet>) -> Vec<Range> {
    longest_prefix(family, prefixes.into_iter().map(|net| (net, ())))
        .into_iter()
        .map(|(range, ())| range)
        .collect()
}

struct Sweep<O> {
    family: Family,
    /// The first address that no range covers yet; none once the last address is covered.
    cursor: Option<u128>,
    open: Vec<(Range, O)>,
    out: Vec<(Range, O)>,
}

impl<O: Copy + PartialEq> Sweep<O> {
    fn enter(&mut self, range: Range, owner: O) {
        while self
            .open
            .last()
            .is_some_and(|(outer, _)| outer.last < range.first)
        {
            self.close_innermost();
        }
        if let (Some(&(_, outer)), Some(cursor)) = (self.open.last(), self.cursor)
            && cursor < range.first
        {
            self.emit(cursor, range.first - 1, outer);
        }
        self.cursor = Some(range.first);
        self.open.push((range, owner));
    }

    fn close_innermost(&mut self) -> bool {
        let Some((range, owner)) = self.open.pop() else {
            return false;
        };
        if let Some(cursor) = self.cursor
            && cursor <= range.last
        {
            self.emit(cursor, range.last, owner);
            self.cursor = range.last.checked_add(1);
        }
        true
    }

    fn emit(&mut self, first: u128, last: u128, owner: O) {
        if let Some((previous, previous_owner)) = self.out.last_mut()
            && *previous_owner == owner
            && previous.last.checked_add(1) == Some(first)
        {
            previous.last = last;
            return;
        }
        let range = Range {
            family: self.family,
            first,
            last,
        };
        self.out.push((range, owner));
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

pub(crate) fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // Ranges of this family are made from 32-bit addresses only.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(number as u32)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finds the prefix by asking every one: what the sweep must agree with.
    fn naive(prefixes: &[(IpNet, usize)], address: IpAddr) -> Option<usize> {
        let mut best: Option<(u8, usize)> = None;
        for (net, owner) in prefixes {
            if net.contains(&address) && best.is_none_or(|(length, _)| net.prefix_len() > length) {
                best = Some((net.prefix_len(), *owner));
            }
        }
        best.map(|(_, owner)| owner)
    }

    fn look_up(ranges: &[(Range, usize)], address: IpAddr) -> Option<usize> {
        let number = number(address);
        ranges
            .iter()
            .find(|(range, _)| range.first <= number && number <= range.last)
            .map(|(_, owner)| *owner)
    }

    /// Prefixes that nest often: few distinct leading bits, every length down to 0.
    fn net(family: Family) -> impl Strategy<Value = IpNet> {
        let bits = family.bits();
        (0..4u128, 0..4u128, 0..=bits).prop_map(move |(high, low, length)| {
            let base = (high << (bits - 2)) | low;
            let length = u8::try_from(length).unwrap();
            IpNet::new(address(family, base), length).unwrap()
        })
    }

    fn campuses(family: Family) -> impl Strategy<Value = Vec<(IpNet, usize)>> {
        prop::collection::vec((net(family), 0..4usize), 0..24)
    }

    fn agrees(
        family: Family,
        prefixes: &[(IpNet, usize)],
        probes: &[u128],
    ) -> Result<(), TestCaseError> {
        let ranges = longest_prefix(family, prefixes.iter().copied());
        for pair in ranges.windows(2) {
            prop_assert!(pair[0].0.last < pair[1].0.first, "overlap: {:?}", pair);
            let joined = pair[0].0.last + 1 == pair[1].0.first && pair[0].1 == pair[1].1;
            prop_assert!(!joined, "not joined: {:?}", pair);
        }
        let max = u128::MAX >> (128 - family.bits());
        let edges = prefixes.iter().flat_map(|(net, _)| {
            let range = Range::from(*net);
            [
                range.first,
                range.last,
                range.first.saturating_sub(1),
                range.last.saturating_add(1).min(max),
            ]
        });
        for probe in edges.chain(probes.iter().map(|probe| probe & max)) {
            let probe = address(family, probe);
            prop_assert_eq!(look_up(&ranges, probe), naive(prefixes, probe), "{}", probe);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn ipv4_ranges_agree_with_a_longest_prefix_scan(
            prefixes in campuses(Family::V4),
            probes in prop::collection::vec(any::<u128>(), 16),
        ) {
            agrees(Family::V4, &prefixes, &probes)?;
        }

        #[test]
        fn ipv6_ranges_agree_with_a_longest_prefix_scan(
            prefixes in campuses(Family::V6),
            probes in prop::collection::vec(any::<u128>(), 16),
        ) {
            agrees(Family::V6, &prefixes, &probes)?;
        }
    }

    fn shown(family: Family, prefixes: &[(&str, char)]) -> String {
        let prefixes = prefixes
            .iter()
            .map(|(net, owner)| (net.parse().unwrap(), *owner));
        longest_prefix(family, prefixes)
            .iter()
            .map(|(range, owner)| format!("{range}={owner}"))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn a_default_route_campus_is_cut_around_the_others() {
        assert_eq!(
            shown(
                Family::V4,
                &[("10.1.0.0/16", 'a'), ("0.0.0.0/0", 'w'), ("::/0", 'w')]
            ),
            "0.0.0.0-10.0.255.255=w 10.1.0.0/16=a 10.2.0.0-255.255.255.255=w"
        );
        assert_eq!(shown(Family::V6, &[("::/0", 'w')]), "::/0=w");
        assert_eq!(
            shown(Family::V6, &[("::/0", 'w'), ("ffff::/16", 'a')]),
            "::-fffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff=w ffff::/16=a"
        );
    }

    #[test]
    fn of_two_equal_prefixes_the_first_wins() {
        assert_eq!(
            shown(Family::V4, &[("10.0.0.0/8", 'a'), ("10.9.9.9/8", 'b')]),
            "10.0.0.0/8=a"
        );
    }

    #[test]
    fn neighbours_of_one_owner_are_joined() {
        assert_eq!(
            shown(
                Family::V4,
                &[
                    ("10.0.0.0/9", 'a'),
                    ("10.128.0.0/9", 'a'),
                    ("10.1.2.3/32", 'a')
                ]
            ),
            "10.0.0.0/8=a"
        );
        assert_eq!(shown(Family::V4, &[("10.1.2.3/32", 'a')]), "10.1.2.3=a");
    }
}
