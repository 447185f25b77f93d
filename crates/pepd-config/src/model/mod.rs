//! The resolved configuration: what the rest of pepd sees.

mod admin;
mod link;
mod log;
mod measure;
mod moves;
mod window;

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use pepd_packet::{Mark, PerMyriad, Rate, Size, SourcePrefix};

pub use self::admin::{Admin, AdminSocket};
pub use self::link::{LinkSource, Modem, WhileGone};
pub use self::log::{Log, LogFormat};
pub use self::measure::Measure;
pub use self::moves::{Moves, Neighbor};
pub use self::window::InitialWindow;

/// One box's configuration, complete and consistent: every name is resolved to an index, every
/// default filled in, every bound checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The box itself: `[node]`.
    pub node: Node,
    /// The way in which connections are diverted to pepd: `[capture]`.
    pub capture: Capture,
    /// The limits on what pepd takes on at once: `[limits]`.
    pub limits: Limits,
    /// The campuses, in the order of the file; at least two. Indexed by [`CampusId`].
    pub campuses: Vec<Campus>,
    /// The tunnels to other helper boxes, in the order of the file. Indexed by [`PeerId`].
    pub peers: Vec<Peer>,
    /// The legs, in the order of the file, followed by `default` where a campus names no leg and
    /// the file has no `[leg.default]`. Indexed by [`LegId`].
    pub legs: Vec<Leg>,
    /// The modems that tell of links by DLEP, in the order of the file.
    pub modems: Vec<Modem>,
    /// The rules, in the order of the file: the first that matches decides, and without one the
    /// connection is split.
    pub rules: Vec<Rule>,
    /// What the daemon measures: `[measure]`.
    pub measure: Measure,
    /// The boxes that live connections move to, and come from: `[move]`, `[[neighbor]]`.
    pub moves: Moves,
    /// The places where the daemon can be asked about itself: `[admin]`.
    pub admin: Admin,
    /// The settings of the log: `[log]`.
    pub log: Log,
}

impl Config {
    /// Returns the leg with this index.
    ///
    /// # Panics
    ///
    /// If `id` comes from another configuration with more legs.
    pub fn leg(&self, id: LegId) -> &Leg {
        &self.legs[id.0]
    }

    /// Tells whether the SYNs of any connection are held until its destination has answered.
    /// Everything that holding takes (queues, marks, descriptors) is there only where this says so.
    pub fn holds_syns(&self) -> bool {
        holds_syns(&self.capture, &self.rules)
    }

    /// Tells whether the ACKs of any connection are held while the link to one of its ends is away.
    /// Everything that this takes (a queue, a mark, descriptors) is there only where this says so.
    pub fn holds_acks(&self) -> bool {
        holds_acks(&self.rules)
    }

    /// Tells whether it is found out between which campuses splitting pays.
    pub fn chooses(&self) -> bool {
        chooses(&self.capture, &self.rules)
    }

    /// Returns the share of connections that is routed and watched, to see what splitting is worth: what the
    /// file says, and 4 % where it says nothing but it is to be found out between which campuses it pays.
    pub fn measured(&self) -> Option<PerMyriad> {
        const TO_CHOOSE: PerMyriad = PerMyriad(400);
        let to_choose = self.chooses().then_some(TO_CHOOSE);
        self.measure.unsplit.or(to_choose)
    }

    /// Returns the campus that `address` belongs to: the one with the longest prefix that holds it.
    /// `None` if it lies in no campus, and its connections are therefore not pepd's.
    pub fn campus_of(&self, address: IpAddr) -> Option<CampusId> {
        let holding = self
            .campuses
            .iter()
            .enumerate()
            .filter_map(|(index, campus)| {
                let longest = campus
                    .prefixes
                    .iter()
                    .filter(|prefix| prefix.contains(&address))
                    .map(IpNet::prefix_len)
                    .max()?;
                Some((longest, CampusId(index)))
            });
        holding.max_by_key(|&(length, _)| length).map(|(_, id)| id)
    }
}

/// Returns [`Config::holds_syns`] when the configuration is not complete yet.
pub(crate) fn holds_syns(capture: &Capture, rules: &[Rule]) -> bool {
    let end_to_end = |rule: &Rule| rule.handshake == Some(Handshake::EndToEnd);
    capture.handshake == Handshake::EndToEnd || rules.iter().any(end_to_end)
}

/// Returns [`Config::chooses`] when the configuration is not complete yet.
pub(crate) fn chooses(capture: &Capture, rules: &[Rule]) -> bool {
    let by_rule = |rule: &Rule| rule.action == Action::Auto;
    capture.split == Split::Auto || rules.iter().any(by_rule)
}

/// Returns [`Config::holds_acks`] when the configuration is not complete yet.
pub(crate) fn holds_acks(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.action == Action::HoldAcks)
}

/// `[node]`: the box itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name in logs and metrics.
    pub name: String,
    /// Worker threads; `None` is one per core.
    pub workers: Option<NonZeroUsize>,
    /// The user that the daemon becomes where root has started it; `None` is the usual one.
    pub user: Option<String>,
    /// The time for which live connections may go on after SIGTERM. Zero ends them at once.
    pub drain: Duration,
    /// The file that keeps what was learned of the legs' paths over a restart; `None` is none.
    pub state: Option<PathBuf>,
}

/// The moment at which a client's SYN is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Handshake {
    /// The SYN is answered once the destination has answered: a closed port looks closed.
    EndToEnd,
    /// The SYN is answered at once, which saves the round trip to the destination; a later failure
    /// becomes a RST.
    Early,
}

/// Which connections are split that no rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// All.
    Always,
    /// Those between campuses where it pays, as is found out.
    Auto,
}

/// `[capture]`: how connections are diverted to pepd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// TCP port of the TPROXY listeners; outside the ephemeral range.
    pub port: u16,
    /// Which connections are split that no rule is about.
    pub split: Split,
    /// The moment at which a client's SYN is answered, unless a rule says otherwise.
    pub handshake: Handshake,
    /// The firewall mark on packets that are to be delivered to pepd: its value is never 0 and lies
    /// within the mask, which says which bits are pepd's, so that the operator's own marks survive
    /// in the others.
    pub mark: Mark,
    /// The policy-routing table that delivers marked packets locally.
    pub table: Table,
}

/// Number of a policy-routing table (`ip route … table N`). Never 0 (unspec), 253 (default),
/// 254 (main) or 255 (local): include/uapi/linux/rtnetlink.h, `rt_class_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table(pub u32);

/// `[limits]`: what pepd takes on at once. Beyond it new connections are routed, not split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Split connections, in all.
    pub connections: u32,
    /// Split connections from one source.
    pub connections_per_source: u32,
    /// SYNs held while the destination is asked (end-to-end handshake only).
    pub pending: u32,
    /// Bytes that all split connections may hold in pipes and sockets; `None` is no limit of pepd's.
    pub memory: Option<Size>,
    /// What makes IPv6 addresses one source.
    pub ipv6_source_prefix: SourcePrefix,
}

/// Index into [`Config::campuses`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CampusId(pub usize);

/// Index into [`Config::legs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LegId(pub usize);

/// Index into [`Config::peers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub usize);

/// `[[campus]]`: a set of addresses on one side of the box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Campus {
    /// The name in logs, metrics and `pepd check`; unique.
    pub name: String,
    /// The addresses of the campus, without host bits. No prefix is given twice in the file; one
    /// campus may lie inside another's prefix, and the longest prefix wins.
    pub prefixes: Vec<IpNet>,
    /// The way in which it is reached.
    pub via: Via,
    /// The TCP settings on the connections' legs towards it.
    pub leg: LegId,
}

/// The way in which a campus is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Via {
    /// The box routes to it already, to the original destination: the campus is behind this box.
    Local,
    /// The operator's routing daemon decides, which may lead through a tunnel.
    Routing,
    /// The campus is behind the tunnel to this helper box, reached by routes that pepd installs.
    Peer(PeerId),
}

/// `[leg.NAME]`: the TCP settings of one leg of a split connection. `None` leaves the kernel's
/// own value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leg {
    /// The name that campuses refer to; unique.
    pub name: String,
    /// Congestion control (`TCP_CONGESTION`).
    pub congestion: Option<Congestion>,
    /// The bytes that the leg may hold per direction (`SO_SNDBUF`, `SO_RCVBUF`); `None` keeps the
    /// kernel's autotuning. Where the control is, or may come to be, one of pepd's
    /// own, it is never `None`.
    pub buffer: Option<Buffer>,
    /// Ceiling of the pacing rate of each connection (`SO_MAX_PACING_RATE`); with
    /// [`Congestion::FixedRate`] the rate of all together, where it is never `None`, and with
    /// [`Congestion::FindRate`] the most that is looked for.
    pub rate: Option<Rate>,
    /// TCP Fast Open towards and from this side (RFC 7413).
    pub fast_open: bool,
    /// What a connection may send before anything is acknowledged (the route's `initcwnd`); `None` leaves
    /// the route's own.
    pub initial_window: Option<InitialWindow>,
    /// Largest segment, in bytes (`TCP_MAXSEG`).
    pub mss: Option<u16>,
    /// The time for which sent data may stay unacknowledged (`TCP_USER_TIMEOUT`, RFC 5482); whole
    /// milliseconds.
    pub user_timeout: Option<Duration>,
    /// The longest retransmission timeout (`TCP_RTO_MAX_MS`, Linux 6.15); whole milliseconds.
    pub rto_max: Option<Duration>,
    /// The probing of a silent peer.
    pub keepalive: Keepalive,
    /// The differentiated services code point of the packets sent.
    pub dscp: Dscp,
    /// Linear retransmission timeouts for flows with few packets in flight
    /// (`TCP_THIN_LINEAR_TIMEOUTS`, Documentation/networking/tcp-thin.rst).
    pub thin: bool,
    /// The bytes that may wait unsent in the kernel (`TCP_NOTSENT_LOWAT`).
    pub notsent_lowat: Option<Size>,
    /// The time that a connection attempt on this leg may take.
    pub connect_timeout: Duration,
    /// What tells whether the link under the leg is there; `None` where only `pepd link` does.
    pub link: Option<LinkSource>,
    /// What becomes of new connections while that link is gone.
    pub while_gone: WhileGone,
    /// Who gets equal parts of its rate, with a congestion control of pepd's own.
    pub share: Share,
}

/// Who gets equal parts of a leg's rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Share {
    /// Each connection.
    #[default]
    Flow,
    /// Each source, which is a client's address or network, with all its connections.
    Source,
}

impl Share {
    /// Returns the word as the file spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Source => "source",
        }
    }
}

impl Leg {
    /// Returns a leg that leaves everything to the kernel.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            congestion: None,
            buffer: None,
            rate: None,
            fast_open: false,
            initial_window: None,
            mss: None,
            user_timeout: None,
            rto_max: None,
            keepalive: Keepalive::default(),
            dscp: Dscp::Copy,
            thin: false,
            notsent_lowat: None,
            connect_timeout: Self::CONNECT_TIMEOUT,
            link: None,
            while_gone: WhileGone::Wait,
            share: Share::Flow,
        }
    }

    /// The kernel's patience with what is not acknowledged (net.ipv4.tcp_retries2,
    /// Documentation/networking/ip-sysctl.rst), for a leg that has an `rto_max`: counted in
    /// repetitions the kernel would give it up much earlier then (tcp_model_timeout,
    /// net/ipv4/tcp_timer.c).
    pub(crate) const KERNEL_PATIENCE: Duration = Duration::from_millis(924_600);

    /// Longer than the kernel's own patience with a SYN (127 s with `tcp_syn_retries = 6`, 131 s
    /// where `tcp_syn_linear_timeouts` exists: Documentation/networking/ip-sysctl.rst), so that
    /// by default the kernel's verdict, with its errno, comes first.
    pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(135);
}

/// The bytes that a leg may hold per direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// This many, whatever the leg carries.
    Size(Size),
    /// What the leg is measured to need, past the kernel's own maxima (net.ipv4.tcp_rmem, tcp_wmem),
    /// within the memory that all connections may hold.
    Auto,
}

impl Buffer {
    /// The name of [`Buffer::Auto`] in the file.
    pub const AUTO: &str = "auto";

    /// Returns the size that the file gives.
    pub fn size(self) -> Option<Size> {
        match self {
            Self::Size(size) => Some(size),
            Self::Auto => None,
        }
    }
}

/// The way in which a leg finds the rate at which to send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Congestion {
    /// One that the kernel has, as the kernel spells it.
    Kernel(String),
    /// pepd's own: the leg's rate, whatever is lost.
    FixedRate,
    /// pepd's own: the rate that the leg's path is found to have, whatever is lost.
    FindRate,
    /// For each new connection what is found to be right for the leg's path: cubic, bbr, or [`Self::FindRate`].
    Auto,
}

impl Congestion {
    /// Returns the name as the file spells it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Kernel(name) => name,
            Self::FixedRate => Self::FIXED_RATE,
            Self::FindRate => Self::FIND_RATE,
            Self::Auto => Self::AUTO,
        }
    }

    /// Returns whether it is pepd's own and not the kernel's.
    pub fn is_own(&self) -> bool {
        matches!(self, Self::FixedRate | Self::FindRate)
    }

    pub(crate) const FIXED_RATE: &str = "fixed-rate";
    pub(crate) const FIND_RATE: &str = "find-rate";
    pub(crate) const AUTO: &str = "auto";
}

/// The probing of a silent peer (`SO_KEEPALIVE`), in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// Time between probes (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Unanswered probes that end the connection (`TCP_KEEPCNT`).
    pub count: u32,
}

impl Keepalive {
    /// Returns the silence after which a connection is given up.
    pub fn patience(&self) -> Duration {
        self.idle + self.interval * self.count
    }
}

impl Default for Keepalive {
    /// Has a vanished peer noticed after 17 minutes. An outage of 15 ends nothing, as it would not
    /// with data under way (`net.ipv4.tcp_retries2`, Documentation/networking/ip-sysctl.rst); and
    /// what translates addresses on the way hears of the connection more often than the soonest
    /// forget one, after four minutes.
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(120),
            interval: Duration::from_secs(60),
            count: 15,
        }
    }
}

/// The differentiated services code point of a leg's packets (RFC 2474).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dscp {
    /// The code point of the client's SYN.
    Copy,
    /// This code point, 0 to 63.
    Set(u8),
}

/// `[[rule]]`: what happens to the connections that match. A connection matches if it matches
/// every list that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The client's addresses; empty is any.
    pub source: Vec<IpNet>,
    /// The server's addresses; empty is any.
    pub destination: Vec<IpNet>,
    /// The server's ports, none of them 0; empty is any.
    pub destination_port: Vec<RangeInclusive<u16>>,
    /// The action taken on the connections.
    pub action: Action,
    /// The moment at which the client's SYN is answered, instead of [`Capture::handshake`].
    pub handshake: Option<Handshake>,
    /// As how many connections each of them counts where a leg's rate is shared; 1 to 16.
    pub weight: u8,
}

/// The action of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Split the connection into two legs.
    Split,
    /// Split it if that pays between its campuses, as is found out; else route it.
    Auto,
    /// Route it as if pepd were not there.
    Bypass,
    /// Route it; when the link to one of its ends goes, its ACKs and packets are held.
    HoldAcks,
}

/// `[[peer]]`: a tunnel to another helper box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The name that campuses refer to; unique, and short enough for `pepd-NAME` to be an
    /// interface.
    pub name: String,
    /// This box's end of the tunnel; a unicast address.
    pub local: IpAddr,
    /// The other box's end; a unicast address of the same family, which no other peer has.
    pub remote: IpAddr,
    /// The addresses of this box's end inside the tunnel, each with the network that both ends
    /// are in; most tunnels need none.
    pub inside: Vec<IpNet>,
    /// MTU of the tunnel in bytes; `None` follows the path.
    pub mtu: Option<u16>,
    /// TTL or hop limit of the outer packets; `None` inherits it from the inner ones.
    pub ttl: Option<u8>,
    /// Traffic class of the outer packets.
    pub tos: Tos,
    /// Whether outer packets are taken only from the interface that the route to `remote` leads
    /// out of (RFC 3704, section 2.2: strict reverse path forwarding).
    pub reverse_path_filter: bool,
    /// Whether the tunnel stays when the daemon ends.
    pub keep: bool,
    /// The interval at which the other box is probed through the tunnel. `None` is off.
    pub probe: Option<Duration>,
}

/// The traffic class of a tunnel's outer packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tos {
    /// The traffic class of the inner packet.
    Inherit,
    /// This byte, a multiple of 4: the two low bits belong to ECN (RFC 3168).
    Set(u8),
}
