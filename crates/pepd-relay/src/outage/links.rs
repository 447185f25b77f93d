//! Which links are gone, for whoever is about to use one, and those that come back, for whoever waits.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use pepd_packet::Rate;
use tokio::sync::watch;

use super::Claimed;

/// The links under the legs, by the legs' names.
#[derive(Debug)]
pub(crate) struct Links {
    gone: ArcSwap<HashSet<Arc<str>>>,
    /// How fast those are that say so.
    rates: ArcSwap<HashMap<Arc<str>, Rate>>,
    /// What each worker's connections over a leg claim of its link: when it went, and again when it is back.
    claims: ArcSwap<HashMap<(Arc<str>, usize), Claimed>>,
    back: watch::Sender<Back>,
    /// The dials that began while their leg's link was gone, and have no answer yet; no entry where there are none.
    newcomers: Mutex<HashMap<Arc<str>, u64>>,
}

/// The links that have come back: each return has a number, and of each leg the last is known, since several may come
/// back before whoever waits has looked.
#[derive(Debug, Default)]
struct Back {
    last: u64,
    of: HashMap<Arc<str>, u64>,
}

impl Links {
    /// Begins with the links under these legs gone, if any.
    pub(crate) fn new(gone: Option<HashSet<Arc<str>>>) -> Self {
        Self {
            gone: ArcSwap::from_pointee(gone.unwrap_or_default()),
            rates: ArcSwap::default(),
            claims: ArcSwap::default(),
            back: watch::Sender::default(),
            newcomers: Mutex::default(),
        }
    }

    /// Notes that a link is gone.
    pub(crate) fn gone(&self, leg: &Arc<str>) {
        self.gone.rcu(|gone| {
            let mut gone = HashSet::clone(gone);
            gone.insert(Arc::clone(leg));
            gone
        });
    }

    /// Notes that it is back.
    pub(crate) fn up(&self, leg: &Arc<str>) {
        self.gone.rcu(|gone| {
            let mut gone = HashSet::clone(gone);
            gone.remove(leg);
            gone
        });
        self.back.send_modify(|back| {
            back.last += 1;
            back.of.insert(Arc::clone(leg), back.last);
        });
    }

    /// Notes how fast a link is; none if that is no longer known.
    pub(crate) fn set_rate(&self, leg: &Arc<str>, rate: Option<Rate>) {
        self.rates.rcu(|rates| {
            let mut rates = HashMap::clone(rates);
            match rate {
                Some(rate) => rates.insert(Arc::clone(leg), rate),
                None => rates.remove(leg),
            };
            rates
        });
    }

    /// Returns how fast it is, if it says so.
    pub(crate) fn rate(&self, leg: &str) -> Option<Rate> {
        self.rates.load().get(leg).copied()
    }

    /// Notes what a worker's connections over it claim of it.
    pub(crate) fn note(&self, leg: &str, worker: usize, claimed: Claimed) {
        self.claims.rcu(|claims| {
            let mut claims = HashMap::clone(claims);
            claims.insert((leg.into(), worker), claimed);
            claims
        });
    }

    /// Returns what all workers' claim together.
    pub(crate) fn noted(&self, leg: &str) -> Claimed {
        let claims = self.claims.load();
        let of_leg = claims.iter().filter(|((it, _), _)| &**it == leg);
        of_leg.map(|(_, claimed)| *claimed).sum()
    }

    /// Returns whether it is gone.
    pub(crate) fn is_gone(&self, leg: &str) -> bool {
        self.gone.load().contains(leg)
    }

    /// Counts a dial by this leg until what this returns is dropped; none where the link is there.
    pub(crate) fn dial(&self, leg: &Arc<str>) -> Option<Newcomer<'_>> {
        self.is_gone(leg).then(|| {
            *self.counted().entry(Arc::clone(leg)).or_default() += 1;
            Newcomer {
                links: self,
                leg: Arc::clone(leg),
            }
        })
    }

    /// Returns how many dials wait for its link.
    pub(crate) fn newcomers(&self, leg: &str) -> u64 {
        self.counted().get(leg).copied().unwrap_or_default()
    }

    fn counted(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.newcomers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is not gone.
    pub(crate) async fn until_back(&self, leg: &str) {
        let mut returns = self.wait();
        while self.is_gone(leg) {
            returns.of(leg).await;
        }
    }

    /// Begins to wait for links that come back.
    pub(crate) fn wait(&self) -> Returns {
        let back = self.back.subscribe();
        let since = back.borrow().last;
        Returns { back, since }
    }
}

/// A dial that began while its leg's link was gone.
#[derive(Debug)]
pub(crate) struct Newcomer<'l> {
    links: &'l Links,
    leg: Arc<str>,
}

impl Drop for Newcomer<'_> {
    fn drop(&mut self) {
        let mut counted = self.links.counted();
        if let Some(count) = counted.get_mut(&self.leg) {
            *count -= 1;
            if *count == 0 {
                counted.remove(&self.leg);
            }
        }
    }
}

/// The links that come back from now on.
pub(crate) struct Returns {
    back: watch::Receiver<Back>,
    /// The number of the last return that is not waited for.
    since: u64,
}

impl Returns {
    /// Waits until that of this leg does.
    pub(crate) async fn of(&mut self, leg: &str) {
        loop {
            let last = self.back.borrow_and_update().of.get(leg).copied();
            if let Some(last) = last.filter(|last| *last > self.since) {
                self.since = last;
                return;
            }
            if self.back.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn who_waits_for_a_link_hears_of_it_and_of_no_other() {
        let links = Links::new(None);
        let (radio, lan): (Arc<str>, Arc<str>) = ("radio".into(), "lan".into());
        links.gone(&radio);
        assert!(links.is_gone("radio") && !links.is_gone("lan"));
        let mut returns = links.wait();
        assert!(returns.of("radio").now_or_never().is_none());
        links.up(&lan);
        assert!(returns.of("radio").now_or_never().is_none());
        links.up(&radio);
        assert!(!links.is_gone("radio"));
        assert!(returns.of("radio").now_or_never().is_some());
        assert!(returns.of("radio").now_or_never().is_none(), "once");
        links.gone(&radio);
        links.up(&radio);
        links.up(&lan);
        assert!(
            returns.of("radio").now_or_never().is_some(),
            "both in a moment"
        );
        for (leg, worker, rate) in [
            ("radio", 0, 9),
            ("radio", 1, 2),
            ("radio", 0, 1),
            ("lan", 0, 7),
        ] {
            let weight = 2 * rate;
            links.note(leg, worker, Claimed { rate, weight });
        }
        let all = Claimed { rate: 3, weight: 6 };
        assert_eq!(links.noted("radio"), all);
        assert_eq!(links.noted("wan"), Claimed::default());
        links.set_rate(&radio, Some(Rate(8_000)));
        assert_eq!(
            (links.rate("radio"), links.rate("lan")),
            (Some(Rate(8_000)), None)
        );
        links.set_rate(&radio, None);
        assert_eq!(links.rate("radio"), None);
        // What was before is not waited for.
        assert!(links.wait().of("radio").now_or_never().is_none());
    }

    #[test]
    fn who_dials_while_a_link_is_gone_is_counted() {
        let links = Links::new(None);
        let radio: Arc<str> = "radio".into();
        assert!(links.dial(&radio).is_none());
        links.gone(&radio);
        let dials = [links.dial(&radio), links.dial(&radio)];
        links.up(&radio);
        assert_eq!((links.newcomers("radio"), links.newcomers("lan")), (2, 0));
        drop(dials);
        assert_eq!(links.newcomers("radio"), 0);
        assert!(links.counted().is_empty());
    }

    #[test]
    fn until_a_link_is_back_is_no_longer_than_it_is_gone() {
        let links = Links::new(None);
        let radio: Arc<str> = "radio".into();
        assert!(links.until_back("radio").now_or_never().is_some());
        links.gone(&radio);
        let mut waits = std::pin::pin!(links.until_back("radio"));
        assert!(waits.as_mut().now_or_never().is_none());
        links.up(&radio);
        links.gone(&radio);
        assert!(waits.as_mut().now_or_never().is_none(), "gone again");
        links.up(&radio);
        assert!(waits.now_or_never().is_some());
    }
}
