//! What installing, verifying and removing can fail with.

use crate::error::{Classify, Drift, Kind};
use crate::iptables::process::IptablesError;
use crate::netlink::NetlinkError;
use crate::nft::error::NftError;
use crate::preflight::host::SourceValidMark;
use crate::queue_backend::QueueBackendError;
use crate::route::error::RouteError;
use crate::tunnel::error::TunnelError;
use crate::validate::RequestError;

/// A plan that could not be put into the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The request cannot be installed on any host.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The host's settings keep every captured packet away.
    #[error(transparent)]
    Host(#[from] SourceValidMark),
    /// The table could not be made.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The queues could not be filled by iptables.
    #[error(transparent)]
    QueueBackend(#[from] QueueBackendError),
    /// The rules and routes could not be made.
    #[error(transparent)]
    Route(RouteError),
    /// The tunnels could not be made.
    #[error(transparent)]
    Tunnel(TunnelError),
    /// The kernel state that was made did not stay as it was.
    #[error(transparent)]
    Drift(#[from] Drift),
}

impl From<RouteError> for InstallError {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::Drift(drift) => InstallError::Drift(drift),
            error => InstallError::Route(error),
        }
    }
}

impl From<TunnelError> for InstallError {
    fn from(error: TunnelError) -> Self {
        match error {
            TunnelError::Drift(drift) => InstallError::Drift(drift),
            error => InstallError::Tunnel(error),
        }
    }
}

impl From<NetlinkError> for InstallError {
    fn from(error: NetlinkError) -> Self {
        InstallError::Route(RouteError::Netlink(error))
    }
}

impl From<VerifyError> for InstallError {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Drift(drift) => InstallError::Drift(drift),
            VerifyError::Nft(error) => InstallError::Nft(error),
            VerifyError::Iptables(error) => InstallError::QueueBackend(error.into()),
            VerifyError::Netlink(error) => error.into(),
            VerifyError::Tunnel(error) => error.into(),
        }
    }
}

impl Classify for InstallError {
    fn kind(&self) -> Kind {
        match self {
            InstallError::Request(error) => error.kind(),
            InstallError::Host(error) => error.kind(),
            InstallError::Nft(error) => error.kind(),
            InstallError::QueueBackend(error) => error.kind(),
            InstallError::Route(error) => error.kind(),
            InstallError::Tunnel(error) => error.kind(),
            InstallError::Drift(drift) => drift.kind(),
        }
    }
}

/// A plan that is not in the kernel as it was installed, or could not be compared with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// Something is not as it was installed.
    #[error(transparent)]
    Drift(#[from] Drift),
    /// The table could not be read.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// The rules of iptables could not be read.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
    /// The rules, routes or devices could not be read.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The tunnels could not be read.
    #[error(transparent)]
    Tunnel(TunnelError),
}

impl From<TunnelError> for VerifyError {
    fn from(error: TunnelError) -> Self {
        match error {
            TunnelError::Drift(drift) => VerifyError::Drift(drift),
            TunnelError::Netlink(error) => VerifyError::Netlink(error),
            error => VerifyError::Tunnel(error),
        }
    }
}

impl Classify for VerifyError {
    fn kind(&self) -> Kind {
        match self {
            VerifyError::Drift(drift) => drift.kind(),
            VerifyError::Nft(error) => error.kind(),
            VerifyError::Iptables(error) => error.kind(),
            VerifyError::Netlink(error) => error.kind(),
            VerifyError::Tunnel(error) => error.kind(),
        }
    }
}

/// Kernel state that could not be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoveError {
    /// The table could not be deleted.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// It took too long.
    #[error(
        "{what} could not be removed within {seconds} s, and may still be there; \
         `pepd down` tries again"
    )]
    TimedOut {
        /// The part of the kernel state that may be left.
        what: &'static str,
        /// The time that it was given.
        seconds: u64,
    },
    /// The rules of iptables could not be deleted.
    #[error(transparent)]
    QueueBackend(#[from] QueueBackendError),
    /// The rules, routes or tunnels could not be deleted.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The state that is to be kept could not be put in the place of the rest.
    #[error(transparent)]
    Keep(#[from] InstallError),
}

impl Classify for RemoveError {
    fn kind(&self) -> Kind {
        match self {
            RemoveError::Nft(error) => error.kind(),
            RemoveError::TimedOut { .. } => Kind::Temporary,
            RemoveError::QueueBackend(error) => error.kind(),
            RemoveError::Netlink(error) => error.kind(),
            RemoveError::Keep(error) => error.kind(),
        }
    }
}
