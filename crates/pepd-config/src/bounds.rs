//! What a value may be, and where the bound comes from. A bound is the kernel's own where it has
//! one, and otherwise is so wide that only a slip of the pen lies outside.

use std::ops::RangeInclusive;
use std::time::Duration;

use pepd_packet::{PerMyriad, Rate, Size};

const SECOND: Duration = Duration::from_secs(1);

/// Worker threads; 0 is one per core.
pub(crate) const WORKERS: RangeInclusive<u16> = 0..=1024;
/// 0 ends connections at once; beyond an hour nobody waits for a restart.
pub(crate) const DRAIN: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
/// Any TCP port.
pub(crate) const PORT: RangeInclusive<u16> = 1..=u16::MAX;
/// Table numbers are 32 bits (include/uapi/linux/rtnetlink.h, `RTA_TABLE`). It is checked
/// separately that none is the kernel's.
pub(crate) const TABLE: RangeInclusive<u32> = 0..=u32::MAX;
/// A connection takes two sockets, and pipes while data is under way.
pub(crate) const CONNECTIONS: RangeInclusive<u32> = 1..=1_000_000;
/// Log lines per second.
pub(crate) const LOG_LINES: RangeInclusive<u32> = 0..=1_000_000;
/// A hash counts ten-thousandths; as many as are routed are compared with them.
pub(crate) const UNSPLIT: RangeInclusive<PerMyriad> = PerMyriad(1)..=PerMyriad(5_000);
/// An NFQUEUE has to hold them all.
pub(crate) const PENDING: RangeInclusive<u32> = 1..=65_535;
/// Four bits of a socket's priority (`Share` in pepd-relay).
pub(crate) const WEIGHT: RangeInclusive<u8> = 1..=16;
/// 0 would make the whole Internet one source; an IPv6 address has 128 bits.
pub(crate) const SOURCE_PREFIX: RangeInclusive<u8> = 1..=128;
/// Below 4 KiB the kernel rounds up (include/net/sock.h, `SOCK_MIN_SNDBUF`); 1 GiB is TCP's
/// largest window (RFC 7323, section 2.3).
pub(crate) const BUFFER: RangeInclusive<Size> = Size(4 << 10)..=Size(1 << 30);
/// Below 16 MiB a few dozen connections fill it; more than 1 TiB no router has.
pub(crate) const MEMORY: RangeInclusive<Size> = Size(16 << 20)..=Size(1 << 40);
/// The bounds of a rate: from the slowest radio modem to the fastest Ethernet port.
pub(crate) const RATE: RangeInclusive<Rate> = Rate(1_000)..=Rate(800_000_000_000);
/// 1,000 segments are 1.4 MB sent blindly.
pub(crate) const INITIAL_WINDOW: RangeInclusive<u32> = 1..=1000;
/// Each leg has a listener address, of which there are 250; one is kept for the leg `default`.
pub(crate) const LEGS: usize = 249;
/// `TCP_MAXSEG` takes no others (net/ipv4/tcp.c, `TCP_MIN_MSS` and `MAX_TCP_WINDOW`).
pub(crate) const MSS: RangeInclusive<u16> = 88..=32_767;
/// RFC 5482, section 3.1, asks for at least the longest retransmission; a day is beyond patience.
pub(crate) const USER_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(86_400);
/// `TCP_RTO_MAX_MS` takes no others (net/ipv4/tcp.c).
pub(crate) const RTO_MAX: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(120);
/// `TCP_KEEPIDLE` and `TCP_KEEPINTVL` count whole seconds (include/net/tcp.h,
/// `MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`).
pub(crate) const KEEPALIVE: RangeInclusive<Duration> = SECOND..=Duration::from_secs(32_767);
/// include/net/tcp.h, `MAX_TCP_KEEPCNT`.
pub(crate) const KEEPALIVE_COUNT: RangeInclusive<u32> = 1..=127;
/// Six bits (RFC 2474, section 3).
pub(crate) const DSCP: RangeInclusive<u8> = 0..=63;
/// Less than a packet makes the sender wait for every one.
pub(crate) const NOTSENT_LOWAT: RangeInclusive<Size> = Size(1 << 10)..=Size(1 << 30);
/// The bounds of a connect timeout: from a LAN's patience to more than any client's.
pub(crate) const CONNECT_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);
/// A link that carries IPv6 has an MTU of at least 1280 (RFC 8200, section 5).
pub(crate) const PEER_MTU: RangeInclusive<u16> = 1280..=u16::MAX;
/// 0 would not leave the box.
pub(crate) const TTL: RangeInclusive<u8> = 1..=u8::MAX;
/// The traffic class byte; it is checked separately that ECN's two bits are 0.
pub(crate) const TOS: RangeInclusive<u8> = 0..=u8::MAX;
/// More often than ten times a second tells nothing new; less often than hourly is as good as
/// never.
pub(crate) const PROBE: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// More often tells nothing sooner; a modem that hears nothing for an hour is better told so.
pub(crate) const HEARTBEAT: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// More modems than any router has; each costs a task and a connection.
pub(crate) const MODEMS: usize = 32;
/// As many as the marks of pepd's can tell apart in the kernel (`NEIGHBORS` of pepd-net).
pub(crate) const NEIGHBORS: usize = 4;
/// More than any fleet; the ways between all of them are searched at each start.
pub(crate) const BOXES: usize = 250;
/// An interface name has 15 characters (include/uapi/linux/if.h, `IFNAMSIZ`), and `pepd-`
/// takes five.
pub(crate) const PEER_NAME: usize = 10;
/// Long enough to say something, short enough for a column.
pub(crate) const NAME: usize = 32;
/// include/net/tcp.h, `TCP_CA_NAME_MAX`, less the terminating zero.
pub(crate) const CONGESTION: usize = 15;
/// Bytes of an interface's name (IFNAMSIZ less the final zero, include/uapi/linux/if.h).
pub(crate) const INTERFACE: usize = 15;
/// The length of a group's name, as groupadd(8) takes it.
pub(crate) const GROUP: usize = 32;
/// The length of a user's name, as useradd(8) takes it.
pub(crate) const USER: usize = 32;
/// RFC 1035, section 2.3.4, less the root's dot and the length.
pub(crate) const HOST_NAME: usize = 253;
/// `PATH_MAX` of limits.h, less the terminating zero.
pub(crate) const PATH: usize = 4095;

/// `sun_path` of unix(7), less the terminating zero.
pub(crate) const SOCKET_PATH: usize = 107;
