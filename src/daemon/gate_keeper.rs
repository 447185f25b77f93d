//! Who keeps the gate open: new connections are split only while somebody says, again and again,
//! that all is well.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_net::Gate;
use pepd_relay::{Pressure, Relay};
use pepd_telemetry::{Counters, Throttle};

use crate::daemon::peers::Probes;
use crate::daemon::signals::Notifier;

/// How often the gate is renewed.
const TICK: Duration = Duration::from_secs(1);

/// How long the gate stays open by itself: a daemon that is paused or hung for so long has its
/// new connections routed.
const GATE_TTL: Duration = Duration::from_secs(5);

/// How long a pair of addresses whose answers take another way is routed: long enough to cost
/// little, and short enough that a path that has been mended is used.
const DETOUR_TTL: Duration = Duration::from_secs(600);

/// How long a worker may be silent before new connections are no longer given to it.
const SILENCE: Duration = Duration::from_millis(2500);

/// The gate, and those whose word it depends on or who hear of it.
pub struct Doorkeeper {
    pub relay: Relay,
    pub notifier: Notifier,
    pub probes: Probes,
    counters: Arc<Counters>,
    door: Door,
    tick: tokio::time::Interval,
}

impl Doorkeeper {
    /// The gate is as it was found until it is tended.
    pub fn new(
        gate: Gate,
        relay: Relay,
        notifier: Notifier,
        probes: Probes,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            relay,
            notifier,
            probes,
            counters,
            door: Door::new(gate),
            tick: interval(TICK),
        }
    }

    /// Waits until the gate is to be tended: its time has come, or a limit is reached or no longer
    /// reached.
    pub async fn due(&mut self) {
        tokio::select! {
            _ = self.tick.tick() => {}
            () = self.relay.admission().changed() => {}
        }
    }

    /// Renews the gate if all is well, and tells systemd.
    ///
    /// # Errors
    /// Where the kernel does not take it: its table may be gone.
    pub fn tend(&mut self) -> Result<(), pepd_net::Error> {
        if !self.relay.responsive(SILENCE) {
            report_silence();
            return Ok(());
        }
        let set = self.set();
        for (source, destination) in self.relay.admission().take_detours() {
            self.door.detour(source, destination);
        }
        self.notifier.alive(self.standing());
        set
    }

    /// Waits for `work`, and tends the gate meanwhile. On a slow host, or beside a large ruleset
    /// of the operator's, to look at the kernel's state takes longer than the gate stays open.
    pub async fn tend_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.due() => if let Err(error) = self.tend() {
                    complain(&error);
                },
            }
        }
    }

    /// Opens the gate of a table that is new and empty.
    pub fn open_anew(&mut self) {
        self.door.forget();
        if let Err(error) = self.set() {
            complain(&error);
        }
    }

    /// Closes the gate for good.
    pub fn close(&mut self) {
        self.relay.gate().shut();
        self.door.close();
    }

    /// Has the SYNs that are held stay so, although the gate is closed for good.
    pub fn attend(&self) {
        if self.relay.responsive(SILENCE) {
            self.door.attend();
        }
    }

    /// How it stands, in a line.
    pub fn standing(&self) -> String {
        match self.probes.states().silent() {
            Some(peers) => format!("{}; silent peers: {peers}", self.counters),
            None => self.counters.to_string(),
        }
    }

    fn set(&mut self) -> Result<(), pepd_net::Error> {
        let Pressure { full, sources } = self.relay.admission().pressure();
        let for_everyone = !full && sources.is_empty();
        if !for_everyone {
            self.relay.gate().shut();
        }
        let asked = Instant::now();
        let set = self.door.set(!full, &sources);
        if set.is_ok() {
            self.door.attend();
        }
        match &set {
            Ok(()) if for_everyone => self.relay.gate().renewed(asked, GATE_TTL),
            Ok(()) => {}
            Err(_) => self.relay.gate().shut(),
        }
        set
    }
}

/// Ticks that do not pile up while the daemon was paused.
pub fn interval(period: Duration) -> tokio::time::Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    interval
}

/// The gate, with what it was last told.
struct Door {
    gate: Gate,
    open: bool,
    shut_out: HashSet<IpAddr>,
}

impl Door {
    fn new(gate: Gate) -> Self {
        Self {
            gate,
            open: false,
            shut_out: HashSet::new(),
        }
    }

    /// Opens or closes the gate for everyone, and for single sources.
    fn set(&mut self, open: bool, full: &[IpAddr]) -> Result<(), pepd_net::Error> {
        if open {
            self.gate.renew(GATE_TTL)?;
        } else {
            self.gate.close()?;
        }
        if self.open != open {
            report_gate(open);
        }
        self.open = open;
        for source in full {
            self.gate.shut_out(*source, GATE_TTL)?;
            if self.shut_out.insert(*source) {
                report_full_source(*source);
            }
        }
        let gone: Vec<_> = self
            .shut_out
            .iter()
            .filter(|ip| !full.contains(ip))
            .copied()
            .collect();
        for source in gone {
            self.gate.let_in(source)?;
            self.shut_out.remove(&source);
        }
        Ok(())
    }

    /// The workers read what is held.
    fn attend(&self) {
        if let Err(error) = self.gate.attend(GATE_TTL) {
            complain(&error);
        }
    }

    /// Routes what goes from `source` to `destination`, for a while.
    fn detour(&self, source: IpAddr, destination: IpAddr) {
        report_detour(source, destination);
        if let Err(error) = self.gate.detour(source, destination, DETOUR_TTL) {
            complain(&error);
        }
    }

    /// Closes the gate for good.
    fn close(&mut self) {
        if let Err(error) = self.gate.close() {
            complain(&error);
        }
    }

    /// The kernel's table is new and empty.
    fn forget(&mut self) {
        self.open = false;
        self.shut_out.clear();
    }
}

/// Every connection may open or close the gate where `[limits] connections` is small.
fn report_gate(open: bool) {
    static OPENED: Throttle = Throttle::new(Duration::from_secs(10));
    static CLOSED: Throttle = Throttle::new(Duration::from_secs(10));
    let throttle = if open { &OPENED } else { &CLOSED };
    match throttle.admit(Instant::now()) {
        Some(_) if open => tracing::info!("new connections are split"),
        Some(held_back) => {
            tracing::warn!(
                held_back,
                "a limit is reached: new connections are routed unsplit"
            );
        }
        None => {}
    }
}

fn report_silence() {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(
            held_back,
            "a worker does not respond: new connections are routed unsplit"
        );
    }
}

fn report_full_source(source: IpAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %source, held_back,
            "connections_per_source is reached: more from there are routed unsplit"
        );
    }
}

fn report_detour(source: IpAddr, destination: IpAddr) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %source, %destination, held_back, time = ?DETOUR_TTL,
            "what the destination answers does not come back through this box: connections are \
             routed unsplit for a time; see to it that both ways lead through it"
        );
    }
}

/// Says that the gate, or what it stands in, is not as it should be.
pub fn complain(error: &pepd_net::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "set the gate; without it connections are unsplit");
    }
}
