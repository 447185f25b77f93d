//! What the kernel state is to do, in this crate's own terms.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// All that [`Plan::new`](crate::Plan::new) needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The box's name. It appears in comments only.
    pub node: String,
    /// The bits of the packet mark that belong to pepd.
    pub mark: Mark,
    /// The policy-routing table that delivers captured packets locally. It must hold
    /// nothing else. Where there are peers the tables after it are pepd's too: one for what
    /// comes from here, then one for each peer.
    pub table: u32,
    /// The TCP port of every [`Listener`].
    pub port: u16,
    /// Who is answered first, the client or its destination, where no rule says.
    pub handshake: Handshake,
    /// Where SYNs are held; used only if some connection is established end to end.
    pub queues: Queues,
    /// The campuses. Where their prefixes nest, the longest one wins; of two equal
    /// prefixes the first campus's (the configuration refuses such a file).
    pub campuses: Vec<Campus>,
    /// The other helper boxes, each at the end of a tunnel.
    pub peers: Vec<Peer>,
    /// Exceptions, in order; the first match wins. A connection that matches none is split.
    pub rules: Vec<Rule>,
}

/// A mark and the bits of it that count, as `ip rule … fwmark VALUE/MASK`.
///
/// Bits outside the mask are the operator's and are never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The value of the masked bits on a captured packet.
    pub value: u32,
    /// The bits that belong to pepd.
    pub mask: u32,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}

impl Mark {
    /// The marks that the relay's sockets should have (SO_MARK): packets for them are known by
    /// these without a look at their addresses, and connection tracking is to see the upstream
    /// leg only. None if the mask has one bit: then packets are found more slowly, and address
    /// translation on this host does not apply to split connections.
    ///
    /// On packets that come in the same values mean [`Fates`]; a socket's mark is only ever on
    /// packets that go out, and is no reason to deliver them here.
    pub fn sockets(self) -> Option<SocketMarks> {
        let Mark { value, mask } = self;
        let lowest = mask & mask.wrapping_neg();
        let mut free = [lowest, mask & !lowest, mask]
            .into_iter()
            .filter(|mark| *mark != 0 && *mark != value);
        let (client, upstream) = (free.next()?, free.next()?);
        (client != upstream).then_some(SocketMarks { client, upstream })
    }

    /// What becomes of a held SYN, as values of the masked bits. None if the mask has fewer
    /// than three bits: seven values are needed.
    ///
    /// A SYN to be held carries `value` itself: as that means "deliver here" only after the
    /// SYN's fate is known, it is free until then.
    pub fn fates(self) -> Option<Fates> {
        let Mark { value, mask } = self;
        // The values within a mask in ascending order: a carry runs through its gaps.
        let mut next = 0u32;
        let mut free = std::iter::repeat_with(|| {
            next = next.wrapping_sub(mask) & mask;
            next
        })
        .take((1usize << mask.count_ones().min(4)) - 1)
        .filter(|candidate| *candidate != value);
        Some(Fates {
            split: free.next()?,
            refused: free.next()?,
            network: free.next()?,
            host: free.next()?,
            port: free.next()?,
            prohibited: free.next()?,
        })
    }
}

/// The marks of the relay's sockets, within pepd's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketMarks {
    /// Of listeners, and so of the client legs that they accept.
    pub client: u32,
    /// Of upstream legs.
    pub upstream: u32,
}

/// What becomes of a held SYN, as values of pepd's bits of the mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fates {
    /// To the listener.
    pub split: u32,
    /// Answered with a RST.
    pub refused: u32,
    /// Answered with the ICMP error for a network or no route.
    pub network: u32,
    /// Answered with the ICMP error for a host or its address.
    pub host: u32,
    /// Answered with the ICMP error for a port.
    pub port: u32,
    /// Answered with the ICMP error for an administrative prohibition.
    pub prohibited: u32,
}

/// Who is answered first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// The client, at once.
    Early,
    /// The destination: the client's SYN is held until then.
    EndToEnd,
}

/// Consecutive NFQUEUEs. A pair of addresses always has the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// The first one's number.
    pub first: u16,
    /// How many there are, at least 1.
    pub count: u16,
    /// What fills them.
    pub filled_by: Holder,
}

/// What can hold a packet on this kernel; see [`find_holder`](crate::find_holder()).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// nft's `queue` statement.
    Nft,
    /// iptables' NFQUEUE target.
    Iptables,
}

/// A group of addresses; traffic between two different campuses is split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Campus {
    /// Any text. It appears in comments only; nft objects are numbered.
    pub name: String,
    /// The campus's addresses, of either family. Host bits are ignored.
    pub prefixes: Vec<IpNet>,
    /// Where connections *from* this campus are delivered.
    pub listener: Listener,
    /// How the campus is reached.
    pub via: Via,
    /// The initial congestion window, in segments, of connections to it (the route's
    /// `initcwnd`, and `initrwnd` with it); none leaves the kernel's own.
    pub initial_window: Option<u32>,
}

/// How a campus is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// As this host routes already.
    Local,
    /// As a routing daemon says: by any tunnel, or by none.
    Routing,
    /// Through the tunnel to the peer with this index in [`Request::peers`].
    Peer(usize),
}

/// Another helper box, and the tunnel to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// At most ten letters, digits, `-`, `_` and `.`: the interface is `pepd-NAME`.
    pub name: String,
    /// This box's end of the tunnel.
    pub local: IpAddr,
    /// The other box's end, of the same family; of no other peer.
    pub remote: IpAddr,
    /// The addresses of this box's end inside the tunnel, each with its network; may be empty.
    pub inside: Vec<IpNet>,
    /// The tunnel's MTU in bytes; none is what the way to `remote` carries, less the outer
    /// header.
    pub mtu: Option<u16>,
    /// TTL or hop limit of the outer packets; none is the inner one's.
    pub ttl: Option<u8>,
    /// Traffic class byte of the outer packets; none is the inner one's.
    pub tos: Option<u8>,
    /// Outer packets are taken only from the interface that the route to `remote` leads out of.
    pub reverse_path_filter: bool,
    /// The tunnel stays, with its routes and its guard, when the daemon ends.
    pub keep: bool,
}

/// The addresses of the sockets that accept one campus's connections.
///
/// They should be addresses that nothing else uses and nothing routes, such as
/// 127.73.0.1 and 100::73:0:1 (the discard prefix, RFC 6666).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// For IPv4.
    pub v4: Ipv4Addr,
    /// For IPv6.
    pub v6: Ipv6Addr,
}

/// An exception; an empty list matches anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The client's addresses.
    pub source: Vec<IpNet>,
    /// The server's addresses.
    pub destination: Vec<IpNet>,
    /// The server's ports. A range whose end lies before its start matches nothing.
    pub destination_port: Vec<RangeInclusive<u16>>,
    /// What to do with the connection.
    pub action: Action,
    /// For a connection that is split: instead of [`Request::handshake`].
    pub handshake: Option<Handshake>,
}

/// What a [`Rule`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Split the connection, and look at no further rule.
    Split,
    /// Route the connection as if pepd were not there.
    Bypass,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_marks_of_their_own() {
        let sockets = |value, mask| {
            let marks = Mark { value, mask }.sockets()?;
            Some((marks.client, marks.upstream))
        };
        assert_eq!(
            sockets(0x7000_0000, 0x7000_0000),
            Some((0x1000_0000, 0x6000_0000))
        );
        assert_eq!(
            sockets(0x1000_0000, 0x7000_0000),
            Some((0x6000_0000, 0x7000_0000))
        );
        assert_eq!(sockets(1, 3), Some((2, 3)));
        assert_eq!(sockets(3, 3), Some((1, 2)));
        assert_eq!(sockets(8, 8), None);
    }

    #[test]
    fn seven_values_fit_into_any_three_bits() {
        for (value, mask) in [(0x7000_0000, 0x7000_0000), (0x10, 0x0101_0010), (3, 0xffff)] {
            let fates = Mark { value, mask }.fates().unwrap();
            let Fates {
                split,
                refused,
                network,
                host,
                port,
                prohibited,
            } = fates;
            let mut all = vec![value, split, refused, network, host, port, prohibited];
            assert!(all.iter().all(|v| *v != 0 && v & !mask == 0), "{fates:x?}");
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 7, "{fates:x?}");
        }
    }

    #[test]
    fn two_bits_are_too_few() {
        for mask in [0x1, 0x3000_0000] {
            assert_eq!(Mark { value: mask, mask }.fates(), None);
        }
    }
}
