//! What is checked of a request before the kernel is touched.

use crate::error::{Classify, Kind};
use crate::plan::Plan;
use crate::request::Mark;
use crate::route::ids::RouteTable;

/// A request that cannot be installed on any host. (The configuration refuses such a file.)
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The mark is 0, or has bits outside its mask.
    #[error("the mark {mark} does not fit: its value must be other than 0 and within its mask")]
    MarkDoesNotFit {
        /// The mark.
        mark: Mark,
    },
    /// The mark has too few bits to tell what becomes of a held SYN.
    #[error(
        "the mark {mark} has fewer than three bits in its mask: what is held (an end-to-end \
         handshake, ACKs) needs three, as in 0x70000000/0x70000000"
    )]
    MarkTooNarrow {
        /// The mark.
        mark: Mark,
    },
    /// A routing table that pepd would use is one of the kernel's.
    #[error(
        "the routing table {table} is the kernel's own: use another number, such as 7300{}",
        if *has_next_hop_tables {
            " (the next-box table has the numbers after it, one and one for each [[peer]])"
        } else {
            ""
        }
    )]
    KernelsTable {
        /// The table.
        table: RouteTable,
        /// Whether pepd needs more tables than the one that is configured.
        has_next_hop_tables: bool,
    },
}

impl Classify for RequestError {
    fn kind(&self) -> Kind {
        Kind::Internal
    }
}

/// Checks that the mark and the tables of a plan are free to use.
pub(crate) fn validate(plan: &Plan) -> Result<(), RequestError> {
    let mark = plan.mark;
    if !mark.fits() {
        return Err(RequestError::MarkDoesNotFit { mark });
    }
    let holds = plan.holds() || plan.hold_acks.is_some();
    if holds && plan.mark.verdicts().is_none() {
        return Err(RequestError::MarkTooNarrow { mark });
    }
    let tables = plan.tables();
    match tables.iter().find(|table| table.is_kernels()) {
        Some(&table) => Err(RequestError::KernelsTable {
            table,
            has_next_hop_tables: tables.len() > 1,
        }),
        None => Ok(()),
    }
}
