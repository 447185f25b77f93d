//! What can hold a packet on this kernel.

use crate::error::{Classify, Kind};
use crate::iptables::process::{self as iptables, IptablesError};
use crate::nft::error::NftError;
use crate::nft::process as nft;
use crate::request::QueueBackend;

/// Finds out what can hold a packet on this kernel: nft's `queue` where it exists, else iptables'
/// NFQUEUE.
///
/// nft is asked with a table that is made and deleted in one transaction, and so is never there.
///
/// # Errors
///
/// [`QueueBackendError::None`] if there is neither, [`NftError::NotPermitted`] without
/// CAP_NET_ADMIN.
pub async fn find_queue_backend() -> Result<QueueBackend, QueueBackendError> {
    // By a chain that no hook calls: with one that goes, all that waits in any queue of the host is dropped.
    const PROBE: &str = "add table inet pepd_probe\n\
        add chain inet pepd_probe c\n\
        add rule inet pepd_probe c meta mark 0 meta mark 1 queue num 0 bypass\n\
        delete table inet pepd_probe\n";
    match nft::apply(PROBE.to_owned()).await {
        Ok(()) => Ok(QueueBackend::Nft),
        Err(NftError::Failed { stderr }) => match iptables::probe().await {
            Ok(()) => Ok(QueueBackend::Iptables),
            Err(error) => Err(QueueBackendError::None {
                iptables: format!("iptables cannot be used ({error}; package iptables)"),
                stderr,
            }),
        },
        Err(error) => Err(error.into()),
    }
}

/// A host on which packets cannot be held, or cannot be now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueBackendError {
    /// Nothing on this host can hold a packet.
    #[error(
        "nothing here can hold a packet, which the end-to-end handshake and `hold-acks` need: the \
         kernel has no `queue` for nftables (module nft_queue: modprobe nft_queue), and \
         {iptables}; install either, or write `handshake = \"early\"` under [capture], which \
         answers a client before its destination, and no `hold-acks`; nft said: {stderr}"
    )]
    None {
        /// A sentence on what is the matter with iptables.
        iptables: String,
        /// The text that nft printed.
        stderr: String,
    },
    /// nft failed.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// An iptables program failed.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
}

impl Classify for QueueBackendError {
    fn kind(&self) -> Kind {
        match self {
            QueueBackendError::None { .. } => Kind::Unavailable,
            QueueBackendError::Nft(error) => error.kind(),
            QueueBackendError::Iptables(error) => error.kind(),
        }
    }
}
