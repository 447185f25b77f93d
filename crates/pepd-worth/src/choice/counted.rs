//! What counts of the transfers that were measured, and whether splitting pays by that.

use std::collections::BTreeMap;

use super::{ENOUGH, LEAST, MOST, RARE};
use crate::figures::{Arms, Quantity};
use crate::gain::Gain;
use crate::sample::Client;

/// A transfer that was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) quantity: Quantity,
    /// How long it took, in seconds; the seconds that a byte took, where rates are compared.
    pub(super) time: f64,
    /// How long it took, in seconds.
    pub(super) seconds: f64,
}

/// The times of those that count.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Of each size, as many of the last as can be compared in a moment.
    sizes: [OfSize; Quantity::ALL.len()],
    /// Of all.
    seconds: Arms<Vec<f64>>,
}

#[derive(Debug, Default)]
struct OfSize {
    times: Arms<Vec<f64>>,
    /// The share of all pairs of one of each kind that one client has a part in at most.
    of_one: f64,
}

impl Counted {
    /// Takes those that count; nothing is to be said early that any of several clients could have had said alone.
    pub(super) fn of(transfers: &Arms<Vec<(Client, &Transfer)>>, is_of_several: bool) -> Self {
        let seconds = |of: &[(Client, &Transfer)]| of.iter().map(|(_, it)| it.seconds).collect();
        Self {
            sizes: Quantity::ALL.map(|quantity| OfSize::of(quantity, transfers, is_of_several)),
            seconds: Arms {
                split: seconds(&transfers.split),
                unsplit: seconds(&transfers.unsplit),
            },
        }
    }

    /// Gives the times of one size, the oldest first.
    pub(super) fn times(&self, quantity: Quantity) -> Option<&Arms<Vec<f64>>> {
        self.sizes.get(quantity as usize).map(|size| &size.times)
    }

    /// Returns how long half of the slower kind take at least, in seconds; 0 where there is nothing.
    pub(super) fn slower_median(&self) -> f64 {
        median(&self.seconds.split).max(median(&self.seconds.unsplit))
    }

    /// Returns whether splitting pays, by which transfers, and how much; none as long as that cannot be told.
    pub(super) fn found(&self) -> Option<(bool, Quantity, Gain)> {
        let count = |quantity: Quantity| {
            let arms = self.times(quantity);
            arms.map_or(0, |arms| arms.split.len() + arms.unsplit.len())
        };
        let most = Quantity::ALL.into_iter().max_by_key(|it| count(*it))?;
        let common = Quantity::ALL
            .into_iter()
            .filter(|it| count(*it) * RARE > count(most));
        let gains: Vec<_> = common
            .map(|quantity| {
                let size = self.sizes.get(quantity as usize);
                (quantity, size.and_then(OfSize::gain))
            })
            .collect();
        let known = gains.iter().filter_map(|(of, gain)| Some((*of, (*gain)?)));
        let pays = |gain: Gain| gain.low > 1.0 && gain.factor >= LEAST;
        let harms = |gain: Gain| gain.high < 1.0 && gain.factor <= 1.0 / LEAST;
        let is_idle = |gain: Gain| gain.high < MOST && gain.factor < LEAST;
        let best = known.clone().find(|(_, gain)| pays(*gain));
        let any_harmed = known.clone().any(|(_, gain)| harms(gain));
        if let Some((quantity, gain)) = best
            && !any_harmed
        {
            return Some((true, quantity, gain));
        }
        let (_, of_most) = gains.iter().find(|(quantity, _)| *quantity == most)?;
        let of_most = (*of_most)?;
        let all_idle = gains.iter().all(|(_, gain)| gain.is_some_and(is_idle));
        let arms = self.times(most)?;
        let is_enough = arms.split.len().min(arms.unsplit.len()) >= ENOUGH;
        // Where one size gains and another loses, those decide of which there are most.
        let is_told =
            all_idle || is_enough || (best.is_some() && (pays(of_most) || harms(of_most)));
        is_told.then_some((of_most.factor >= LEAST, most, of_most))
    }
}

impl OfSize {
    fn of(
        quantity: Quantity,
        transfers: &Arms<Vec<(Client, &Transfer)>>,
        is_of_several: bool,
    ) -> Self {
        let [split, unsplit] =
            [&transfers.split, &transfers.unsplit].map(|all| last(all, quantity));
        let times = |of: &[(Client, f64)]| of.iter().map(|(_, time)| *time).collect();
        let of_one = match is_of_several {
            true => 1.0 - (1.0 - largest_share(&split)) * (1.0 - largest_share(&unsplit)),
            false => 0.0,
        };
        Self {
            times: Arms {
                split: times(&split),
                unsplit: times(&unsplit),
            },
            of_one,
        }
    }

    fn gain(&self) -> Option<Gain> {
        Gain::despite(self.of_one, &self.times.unsplit, &self.times.split)
    }
}

fn last(transfers: &[(Client, &Transfer)], quantity: Quantity) -> Vec<(Client, f64)> {
    let of_size = transfers.iter().filter(|(_, it)| it.quantity == quantity);
    let mut times: Vec<_> = of_size.map(|(client, it)| (*client, it.time)).collect();
    times.drain(..times.len().saturating_sub(2 * ENOUGH));
    times
}

/// Returns which share of these the client has that has most.
#[allow(
    clippy::cast_precision_loss,
    reason = "a number of connections is far below 2^53"
)]
fn largest_share(times: &[(Client, f64)]) -> f64 {
    let mut counts: BTreeMap<Client, usize> = BTreeMap::new();
    for (client, _) in times {
        *counts.entry(*client).or_default() += 1;
    }
    let most = counts.values().max().copied().unwrap_or(0);
    most as f64 / times.len().max(1) as f64
}

/// Returns the median; 0 where there is nothing.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
