//! Between which campuses connections are routed because splitting does not pay there: elements with a
//! timeout, as the gate's, so that without a daemon it is forgotten.

use std::time::Duration;

use super::sets::{GateError, Sets};
use crate::nft::names::{AUTO_RANGES, DynamicSet};
use crate::plan::Plan;
use crate::prefix::{Family, Range};

/// A handle on the sets that say between which campuses the connections of
/// [`Action::Auto`](crate::Action::Auto) are routed.
///
/// It works on the table that [`install`](crate::install()) made.
#[derive(Debug)]
pub struct Choices {
    sets: Sets,
}

impl Choices {
    /// Opens a netlink socket of its own. It needs no table yet.
    ///
    /// # Errors
    ///
    /// [`GateError`] if there is no such socket.
    pub fn open() -> Result<Choices, GateError> {
        Sets::open().map(|sets| Choices { sets })
    }

    /// Has new connections be `routed` between these campuses of the plan, by their indices there, and many of
    /// those between the `explored` be measured, for `ttl` from now, and between no others. What is beyond
    /// [`AUTO_RANGES`] pairs of ranges is split.
    ///
    /// # Errors
    ///
    /// [`GateError`]; ENOENT means that the table is gone, or chooses nothing.
    pub fn set(
        &self,
        plan: &Plan,
        [routed, explored]: [&[(usize, usize)]; 2],
        ttl: Duration,
    ) -> Result<(), GateError> {
        for &family in &plan.families {
            let of = |pairs| ranges(plan, family, pairs);
            let (auto, explore) = (DynamicSet::Auto(family), DynamicSet::Explored(family));
            self.sets.replace(auto, &of(routed), ttl)?;
            self.sets.replace(explore, &of(explored), ttl)?;
        }
        Ok(())
    }
}

fn ranges(plan: &Plan, family: Family, pairs: &[(usize, usize)]) -> Vec<[Vec<u8>; 2]> {
    let of = |campus: usize| {
        let campus = plan.campuses.get(campus).into_iter();
        campus.flat_map(move |campus| campus.of(family))
    };
    let keys = pairs.iter().flat_map(|&(from, to)| {
        of(from).flat_map(move |from| of(to).map(move |to| ends(from, to)))
    });
    keys.take(AUTO_RANGES).collect()
}

/// Gives the first and the last pair of addresses of a pair of ranges.
fn ends(from: &Range, to: &Range) -> [Vec<u8>; 2] {
    [
        [from.first_bytes(), to.first_bytes()].concat(),
        [from.last_bytes(), to.last_bytes()].concat(),
    ]
}
