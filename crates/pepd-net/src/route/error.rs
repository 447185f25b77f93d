//! What can be the matter with rules and routes.

use super::ids::{Preference, RouteTable};
use crate::error::{Classify, Drift, Kind};
use crate::netlink::NetlinkError;
use crate::prefix::Family;
use crate::request::Mark;

/// Rules and routes that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The policy-routing table has somebody else's routes.
    #[error(
        "routing table {table} has routes that are not pepd's ({}, {count} of them): pepd \
         needs a table of its own; set capture.table to a free number, or look at them with \
         `ip {} route show table {table}`",
        family.name(),
        family.flag()
    )]
    ForeignRoutes {
        /// The table.
        table: RouteTable,
        /// The routes' family.
        family: Family,
        /// The number of them.
        count: usize,
    },
    /// Somebody else's rule uses the same mark.
    #[error(
        "an ip rule that is not pepd's already uses the mark {mark} (preference {preference}, \
         {}): set capture.mark to free bits, or remove it with `ip {} rule del \
         preference {preference}`",
        family.name(),
        family.flag()
    )]
    ForeignRule {
        /// The mark both use.
        mark: Mark,
        /// The other rule's preference.
        preference: Preference,
        /// The rule's family.
        family: Family,
    },
    /// The tunnel that a route leads into is not there, or a rule or route is not.
    #[error(transparent)]
    Drift(#[from] Drift),
}

impl Classify for RouteError {
    fn kind(&self) -> Kind {
        match self {
            RouteError::Netlink(error) => error.kind(),
            RouteError::ForeignRoutes { .. } | RouteError::ForeignRule { .. } => Kind::Unavailable,
            RouteError::Drift(drift) => drift.kind(),
        }
    }
}
