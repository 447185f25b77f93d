//! What can be the matter with tunnels.

use std::net::IpAddr;

use super::spec::TunnelKind;
use crate::error::{Classify, Drift, Kind};
use crate::netlink::NetlinkError;

/// Tunnels that could not be made, changed or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunnelError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel has no such tunnel.
    #[error(
        "the kernel has no {} tunnels, which {device} needs ({}); load its module \
         ({module}: modprobe {module}), which Debian ships in linux-image-amd64 or \
         linux-image-arm64, and other systems in linux-modules or linux-modules-extra",
        kind.name(),
        kind.carries(),
        module = kind.module()
    )]
    NoModule {
        /// The interface.
        device: String,
        /// The kind of tunnel.
        kind: TunnelKind,
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
    /// A tunnel is not as it was made.
    #[error(transparent)]
    Drift(#[from] Drift),
}

impl Classify for TunnelError {
    fn kind(&self) -> Kind {
        match self {
            TunnelError::Netlink(error) => error.kind(),
            TunnelError::NoModule { .. }
            | TunnelError::ForeignDevice { .. }
            | TunnelError::ForeignTunnel { .. } => Kind::Unavailable,
            TunnelError::Drift(drift) => drift.kind(),
        }
    }
}
