//! What the relay is told: legs, campuses and limits, in types of its own.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use pepd_packet::{Mark, MarkValue, QueueNumber, Rate, Size, SourcePrefix, VerdictMarks};
use socket2::Domain;

use crate::chosen::ChosenControl;
use crate::share::{Share, WeightRule};

/// Everything the relay needs to know; replaced as a whole by a reload.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port of all listeners.
    pub port: u16,
    /// The mark with which a packet is delivered on this host, whoever's its address is.
    pub mark: MarkValue,
    /// The limits on what is split at once.
    pub limits: Limits,
    /// The way in which SYNs are held; `None` where every client is answered before its
    /// destination.
    pub end_to_end: Option<EndToEnd>,
    /// The legs; campuses refer to them by index.
    pub legs: Vec<Leg>,
    /// The campuses.
    pub campuses: Vec<Campus>,
    /// What the kernel makes of buffers by itself.
    pub kernel_buffers: KernelBuffers,
    /// The rules by which connections have weights, all of those that there are; none where all weigh
    /// the same.
    pub weights: Vec<WeightRule>,
    /// Log lines about connections that have ended, per second, and at once after a quiet
    /// second.
    pub ended_lines: u32,
}

/// The number of connections that are split at once; what is beyond is the capture's to route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit on all of them together.
    pub connections: u32,
    /// The limit on those from one source.
    pub per_source: u32,
    /// What makes IPv6 addresses one source.
    pub source_prefix: SourcePrefix,
    /// The bytes that all of them may hold in sockets and pipes.
    pub memory: Option<Size>,
    /// The bytes of TCP's memory from which on the kernel shrinks everybody's windows.
    pub tcp_memory: Size,
}

impl Limits {
    /// Returns [`Limits::memory`] as a number.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }
}

/// The bytes that a leg's sockets may hold in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// This many; the kernel allows itself as much again for bookkeeping (socket(7), SO_SNDBUF).
    Size(Size),
    /// What the path is measured to need, as far as there is memory.
    Auto,
}

/// What the kernel makes of buffers by itself, in bytes as it counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelBuffers {
    /// The most that it makes a send buffer (net.ipv4.tcp_wmem).
    pub send: u64,
    /// The most that it makes a receive buffer (net.ipv4.tcp_rmem).
    pub receive: u64,
}

/// Connection establishment end to end: the capture holds SYNs for the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndToEnd {
    /// The first of the NFQUEUEs, of which each worker reads one.
    pub first_queue: QueueNumber,
    /// SYNs held, and upstream legs that wait for their clients, at once.
    pub pending: u32,
    /// The marks that the capture understands.
    pub marks: VerdictMarks,
}

/// The addresses behind one campus, and the leg towards them.
#[derive(Clone, Debug)]
pub struct Campus {
    /// Its name in the configuration, for figures.
    pub name: Arc<str>,
    /// Its prefixes; over all campuses the longest wins.
    pub prefixes: Vec<IpNet>,
    /// Index into [`Settings::legs`].
    pub leg: usize,
}

/// The options of a leg. `None` leaves the kernel's own value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Its name in the configuration, for messages and figures.
    pub name: Arc<str>,
    /// The congestion control.
    pub congestion: Option<String>,
    /// The congestion control of new connections, in its place, where that is chosen again and again.
    pub chosen: Option<ChosenControl>,
    /// The bytes that each direction may hold in this leg's socket.
    pub buffer: Option<Buffer>,
    /// The pacing ceiling.
    pub rate: Option<Rate>,
    /// Whether data may travel in the SYN (RFC 7413).
    pub fast_open: bool,
    /// The largest segment in bytes.
    pub mss: Option<u16>,
    /// The time for which sent data may stay unacknowledged before the leg is given up (RFC 5482).
    pub user_timeout: Option<Duration>,
    /// The longest retransmission timeout; has no effect before Linux 6.15.
    pub rto_max: Option<Duration>,
    /// Probes of an idle leg, so that a peer that vanished is noticed.
    pub keepalive: Keepalive,
    /// The DSCP of what this leg sends.
    pub dscp: Dscp,
    /// Linear instead of exponential retransmission timeouts for thin streams.
    pub thin: bool,
    /// Unsent bytes above which the leg takes no more.
    pub notsent_lowat: Option<Size>,
    /// The time that the upstream leg may take to be established.
    pub connect_timeout: Duration,
    /// What becomes of a new connection while its link is gone.
    pub while_gone: WhileGone,
    /// Who gets equal parts of its rate; none where its control does not share one.
    pub share: Option<Share>,
    /// Whether it is learned what its connections may begin with.
    pub learns_window: bool,
    /// The mark of its listeners, and so of the client legs that they accept (SO_MARK), by which
    /// the capture knows their packets at once.
    pub client_mark: Option<MarkValue>,
    /// The mark of its upstream sockets.
    pub upstream_mark: Option<MarkValue>,
    /// The mark of those that have no client yet: what would end the destination's handshake does
    /// not leave this host with it.
    pub unclaimed_mark: Option<MarkValue>,
}

/// What becomes of a new connection over a leg whose link is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileGone {
    /// It waits, and is established when the link is back.
    Wait,
    /// Its client is refused, where its SYN is held.
    Refuse,
    /// It is routed unsplit, where its SYN is held.
    Route,
}

/// TCP keepalive (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes that end the connection.
    pub count: u32,
}

/// The differentiated services code point of a leg (RFC 2474).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dscp {
    /// That of the client's SYN.
    Copy,
    /// This one, 0 to 63.
    Set(u8),
}

impl Leg {
    /// Returns the size that its buffers are given for good.
    pub(crate) fn fixed_buffer(&self) -> Option<Size> {
        match self.buffer {
            Some(Buffer::Size(size)) => Some(size),
            Some(Buffer::Auto) | None => None,
        }
    }

    /// Returns the congestion control that a new connection has.
    pub(crate) fn control(&self) -> Option<Cow<'_, str>> {
        match &self.chosen {
            Some(chosen) => Some(Cow::Owned(chosen.name().to_string())),
            None => self.congestion.as_deref().map(Cow::Borrowed),
        }
    }

    /// Returns who shares the rate of what a new connection has as its congestion control; none where that does
    /// not share one.
    pub(crate) fn sharing(&self) -> Option<Share> {
        let is_shared = self.chosen.as_ref().is_none_or(ChosenControl::shares);
        self.share.filter(|_| is_shared)
    }

    /// Returns the control of pepd's own that its connections may have.
    pub(crate) fn own_control(&self) -> Option<&str> {
        match &self.chosen {
            Some(chosen) => chosen.own(),
            // Only pepd's own have something to share.
            None => self.congestion.as_deref().filter(|_| self.share.is_some()),
        }
    }

    /// Returns a leg that leaves everything to the kernel.
    pub fn kernel_defaults(name: &str) -> Self {
        Self {
            name: name.into(),
            congestion: None,
            chosen: None,
            buffer: None,
            rate: None,
            fast_open: false,
            mss: None,
            user_timeout: None,
            rto_max: None,
            keepalive: Keepalive {
                idle: Duration::from_secs(15 * 60),
                interval: Duration::from_secs(60),
                count: 15,
            },
            dscp: Dscp::Copy,
            thin: false,
            notsent_lowat: None,
            connect_timeout: Duration::from_secs(130),
            while_gone: WhileGone::Wait,
            share: None,
            learns_window: false,
            client_mark: None,
            upstream_mark: None,
            unclaimed_mark: None,
        }
    }
}

impl Settings {
    /// Returns the leg towards `address`: that of its campus.
    pub(crate) fn leg_towards(&self, address: IpAddr) -> Option<&Leg> {
        self.campus_of(address)
            .and_then(|campus| self.legs.get(campus.leg))
    }

    /// Returns the leg of this name.
    pub(crate) fn leg_named(&self, name: &str) -> Option<&Leg> {
        self.legs.iter().find(|leg| *leg.name == *name)
    }

    /// Returns the mark of a leg's upstream packets once its client has come; none where SYNs are not
    /// held.
    pub(crate) fn claimed_mark(&self, leg: &Leg) -> Option<Mark> {
        let mask = self.end_to_end?.marks.mask;
        leg.upstream_mark.map(|value| Mark { value, mask })
    }

    /// Returns the campus of `address`: the one with the longest prefix.
    pub(crate) fn campus_of(&self, address: IpAddr) -> Option<&Campus> {
        self.prefix_of(address).map(|(_, campus)| campus)
    }

    /// Returns the longest prefix that has `address`, and its campus.
    pub(crate) fn prefix_of(&self, address: IpAddr) -> Option<(IpNet, &Campus)> {
        self.campuses
            .iter()
            .flat_map(|campus| campus.prefixes.iter().map(move |prefix| (prefix, campus)))
            .filter(|(prefix, _)| prefix.contains(&address))
            .max_by_key(|(prefix, _)| prefix.prefix_len())
            .map(|(prefix, campus)| (*prefix, campus))
    }
}

/// The address to which SYNs from the campuses of one leg are to be sent: one per family that no
/// packet has as its destination, so that a connection straight to it finds nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerAddress {
    /// The IPv4 address, in 127.73.0.0/16.
    pub v4: Ipv4Addr,
    /// The IPv6 address, in 100::/64, which is never routed (RFC 6666).
    pub v6: Ipv6Addr,
}

impl ListenerAddress {
    /// Returns the address for the leg with index `leg` in the given generation of the settings.
    pub(crate) fn new(generation: u8, leg: u8) -> Self {
        let (g, l) = (u16::from(generation), u16::from(leg));
        Self {
            v4: Ipv4Addr::new(127, 73, generation, leg),
            v6: Ipv6Addr::new(0x100, 0, 0, 0, 0, 0x73, g, l),
        }
    }

    /// Returns the address of this family, with the port of all listeners.
    pub(crate) fn of(&self, domain: Domain, port: u16) -> SocketAddr {
        match domain == Domain::IPV4 {
            true => SocketAddr::new(self.v4.into(), port),
            false => SocketAddr::new(self.v6.into(), port),
        }
    }

    /// Returns whether `address` is one of a listener of any generation.
    pub(crate) fn is_one(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => matches!(v4.octets(), [127, 73, _, _]),
            IpAddr::V6(v6) => matches!(v6.segments(), [0x100, 0, 0, 0, 0, 0x73, _, _]),
        }
    }
}

/// Returns whether connecting there would lead to this host itself, whatever the packet meant: a
/// connection straight to the listener connects to itself for ever; the unspecified address is the
/// loopback's to connect(2), and an IPv4-mapped one changes the family (RFC 4942, section 2.1). The
/// campus `::/0` holds them all.
pub(crate) fn is_self_destined(address: IpAddr) -> bool {
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    ListenerAddress::is_one(address) || address.is_unspecified() || address.is_loopback() || mapped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campus(prefix: &str, leg: usize) -> Campus {
        Campus {
            name: prefix.into(),
            prefixes: vec![prefix.parse().unwrap()],
            leg,
        }
    }

    #[test]
    fn no_destination_leads_into_the_box() {
        for here in [
            "127.73.0.1",
            "100::73:0:1",
            "0.0.0.0",
            "::",
            "::1",
            "127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.2.0.2",
        ] {
            assert!(is_self_destined(here.parse().unwrap()), "{here}");
        }
        for there in ["10.2.0.2", "fd00:b::2", "100::74:0:1"] {
            assert!(!is_self_destined(there.parse().unwrap()), "{there}");
        }
    }

    #[test]
    fn the_longest_prefix_names_the_leg() {
        let settings = Settings {
            port: 7300,
            mark: MarkValue(1),
            limits: Limits {
                connections: 1,
                per_source: 1,
                source_prefix: SourcePrefix::NETWORK,
                memory: None,
                tcp_memory: Size(1 << 30),
            },
            kernel_buffers: KernelBuffers {
                send: 4 << 20,
                receive: 6 << 20,
            },
            end_to_end: None,
            legs: ["world", "campus", "lab"]
                .map(Leg::kernel_defaults)
                .to_vec(),
            campuses: vec![
                campus("10.1.0.0/16", 1),
                campus("10.1.2.0/24", 2),
                campus("0.0.0.0/0", 0),
            ],
            weights: Vec::new(),
            ended_lines: 0,
        };
        let towards = |a: &str| {
            settings
                .leg_towards(a.parse().unwrap())
                .map(|leg| &*leg.name)
        };
        assert_eq!(towards("10.1.2.3"), Some("lab"));
        assert_eq!(towards("10.1.3.3"), Some("campus"));
        assert_eq!(towards("192.0.2.1"), Some("world"));
        assert_eq!(towards("2001:db8::1"), None);
    }
}
