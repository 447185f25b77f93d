//! One leg: what its connections' looks come to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::history::History;
use super::round_trips::RoundTrips;
use super::second::LegLook;
use super::snapshot::{
    Carried, HistoryStep, LegHistory, LegHistoryPoint, LegState, LoadedRtt, PathPoint,
};
use crate::measurements::Distribution;

/// The part of what a leg is known to carry, from 0 to 1, from which on it is busy though nothing waits.
pub const BUSY: f64 = 0.75;

/// What "lately" means: five minutes, as long as the kernel remembers a least round trip
/// (net.ipv4.tcp_min_rtt_wlen), in parts of half a minute.
const PARTS: u64 = 10;
const PART: Duration = Duration::from_secs(30);

/// The round trips of a second that are kept until it ends. Those of more connections than that tell nothing
/// new, and nobody may be there to end it.
const MOST: usize = 4096;

/// The seconds of which is kept what arrived in them.
const LAST: usize = 60;

/// The busy seconds of a part whose rates are kept: more than there are, unless seconds are ended too often.
const MOST_RATES: usize = 64;

/// What is known of a leg's second beside what its sockets show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LegSecondFacts {
    /// What it is known to carry, in bits a second; none where nobody knows.
    pub capacity: Option<f64>,
    /// What was known of its path; none without `congestion = "find-rate"`, and while it is not used.
    pub path: Option<PathPoint>,
    /// The least round trip that any of its connections has had lately, in seconds; none where nobody but the kernel knows. What the
    /// kernel has for a socket (`tcpi_min_rtt`) may be less than any: what it sends again while the pace has the next packet wait
    /// is stamped with the time until which that waits (net/ipv4/tcp_output.c, `__tcp_transmit_skb`).
    pub least_rtt: Option<f64>,
    /// Whether its link was gone for some of it, or a moment before: what was sent and how long that took say
    /// nothing of the leg then.
    pub was_gone: bool,
}

/// One leg.
#[derive(Debug)]
pub(crate) struct LegMeter {
    name: Arc<str>,
    /// All round trips of busy seconds, for the metrics.
    loaded: Arc<Distribution>,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    running: Running,
    /// When the last second ended.
    ended: Instant,
    /// Since the start.
    sent: u64,
    resent: u64,
    busy: f64,
    parts: VecDeque<Part>,
    /// When the last seconds ended, how long they were, and the bytes sent in them.
    seconds: VecDeque<(Instant, Duration, u64)>,
    /// The same of the last ones in which its link was up, and the bytes that arrived in them.
    delivered: VecDeque<(Instant, Duration, u64)>,
    history: History,
}

/// The second that goes on.
#[derive(Debug, Default)]
struct Running {
    sent: u64,
    resent: u64,
    delivered: u64,
    rtts: Vec<(f64, f64)>,
    least: Option<f64>,
    is_backlogged: bool,
}

impl Running {
    /// Takes no round trip for shorter than that, in seconds.
    fn bound(&mut self, least: f64) {
        self.least = self.least.map(|it| it.max(least));
        for (rtt, added) in &mut self.rtts {
            *added = added.min((*rtt - least).max(0.0));
        }
    }
}

/// Half a minute.
#[derive(Debug, Default)]
struct Part {
    number: u64,
    sent: u64,
    resent: u64,
    least: Option<f64>,
    /// Round trips of busy seconds, and by how much they were longer than the connection's least.
    loaded: RoundTrips,
    added: RoundTrips,
    /// What was carried in each busy second, in bits a second, and in all of them, in bytes.
    rates: Vec<f64>,
    carried: u64,
}

impl LegMeter {
    pub(super) fn new(name: Arc<str>, loaded: Arc<Distribution>, now: Instant) -> Self {
        Self {
            name,
            loaded,
            began: now,
            state: Mutex::new(State {
                running: Running::default(),
                ended: now,
                sent: 0,
                resent: 0,
                busy: 0.0,
                parts: VecDeque::new(),
                seconds: VecDeque::new(),
                delivered: VecDeque::new(),
                history: History::default(),
            }),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Takes what a look at one of its connections has shown.
    pub(crate) fn observe(&self, look: LegLook) {
        let mut state = self.lock();
        state.sent += look.sent;
        state.resent += look.resent;
        let running = &mut state.running;
        running.sent += look.sent;
        running.resent += look.resent;
        running.delivered += look.delivered;
        running.is_backlogged |= look.is_backlogged;
        running.least = least(running.least, look.least.filter(|_| look.sent > 0));
        if let Some(rtt) = look.rtt.filter(|_| running.rtts.len() < MOST) {
            running.rtts.push(rtt);
        }
    }

    /// Ends a second, at `time` in seconds since the Unix epoch.
    pub(super) fn end_second(&self, now: Instant, time: f64, facts: LegSecondFacts) {
        let mut state = self.lock();
        let span = now.saturating_duration_since(state.ended);
        state.ended = now;
        let mut running = std::mem::take(&mut state.running);
        running.bound(facts.least_rtt.unwrap_or_default());
        let seconds = span.as_secs_f64().max(0.001);
        let sent = 8.0 * float(running.sent) / seconds;
        let is_full = facts.capacity.is_some_and(|most| sent > BUSY * most);
        let is_busy = running.sent > 0 && (running.is_backlogged || is_full) && !facts.was_gone;
        let part = state.part(self.number(now));
        part.sent += running.sent;
        part.resent += running.resent;
        part.least = least(part.least, running.least);
        if is_busy {
            for (rtt, added) in &running.rtts {
                part.loaded.add(*rtt);
                part.added.add(*added);
                self.loaded.observe(*rtt);
            }
            part.carry(running.sent.saturating_sub(running.resent), seconds);
            state.busy += seconds;
        }
        keep(&mut state.seconds, (now, span, running.sent), 10);
        if !facts.was_gone {
            keep(&mut state.delivered, (now, span, running.delivered), LAST);
        }
        if running.sent == 0 && facts.path.is_none() {
            return;
        }
        let mut rtts: Vec<f64> = running.rtts.iter().map(|it| it.0).collect();
        rtts.sort_by(f64::total_cmp);
        let at = |percent: usize| rtts.get(rtts.len() * percent / 100).copied();
        let point = LegHistoryPoint {
            time: fine(time, 1e3),
            sent: sent.round(),
            resent: fine(share(running.resent, running.sent).unwrap_or(0.0), 1e6),
            busy: f64::from(u8::from(is_busy)),
            rtt: at(50),
            slow_rtt: at(95),
            least_rtt: state.least(),
            path: facts.path,
        };
        state.history.push(point);
    }

    /// Returns what is seen of it.
    pub(super) fn state(&self, now: Instant) -> LegState {
        let mut state = self.lock();
        state.forget(self.number(now));
        let lately = state.seconds.iter().filter(|(ended, span, _)| {
            now.saturating_duration_since(*ended) + *span <= Duration::from_secs(11)
        });
        let (time, bytes) = lately.fold((Duration::ZERO, 0), |(time, bytes), second| {
            (time + second.1, bytes + second.2)
        });
        let (mut loaded, mut added) = (RoundTrips::default(), RoundTrips::default());
        let (mut sent, mut resent) = (0, 0);
        let carried = state.carried();
        for part in &state.parts {
            loaded.merge(&part.loaded);
            added.merge(&part.added);
            sent += part.sent;
            resent += part.resent;
        }
        LegState {
            leg: self.name.to_string(),
            sent: 8.0 * float(bytes) / time.as_secs_f64().max(1.0),
            resent: share(resent, sent),
            sent_bytes: state.sent,
            resent_bytes: state.resent,
            busy_seconds: fine(state.busy, 1e3),
            least_rtt: state.least(),
            loaded_rtt: (loaded.len() > 0).then(|| LoadedRtt {
                median: fine(loaded.quantile(0.5), 1e6),
                p95: fine(loaded.quantile(0.95), 1e6),
                added: fine(added.quantile(0.5), 1e6),
                samples: loaded.len(),
            }),
            carried,
        }
    }

    /// Returns the bytes a second that arrived in the two seconds, one after the other, in which it was most, of the last sixty
    /// in which its link was up; none if nothing did. In one of them what had waited behind a loss may be acknowledged, too.
    pub(super) fn most_delivered(&self) -> Option<u64> {
        let state = self.lock();
        let seconds = state.delivered.iter();
        let pairs = seconds.clone().zip(seconds.skip(1));
        let rates = pairs.filter_map(|(first, (ended, span, bytes))| {
            let follows = *ended - *span == first.0;
            let nanoseconds = (first.1 + *span).as_nanos();
            let rate = (u128::from(first.2 + bytes) * 1_000_000_000).checked_div(nanoseconds)?;
            u64::try_from(rate).ok().filter(|_| follows)
        });
        rates.max().filter(|most| *most > 0)
    }

    pub(super) fn history(&self, step: HistoryStep, since: f64) -> LegHistory {
        LegHistory {
            leg: self.name.to_string(),
            step,
            points: self.lock().history.points(step, since),
        }
    }

    /// The number of the part that goes on.
    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / PART.as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while it is held leaves at worst a figure that is off.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Notes what was carried in a busy second. Where all of it was sent again nobody knows whether it was.
    fn carry(&mut self, bytes: u64, seconds: f64) {
        if bytes > 0 && self.rates.len() < MOST_RATES {
            self.rates.push(8.0 * float(bytes) / seconds);
            self.carried += bytes;
        }
    }
}

impl State {
    /// Drops the parts that are not of the last five minutes.
    fn forget(&mut self, number: u64) {
        while self
            .parts
            .front()
            .is_some_and(|it| it.number + PARTS <= number)
        {
            self.parts.pop_front();
        }
    }

    fn part(&mut self, number: u64) -> &mut Part {
        self.forget(number);
        if self.parts.back().is_none_or(|it| it.number != number) {
            self.parts.push_back(Part {
                number,
                ..Part::default()
            });
        }
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// Returns what the busy seconds of the last five minutes carried.
    fn carried(&self) -> Option<Carried> {
        let parts = self.parts.iter();
        let mut rates: Vec<f64> = parts.flat_map(|part| part.rates.iter().copied()).collect();
        rates.sort_by(f64::total_cmp);
        Some(Carried {
            median: rates.get(rates.len() / 2)?.round(),
            bytes: self.parts.iter().map(|part| part.carried).sum(),
        })
    }

    fn least(&self) -> Option<f64> {
        self.parts
            .iter()
            .fold(None, |all, part| least(all, part.least))
    }
}

/// Keeps a second, and no more than so many.
fn keep(
    seconds: &mut VecDeque<(Instant, Duration, u64)>,
    second: (Instant, Duration, u64),
    most: usize,
) {
    seconds.push_back(second);
    while seconds.len() > most {
        seconds.pop_front();
    }
}

fn least(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| float(part) / float(of))
}

/// Rounds: no figure is more exact than that, and each is written in full.
fn fine(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

#[allow(clippy::cast_precision_loss, reason = "bytes, exact up to 2^53")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}
