//! How the legs of a link that is back begin: one after the other, all together no faster than it carries.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pepd_packet::Rate;

use super::pace::Pace;
use super::share::Share;
use super::stalled::{Acknowledged, Stalled};
use super::window::{LEAST, Least, Opener, Paced};
use super::{Before, Claim, Claimed, Links};
use crate::shared::{Context, Shared};

/// The segments for which the next leg waits where windows are opened: by four, 50 of bbr's sent 270 kB in 100 ms once in 13
/// outages, where the link carries 250.
const OPENED_AT_ONCE: u32 = 5;

/// How a worker's legs begin over a link that is back.
pub(super) struct Beginning<'s, 'l> {
    links: &'s Links,
    leg: &'s str,
    worker: usize,
    /// What somebody says that they may send together, in bytes a second.
    said: Option<u64>,
    /// What they claim together, and what they delivered, in bytes a second.
    claimed: Claimed,
    delivered: u64,
    /// What each of them claims, and when that is looked at again.
    claims: Vec<Claim>,
    again: Instant,
    trip: Duration,
    opener: Opener<'s>,
    /// The segments for which the next leg waits: one that is opened sends some more soon.
    at_once: u32,
    pub(super) pace: Pace,
    /// Those that have begun, until it was looked at whether they are answered.
    begun: VecDeque<(Instant, Acknowledged<'l>)>,
}

impl<'s, 'l> Beginning<'s, 'l> {
    /// Notes what these legs claim of the link, which is back since `now`.
    pub(super) fn new(
        context: &'s Context,
        leg: &'s str,
        before: &Before,
        stalled: &[Stalled<'l, '_>],
        now: Instant,
    ) -> Self {
        let shared = &context.shared;
        let claimed: Claimed = stalled.iter().map(Stalled::claims).sum();
        shared.links.note(leg, context.index, claimed);
        let told = shared.links.rate(leg).map(Rate::bytes_per_second);
        let share = Share {
            claimed: shared.links.noted(leg),
            carried: before.carried.into_iter().chain(told).min(),
            is_shared: stalled.len() > 1,
        };
        let said = said_rate(shared, leg);
        let rate = said.unwrap_or_else(|| share.of_all(claimed).min(claimed.rate));
        // Where there are too many for that a segment of each in a round trip has to do.
        let (least, at_once) = match stalled.len() == 1 || fit(stalled, rate) {
            true => (Least::USUAL, OPENED_AT_ONCE),
            false => (Least::OF_MANY, 1),
        };
        let control = shared.resume.as_deref();
        let trips = stalled.iter().filter_map(|one| one.info.min_rtt);
        let trip = trips.max().unwrap_or_default().max(LEAST);
        let mut beginning = Self {
            links: &shared.links,
            leg,
            worker: context.index,
            said,
            claimed,
            delivered: stalled.iter().map(|one| one.claim.delivered).sum(),
            claims: stalled.iter().map(|one| one.claim.clone()).collect(),
            again: now + trip,
            trip,
            opener: Opener {
                control,
                share,
                least,
            },
            at_once: control.map_or(1, |_| at_once),
            pace: match control {
                Some(_) => Pace::of_open_windows(now),
                None => Pace::new(now),
            },
            begun: VecDeque::new(),
        };
        if said.is_none() {
            // What it carried may be what there was to carry.
            beginning.pace = beginning.pace.doubling(trip, now);
        }
        beginning.look();
        tracing::debug!(
            rate = beginning.pace.rate(),
            ?said,
            ?claimed,
            ?share,
            ?control,
            "how fast legs begin"
        );
        beginning
    }

    /// Returns what has a leg keep to its part.
    pub(super) fn opener(&self) -> Opener<'s> {
        self.opener
    }

    /// Returns when the next one may begin, and reserves its time.
    pub(super) fn next(&mut self, one: &Stalled<'_, '_>) -> Instant {
        self.look();
        let now = Instant::now();
        self.pace.double(now, |by| answered(&mut self.begun, by));
        self.pace.next(one.bytes(self.at_once), now)
    }

    /// Notes that one has begun.
    pub(super) fn note(&mut self, one: &Stalled<'l, '_>) {
        self.begun.push_back((Instant::now(), one.acknowledged));
    }

    /// Gives those that keep to a rate, once in a round trip, the parts of those that have nothing left to send. Returns when it does so
    /// next.
    pub(super) fn share_again(&mut self, paced: &mut [Paced<'_>], now: Instant) -> Instant {
        if now >= self.again {
            self.again = now + self.trip;
            self.claimed = self.claims.iter().map(Claim::now).sum();
            self.links.note(self.leg, self.worker, self.claimed);
            self.look();
            for one in paced {
                one.share_again(self.opener);
            }
        }
        self.again
    }

    /// Looks at what others claim: a worker that was later than this one has not said it before.
    fn look(&mut self) {
        let share = &mut self.opener.share;
        share.claimed = self.links.noted(self.leg);
        // Samples of many come to more than the link carries. Where they come to less that is no reason to begin faster.
        let rate = self
            .said
            .unwrap_or_else(|| share.of_all(self.claimed).min(self.delivered));
        // Where windows are not opened each sends two more when its first segment is answered (RFC 5681, section 3.1), while
        // others begin.
        self.pace.set_rate(match self.opener.control {
            Some(_) => rate,
            None => rate / 3,
        });
    }
}

/// Returns whether each of these legs may send two segments in a round trip: all may send so much together, in bytes a second.
fn fit(stalled: &[Stalled<'_, '_>], rate: u64) -> bool {
    let least = stalled.iter().map(|one| one.claims_at_most(Least::USUAL));
    least.sum::<u64>() < rate
}

/// Gives how many of those are answered that have begun by this time, and how many they are, and forgets them.
fn answered(begun: &mut VecDeque<(Instant, Acknowledged<'_>)>, by: Instant) -> (usize, usize) {
    let all = begun.partition_point(|(at, _)| *at <= by);
    let answered = begun.drain(..all).filter(|(_, one)| one.has_changed());
    (answered.count(), all)
}

/// Returns the bytes a second at which a worker may begin, where somebody says how fast the link is.
fn said_rate(shared: &Shared, leg: &str) -> Option<u64> {
    let settings = shared.settings.load();
    let given = settings.leg_named(leg).and_then(|leg| leg.rate);
    // What the operator says holds, then what the link says of itself.
    let rate = given.or_else(|| shared.links.rate(leg))?;
    Some(rate.bytes_per_second() / shared.workers as u64)
}
