//! What is known of how split connections fare, and what follows for the gate. No I/O, no clock.
//!
//! A passage is blocked when packets enter it and none leaves. How many it takes depends on what
//! else is known: one, if something was found that stops them all; a few, if something was found
//! that may; more, if nothing was. Forged packets do not make a passage look blocked where they
//! pass it like any other (`pepd-net`, `nft/passage.rs`); where a filter of the operator's drops them
//! and nothing else, they do (docs/threats.md).
//!
//! A firewall that is found to stop them all is believed as it is, at the start and when it is loaded
//! later: no client is needed to find it out. If something passes all the same, it is believed no more.
//!
//! ```text
//!             a passage is blocked            its time has come, or the cause is gone
//!   ┌──────┐ ─────────────────────▶ ┌──────┐ ───────────────────────────────────────▶ ┌───────┐
//!   │ Open │                        │ Shut │                                          │ Trial │
//!   └──────┘                        └──────┘ ◀─────────────────────────────────────── └───────┘
//!      ▲                                       still blocked: the next trial is later     │
//!      └──────────────────────────────────────────────────────────────────────────────────┘
//!                                      a packet has passed
//! ```
//!
//! In a trial the gate is open: what comes in it may be lost once more, and is routed when it is
//! repeated. So trials grow rare while nothing has changed.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use pepd_net::{Cause, Family, Finding, Passage};

use super::streak::{Sample, Streak};

/// Packets lost in a row that make a passage blocked, where something was found that stops them all.
const WITH_CAUSE: u64 = 1;
/// The same where something was found that may stop them.
const WITH_SUSPICION: u64 = 3;
/// The same where nothing was found.
const WITHOUT_CAUSE: u64 = 8;
/// The same in a trial.
const IN_TRIAL: u64 = 2;

/// The time from closing the gate to the first trial.
const FIRST_PAUSE: Duration = Duration::from_secs(15);
/// The longest time between two trials.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The time for which the gate stays closed at least, whatever is found meanwhile.
const LEAST_PAUSE: Duration = Duration::from_secs(2);
/// The time after which an opening counts as lasting: pauses begin anew.
const LASTING: Duration = Duration::from_secs(300);

/// The passages, by family. Those of whole connections know no family.
const PASSAGES: [(Passage, Option<Family>); 10] = [
    (Passage::Input, Some(Family::V4)),
    (Passage::Input, Some(Family::V6)),
    (Passage::Answers, Some(Family::V4)),
    (Passage::Answers, Some(Family::V6)),
    (Passage::Dials, Some(Family::V4)),
    (Passage::Dials, Some(Family::V6)),
    (Passage::Returns, Some(Family::V4)),
    (Passage::Returns, Some(Family::V6)),
    (Passage::Completion, None),
    (Passage::Listener, None),
];

/// The gate as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open { since: Option<Instant> },
    Shut { since: Instant, passage: Passage },
    Trial { passage: Passage },
}

/// How split connections fare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passing {
    /// They come through, for all that is known.
    #[default]
    Through,
    /// They do not: new connections are routed.
    Blocked,
    /// They did not; new ones are split to see whether they do now.
    OnTrial,
}

/// Everything known.
#[derive(Debug)]
pub struct Record {
    last: Option<Sample>,
    streaks: BTreeMap<(Passage, bool), Streak>,
    findings: Vec<Finding>,
    /// Findings that were said to stop everything while packets passed: they only may.
    disbelieved: HashSet<String>,
    state: State,
    /// What blocked the passage when the gate was shut.
    blocking: Option<Finding>,
    pause: Duration,
}

impl Record {
    /// A daemon of which nothing is known.
    pub fn new() -> Self {
        Self {
            last: None,
            streaks: BTreeMap::new(),
            findings: Vec::new(),
            disbelieved: HashSet::new(),
            state: State::Open { since: None },
            blocking: None,
            pause: FIRST_PAUSE,
        }
    }

    /// Returns whether the gate may be open.
    pub fn allows(&self) -> bool {
        !matches!(self.state, State::Shut { .. })
    }

    /// Tells how split connections fare, as far as is known.
    pub fn passing(&self) -> Passing {
        match self.state {
            State::Open { .. } => Passing::Through,
            State::Shut { .. } => Passing::Blocked,
            State::Trial { .. } => Passing::OnTrial,
        }
    }

    /// Lists what stands in the way: what has closed the gate, and what was found that would.
    pub fn alarms(&self) -> Vec<Finding> {
        let certain = |finding: &&Finding| self.is_certain(finding);
        let mut alarms: Vec<Finding> = self.blocking.iter().cloned().collect();
        for finding in self.findings.iter().filter(certain) {
            if alarms.iter().all(|alarm| alarm.text != finding.text) {
                alarms.push(finding.clone());
            }
        }
        alarms
    }

    /// Returns whether the kernel would not deliver what is captured: pepd's own rule or route may be
    /// gone.
    pub fn is_misrouted(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.cause == Cause::Routing)
    }

    /// Takes a sample.
    pub fn observe(&mut self, sample: Sample, now: Instant) {
        if let Some(last) = self.last.replace(sample) {
            for (passage, family) in PASSAGES {
                let key = (passage, family == Some(Family::V6));
                let streak = self.streaks.entry(key).or_default();
                match sample.since(&last, passage, family) {
                    Some(change) => streak.add(change, now),
                    // The table is a new one.
                    None => *streak = Streak::default(),
                }
            }
        }
        self.decide(now);
    }

    /// Takes what was found by looking at the host.
    pub fn found(&mut self, findings: Vec<Finding>, now: Instant) {
        let was_explained = match self.state {
            State::Shut { passage, .. } => self.best(passage).is_some(),
            State::Open { .. } | State::Trial { .. } => false,
        };
        let before = std::mem::replace(&mut self.findings, findings);
        let texts: HashSet<&str> = self
            .findings
            .iter()
            .map(|found| found.text.as_str())
            .collect();
        self.disbelieved
            .retain(|text| texts.contains(text.as_str()));
        if let State::Shut { since, passage } = self.state {
            match self.best(passage) {
                // The cause is known now, or another than before.
                Some(found) => self.blocking = Some(found.clone()),
                // What explained it is gone.
                None if was_explained && now.saturating_duration_since(since) >= LEAST_PAUSE => {
                    self.try_again(passage);
                }
                _ => {}
            }
        }
        if matches!(self.state, State::Open { .. })
            && let Some((passage, why)) = self.foreseen(&before)
        {
            self.shut(passage, why, now);
        }
        self.decide(now);
    }

    /// Forgets what was lost, and found, while pepd's own rules were gone: they are there again.
    pub fn repaired(&mut self) {
        self.last = None;
        self.streaks.clear();
        self.findings.retain(|found| found.cause != Cause::Routing);
        if let State::Shut { passage, .. } = self.state
            && !self.explained()
        {
            self.try_again(passage);
        }
    }

    /// Has the gate opened for a trial soon: something has changed that may be the cause.
    pub fn something_changed(&mut self, now: Instant) {
        if let State::Shut { since, passage } = self.state
            && now.saturating_duration_since(since) >= FIRST_PAUSE
            && !self.explained()
        {
            self.try_again(passage);
        }
    }

    fn decide(&mut self, now: Instant) {
        match self.state {
            State::Open { since } => {
                if since.is_some_and(|since| now.saturating_duration_since(since) >= LASTING) {
                    self.pause = FIRST_PAUSE;
                }
                if let Some((passage, why)) = self.blocked(false) {
                    self.shut(passage, why, now);
                }
            }
            State::Trial { passage } => {
                if let Some((passage, why)) = self.blocked(true) {
                    self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                    self.shut(passage, why, now);
                } else if self.has_passed(passage) {
                    self.open(passage, now);
                }
            }
            State::Shut { since, passage } => {
                let pause = if self.explained() {
                    LONGEST_PAUSE
                } else {
                    self.pause
                };
                if now.saturating_duration_since(since) >= pause {
                    self.try_again(passage);
                }
            }
        }
    }

    fn shut(&mut self, passage: Passage, why: Finding, now: Instant) {
        self.blocking = Some(why);
        self.state = State::Shut {
            since: now,
            passage,
        };
    }

    fn try_again(&mut self, passage: Passage) {
        self.streaks.clear();
        self.state = State::Trial { passage };
    }

    fn open(&mut self, passage: Passage, now: Instant) {
        // Packets pass although something was found that stops them all: it does not.
        let wrong = self
            .findings
            .iter()
            .filter(|found| found.cause.explains(passage));
        self.disbelieved
            .extend(wrong.map(|found| found.text.clone()));
        self.blocking = None;
        self.state = State::Open { since: Some(now) };
    }

    /// Returns the first passage that is blocked, and by what.
    fn blocked(&self, in_trial: bool) -> Option<(Passage, Finding)> {
        PASSAGES.into_iter().find_map(|(passage, family)| {
            let streak = self.streaks.get(&(passage, family == Some(Family::V6)))?;
            let found = self.best(passage);
            let unexcused = streak.lost.saturating_sub(streak.excused);
            let is_completion = passage == Passage::Completion;
            let (enough, lost, samples) = match found {
                // The relay accepts a moment after the packet has come.
                Some(found) if self.is_certain(found) && is_completion => {
                    (WITH_CAUSE, streak.lost, 2)
                }
                Some(found) if self.is_certain(found) => (WITH_CAUSE, streak.lost, 1),
                // What completes a handshake cannot be told from what is forged by itself: chains
                // of `input` may drop the one and not the other, all else must be certain.
                found if is_completion && found.is_none_or(|found| found.cause != Cause::Input) => {
                    return None;
                }
                Some(_) => (WITH_SUSPICION, unexcused, 2),
                None => (WITHOUT_CAUSE, unexcused, 2),
            };
            let enough = if in_trial {
                enough.min(IN_TRIAL)
            } else {
                enough
            };
            let none_left = lost >= enough && streak.samples >= samples;
            let few_left = found.is_some() && streak.mostly_lost();
            let why = || found.map_or_else(|| unexplained(passage, family), Clone::clone);
            (none_left || few_left).then(|| (passage, why()))
        })
    }

    /// Returns whether anything has left a passage since the streaks were begun anew.
    fn has_passed(&self, passage: Passage) -> bool {
        [false, true].into_iter().any(|v6| {
            let streak = self.streaks.get(&(passage, v6));
            streak.is_some_and(|streak| streak.has_passed)
        })
    }

    /// Returns the firewall that is found to stop every connection, and was not found before, and a
    /// passage that it blocks.
    fn foreseen(&self, before: &[Finding]) -> Option<(Passage, Finding)> {
        let is_new = |found: &&Finding| before.iter().all(|before| before.text != found.text);
        let is_firewall = |found: &&Finding| matches!(found.cause, Cause::Input | Cause::Output);
        // The last passage of each: a firewall may let in what is captured, which comes over `lo`,
        // and not what comes to the handshake.
        PASSAGES.into_iter().rev().find_map(|(passage, _)| {
            let certain = |found: &&Finding| self.is_certain(found);
            let found = self.best(passage).filter(is_firewall).filter(is_new);
            let found = found.filter(certain)?;
            Some((passage, found.clone()))
        })
    }

    /// Returns what best explains that a passage is blocked, if anything does.
    fn best(&self, passage: Passage) -> Option<&Finding> {
        let explaining = || {
            self.findings.iter().filter(move |found| {
                found.cause.explains(passage) && found.cause.ends_with_routing()
            })
        };
        let certain = explaining().find(|found| self.is_certain(found));
        certain.or_else(|| explaining().next())
    }

    /// Returns whether what has closed the gate is known for sure, and still there.
    fn explained(&self) -> bool {
        let State::Shut { passage, .. } = self.state else {
            return false;
        };
        self.best(passage)
            .is_some_and(|found| self.is_certain(found))
    }

    fn is_certain(&self, finding: &Finding) -> bool {
        finding.certain && !self.disbelieved.contains(&finding.text)
    }
}

/// Describes a passage that is blocked by nobody knows what.
fn unexplained(passage: Passage, family: Option<Family>) -> Finding {
    let of = match family {
        Some(Family::V4) => "IPv4 ",
        Some(Family::V6) => "IPv6 ",
        None => "",
    };
    let (cause, what, cure) = match passage {
        Passage::Input | Passage::Returns | Passage::Completion => (
            Cause::Unknown,
            format!(
                "{of}SYNs that are captured do not reach pepd's listeners, and nothing is found in nft's chains, rules and sysctls"
            ),
            "look at what nft does not list: iptables-legacy -S INPUT, BPF programs at cgroups",
        ),
        Passage::Answers => (
            Cause::Output,
            format!(
                "{of}answers of pepd's listeners do not leave this host: something drops them in `output`"
            ),
            "let out what has pepd's mark: nft list ruleset; iptables-legacy -S OUTPUT",
        ),
        Passage::Dials => (
            Cause::Output,
            format!(
                "{of}SYNs of upstream legs do not leave this host: something drops them in `output`"
            ),
            "let out what has pepd's mark: nft list ruleset; iptables-legacy -S OUTPUT",
        ),
        Passage::Listener => (
            Cause::Backlog,
            "the queues of pepd's listeners are full, and nobody is accepted".to_owned(),
            "see `ss -ltn` for the port in [capture]; restart pepd, and report this",
        ),
    };
    Finding {
        cause,
        certain: false,
        text: what,
        cure: cure.to_owned(),
    }
}
