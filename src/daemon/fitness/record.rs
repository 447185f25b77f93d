//! Whether the box is fit, from what is seen of all that it needs. No I/O and no clock: the time is passed
//! in. docs/cluster.md has the table of what counts for what.

use std::time::{Duration, Instant};

use pepd_admin::wire::{CampusReadiness, Fit, Readiness};

use super::damper::{Damper, Seen};

/// The time for which a campus may be out of reach until that counts. A peer that is silent has been
/// for three probes by then.
const CAMPUS_GRACE: Duration = Duration::from_secs(3);
/// The time for which pepd's kernel state may not be as it should be: it is put back at once.
const KERNEL_GRACE: Duration = Duration::from_secs(3);
/// A box is nearly full from this part of a limit on, in tenths…
const NEARLY_FULL: u64 = 9;
/// … until less than this is used.
const ROOM_AGAIN: u64 = 8;
/// The least campuses between which there are connections.
const LEAST_CAMPUSES: usize = 2;

/// All that is seen at one time.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Whether all workers respond.
    pub workers: bool,
    /// Why split connections do not come through this host, if they do not.
    pub blocked: Option<String>,
    /// Whether the host forwards anything.
    pub forwards: bool,
    /// What is the matter with the kernel state, if something is.
    pub trouble: Option<Trouble>,
    /// Whether there is no descriptor for another connection.
    pub exhausted: bool,
    /// Whether the daemon's process dies so often that there may be no other.
    pub dying: bool,
    /// What is used of each limit.
    pub limits: Vec<Use>,
    /// Each campus, in the order of the file.
    pub campuses: Vec<CampusSight>,
}

/// What is the matter with the kernel state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is not there, and cannot be put back: connections do not come through.
    Broken(String),
    /// It cannot be looked at, or not be told anything new. What is there stays as it is.
    Unseen(String),
}

/// What is used of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The key in `[limits]`.
    pub name: &'static str,
    /// How much.
    pub used: u64,
    /// The most.
    pub limit: u64,
}

/// What is seen of the way to a campus.
#[derive(Clone, Debug)]
pub struct CampusSight {
    /// Its name.
    pub name: String,
    /// Whether it can be reached.
    pub seen: Seen,
    /// Whether its connections wait for what stands in the way (`while_gone = "wait"`), and are kept.
    pub waits: bool,
}

/// What is known.
#[derive(Debug)]
pub struct Record {
    workers: Damper,
    passage: Damper,
    forwarding: Damper,
    kernel: Damper,
    kernel_seen: Damper,
    descriptors: Damper,
    dying: bool,
    /// The limits that are nearly reached.
    nearly: Vec<&'static str>,
    campuses: Vec<Campus>,
}

#[derive(Debug)]
struct Campus {
    name: String,
    way: Damper,
    waits: bool,
}

/// What a process notes for the one that goes on if it dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The campuses that were out of reach, a bit for each, in the order of the file.
    pub campuses: u32,
    /// Whether a limit was nearly reached.
    pub nearly_full: bool,
}

impl Noted {
    /// The bit that says whether a limit was nearly reached, above those of the campuses.
    const NEARLY_FULL: u64 = 1 << 32;

    /// Returns it as a word.
    pub fn to_bits(self) -> u64 {
        let full = if self.nearly_full {
            Self::NEARLY_FULL
        } else {
            0
        };
        u64::from(self.campuses) | full
    }

    /// Reads that word.
    pub fn from_bits(bits: u64) -> Self {
        Self {
            #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
            campuses: bits as u32,
            nearly_full: bits & Self::NEARLY_FULL != 0,
        }
    }
}

impl Record {
    /// Begins with what a process before this one has noted, if there was one.
    pub fn new(before: Option<Noted>, campuses: impl IntoIterator<Item = String>) -> Self {
        let mut record = Self {
            workers: Damper::well(Duration::ZERO),
            passage: Damper::well(Duration::ZERO),
            forwarding: Damper::well(KERNEL_GRACE),
            kernel: Damper::well(KERNEL_GRACE),
            kernel_seen: Damper::well(KERNEL_GRACE),
            descriptors: Damper::well(Duration::ZERO),
            dying: false,
            nearly: Vec::new(),
            campuses: Vec::new(),
        };
        if before.is_some_and(|noted| noted.nearly_full) {
            // Until the limits are looked at, it is not known which it was.
            record.nearly.push("connections");
        }
        for (index, name) in campuses.into_iter().enumerate() {
            let was_out = before.map(|noted| noted.campuses & bit(index) != 0);
            let way = match was_out {
                None => Damper::unknown(CAMPUS_GRACE, "nothing is known of it yet".to_owned()),
                Some(false) => Damper::well(CAMPUS_GRACE),
                Some(true) => {
                    Damper::ill(CAMPUS_GRACE, "it was out of reach a moment ago".to_owned())
                }
            };
            record.campuses.push(Campus {
                name,
                way,
                waits: false,
            });
        }
        record
    }

    /// Takes what is seen now.
    pub fn see(&mut self, sight: Sight, now: Instant) {
        let seen = |is_well: bool, why: &str| match is_well {
            true => Seen::Well,
            false => Seen::Ill(why.to_owned()),
        };
        let of = |why: Option<String>| why.map_or(Seen::Well, Seen::Ill);
        let why = "a worker does not respond";
        self.workers.see(seen(sight.workers, why), now);
        self.passage.see(of(sight.blocked), now);
        let why = "forwarding is off on this host: nothing gets so far as to be split";
        self.forwarding.see(seen(sight.forwards, why), now);
        let (state, sight_of_it) = match sight.trouble {
            None => (Seen::Well, Seen::Well),
            Some(Trouble::Broken(why)) => (Seen::Ill(why), Seen::Well),
            Some(Trouble::Unseen(why)) => (Seen::Unknown, Seen::Ill(why)),
        };
        self.kernel.see(state, now);
        self.kernel_seen.see(sight_of_it, now);
        let why = "there are no descriptors for more connections";
        self.descriptors.see(seen(!sight.exhausted, why), now);
        self.dying = sight.dying;
        self.nearly = nearly(&self.nearly, &sight.limits);
        let mut before = std::mem::take(&mut self.campuses);
        for CampusSight { name, seen, waits } in sight.campuses {
            let known = before.iter().position(|campus| campus.name == name);
            let mut campus = match known {
                Some(index) => before.swap_remove(index),
                None => Campus {
                    name,
                    way: Damper::unknown(CAMPUS_GRACE, "nothing is known of it yet".to_owned()),
                    waits,
                },
            };
            campus.way.see(seen, now);
            campus.waits = waits;
            self.campuses.push(campus);
        }
    }

    /// Returns what whoever goes on is to know.
    pub fn noted(&self) -> Noted {
        let out = self.campuses.iter().enumerate();
        let out = out.filter(|(_, campus)| campus.way.illness().is_some());
        Noted {
            campuses: out.fold(0, |bits, (index, _)| bits | bit(index)),
            nearly_full: !self.nearly.is_empty(),
        }
    }

    /// Judges.
    pub fn judge(&self) -> Readiness {
        let both = [&self.passage, &self.kernel];
        let both = both.iter().find_map(|it| it.illness()).map(str::to_owned);
        let new = both.clone().or_else(|| self.only_new());
        let campuses = self.campuses.iter().map(|campus| CampusReadiness {
            name: campus.name.clone(),
            new: fit(new.clone().or_else(|| campus.out_of_reach(false))),
            live: fit(both.clone().or_else(|| campus.out_of_reach(true))),
        });
        Readiness {
            campuses: campuses.collect(),
            new: self.whole(new, false),
            live: self.whole(both, true),
        }
    }

    /// Returns why new connections are better led elsewhere, and those that there are are not: the keeper
    /// mends it, it ends with some of them, or it is nothing to them.
    fn only_new(&self) -> Option<String> {
        let ill = [
            &self.workers,
            &self.descriptors,
            &self.forwarding,
            &self.kernel_seen,
        ];
        if let Some(why) = ill.iter().find_map(|it| it.illness()) {
            return Some(why.to_owned());
        }
        if self.dying {
            return Some("its process has died again and again".to_owned());
        }
        let limit = self.nearly.first()?;
        Some(format!(
            "nine tenths of `[limits] {limit}` were in use, and eight tenths still are"
        ))
    }

    /// Judges the box as a whole, given what is the matter with it beside the campuses: it is fit while
    /// there are two campuses that it can join.
    fn whole(&self, why: Option<String>, live: bool) -> Fit {
        if let Some(why) = why {
            return Fit::unfit(why);
        }
        let out: Vec<String> = self
            .campuses
            .iter()
            .filter_map(|campus| {
                let why = campus.out_of_reach(live)?;
                Some(format!("campus {}: {why}", campus.name))
            })
            .collect();
        let reached = self.campuses.len() - out.len();
        let out = out.join("; ");
        if reached < LEAST_CAMPUSES.min(self.campuses.len()) {
            return Fit::unfit(out);
        }
        Fit {
            fit: true,
            why: (!out.is_empty()).then(|| format!("but not for {out}")),
        }
    }
}

impl Campus {
    fn out_of_reach(&self, live: bool) -> Option<String> {
        let why = self.way.illness()?;
        (!live || !self.waits).then(|| why.to_owned())
    }
}

fn fit(why: Option<String>) -> Fit {
    why.map_or_else(Fit::yes, Fit::unfit)
}

/// Returns the limits that are nearly reached, given those that were.
fn nearly(before: &[&'static str], limits: &[Use]) -> Vec<&'static str> {
    let is_near = |limit: &&Use| {
        let tenths = match before.contains(&limit.name) {
            true => ROOM_AGAIN,
            false => NEARLY_FULL,
        };
        u128::from(limit.used) * 10 >= u128::from(limit.limit) * u128::from(tenths)
    };
    let near = limits.iter().filter(is_near);
    near.map(|limit| limit.name).collect()
}

/// Those beyond the last bit are not noted, and so not known to whoever goes on.
fn bit(index: usize) -> u32 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1_u32.checked_shl(index))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
