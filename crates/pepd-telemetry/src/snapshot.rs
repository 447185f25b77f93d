//! The values that the flow table gives: what is known of each connection and of each campus pair.
//!
//! They are values of the admin API as they are on the wire: times are seconds, rates bits per
//! second of payload, sizes bytes, unless a name says otherwise.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One split connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowSnapshot {
    /// Unique for the life of the daemon.
    pub id: u64,
    /// The client's address and port, the same on both legs.
    pub client: SocketAddr,
    /// The original destination, the same on both legs.
    pub server: SocketAddr,
    /// The campus that the client is in.
    pub client_campus: String,
    /// The campus that the server is in.
    pub server_campus: String,
    /// The way in which it was established.
    pub handshake: HandshakeMode,
    /// The time at which it was accepted, in seconds since the Unix epoch.
    pub started: f64,
    /// Seconds since then.
    pub age: f64,
    /// The seconds from the accept until the server's first byte was delivered to the client; none
    /// before that.
    pub first_byte: Option<f64>,
    /// How it has come from another box; none where it began here, or another process has gone on with it since.
    #[serde(default)]
    pub came: Option<ArrivalSnapshot>,
    /// The direction from the client to the server.
    pub up: DirectionSnapshot,
    /// The direction from the server to the client.
    pub down: DirectionSnapshot,
    /// The leg between the client and this box.
    pub client_leg: LegSnapshot,
    /// The leg between this box and the server.
    pub upstream_leg: LegSnapshot,
}

/// How a connection has come from another box (docs/move.md).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArrivalSnapshot {
    /// The `[[neighbor]]` that served it before.
    pub from: String,
    /// The seconds for which it stood still.
    pub pause: f64,
    /// The seconds since it is served here.
    pub age: f64,
}

/// The way in which a connection was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HandshakeMode {
    /// The client was accepted once its destination had answered.
    EndToEnd,
    /// The client was accepted at once.
    Early,
}

impl HandshakeMode {
    /// Gives its name, as in JSON, the configuration and the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EndToEnd => "end-to-end",
            Self::Early => "early",
        }
    }
}

/// One direction of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectionSnapshot {
    /// Bytes of payload delivered: what the far end has acknowledged, as of the last second.
    pub bytes: u64,
    /// Goodput over the last second, the last ten seconds, and the connection's life.
    pub goodput: Goodput,
    /// The phase that it is in now; none when it has ended.
    pub phase: Option<Phase>,
    /// Seconds spent in each phase.
    pub phases: PhaseSeconds,
    /// Those of the starved seconds in which it had nothing to carry: nothing came for longer than
    /// a second and for longer than four round trips of the incoming leg.
    #[serde(default)]
    pub idle: f64,
    /// The bytes that wait in this box.
    pub queue: QueueBytes,
    /// The most that was seen waiting.
    pub queue_max: u64,
}

impl DirectionSnapshot {
    /// Seconds in each phase while it had something to carry; all zero before the first byte.
    pub fn carrying(&self) -> PhaseSeconds {
        if self.bytes == 0 {
            return PhaseSeconds::default();
        }
        PhaseSeconds {
            starved: (self.phases.starved - self.idle).max(0.0),
            ..self.phases
        }
    }
}

/// Payload per time, in bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Goodput {
    /// Over the last second.
    pub last_second: f64,
    /// Over the last ten seconds, or since the start.
    pub last_ten_seconds: f64,
    /// The goodput since the start.
    pub life: f64,
}

/// The limit on a direction: Baccelli et al., section 19.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Neither: each leg goes at its own pace, with the buffer between them.
    Free,
    /// The buffer is empty: the outgoing leg waits for the incoming one.
    Starved,
    /// The buffer is full: the incoming leg is held back by the outgoing one.
    Backpressured,
}

impl Phase {
    /// All phases, in the order in which they are told.
    pub const ALL: [Self; 3] = [Self::Free, Self::Starved, Self::Backpressured];

    /// Gives its name, as in JSON, metrics and the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Starved => "starved",
            Self::Backpressured => "backpressured",
        }
    }
}

/// Seconds in each [`Phase`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseSeconds {
    /// The seconds in [`Phase::Free`].
    pub free: f64,
    /// The seconds in [`Phase::Starved`].
    pub starved: f64,
    /// The seconds in [`Phase::Backpressured`].
    pub backpressured: f64,
}

impl PhaseSeconds {
    /// Gives the seconds in `phase`.
    pub const fn of(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Free => self.free,
            Phase::Starved => self.starved,
            Phase::Backpressured => self.backpressured,
        }
    }

    /// Gives the seconds of all phases together.
    pub fn total(&self) -> f64 {
        self.free + self.starved + self.backpressured
    }
}

/// The places in this box where bytes of one direction wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueBytes {
    /// Received by the incoming leg's socket, not read.
    pub unread: u64,
    /// The bytes in pepd's pipe.
    pub pipe: u64,
    /// The bytes in the outgoing leg's socket that have not been sent.
    pub unsent: u64,
}

impl QueueBytes {
    /// Gives the bytes of all places together.
    pub fn total(&self) -> u64 {
        self.unread + self.pipe + self.unsent
    }
}

/// One leg of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegSnapshot {
    /// The `[leg.NAME]` that it is configured by.
    pub profile: String,
    /// Its congestion control, as the kernel says; or `fixed-rate`, for which the kernel has
    /// another name.
    pub congestion: Option<String>,
    /// Whether the link under it is there, as far as anything tells.
    #[serde(default)]
    pub link: LinkReport,
    /// The kernel's figures; none once the socket has closed.
    pub tcp: Option<TcpFigures>,
    /// What its socket holds, and may hold; none before the first sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffers: Option<LegBuffers>,
}

/// Both buffers of a leg's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegBuffers {
    /// What is sent and not acknowledged, and what waits to be sent.
    pub send: BufferFigures,
    /// What has come and was not read.
    pub receive: BufferFigures,
}

/// A buffer, in bytes as the kernel counts them: with what it needs for bookkeeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BufferFigures {
    /// What it holds.
    pub held: u64,
    /// What it may hold.
    pub size: u64,
    /// Why that much.
    pub why: SizedBy,
}

/// Why a buffer has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SizedBy {
    /// The configuration file gives it.
    File,
    /// The kernel sizes it.
    Kernel,
    /// The path carries more than the kernel's maximum has room for.
    Path,
    /// Memory is short: this is its part.
    Memory,
}

impl SizedBy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::File, Self::Kernel, Self::Path, Self::Memory];

    /// Gives its name, as in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Kernel => "kernel",
            Self::Path => "path",
            Self::Memory => "memory",
        }
    }
}

/// What is said of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LinkReport {
    /// It is there.
    #[default]
    Up,
    /// It is there, and will not be in a moment.
    GoingDown,
    /// It is not there.
    Gone,
}

impl LinkReport {
    /// For how long a link can be said to be gone: one that is back before anybody has heard of it would be said to be up.
    pub const OUTAGE: RangeInclusive<Duration> =
        Duration::from_millis(1)..=Duration::from_hours(24);

    /// All of them.
    pub const ALL: [Self; 3] = [Self::Up, Self::GoingDown, Self::Gone];

    /// Gives its name, as in JSON, metrics and commands.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::GoingDown => "going-down",
            Self::Gone => "gone",
        }
    }

    /// Returns the one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// The figures of TCP_INFO (include/uapi/linux/tcp.h). What older kernels do not have is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TcpFigures {
    /// Smoothed round-trip time, seconds.
    pub rtt: f64,
    /// Its mean deviation, seconds.
    pub rtt_variation: f64,
    /// The least round-trip time seen lately, seconds.
    pub min_rtt: Option<f64>,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Largest segment that is sent, bytes.
    pub mss: u32,
    /// Segments in flight.
    pub unacked: u32,
    /// Segments held to be lost at the moment.
    pub lost: u32,
    /// Segments retransmitted since the start.
    pub retransmitted_segments: u32,
    /// Bytes retransmitted since the start.
    pub retransmitted_bytes: Option<u64>,
    /// Bytes sent since the start, with retransmissions.
    pub sent_bytes: Option<u64>,
    /// Segments with data that were sent since the start, with retransmissions. Of these and the next ones the leg's figures are
    /// made, and nothing is shown.
    #[serde(skip)]
    pub sent_segments: Option<u32>,
    /// Segments that have arrived since the start, each once.
    #[serde(skip)]
    pub delivered_segments: Option<u32>,
    /// Pacing rate; none when unlimited.
    pub pacing_rate: Option<f64>,
    /// Delivery rate of late.
    pub delivery_rate: Option<f64>,
    /// Seconds with data to send or in flight.
    pub busy: Option<f64>,
    /// Those of the busy seconds that were limited by the receiver's window.
    pub receive_window_limited: Option<f64>,
    /// Those of the busy seconds that were limited by the send buffer.
    pub send_buffer_limited: Option<f64>,
}

/// The last minutes of one connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowHistory {
    /// The connection's id.
    pub id: u64,
    /// A point for each second in which something happened, oldest first. Between two points
    /// that are further apart the connection was idle.
    pub points: Vec<HistoryPoint>,
}

/// One second of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistoryPoint {
    /// The second's end, in seconds since the Unix epoch.
    pub time: f64,
    /// The direction from the client to the server.
    pub up: DirectionPoint,
    /// The direction from the server to the client.
    pub down: DirectionPoint,
    /// The leg between the client and this box.
    pub client_leg: LegPoint,
    /// The leg between this box and the server.
    pub upstream_leg: LegPoint,
}

/// One second of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectionPoint {
    /// Bits per second.
    pub goodput: f64,
    /// Seconds in each phase since the point before.
    pub phases: PhaseSeconds,
    /// Bytes waiting in this box.
    pub queue: u64,
}

/// One second of a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LegPoint {
    /// Smoothed round-trip time, seconds.
    pub rtt: f64,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Segments retransmitted since the point before.
    pub retransmitted_segments: u32,
}

/// All connections from one campus to another, including those that have ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairSnapshot {
    /// The campus that the clients are in.
    pub client_campus: String,
    /// The campus that the servers are in.
    pub server_campus: String,
    /// Connections now.
    pub live: u64,
    /// Connections since the start.
    pub accepted: u64,
    /// The direction from the clients to the servers.
    pub up: PairDirection,
    /// The direction from the servers to the clients.
    pub down: PairDirection,
    /// The legs between the clients and this box.
    pub client_leg: PairLeg,
    /// The legs between this box and the servers.
    pub upstream_leg: PairLeg,
}

/// One direction of all connections of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairDirection {
    /// Bytes delivered since the start.
    pub bytes: u64,
    /// Bits per second over the last ten seconds.
    pub goodput: f64,
    /// Connection-seconds in each phase since the start, of connections while they had
    /// something to carry.
    pub phases: PhaseSeconds,
    /// The same over the last ten seconds.
    pub recent_phases: PhaseSeconds,
}

/// One side's legs of all live connections of a pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairLeg {
    /// The `[leg.NAME]` they are configured by.
    pub profile: String,
    /// Median of their smoothed round-trip times, seconds.
    pub rtt: Option<f64>,
    /// Share of the bytes sent that were retransmissions, 0 to 1, of live connections.
    pub retransmitted: Option<f64>,
    /// The bytes that were sent, with those that were sent again, of live connections.
    #[serde(default)]
    pub sent_bytes: u64,
}

/// The number of times that a leg ended a connection with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountedFailure {
    /// The leg that failed.
    pub side: Side,
    /// The error's name in errno(3), such as `ECONNRESET`.
    pub errno: String,
    /// The number of times since the start.
    pub count: u64,
}

/// One of a connection's two legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Between the client and this box.
    Client,
    /// Between this box and the server.
    Upstream,
}

impl Side {
    /// Both sides, the client's first.
    pub const ALL: [Self; 2] = [Self::Client, Self::Upstream];

    /// Gives its name, as in JSON, metrics and the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
        }
    }
}
