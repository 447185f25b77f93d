//! Setting a leg's options on its sockets, and seeing what the kernel made of them.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pepd_packet::{MarkValue, Size};
use pepd_sys::sockopt::{self, OptionError};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::call::Call;
use crate::settings::{Dscp, Leg};

/// A socket option that a leg may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOption {
    /// No IPv4 on an IPv6 socket: IPV6_V6ONLY.
    OnlyV6,
    /// Probes of an idle connection: SO_KEEPALIVE, and how often (tcp(7)).
    KeepAlive,
    /// SO_LINGER: what a close does with data that is left.
    Linger,
    /// The mark of the socket's packets: SO_MARK.
    Mark,
    /// The pacing ceiling: SO_MAX_PACING_RATE.
    MaxPacingRate,
    /// Urgent data in line: SO_OOBINLINE.
    OobInline,
    /// The receive buffer: SO_RCVBUF.
    ReceiveBuffer,
    /// Sharing a local address: SO_REUSEADDR.
    ReuseAddress,
    /// Sharing a port among listeners: SO_REUSEPORT.
    ReusePort,
    /// The send buffer: SO_SNDBUF.
    SendBuffer,
    /// The congestion control: TCP_CONGESTION.
    Congestion,
    /// Data in the SYN: TCP_FASTOPEN.
    FastOpen,
    /// No waiting for a full segment: TCP_NODELAY.
    NoDelay,
    /// TCP_NOTSENT_LOWAT: how much unsent data there may be.
    NotSentLowat,
    /// The longest retransmission timeout: TCP_RTO_MAX_MS.
    RtoMax,
    /// Linear timeouts of thin streams: TCP_THIN_LINEAR_TIMEOUTS.
    ThinLinearTimeouts,
    /// TCP_USER_TIMEOUT: how long data may stay unacknowledged.
    UserTimeout,
}

impl SocketOption {
    /// Gives its name as in the manual pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::OnlyV6 => "IPV6_V6ONLY",
            Self::KeepAlive => "SO_KEEPALIVE",
            Self::Linger => "SO_LINGER",
            Self::Mark => "SO_MARK",
            Self::MaxPacingRate => "SO_MAX_PACING_RATE",
            Self::OobInline => "SO_OOBINLINE",
            Self::ReceiveBuffer => "SO_RCVBUF",
            Self::ReuseAddress => "SO_REUSEADDR",
            Self::ReusePort => "SO_REUSEPORT",
            Self::SendBuffer => "SO_SNDBUF",
            Self::Congestion => "TCP_CONGESTION",
            Self::FastOpen => "TCP_FASTOPEN",
            Self::NoDelay => "TCP_NODELAY",
            Self::NotSentLowat => "TCP_NOTSENT_LOWAT",
            Self::RtoMax => "TCP_RTO_MAX_MS",
            Self::ThinLinearTimeouts => "TCP_THIN_LINEAR_TIMEOUTS",
            Self::UserTimeout => "TCP_USER_TIMEOUT",
        }
    }
}

impl fmt::Display for SocketOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A socket that could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// An option that pepd-sys sets, whose error names it.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A call that sets no option.
    #[error("set {call}: {source}")]
    Call {
        /// The call.
        call: Call,
        /// The kernel's error.
        source: io::Error,
    },
    /// An option that socket2 sets.
    #[error("set {option}: {source}")]
    Set {
        /// The option.
        option: SocketOption,
        /// The kernel's error.
        source: io::Error,
    },
}

impl SocketError {
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Option(error) => error.errno(),
            Self::Call { source, .. } | Self::Set { source, .. } => source.raw_os_error(),
        }
    }
}

/// Something that the kernel gave differently from what the configuration asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The leg.
    pub leg: String,
    /// The option.
    pub option: SocketOption,
    /// The value that was asked for.
    pub asked: String,
    /// The value that the kernel gave.
    pub given: String,
}

/// Opens a new non-blocking TCP socket.
pub(crate) fn new_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(
        domain,
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )
}

/// Lets the socket use addresses that are not the host's, and share a local port.
pub(crate) fn set_transparent(socket: &Socket, domain: Domain) -> Result<(), SocketError> {
    if domain == Domain::IPV4 {
        sockopt::set_transparent_v4(socket.as_fd(), 1)?;
    } else {
        sockopt::set_transparent_v6(socket.as_fd(), 1)?;
    }
    set(SocketOption::ReuseAddress, socket.set_reuse_address(true))
}

/// Sets everything that both of a leg's sockets have in common: an upstream socket before it
/// connects, a listener before it listens, so that accepted sockets inherit it. `mark` is the
/// one that the leg has for this kind of socket.
pub(crate) fn apply(
    socket: &Socket,
    domain: Domain,
    leg: &Leg,
    mark: Option<MarkValue>,
) -> Result<(), SocketError> {
    let fd = socket.as_fd();
    set(SocketOption::NoDelay, socket.set_tcp_nodelay(true))?;
    if let Some(mark) = mark {
        set(SocketOption::Mark, socket.set_mark(mark.0))?;
    }
    // A process that dies must not leave a clean end: see `LegSocket`.
    set(
        SocketOption::Linger,
        socket.set_linger(Some(Duration::ZERO)),
    )?;
    // Out of line, the kernel drops an urgent byte that nobody has taken when the next one is
    // announced (tcp_check_urg), and no longer gives it once a RST has come (tcp_recv_urg).
    set(SocketOption::OobInline, socket.set_out_of_band_inline(true))?;
    set(
        SocketOption::KeepAlive,
        socket.set_tcp_keepalive(&keepalive(leg)),
    )?;
    if let Some(congestion) = leg.control() {
        set(
            SocketOption::Congestion,
            socket.set_tcp_congestion(congestion.as_bytes()),
        )?;
    }
    if let Some(size) = leg.fixed_buffer() {
        sockopt::set_receive_buffer(fd, c_int(size))?;
        sockopt::set_send_buffer(fd, c_int(size))?;
    }
    if let Some(rate) = leg.rate {
        sockopt::set_max_pacing_rate(fd, rate.bytes_per_second())?;
    }
    if let Some(mss) = leg.mss {
        sockopt::set_max_segment(fd, i32::from(mss))?;
    }
    if leg.user_timeout.is_some() {
        set(
            SocketOption::UserTimeout,
            socket.set_tcp_user_timeout(leg.user_timeout),
        )?;
    }
    if let Some(time) = leg.rto_max {
        let set = sockopt::set_rto_max(fd, milliseconds(time));
        // A kernel that does not have it yet is told of at the start: see `differences`.
        set.or_else(|error| without_the_option(&error).then_some(()).ok_or(error))?;
    }
    if leg.thin {
        sockopt::set_thin_linear_timeouts(fd, 1)?;
    }
    if let Some(size) = leg.notsent_lowat {
        sockopt::set_notsent_lowat(fd, c_int(size))?;
    }
    if let Dscp::Set(dscp) = leg.dscp {
        set_dscp(fd, domain, dscp)?;
    }
    Ok(())
}

/// Gives a client leg that was just accepted the congestion control of now, where that is chosen again and again: it has
/// that of its listener.
pub(crate) fn apply_chosen(fd: BorrowedFd<'_>, leg: &Leg) -> Result<(), SocketError> {
    let Some(chosen) = &leg.chosen else {
        return Ok(());
    };
    let control = chosen.name();
    let socket = SockRef::from(&fd);
    set(
        SocketOption::Congestion,
        socket.set_tcp_congestion(control.as_bytes()),
    )
}

/// Sets the DSCP, 0 to 63, of what the socket sends.
pub(crate) fn set_dscp(fd: BorrowedFd<'_>, domain: Domain, dscp: u8) -> Result<(), OptionError> {
    let byte = i32::from(dscp) << 2;
    if domain == Domain::IPV4 {
        sockopt::set_tos_v4(fd, byte)
    } else {
        sockopt::set_tclass_v6(fd, byte)
    }
}

/// Compares what a socket has with what its leg asks for.
pub(crate) fn differences(socket: &Socket, leg: &Leg) -> Result<Vec<Difference>, SocketError> {
    let fd = socket.as_fd();
    let mut found = Vec::new();
    let mut compare = |option: SocketOption, asked: Option<String>, given: String| {
        if let Some(asked) = asked.filter(|asked| *asked != given) {
            found.push(Difference {
                leg: leg.name.to_string(),
                option,
                asked,
                given,
            });
        }
    };
    let congestion = SockRef::from(socket)
        .tcp_congestion()
        .map_err(|source| SocketError::Set {
            option: SocketOption::Congestion,
            source,
        })?;
    let congestion = String::from_utf8_lossy(&congestion);
    compare(
        SocketOption::Congestion,
        leg.control().map(Cow::into_owned),
        congestion.trim_end_matches('\0').into(),
    );
    // The kernel counts its own bookkeeping too and so doubles the value (socket(7)).
    let doubled = leg
        .fixed_buffer()
        .map(|size| c_int(size).saturating_mul(2).to_string());
    compare(
        SocketOption::ReceiveBuffer,
        doubled.clone(),
        sockopt::receive_buffer(fd)?.to_string(),
    );
    compare(
        SocketOption::SendBuffer,
        doubled,
        sockopt::send_buffer(fd)?.to_string(),
    );
    let rate = leg.rate.map(|rate| rate.bytes_per_second().to_string());
    compare(
        SocketOption::MaxPacingRate,
        rate,
        sockopt::max_pacing_rate(fd)?.to_string(),
    );
    let lowat = leg.notsent_lowat.map(|size| c_int(size).to_string());
    compare(
        SocketOption::NotSentLowat,
        lowat,
        sockopt::notsent_lowat(fd)?.to_string(),
    );
    let rto_max = leg.rto_max.map(|time| milliseconds(time).to_string());
    compare(SocketOption::RtoMax, rto_max, given_rto_max(fd)?);
    let thin = leg.thin.then(|| "1".to_owned());
    compare(
        SocketOption::ThinLinearTimeouts,
        thin,
        sockopt::thin_linear_timeouts(fd)?.to_string(),
    );
    Ok(found)
}

fn keepalive(leg: &Leg) -> TcpKeepalive {
    let keepalive = leg.keepalive;
    TcpKeepalive::new()
        .with_time(keepalive.idle)
        .with_interval(keepalive.interval)
        .with_retries(keepalive.count)
}

/// Names the option that socket2 could not set.
pub(crate) fn set(option: SocketOption, result: io::Result<()>) -> Result<(), SocketError> {
    result.map_err(|source| SocketError::Set { option, source })
}

fn given_rto_max(fd: BorrowedFd<'_>) -> Result<String, OptionError> {
    match sockopt::rto_max(fd) {
        Ok(milliseconds) => Ok(milliseconds.to_string()),
        Err(error) if without_the_option(&error) => {
            Ok("none: Linux 6.15 and later have it".to_owned())
        }
        Err(error) => Err(error),
    }
}

/// Returns whether it says that this kernel has no such option.
fn without_the_option(error: &OptionError) -> bool {
    error.errno() == Some(libc::ENOPROTOOPT)
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

fn c_int(size: Size) -> i32 {
    i32::try_from(size.0).unwrap_or(i32::MAX)
}
