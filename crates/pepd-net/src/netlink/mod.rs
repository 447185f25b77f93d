//! What the routes, the tunnels and the gate share of netlink.

pub(crate) mod socket;

use std::io;
use std::net::IpAddr;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::RouteAddress;

use crate::error::{Classify, Kind};
use crate::prefix::Family;

/// A netlink request that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}{}", cure(.source))]
pub struct NetlinkError {
    /// The change that was tried, as an `ip` or `nft` command.
    pub what: String,
    /// The kernel's errno.
    pub source: io::Error,
}

impl NetlinkError {
    pub(crate) fn new(what: impl Into<String>, source: io::Error) -> Self {
        NetlinkError {
            what: what.into(),
            source,
        }
    }
}

impl Classify for NetlinkError {
    fn kind(&self) -> Kind {
        match self.source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Kind::NotPermitted,
            Some(
                libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENETDOWN,
            ) => Kind::Unavailable,
            _ => Kind::Internal,
        }
    }
}

/// Says what helps against an errno, or nothing.
fn cure(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "; CAP_NET_ADMIN is needed",
        Some(libc::ENETDOWN) => "; is the loopback device up? (ip link set lo up)",
        Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => {
            "; the kernel needs policy routing (CONFIG_IP_MULTIPLE_TABLES, \
             CONFIG_IPV6_MULTIPLE_TABLES)"
        }
        Some(libc::EPROTONOSUPPORT) => "; the kernel needs nf_tables (modprobe nf_tables)",
        _ => "",
    }
}

/// Returns whether the kernel says that there is nothing to list or to delete: no such table or
/// rule, no such route, or (for a family that is not there at all) no such operation.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
    )
}

/// Takes the errno out of the library's error.
pub(crate) fn to_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        // No errno to keep: these come from the library.
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

/// Gives a family as a message's header has it.
pub(crate) fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// Gives an address as a route's attributes have it.
pub(crate) fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}
