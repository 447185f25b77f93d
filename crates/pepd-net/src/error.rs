//! What can go wrong, with the cure.

use std::io;
use std::net::IpAddr;

use crate::iptables;

/// Kernel state that could not be made, found or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The `nft` program could not be started.
    #[error("cannot start the program nft: {source}; install the package nftables")]
    NftMissing {
        /// Why not.
        source: io::Error,
    },
    /// nft could not be spoken to once started.
    #[error("cannot talk to the program nft: {source}")]
    NftIo {
        /// The failed read or write.
        source: io::Error,
    },
    /// The kernel has no such nftables expression.
    #[error(
        "the kernel has no {feature} for nftables; load its module ({module}: modprobe {module}), \
         which Debian ships in linux-image-amd64 or linux-image-arm64; nft said: {stderr}"
    )]
    NftFeature {
        /// The expression, as nft names it.
        feature: &'static str,
        /// The kernel module that provides it.
        module: &'static str,
        /// What nft printed.
        stderr: String,
    },
    /// nft was not permitted to change the table.
    #[error(
        "nft was not permitted to change the table inet pepd: CAP_NET_ADMIN is needed, and no \
         other program may own the table; nft said: {stderr}"
    )]
    NftNotPermitted {
        /// What nft printed.
        stderr: String,
    },
    /// nft failed otherwise.
    #[error("nft failed; it said: {stderr}")]
    Nft {
        /// What nft printed.
        stderr: String,
    },
    /// nft's listing could not be understood.
    #[error("cannot read nft's listing of the table inet pepd: {reason}")]
    NftListing {
        /// What was unexpected.
        reason: String,
    },
    /// A netlink request failed.
    #[error("{what}: {source}{cure}")]
    Netlink {
        /// What was tried, as an `ip` or `nft` command.
        what: String,
        /// The kernel's errno.
        source: io::Error,
        /// What helps against this errno, or nothing.
        cure: &'static str,
    },
    /// The policy-routing table has somebody else's routes.
    #[error(
        "routing table {table} has routes that are not pepd's ({family}, {count} of them): pepd \
         needs a table of its own; set capture.table to a free number, or look at them with \
         `ip {flag} route show table {table}`"
    )]
    ForeignRoutes {
        /// The table.
        table: u32,
        /// IPv4 or IPv6.
        family: &'static str,
        /// `-4` or `-6`.
        flag: &'static str,
        /// How many.
        count: usize,
    },
    /// Somebody else's rule uses the same mark.
    #[error(
        "an ip rule that is not pepd's already uses the mark {mark} (preference {preference}, \
         {family}): set capture.mark to free bits, or remove it with `ip {flag} rule del \
         preference {preference}`"
    )]
    ForeignRule {
        /// The mark both use.
        mark: crate::Mark,
        /// The other rule's preference.
        preference: u32,
        /// IPv4 or IPv6.
        family: &'static str,
        /// `-4` or `-6`.
        flag: &'static str,
    },
    /// The kernel has no such tunnel.
    #[error(
        "the kernel has no {kind} tunnels, which {device} needs ({carries}); load its module \
         ({module}: modprobe {module}), which Debian ships in linux-image-amd64 or \
         linux-image-arm64, and other systems in linux-modules or linux-modules-extra"
    )]
    TunnelModule {
        /// The interface.
        device: String,
        /// The kind, as `ip link` names it.
        kind: &'static str,
        /// The kernel module that provides it.
        module: &'static str,
        /// What is carried in what.
        carries: &'static str,
    },
    /// An interface that is not pepd's has the name of a tunnel.
    #[error(
        "the interface {device} is not pepd's (its alias does not begin with \"pepd \"): rename \
         or remove it (`ip link del {device}`), or give the [[peer]] another name"
    )]
    ForeignDevice {
        /// The interface.
        device: String,
    },
    /// A tunnel that is not pepd's has the same ends.
    #[error(
        "the interface {device}, which is not pepd's, is a tunnel from {local} to {remote} \
         already: remove it (`ip link del {device}`), or give the [[peer]] other addresses"
    )]
    ForeignTunnel {
        /// The other interface.
        device: String,
        /// The tunnel's end on this box.
        local: IpAddr,
        /// The tunnel's other end.
        remote: IpAddr,
    },
    /// The mark does not fit its mask, or the table is one of the kernel's own.
    #[error("{what}")]
    Request {
        /// What is wrong, and what would be right.
        what: String,
    },
    /// `src_valid_mark` would make the kernel drop every captured packet.
    #[error(
        "net.ipv4.conf.{interface}.src_valid_mark is 1: the kernel then validates the source of \
         marked packets against pepd's own table and drops them all; set it to 0 (sysctl -w \
         net.ipv4.conf.{interface}.src_valid_mark=0; wg-quick is known to set it)"
    )]
    SourceValidMark {
        /// The interface, or `all`.
        interface: String,
    },
    /// Nothing on this host can hold a SYN.
    #[error(
        "nothing here can hold a SYN, which the end-to-end handshake needs: the kernel has no \
         `queue` for nftables (module nft_queue: modprobe nft_queue), and {iptables}; install \
         either, or write `handshake = \"early\"` under [capture], which answers a client \
         before its destination; nft said: {stderr}"
    )]
    NoHolder {
        /// What is the matter with iptables.
        iptables: String,
        /// What nft printed.
        stderr: String,
    },
    /// An iptables program failed.
    #[error("{command} failed; it said: {stderr}")]
    Iptables {
        /// The command.
        command: String,
        /// What it printed.
        stderr: String,
    },
    /// Something is not in the kernel as it was installed.
    #[error("{what}; something else changed it: `pepd down` and a restart install it anew")]
    Drift {
        /// What differs.
        what: String,
    },
}

/// The class of an [`Error`], which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel or the host lacks something, or something is in the way: 69.
    Unavailable,
    /// CAP_NET_ADMIN is missing: 77.
    NotPermitted,
    /// Anything else: 70.
    Internal,
}

impl Error {
    /// The class of the error.
    pub fn kind(&self) -> Kind {
        match self {
            Error::NftMissing { source } if source.kind() == io::ErrorKind::NotFound => {
                Kind::Unavailable
            }
            Error::NftFeature { .. }
            | Error::ForeignRoutes { .. }
            | Error::ForeignRule { .. }
            | Error::TunnelModule { .. }
            | Error::ForeignDevice { .. }
            | Error::ForeignTunnel { .. }
            | Error::SourceValidMark { .. }
            | Error::NoHolder { .. } => Kind::Unavailable,
            Error::NftNotPermitted { .. } => Kind::NotPermitted,
            Error::Iptables { stderr, .. } if iptables::not_permitted(stderr) => Kind::NotPermitted,
            Error::Netlink { source, .. } => match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Kind::NotPermitted,
                Some(
                    libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENETDOWN,
                ) => Kind::Unavailable,
                _ => Kind::Internal,
            },
            Error::NftMissing { .. }
            | Error::NftIo { .. }
            | Error::Nft { .. }
            | Error::NftListing { .. }
            | Error::Iptables { .. }
            | Error::Request { .. }
            | Error::Drift { .. } => Kind::Internal,
        }
    }

    /// The exit code of sysexits.h for this error: 69, 70 or 77.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            Kind::Unavailable => 69,
            Kind::Internal => 70,
            Kind::NotPermitted => 77,
        }
    }

    pub(crate) fn netlink(what: impl Into<String>, source: io::Error) -> Error {
        let cure = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "; CAP_NET_ADMIN is needed",
            Some(libc::ENETDOWN) => "; is the loopback device up? (ip link set lo up)",
            Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => {
                "; the kernel needs policy routing (CONFIG_IP_MULTIPLE_TABLES, \
                 CONFIG_IPV6_MULTIPLE_TABLES)"
            }
            Some(libc::EPROTONOSUPPORT) => "; the kernel needs nf_tables (modprobe nf_tables)",
            _ => "",
        };
        Error::Netlink {
            what: what.into(),
            source,
            cure,
        }
    }
}
