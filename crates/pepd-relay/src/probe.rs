//! Trying every leg's options on a throw-away socket before any traffic depends on them.

use std::fs;

use libc::{ENOENT, EPERM};
use socket2::Domain;

use crate::settings::Leg;
use crate::sockopts::{self, Difference, SocketError, SocketOption};

/// A leg that this kernel cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The congestion control is not there.
    #[error(
        "leg \"{leg}\": the kernel has no congestion control \"{wanted}\"; it has: {available}. \
         Choose one of these, or load the module tcp_{wanted} (modprobe tcp_{wanted})"
    )]
    Congestion {
        /// The leg.
        leg: String,
        /// The control that the configuration asks for.
        wanted: String,
        /// The controls that there are, separated by blanks.
        available: String,
    },
    /// An option was refused.
    #[error("leg \"{leg}\": {source}")]
    Option {
        /// The leg.
        leg: String,
        /// The option, and what the kernel said.
        source: SocketError,
    },
    /// pepd lacks a capability.
    #[error("{call}: not permitted; pepd needs CAP_NET_ADMIN")]
    NotPermitted {
        /// The refused call.
        call: String,
    },
    /// Not even a socket could be had.
    #[error("open a TCP socket: {0}")]
    Socket(#[source] std::io::Error),
}

/// Tries every leg. Returns what the kernel gave differently, to be logged.
pub fn probe(legs: &[Leg]) -> Result<Vec<Difference>, ProbeError> {
    let mut found = Vec::new();
    for leg in legs {
        let socket = sockopts::new_socket(Domain::IPV4).map_err(ProbeError::Socket)?;
        sockopts::set_transparent(&socket, Domain::IPV4)
            .and_then(|()| sockopts::apply(&socket, Domain::IPV4, leg, leg.upstream_mark))
            .map_err(|source| explain(leg, source))?;
        let differences = sockopts::differences(&socket, leg);
        found.extend(differences.map_err(|source| explain(leg, source))?);
        found.extend(fast_open_difference(leg));
    }
    Ok(found)
}

/// Returns whether the kernel has a congestion control, which it may load for that.
#[must_use]
pub fn has_control(name: &str) -> bool {
    let socket = sockopts::new_socket(Domain::IPV4);
    socket.is_ok_and(|socket| socket.set_tcp_congestion(name.as_bytes()).is_ok())
}

fn explain(leg: &Leg, source: SocketError) -> ProbeError {
    let control = leg.control();
    match (&source, source.errno(), control.as_deref()) {
        (
            SocketError::Set {
                option: SocketOption::Congestion,
                ..
            },
            Some(ENOENT),
            Some(wanted),
        ) => ProbeError::Congestion {
            leg: leg.name.to_string(),
            wanted: wanted.to_owned(),
            available: available_congestion_controls(),
        },
        (_, Some(EPERM), _) => ProbeError::NotPermitted {
            call: source.to_string(),
        },
        _ => ProbeError::Option {
            leg: leg.name.to_string(),
            source,
        },
    }
}

fn available_congestion_controls() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").map_or_else(
        |error| format!("(unknown: {error})"),
        |text| without_own_controls(&text),
    )
}

/// What the names of pepd's own congestion controls begin with (`pepd_bpf::Name`).
pub(crate) const OWN_CONTROLS: &str = "pepd";

/// Returns the congestion controls of a list that are not pepd's own. Those are in it under names that begin so,
/// each for the legs of one daemon; the kernel has one list for all network namespaces.
pub fn without_own_controls(available: &str) -> String {
    let others = available
        .split_whitespace()
        .filter(|name| !name.starts_with(OWN_CONTROLS));
    others.collect::<Vec<_>>().join(" ")
}

/// Returns what Fast Open lacks: it needs both bits of net.ipv4.tcp_fastopen: 1 to send data in a
/// SYN, 2 to take it (Documentation/networking/ip-sysctl.rst).
fn fast_open_difference(leg: &Leg) -> Option<Difference> {
    if !leg.fast_open {
        return None;
    }
    let path = "/proc/sys/net/ipv4/tcp_fastopen";
    let bits: u32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (bits & 3 != 3).then(|| Difference {
        leg: leg.name.to_string(),
        option: SocketOption::FastOpen,
        asked: "net.ipv4.tcp_fastopen=3 (sysctl -w net.ipv4.tcp_fastopen=3)".to_owned(),
        given: format!("net.ipv4.tcp_fastopen={bits}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_of_pepds_own_is_nobodys_choice() {
        let available = "reno bbr cubic pepdf0000196.0 pepdf0000196g1\n";
        assert_eq!(without_own_controls(available), "reno bbr cubic");
    }
}
