//! Watching while the daemon runs whether split connections can come through this host.
//!
//! Three looks, from cheap to dear; the daemon puts them together:
//!
//! - [`Watch::tally`] reads what entered the kernel's hooks and what left them (`nft/passage`): the
//!   result itself, which no cause escapes, but which needs traffic.
//! - [`Watch::changed`] tells that somebody changed nft's tables.
//! - [`examine`] looks for a cause: it asks the kernel where it would send a captured packet
//!   (`lookup`), reads the sysctls (`host`) and, when it is told to, the operator's chains
//!   (`preflight/firewall`).
//!
//! The first two are a few messages on sockets that were opened at start: like the gate's they need
//! neither a descriptor nor a process, and wait for nothing.

mod changes;
pub(crate) mod finding;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod host;
pub(crate) mod lookup;
mod tally;

pub use finding::{Cause, Finding};
pub use tally::{Passage, Tally};

use crate::nft::error::NftError;
use crate::plan::Plan;
use crate::preflight::firewall;
use crate::route::netlink::Routing;
use crate::{Classify, Kind, NetlinkError};
use changes::Changes;
use tally::Counters;

/// The sockets by which the kernel tells how split connections fare.
#[derive(Debug)]
pub struct Watch {
    counters: Counters,
    changes: Changes,
}

impl Watch {
    /// Opens the sockets. They need no table yet.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if there are no such sockets.
    pub fn open() -> Result<Watch, WatchError> {
        let failed = |what: &'static str| move |source| NetlinkError::new(what, source);
        Ok(Watch {
            counters: Counters::open().map_err(failed("cannot open a netfilter socket"))?,
            changes: Changes::listen()
                .map_err(failed("cannot listen to changes of nft's tables"))?,
        })
    }

    /// Reads what has entered the hooks and what has left them, since the table was made; none if
    /// it cannot be read now.
    pub fn tally(&mut self) -> Option<Tally> {
        self.counters.read()
    }

    /// Tells whether somebody has changed nft's chains or rules since the last call.
    pub fn changed(&self) -> bool {
        self.changes.any()
    }
}

/// A watch that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct WatchError(#[from] NetlinkError);

impl Classify for WatchError {
    fn kind(&self) -> Kind {
        self.0.kind()
    }
}

/// Looks for what keeps split connections from coming through, without nft's chains.
///
/// # Errors
///
/// If the kernel cannot be asked now.
pub async fn examine(plan: &Plan) -> Result<Vec<Finding>, NetlinkError> {
    let mut findings = host::findings(plan);
    findings.extend(lookup::findings(&Routing::open()?, plan).await?);
    Ok(findings)
}

/// Looks for chains of the operator's that drop what split connections need.
///
/// # Errors
///
/// If nft cannot list them.
pub async fn examine_firewall(plan: &Plan) -> Result<Vec<Finding>, NftError> {
    firewall::examine(plan).await
}
