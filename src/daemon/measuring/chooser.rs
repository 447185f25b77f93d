//! Which connections are split, where that depends on what splitting is worth: by pair of campuses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pepd_admin::wire::WorthChoice;
use pepd_config::Config;
use pepd_net::{Choices, Plan};
use pepd_telemetry::Throttle;
use pepd_worth::{Choice, Decision, Ended, Why};

/// The time for which the kernel believes what it is told.
const TTL: Duration = Duration::from_secs(10);

/// The interval at which it is told again.
pub(super) const RENEWAL: Duration = Duration::from_secs(2);

/// The pairs of campuses of which it is found out; between the others all connections are split.
const PAIRS: usize = 256;

/// The campuses of a connection, by name: the client's and the server's.
pub(super) type Pair = (String, String);

/// What has been chosen.
#[derive(Debug)]
pub(super) struct Chooser {
    /// What is known of each pair, and how often it has changed.
    pairs: BTreeMap<Pair, (Choice, u64)>,
    choices: Choices,
    plan: Plan,
    /// The campuses' names, in the plan's order.
    campuses: Vec<String>,
    /// Whether anything depends on it.
    is_needed: bool,
}

impl Chooser {
    /// Makes one that tells the kernel by `choices`.
    pub(super) fn new(choices: Choices, config: &Config, plan: &Plan) -> Self {
        let mut chooser = Self {
            pairs: BTreeMap::new(),
            choices,
            plan: plan.clone(),
            campuses: Vec::new(),
            is_needed: false,
        };
        chooser.follow(config, plan, Instant::now());
        chooser
    }

    /// Follows another configuration, by the plan that is installed: campuses that are there still keep what is
    /// known of them.
    pub(super) fn follow(&mut self, config: &Config, plan: &Plan, now: Instant) {
        let names = config.campuses.iter().map(|campus| campus.name.clone());
        self.campuses = names.collect();
        self.plan = plan.clone();
        self.is_needed = config.chooses();
        let mut before = std::mem::take(&mut self.pairs);
        for from in self.campuses.iter().filter(|_| self.is_needed) {
            for to in self.campuses.iter().filter(|to| *to != from) {
                if self.pairs.len() < PAIRS {
                    let pair = (from.clone(), to.clone());
                    let known = before.remove(&pair);
                    let choice = known.unwrap_or_else(|| (Choice::new(now), 0));
                    self.pairs.insert(pair, choice);
                }
            }
        }
        self.tell();
    }

    /// Takes a connection that was measured; returns whether what was measured before is of another path.
    pub(super) fn add(&mut self, pair: &Pair, ended: &Ended, now: Instant) -> bool {
        let Some((choice, changes)) = self.pairs.get_mut(pair) else {
            return false;
        };
        let before = choice.explores();
        let decision = choice.add(ended, now);
        if let Some(decision) = &decision {
            *changes += u64::from(decision.is_change);
            report(pair, decision);
        }
        let after = choice.explores();
        if before == after {
            return false;
        }
        self.tell();
        let why = match after {
            Some(Why::OtherPath) => "transfers take another time than before",
            Some(Why::OtherClients) => "it was known of one client, and others have come",
            _ => return false,
        };
        tracing::info!(
            client_campus = pair.0,
            server_campus = pair.1,
            "{why}: it is found out anew what splitting is worth"
        );
        after == Some(Why::OtherPath)
    }

    /// Does what is due, and tells the kernel again.
    pub(super) fn tick(&mut self, now: Instant) {
        for (choice, _) in self.pairs.values_mut() {
            choice.tick(now);
        }
        self.tell();
    }

    /// Returns what is chosen between two campuses; none where it depends on nothing.
    pub(super) fn shown(&self, pair: &Pair) -> Option<WorthChoice> {
        let (choice, changes) = self.pairs.get(pair)?;
        Some(WorthChoice {
            splits: choice.splits(),
            explores: choice.explores().is_some(),
            changes: *changes,
        })
    }

    /// Tells the kernel which connections are routed, and where many are measured.
    fn tell(&self) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
        if !self.is_needed {
            return;
        }
        let routed = self.those(|choice| !choice.splits());
        let explored = self.those(|choice| choice.explores().is_some());
        // Where there is no set a reload has just taken it, or somebody the table, which is said elsewhere.
        if let Err(error) = self.choices.set(&self.plan, [&routed, &explored], TTL)
            && !error.is_of_no_table()
            && let Some(held_back) = THROTTLE.admit(Instant::now())
        {
            tracing::warn!(%error, held_back, "all connections are split, whether it pays or not");
        }
    }

    /// Returns the pairs of which this is true, by the indices of their campuses.
    fn those(&self, is_one: impl Fn(&Choice) -> bool) -> Vec<(usize, usize)> {
        let index = |name: &String| self.campuses.iter().position(|campus| campus == name);
        let some = self.pairs.iter().filter(|(_, (choice, _))| is_one(choice));
        some.filter_map(|((from, to), _)| Some((index(from)?, index(to)?)))
            .collect()
    }
}

fn report(pair: &Pair, decision: &Decision) {
    let two = |value: f64| format!("{value:.2}");
    let what = match decision.splits {
        true => "splitting pays: most are split from now on",
        false => "splitting does not pay: most are routed from now on",
    };
    tracing::info!(
        client_campus = pair.0,
        server_campus = pair.1,
        splits = decision.splits,
        is_change = decision.is_change,
        transfers = decision.quantity.name(),
        gain = two(decision.gain.factor),
        low = two(decision.gain.low),
        high = two(decision.gain.high),
        split = decision.compared.split,
        unsplit = decision.compared.unsplit,
        "{what}"
    );
}
