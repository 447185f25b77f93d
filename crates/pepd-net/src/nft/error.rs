//! What the program nft can fail with.

use std::io;

use crate::error::{Classify, Kind};

/// An nft that could not be run, or that refused something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NftError {
    /// The `nft` program could not be started.
    #[error("cannot start the program nft: {source}{}", cure(source.kind()))]
    Missing {
        /// The reason why not.
        source: io::Error,
    },
    /// nft could not be spoken to once started.
    #[error("cannot talk to the program nft: {source}")]
    Io {
        /// The failed read or write.
        source: io::Error,
    },
    /// nft did not end in time, and was killed.
    #[error(
        "`{command}` did not end within {seconds} s and was killed; run it by hand: if it hangs \
         there, too, look for what keeps it (ps, /proc/PID/stack); if it only takes long, this \
         host's ruleset is too large for it"
    )]
    TimedOut {
        /// The command.
        command: String,
        /// The time that it was given.
        seconds: u64,
    },
    /// The kernel has no such nftables expression.
    #[error(
        "the kernel has no {feature} for nftables; load its module ({module}: modprobe {module}), \
         which Debian ships in linux-image-amd64 or linux-image-arm64; nft said: {stderr}"
    )]
    NoFeature {
        /// The expression, as nft names it.
        feature: &'static str,
        /// The kernel module that provides it.
        module: &'static str,
        /// The text that nft printed.
        stderr: String,
    },
    /// nft was not permitted to change the table.
    #[error(
        "nft was not permitted to change the table inet pepd: CAP_NET_ADMIN is needed, and no \
         other program may own the table; nft said: {stderr}"
    )]
    NotPermitted {
        /// The text that nft printed.
        stderr: String,
    },
    /// nft failed otherwise.
    #[error("nft failed; it said: {stderr}")]
    Failed {
        /// The text that nft printed.
        stderr: String,
    },
    /// The elements of a set could not be read.
    #[error("cannot read the elements of a set of the table inet pepd: {source}")]
    Elements {
        /// The kernel's errno.
        source: io::Error,
    },
    /// nft's listing could not be understood.
    #[error("cannot read nft's listing of the table inet pepd: {reason}")]
    Listing {
        /// A sentence on what was unexpected.
        reason: String,
    },
}

impl NftError {
    /// Returns whether nft was given something to do, and nobody knows whether it has done it.
    pub(crate) fn leaves_doubt(&self) -> bool {
        match self {
            Self::Io { .. } | Self::TimedOut { .. } => true,
            // It may run, and only the pipes to it be missing.
            Self::Missing { source } => !matches!(
                source.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ),
            _ => false,
        }
    }

    /// Returns whether nft complains of its `queue` statement, for which it has no error of its
    /// own.
    pub fn is_about_queues(&self) -> bool {
        matches!(self, Self::Failed { stderr } if stderr.contains("queue"))
    }
}

impl Classify for NftError {
    fn kind(&self) -> Kind {
        match self {
            NftError::Missing { source } if source.kind() == io::ErrorKind::NotFound => {
                Kind::Unavailable
            }
            NftError::Missing { source } if source.kind() == io::ErrorKind::PermissionDenied => {
                Kind::NotPermitted
            }
            NftError::NoFeature { .. } => Kind::Unavailable,
            NftError::NotPermitted { .. } => Kind::NotPermitted,
            NftError::TimedOut { .. } => Kind::Temporary,
            NftError::Missing { .. }
            | NftError::Io { .. }
            | NftError::Failed { .. }
            | NftError::Elements { .. }
            | NftError::Listing { .. } => Kind::Internal,
        }
    }
}

/// Says how nft comes to be there.
fn cure(reason: io::ErrorKind) -> &'static str {
    match reason {
        io::ErrorKind::NotFound => "; install the package nftables",
        io::ErrorKind::PermissionDenied => {
            "; let the user that pepd runs as execute it (chmod a+rx)"
        }
        // A shortage, which may pass.
        _ => "",
    }
}
