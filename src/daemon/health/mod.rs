//! Whether split connections come through: looked at while the daemon runs, so that a firewall that
//! drops them, loaded later, routes new connections instead of losing them.
//!
//! Each second the kernel's counters are read, and what they say is judged (`record`). A task of its
//! own looks for causes: it asks the kernel and, when nft's chains have changed, nft. The main loop
//! never waits for it.

mod record;
mod streak;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use pepd_admin::wire::Alarm;
use pepd_net::{Cause, Finding, Plan, Watch};
use pepd_telemetry::Counters;
use tokio::task::JoinHandle;

pub use self::record::Passing;
use self::record::Record;
use self::streak::Sample;

/// The least time between two samples. The gate may be renewed more often.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(900);

/// The least time between two looks at the operator's chains, however often they change: listing
/// them takes a process.
const FIREWALL_INTERVAL: Duration = Duration::from_secs(2);

/// The longest that a look may take; then nothing is known.
const LOOK_LIMIT: Duration = Duration::from_secs(30);

/// The least time between two verifications of the kernel state for a look's sake.
const VERIFICATION_INTERVAL: Duration = Duration::from_secs(5);

/// What is the matter, for whoever asks.
#[derive(Debug, Default)]
pub struct Alarms(RwLock<Reported>);

#[derive(Debug, Default)]
struct Reported {
    passing: Passing,
    alarms: Vec<Alarm>,
}

impl Alarms {
    /// Tells whether split connections come through, as far as is known.
    pub fn passing(&self) -> Passing {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .passing
    }

    /// Lists what stands in the way of connections.
    pub fn list(&self) -> Vec<Alarm> {
        let reported = self.0.read().unwrap_or_else(PoisonError::into_inner);
        reported.alarms.clone()
    }
}

/// What a look has found; none where it could not look.
#[derive(Debug, Default)]
pub struct Look {
    host: Option<Vec<Finding>>,
    firewall: Option<Vec<Finding>>,
}

impl Look {
    /// Looks before the first connection is split, which it may spare.
    pub async fn first(plan: &Plan) -> Self {
        Self::at(plan, true).await
    }

    /// Looks at the host, and at the operator's chains if `firewall` says so.
    async fn at(plan: &Plan, firewall: bool) -> Self {
        let look = async {
            let host = pepd_net::examine(plan).await.ok();
            let firewall = match firewall {
                true => pepd_net::examine_firewall(plan).await.ok(),
                false => None,
            };
            Self { host, firewall }
        };
        let look = tokio::time::timeout(LOOK_LIMIT, look).await;
        look.unwrap_or_default()
    }
}

/// The watch over split connections.
#[derive(Debug)]
pub struct Health {
    watch: Watch,
    record: Record,
    plan: Arc<Plan>,
    counters: Arc<Counters>,
    alarms: Arc<Alarms>,
    sampled: Option<Instant>,
    looking: Option<JoinHandle<Look>>,
    host: Vec<Finding>,
    firewall: Vec<Finding>,
    /// The operator's chains have changed since they were looked at.
    is_firewall_due: bool,
    firewall_looked_at: Option<Instant>,
    verified: Option<Instant>,
    told: Told,
}

/// What the log was last told.
#[derive(Debug, Default)]
struct Told {
    passing: Passing,
    alarms: Vec<Finding>,
}

impl Health {
    /// Begins to watch over what `plan` captures, with what a first look has found.
    pub fn new(
        watch: Watch,
        plan: &Plan,
        first: Look,
        counters: Arc<Counters>,
        alarms: Arc<Alarms>,
    ) -> Self {
        let now = Instant::now();
        let mut health = Self {
            watch,
            record: Record::new(),
            plan: Arc::new(plan.clone()),
            counters,
            alarms,
            sampled: None,
            looking: None,
            host: Vec::new(),
            firewall: Vec::new(),
            // It may have changed before the watch was opened.
            is_firewall_due: true,
            firewall_looked_at: Some(now),
            verified: None,
            told: Told::default(),
        };
        health.take(first, now);
        health
    }

    /// Hears that pepd's own kernel state was not as it should be, and is there again.
    pub fn repaired(&mut self) {
        // It may have seen what there was before.
        if let Some(task) = self.looking.take() {
            task.abort();
            self.is_firewall_due = true;
        }
        self.host.retain(|found| found.cause != Cause::Routing);
        self.record.repaired();
    }

    /// Follows another plan.
    pub fn follow(&mut self, plan: &Plan) {
        self.plan = Arc::new(plan.clone());
    }

    /// Returns whether new connections may be split, as far as this is about them coming through.
    pub fn allows(&self) -> bool {
        self.record.allows()
    }

    /// Returns why split connections do not come through, if they do not.
    pub fn blocked(&self) -> Option<String> {
        if self.allows() {
            return None;
        }
        let alarms = self.record.alarms();
        let cause = alarms.first().map(|alarm| format!(": {}", alarm.text));
        Some(format!(
            "split connections do not come through this host{}",
            cause.unwrap_or_default()
        ))
    }

    /// Returns whether the host forwards something, of the families that there are campuses of: without that no SYN gets
    /// so far as to be split.
    pub fn forwards(&self) -> bool {
        let alarms = self.record.alarms().into_iter();
        let off = alarms.filter(|alarm| alarm.cause == Cause::Forwarding);
        let off = off.count();
        off == 0 || off < self.plan.families_used()
    }

    /// Returns whether the kernel state should be verified: it may be what is in the way.
    pub fn wants_verification(&mut self, now: Instant) -> bool {
        let is_due = |then: Instant| now.saturating_duration_since(then) >= VERIFICATION_INTERVAL;
        let wants = self.record.is_misrouted() && self.verified.is_none_or(is_due);
        if wants {
            self.verified = Some(now);
        }
        wants
    }

    /// Ends the handshakes that clients cannot finish, and waits for nothing: what these clients send
    /// is routed, so that a server resets them, instead of being delivered and lost.
    pub fn end_half_open(&self) {
        let plan = Arc::clone(&self.plan);
        tokio::spawn(async move {
            match pepd_net::end_half_open(&plan).await {
                Ok(Some(count @ 1..)) => {
                    tracing::info!(count, "clients that were answered in vain are let go");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "let clients go that were answered in vain"),
            }
        });
    }

    /// Describes the first alarm, for systemd.
    pub fn status_line(&self) -> Option<String> {
        let alarms = self.record.alarms();
        alarms
            .first()
            .map(|alarm| format!("{}: {}", alarm.text, alarm.cure))
    }

    /// Looks once, waiting for nothing.
    pub fn tick(&mut self, now: Instant) {
        let is_early = |then: Instant| now.saturating_duration_since(then) < SAMPLE_INTERVAL;
        if self.sampled.is_some_and(is_early) {
            return;
        }
        self.sampled = Some(now);
        if self.watch.changed() {
            self.is_firewall_due = true;
            self.record.something_changed(now);
        }
        self.take_look(now);
        // Where it cannot be read now, the next sample tells.
        if let Some(tally) = self.watch.tally() {
            let accepted = self.counters.accepted.get();
            self.record.observe(Sample { tally, accepted }, now);
        }
        self.look(now);
        self.tell();
    }

    /// Takes over what a look has found, if it has ended.
    fn take_look(&mut self, now: Instant) {
        let Some(task) = self.looking.as_mut() else {
            return;
        };
        let Some(ended) = task.now_or_never() else {
            return;
        };
        self.looking = None;
        // A look that panicked has found nothing.
        self.take(ended.unwrap_or_default(), now);
    }

    fn take(&mut self, Look { host, firewall }: Look, now: Instant) {
        if let Some(host) = host {
            self.host = host;
        }
        if let Some(firewall) = firewall {
            self.firewall = firewall;
        }
        let findings = [self.host.clone(), self.firewall.clone()].concat();
        self.record.found(findings, now);
    }

    /// Begins another look, if none is under way.
    fn look(&mut self, now: Instant) {
        if self.looking.is_some() {
            return;
        }
        let is_due = |then: Instant| now.saturating_duration_since(then) >= FIREWALL_INTERVAL;
        let firewall = self.is_firewall_due && self.firewall_looked_at.is_none_or(is_due);
        if firewall {
            self.is_firewall_due = false;
            self.firewall_looked_at = Some(now);
        }
        let plan = Arc::clone(&self.plan);
        self.looking = Some(tokio::spawn(async move { Look::at(&plan, firewall).await }));
    }

    /// Tells the log, and whoever asks, what has changed.
    fn tell(&mut self) {
        let (passing, alarms) = (self.record.passing(), self.record.alarms());
        if passing == self.told.passing && alarms == self.told.alarms {
            return;
        }
        for alarm in &alarms {
            let is_told = self.told.alarms.iter().any(|told| told.text == alarm.text);
            if !is_told {
                let Finding {
                    cause, text, cure, ..
                } = alarm;
                tracing::error!(%cause, cure, "{text}");
            }
        }
        report_passing(self.told.passing, passing);
        let gone = self.told.alarms.iter();
        for alarm in gone.filter(|told| alarms.iter().all(|alarm| alarm.text != told.text)) {
            tracing::info!(cause = %alarm.cause, "no longer in the way: {}", alarm.text);
        }
        let mut reported = self
            .alarms
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *reported = Reported {
            passing,
            alarms: alarms.iter().map(alarm).collect(),
        };
        drop(reported);
        self.told = Told { passing, alarms };
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if let Some(task) = &self.looking {
            task.abort();
        }
    }
}

/// Logs that split connections do not come through any more, or do again, and what is done about it.
fn report_passing(before: Passing, now: Passing) {
    match (before, now) {
        (Passing::Through, Passing::Blocked) => tracing::error!(
            "no split connection comes through: new connections are routed unsplit until it is \
             mended"
        ),
        (Passing::OnTrial, Passing::Blocked) => {
            tracing::info!("a trial has failed: new connections are routed unsplit as before");
        }
        (Passing::Through | Passing::Blocked, Passing::OnTrial) => {
            tracing::info!("a trial: new connections are split, to see whether they come through");
        }
        (Passing::Blocked | Passing::OnTrial, Passing::Through) => {
            tracing::info!("split connections come through again");
        }
        (Passing::Through, Passing::Through)
        | (Passing::Blocked, Passing::Blocked)
        | (Passing::OnTrial, Passing::OnTrial) => {}
    }
}

fn alarm(finding: &Finding) -> Alarm {
    Alarm {
        cause: finding.cause.name().to_owned(),
        what: finding.text.clone(),
        cure: finding.cure.clone(),
    }
}
