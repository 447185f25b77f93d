//! Setting a leg's options on its sockets, and seeing what the kernel made of them.

use std::io;
use std::os::fd::AsFd;

use pepd_packet::{MarkValue, Size};
use pepd_sys::sockopt::{self, OptionError};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::settings::{Dscp, Leg};

/// An option that could not be set.
#[derive(Debug, thiserror::Error)]
pub enum Unset {
    /// One that pepd-sys sets; it names itself.
    #[error(transparent)]
    Named(#[from] OptionError),
    /// One that socket2 sets.
    #[error("set {option}: {source}")]
    Plain {
        /// The option's name as in the manual pages.
        option: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Unset {
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Named(error) => error.errno(),
            Self::Plain { source, .. } => source.raw_os_error(),
        }
    }
}

/// Something that the kernel gave differently from what the configuration asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Difference {
    /// The leg.
    pub leg: String,
    /// The option's name as in the manual pages.
    pub option: &'static str,
    /// What was asked for.
    pub asked: String,
    /// What the kernel gave.
    pub given: String,
}

/// A new non-blocking TCP socket.
pub(crate) fn new_socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(
        domain,
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )
}

/// Lets the socket use addresses that are not the host's, and share a local port.
pub(crate) fn set_transparent(socket: &Socket, domain: Domain) -> Result<(), Unset> {
    if domain == Domain::IPV4 {
        sockopt::set_transparent_v4(socket.as_fd(), 1)?;
    } else {
        sockopt::set_transparent_v6(socket.as_fd(), 1)?;
    }
    plain("SO_REUSEADDR", socket.set_reuse_address(true))
}

/// Sets everything that both of a leg's sockets have in common: an upstream socket before it
/// connects, a listener before it listens, so that accepted sockets inherit it. `mark` is the
/// one that the leg has for this kind of socket.
pub(crate) fn apply(
    socket: &Socket,
    domain: Domain,
    leg: &Leg,
    mark: Option<MarkValue>,
) -> Result<(), Unset> {
    let fd = socket.as_fd();
    plain("TCP_NODELAY", socket.set_tcp_nodelay(true))?;
    if let Some(mark) = mark {
        plain("SO_MARK", socket.set_mark(mark.0))?;
    }
    // A process that dies must not leave a clean end: see `LegSocket`.
    plain(
        "SO_LINGER",
        socket.set_linger(Some(std::time::Duration::ZERO)),
    )?;
    // Out of line, the kernel drops an urgent byte that nobody has taken when the next one is
    // announced (tcp_check_urg), and gives it no more once a RST has come (tcp_recv_urg).
    plain("SO_OOBINLINE", socket.set_out_of_band_inline(true))?;
    plain("SO_KEEPALIVE", socket.set_tcp_keepalive(&keepalive(leg)))?;
    if let Some(congestion) = &leg.congestion {
        plain(
            "TCP_CONGESTION",
            socket.set_tcp_congestion(congestion.as_bytes()),
        )?;
    }
    if let Some(size) = leg.buffer {
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
        plain(
            "TCP_USER_TIMEOUT",
            socket.set_tcp_user_timeout(leg.user_timeout),
        )?;
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

/// Sets the DSCP, 0 to 63, of what the socket sends.
pub(crate) fn set_dscp(
    fd: std::os::fd::BorrowedFd<'_>,
    domain: Domain,
    dscp: u8,
) -> Result<(), OptionError> {
    let byte = i32::from(dscp) << 2;
    if domain == Domain::IPV4 {
        sockopt::set_tos_v4(fd, byte)
    } else {
        sockopt::set_tclass_v6(fd, byte)
    }
}

/// Compares what a socket has with what its leg asks for.
pub(crate) fn differences(socket: &Socket, leg: &Leg) -> Result<Vec<Difference>, Unset> {
    let fd = socket.as_fd();
    let mut found = Vec::new();
    let mut compare = |option: &'static str, asked: Option<String>, given: String| {
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
        .map_err(|source| Unset::Plain {
            option: "TCP_CONGESTION",
            source,
        })?;
    let congestion = String::from_utf8_lossy(&congestion);
    compare(
        "TCP_CONGESTION",
        leg.congestion.clone(),
        congestion.trim_end_matches('\0').into(),
    );
    // The kernel counts its own bookkeeping too and so doubles the value (socket(7)).
    let doubled = leg
        .buffer
        .map(|size| c_int(size).saturating_mul(2).to_string());
    compare(
        "SO_RCVBUF",
        doubled.clone(),
        sockopt::receive_buffer(fd)?.to_string(),
    );
    compare("SO_SNDBUF", doubled, sockopt::send_buffer(fd)?.to_string());
    let rate = leg.rate.map(|rate| rate.bytes_per_second().to_string());
    compare(
        "SO_MAX_PACING_RATE",
        rate,
        sockopt::max_pacing_rate(fd)?.to_string(),
    );
    let lowat = leg.notsent_lowat.map(|size| c_int(size).to_string());
    compare(
        "TCP_NOTSENT_LOWAT",
        lowat,
        sockopt::notsent_lowat(fd)?.to_string(),
    );
    let thin = leg.thin.then(|| "1".to_owned());
    compare(
        "TCP_THIN_LINEAR_TIMEOUTS",
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

fn plain(option: &'static str, result: io::Result<()>) -> Result<(), Unset> {
    result.map_err(|source| Unset::Plain { option, source })
}

fn c_int(size: Size) -> i32 {
    i32::try_from(size.0).unwrap_or(i32::MAX)
}
