//! A sample of a connection's sockets, and what the phases need to know of it.

use std::fmt;
use std::time::Duration;

use crate::{LegBuffers, TcpFigures};

/// The name of a congestion control, as TCP_CONGESTION gives it (tcp(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionName([u8; Self::MAX]);

impl CongestionName {
    /// TCP_CA_NAME_MAX of include/net/tcp.h: no name in the kernel is longer.
    const MAX: usize = 16;

    /// Returns the name up to the first zero byte, cut to what the kernel allows.
    pub fn new(name: &[u8]) -> Self {
        let mut bytes = [0; Self::MAX];
        for (to, from) in bytes
            .iter_mut()
            .zip(name.iter().take_while(|byte| **byte != 0))
        {
            *to = *from;
        }
        Self(bytes)
    }
}

impl fmt::Display for CongestionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.0.iter().position(|byte| *byte == 0);
        f.write_str(&String::from_utf8_lossy(
            &self.0[..len.unwrap_or(Self::MAX)],
        ))
    }
}

/// A sample of one leg's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SocketSample {
    /// The figures from TCP_INFO.
    pub tcp: Option<TcpFigures>,
    /// The congestion control, where it was asked for.
    pub congestion: Option<CongestionName>,
    /// Bytes written that have not been sent.
    pub unsent: u64,
    /// Bytes written that the peer has not acknowledged, sent or not; a FIN counts as one.
    pub unacknowledged: u64,
    /// Bytes received that have not been read.
    pub unread: u64,
    /// The socket's buffers.
    pub buffers: Option<LegBuffers>,
}

/// A sample of both sockets of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConnectionSample {
    /// The client leg.
    pub client: SocketSample,
    /// The upstream leg.
    pub upstream: SocketSample,
}

/// The fields that a sample has to hold beyond those that it always has; the others may be left
/// out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleFields {
    /// The name of the congestion control: in the first sample only.
    pub congestion: bool,
    /// Whether the bytes that the client leg has received and that were not read are asked for.
    pub client_unread: bool,
    /// The same of the upstream leg.
    pub upstream_unread: bool,
}

/// The facts about a leg that the phases need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LegEstimate {
    pub(super) rtt: Duration,
    /// Bytes per second that it can send: a window each round trip.
    pub(super) rate: Option<f64>,
    /// A whole segment, where known.
    mss: u64,
}

impl LegEstimate {
    /// Returns the bytes that wait for this leg. Less than a segment is nothing: that is how the
    /// kernel, too, tells that a connection is limited by what it is given
    /// (tcp_rate_check_app_limited, net/ipv4/tcp_rate.c).
    pub(super) fn backlog(&self, unsent: u64) -> u64 {
        if unsent < self.mss { 0 } else { unsent }
    }
}

impl SocketSample {
    /// The estimate before the first sample.
    pub(super) const NONE: Self = Self {
        tcp: None,
        congestion: None,
        unsent: 0,
        unacknowledged: 0,
        unread: 0,
        buffers: None,
    };

    pub(super) fn estimate(&self) -> LegEstimate {
        let Some(tcp) = self.tcp.filter(|tcp| tcp.rtt > 0.0) else {
            return LegEstimate::default();
        };
        LegEstimate {
            rtt: Duration::try_from_secs_f64(tcp.rtt).unwrap_or_default(),
            rate: Some(f64::from(tcp.cwnd) * f64::from(tcp.mss) / tcp.rtt),
            mss: tcp.mss.into(),
        }
    }

    /// Takes newer figures; what was not asked for again stays.
    pub(super) fn update(&mut self, newer: Self) {
        let congestion = newer.congestion.or(self.congestion);
        let tcp = newer.tcp.or(self.tcp);
        let buffers = newer.buffers.or(self.buffers);
        *self = Self {
            tcp,
            congestion,
            buffers,
            ..newer
        };
    }
}
