//! Rounds: everything once, in turn.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::contender::Contender;
use super::cores::Cores;
use super::interrupt::Interrupt;
use super::lane::Lane;
use super::lineup::Lineup;
use super::load::bulk::Ends;
use super::load::{Window, bulk, crowd, first_byte, idle, ping_pong, short};
use super::results::{Bulk, Measure, Measurement, Results};
use super::takeover;

/// The time after which a proxy that has let a connection pass has recovered.
const BEFORE_RETRY: Duration = Duration::from_secs(3);

/// The time that each measurement takes.
#[derive(Clone, Copy, Debug)]
pub struct Durations {
    bulk: Window,
    ping_pong: Window,
    short: Window,
    handshake: Window,
    /// The pause before memory is looked at.
    quiet: Duration,
}

impl Durations {
    /// Returns the durations for a result.
    pub fn full() -> Self {
        Self::of(500, 2000)
    }

    /// Returns the durations for a first impression.
    pub fn quick() -> Self {
        Self::of(200, 500)
    }

    fn of(warm_up: u64, counted: u64) -> Self {
        let window = Window {
            warm_up: Duration::from_millis(warm_up),
            counted: Duration::from_millis(counted),
        };
        Self {
            bulk: window,
            ping_pong: window,
            short: window,
            handshake: window,
            quiet: Duration::from_millis(warm_up),
        }
    }
}

/// The plan of what is to be measured.
#[derive(Debug)]
pub struct Plan {
    /// The number of rounds.
    pub rounds: usize,
    /// The duration of each measurement.
    pub durations: Durations,
    /// What the receivers of bulk transfers do.
    pub ends: Ends,
    /// Only the settings whose names have one of these in them; empty for all.
    pub only: Vec<String>,
    /// How often the daemon's process dies in `takeover`.
    pub deaths: u16,
    /// The shares of the cores.
    pub cores: Cores,
    /// The daemon's binary.
    pub pepd: PathBuf,
    /// That of the other build, if there is one.
    pub against: Option<PathBuf>,
}

impl Plan {
    /// Measures everything.
    ///
    /// # Errors
    /// Without root, when a contender does not start or ends, and when interrupted.
    pub fn run(&self, interrupt: &Interrupt) -> Result<Results> {
        let lineup = self.lineup();
        let mut results = Results::new(self.setup(), lineup);
        if self.wants(takeover::NAME) {
            // It passes or fails, and is not tried again.
            self.take_over(&mut results, interrupt)?;
        }
        if !self.only.is_empty() && self.only.iter().all(|it| it == takeover::NAME) {
            return Ok(results);
        }
        let with = self.lanes(lineup.main(), true)?;
        let established = self.lanes(lineup.handshake(), true)?;
        let without = self.lanes(lineup.main(), false)?;
        let asked = self.lane(Contender::PepdAsked, true)?;
        for round in 0..self.rounds {
            let mut turn = Turn {
                round,
                plan: self,
                results: &mut results,
                interrupt,
            };
            let all = lineup.main();
            for setting in Bulk::ALL {
                let lanes = if setting.without_offloads {
                    &without
                } else {
                    &with
                };
                turn.each(&setting.to_string(), all, |turn, at| {
                    turn.bulk(&lanes[at], setting)
                })?;
            }
            turn.each("ping-pong", all, |turn, at| {
                turn.ping_pong(&with[at], self.durations.ping_pong)
            })?;
            turn.each("short connections", all, |turn, at| {
                turn.short(&with[at], self.durations.short)
            })?;
            turn.each("handshake", lineup.handshake(), |turn, at| {
                turn.handshake(&established[at], self.durations.handshake)
            })?;
            turn.each("admin", lineup.admin(), |turn, at| {
                turn.admin(lineup.admin()[at], &with, &asked)
            })?;
            turn.each("idle connections", all, |turn, at| {
                let lane = self.lane(all[at], true)?;
                turn.idle(&lane, self.durations.quiet)
            })?;
        }
        Ok(results)
    }

    fn take_over(&self, results: &mut Results, interrupt: &Interrupt) -> Result<()> {
        for connections in takeover::CONNECTIONS {
            eprintln!("{}: {connections} connections", takeover::NAME);
            let mut lane = self.lane(Contender::PepdUnasked, true)?;
            results.add_takeovers(takeover::run(
                &mut lane,
                connections,
                self.deaths,
                interrupt,
            )?);
        }
        Ok(())
    }

    fn wants(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| what.contains(part))
    }

    fn setup(&self) -> String {
        let receivers = match self.ends {
            Ends::Discard => "receivers of bulk discard it in the kernel",
            Ends::Read => "receivers of bulk read it",
        };
        format!("{}; {receivers}", self.cores)
    }

    fn lineup(&self) -> Lineup {
        match self.against {
            Some(_) => Lineup::EarlierBuild,
            None => Lineup::Haproxy,
        }
    }

    fn lanes(&self, contenders: &[Contender], offloads: bool) -> Result<Vec<Lane>> {
        let open = |&contender| self.lane(contender, offloads);
        contenders.iter().map(open).collect()
    }

    fn lane(&self, contender: Contender, offloads: bool) -> Result<Lane> {
        let binary = match contender {
            Contender::Earlier | Contender::EarlierEndToEnd => self.against.as_ref(),
            _ => None,
        };
        let binary = binary.unwrap_or(&self.pepd);
        Lane::open(contender, binary, offloads, &self.cores)
    }
}

/// One round.
struct Turn<'a> {
    round: usize,
    plan: &'a Plan,
    results: &'a mut Results,
    interrupt: &'a Interrupt,
}

impl Turn<'_> {
    /// Has every one of `contenders` measured, another one first in each round.
    fn each(
        &mut self,
        what: &str,
        contenders: &[Contender],
        mut measure: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        if !self.plan.wants(what) || contenders.is_empty() {
            return Ok(());
        }
        eprintln!("round {} of {}: {what}", self.round + 1, self.plan.rounds);
        let count = contenders.len();
        for place in 0..count {
            let at = (place + self.round) % count;
            let title = contenders[at].title();
            if let Err(error) = measure(self, at) {
                // A contender that fails open once, on a machine that stood still for seconds,
                // is not worth the whole run. It is worth a line.
                eprintln!("{what}, {title}: {error:#}");
                self.interrupt.wait(BEFORE_RETRY)?;
                measure(self, at).with_context(|| format!("{what}, {title}"))?;
            }
        }
        Ok(())
    }

    fn bulk(&mut self, lane: &Lane, setting: Bulk) -> Result<()> {
        let plan = self.plan;
        let window = plan.durations.bulk;
        let counted = bulk::run(lane, setting.flows, plan.ends, window, self.interrupt)?;
        let bits = counted.per_second * 8.0;
        self.note(lane, Measure::Bulk(setting), Some(bits));
        let cpu = counted.cpu_seconds_each.map(|each| each * 1e9);
        self.note(lane, Measure::CpuPerGigabyte(setting), cpu);
        Ok(())
    }

    fn ping_pong(&mut self, lane: &Lane, window: Window) -> Result<()> {
        let times = ping_pong::run(lane, window, self.interrupt)?;
        self.note(lane, Measure::PingPongMedian, Some(times.p50));
        self.note(lane, Measure::PingPongTail, Some(times.p99));
        Ok(())
    }

    fn short(&mut self, lane: &Lane, window: Window) -> Result<()> {
        let short = short::run(lane, window, self.interrupt)?;
        self.note(lane, Measure::Short, Some(short.answered.per_second));
        self.note(lane, Measure::CpuPerShort, short.answered.cpu_seconds_each);
        self.note(lane, Measure::ShortFailed, Some(short.failed));
        Ok(())
    }

    fn handshake(&mut self, lane: &Lane, window: Window) -> Result<()> {
        let short = short::run(lane, window, self.interrupt)?;
        let times = first_byte::run(lane, window, self.interrupt)?;
        self.note(lane, Measure::Handshakes, Some(short.answered.per_second));
        self.note(lane, Measure::HandshakesFailed, Some(short.failed));
        self.note(lane, Measure::FirstByteMedian, Some(times.p50));
        self.note(lane, Measure::FirstByteTail, Some(times.p99));
        Ok(())
    }

    /// Measures round trips, in plain forwarding and through a daemon with an admin API, while a
    /// crowd asks there and while nobody does.
    fn admin(&mut self, contender: Contender, with: &[Lane], asked: &Lane) -> Result<()> {
        let window = self.plan.durations.ping_pong;
        let plain = matches!(contender, Contender::Plain | Contender::PlainBesideCrowd);
        let lane = with
            .iter()
            .find(|lane| plain && lane.contender == Contender::Plain)
            .unwrap_or(asked);
        let measure = || ping_pong::run(lane, window, self.interrupt);
        let times = match contender {
            Contender::PlainBesideCrowd | Contender::PepdAsked => {
                let (times, answers) = crowd::beside(&asked.admin_socket()?, measure)?;
                self.note_of(contender, Measure::AdminAnswers, Some(answers));
                times
            }
            _ => measure()?,
        };
        self.note_of(contender, Measure::AdminMedian, Some(times.p50));
        self.note_of(contender, Measure::AdminTail, Some(times.p99));
        Ok(())
    }

    fn idle(&mut self, lane: &Lane, quiet: Duration) -> Result<()> {
        let memory = idle::run(lane, quiet, self.interrupt)?;
        self.note(lane, Measure::IdleResident, memory.resident);
        self.note(lane, Measure::IdleKernel, memory.kernel);
        Ok(())
    }

    fn note(&mut self, lane: &Lane, measure: Measure, value: Option<f64>) {
        self.note_of(lane.contender, measure, value);
    }

    fn note_of(&mut self, contender: Contender, measure: Measure, value: Option<f64>) {
        if let Some(value) = value {
            self.results.add(Measurement {
                round: self.round,
                measure,
                contender,
                value,
            });
        }
    }
}
