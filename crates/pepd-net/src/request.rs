//! What the kernel state is to do, in this crate's own terms.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
pub use pepd_packet::{
    LogGroup, Mark, PerMyriad, QueueNumber, SocketMarks, SourcePrefix, VerdictMarks,
};

use crate::prefix::Family;
use crate::route::ids::{RouteTable, RouteTables};

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
    pub table: RouteTable,
    /// The TCP port of every [`Listener`].
    pub port: u16,
    /// What makes IPv6 addresses one source, in the set of those that are over their limit.
    pub source_prefix: SourcePrefix,
    /// The side that is answered first, the client or its destination, where no rule says.
    pub handshake: Handshake,
    /// The queues in which SYNs are held; none where none are, whatever handshake is asked for.
    pub queues: Option<Queues>,
    /// The queue in which ACKs and packets are held while a link is away; none where none are,
    /// and the connections of [`Action::HoldAcks`] are only routed.
    pub hold_acks: Option<HoldQueue>,
    /// The connections that are watched to see what splitting is worth; none where none are.
    pub measure: Option<Measure>,
    /// The boxes to which connections move, at most [`NEIGHBORS`](crate::NEIGHBORS).
    pub neighbors: Vec<Neighbor>,
    /// The queue in which what belongs to connections that come from other boxes is held until they are served
    /// here; none where it is dropped. One that nobody reads drops it, too.
    pub hold_coming: Option<HoldQueue>,
    /// The campuses. Where their prefixes nest, the longest one wins; of two equal
    /// prefixes the first campus's (the configuration refuses such a file).
    pub campuses: Vec<Campus>,
    /// The other helper boxes, each at the end of a tunnel.
    pub peers: Vec<Peer>,
    /// Exceptions, in order; the first match wins. A connection that matches none is split.
    pub rules: Vec<Rule>,
    /// What was learned of networks within campuses that have [`InitialWindow::Learned`]: the initial
    /// congestion window, in segments, of connections there.
    pub windows: BTreeMap<IpNet, u32>,
}

impl Request {
    /// Gives what was learned of networks of a family in each campus, by the campus's index: that with the
    /// longest prefix.
    pub(crate) fn learned(
        &self,
        family: Family,
    ) -> impl Iterator<Item = (usize, IpNet, RouteWindows)> {
        let windows = self.windows.iter();
        windows.filter_map(move |(net, window)| {
            let net = net.trunc();
            let campus = self
                .campus_of(net)
                .filter(|_| Family::of(net.addr()) == family)?;
            let learns = self.campuses.get(campus)?.initial_window == Some(InitialWindow::Learned);
            learns.then_some((campus, net, RouteWindows::learned(*window)))
        })
    }

    /// Gives the index of the campus that a network is in.
    fn campus_of(&self, net: IpNet) -> Option<usize> {
        let campuses = self.campuses.iter().enumerate();
        campuses
            .flat_map(|(index, campus)| campus.prefixes.iter().map(move |prefix| (prefix, index)))
            .filter(|(prefix, _)| prefix.contains(&net))
            .max_by_key(|(prefix, index)| (prefix.prefix_len(), Reverse(*index)))
            .map(|(_, index)| index)
    }

    /// Allocates the routing tables that the request needs.
    pub(crate) fn route_tables(&self) -> RouteTables {
        RouteTables {
            first: self.table,
            peers: self.peers.len(),
            has_initcwnd: self.mark.sockets().is_some()
                && self.campuses.iter().any(Campus::has_copies),
        }
    }
}

/// The choice of who is answered first.
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
    pub first: QueueNumber,
    /// The number of queues, at least 1.
    pub count: u16,
    /// The program that fills them.
    pub backend: QueueBackend,
}

/// The NFQUEUE of packets that are held for another reason than that their SYN is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldQueue {
    /// Its number, which is none of [`Queues`].
    pub queue: QueueNumber,
    /// The program that fills it.
    pub backend: QueueBackend,
}

/// The connections that are watched to see what splitting is worth: a share of those that would be split is
/// routed instead, and as many of the others are watched with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measure {
    /// The share that is routed, at most half of the whole.
    pub unsplit: PerMyriad,
    /// The group of NFLOG by which the headers of what is watched come.
    pub group: LogGroup,
    /// Whether it depends on their path which connections are split that match no rule: see [`Action::Auto`].
    pub auto: bool,
}

/// A box to which connections move. What comes here for one that has moved is sent on to it, with its addresses
/// unchanged: it has to be on a network of this box's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbor {
    /// Its address for IPv4; none where no connection over IPv4 moves to it.
    pub v4: Option<Ipv4Addr>,
    /// Its address for IPv6.
    pub v6: Option<Ipv6Addr>,
}

/// A means by which a packet can be held on this kernel; see
/// [`find_queue_backend`](crate::find_queue_backend()).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueBackend {
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
    /// The listener to which connections *from* this campus are delivered.
    pub listener: Listener,
    /// The way in which the campus is reached.
    pub via: Via,
    /// The initial congestion window of connections to it; none leaves the kernel's own.
    pub initial_window: Option<InitialWindow>,
}

/// The initial congestion window of connections to a campus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialWindow {
    /// So many segments (the route's `initcwnd`, and `initrwnd` with it).
    Segments(u32),
    /// What was learned of the networks of the campus ([`Request::windows`]); the kernel's own for others.
    Learned,
}

/// The windows that a route gives connections, in segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RouteWindows {
    pub(crate) initcwnd: u32,
    /// It bounds what the kernel would let in by itself (tcp_select_initial_window, net/ipv4/tcp_output.c).
    pub(crate) initrwnd: Option<u32>,
}

impl RouteWindows {
    /// Gives those that are the same both ways.
    pub(crate) fn both(segments: u32) -> Self {
        Self {
            initcwnd: segments,
            initrwnd: Some(segments),
        }
    }

    /// Gives those for what was learned of sending.
    pub(crate) fn learned(segments: u32) -> Self {
        Self {
            initcwnd: segments,
            initrwnd: None,
        }
    }
}

impl Campus {
    /// Gives the windows for all routes to the campus; none where the kernel's own are to stay, or there
    /// are only some for parts of it.
    pub(crate) fn windows(&self) -> Option<RouteWindows> {
        match self.initial_window {
            Some(InitialWindow::Segments(segments)) => Some(RouteWindows::both(segments)),
            Some(InitialWindow::Learned) | None => None,
        }
    }

    /// Returns whether routes to the campus with windows are copies of the host's: it has some, and its
    /// routes are not pepd's own.
    pub(crate) fn has_copies(&self) -> bool {
        self.initial_window.is_some() && !matches!(self.via, Via::Peer(_))
    }
}

/// The way in which a campus is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// This host routes to it already.
    Local,
    /// A routing daemon decides: by any tunnel, or by none.
    Routing,
    /// The campus is behind the tunnel to the peer with this index in [`Request::peers`].
    Peer(usize),
}

/// Another helper box, and the tunnel to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The name, at most ten letters, digits, `-`, `_` and `.`: the interface is `pepd-NAME`.
    pub name: String,
    /// This box's end of the tunnel.
    pub local: IpAddr,
    /// The other box's end, of the same family; no other peer has the same.
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
    /// The address for IPv4.
    pub v4: Ipv4Addr,
    /// The address for IPv6.
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
    /// The action taken on the connection.
    pub action: Action,
    /// The handshake of a connection that is split, instead of [`Request::handshake`].
    pub handshake: Option<Handshake>,
}

/// The action of a [`Rule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Split the connection, and look at no further rule.
    Split,
    /// Split the connection, unless splitting does not pay on its path ([`Choices`](crate::Choices)); look at no
    /// further rule. Without [`Request::measure`] it is split.
    Auto,
    /// Route the connection as if pepd were not there.
    Bypass,
    /// Route the connection; when the link to one of its ends goes, its ACKs and packets are held.
    HoldAcks,
}
