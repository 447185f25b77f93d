//! `congestion = "find-rate"`: the thread that finds a leg's rate.
//!
//! The leg's control counts in the kernel what becomes of the packets ([`Steering`]); at the end of each
//! epoch the thread reads that, has the [`Controller`] plan the next one, and tells the control. While
//! nothing is sent it sleeps.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pepd_admin::wire::{PathPoint, RateLimit};
use pepd_bpf::{Counted, Counts, EPOCHS, Error, Order, Steering};
use pepd_model::find_rate::{CLASSES, Controller, Epoch, Known, Ledger, Near, OPEN};
use pepd_relay::Essential;

use super::found::{Found, limit, whole};
use super::second::Second;
use crate::exit::Failure;

const _: () = assert!(OPEN <= EPOCHS && CLASSES == pepd_bpf::CLASSES);

const STEP: &str = "look for a leg's rate";

/// No epoch is longer.
const LONGEST: Duration = Duration::from_secs(1);

const MICROSECONDS: f64 = 1e6;

/// Nothing was sent or acknowledged for so long, and for four round trips: the thread sleeps.
const QUIET: f64 = 1.0;

/// After so many seconds and round trips of use the log says what was found: the queue was emptied once by then.
const SETTLED: f64 = 5.0;
const SETTLED_ROUNDS: f64 = 20.0;

/// What a path was found to carry is forgotten when it was not used for so long, in seconds: as the kernel
/// forgets its least round trip (net.ipv4.tcp_min_rtt_wlen).
const FORGOTTEN: f64 = 300.0;

/// What is shared with the thread.
#[derive(Debug, Default)]
struct Shared {
    found: Found,
    /// The epochs since the last second was taken.
    second: Second,
    /// What limited the rate for most of that second, while it is used.
    limit: Option<RateLimit>,
    /// The most that may be sent, in bytes a second; none without bounds.
    ceiling: Option<f64>,
}

/// A leg whose rate is found.
#[derive(Clone, Debug)]
pub struct Finder(Arc<Mutex<Shared>>);

impl Finder {
    /// Starts to find the rate; `ceiling` is the most that may be sent, in bytes a second, `known` what was known
    /// before.
    pub fn start(
        steering: Steering,
        leg: &str,
        ceiling: Option<f64>,
        known: Option<Known>,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(Mutex::new(Shared {
            ceiling,
            ..Shared::default()
        }));
        let finder = Self(shared);
        let work = Work::new(leg, steering, finder.clone(), known);
        let mut work = work.map_err(|error| Failure::internal(STEP, error))?;
        // It ends with the process: without it the leg would have no rate.
        thread::Builder::new()
            .name("find-rate".to_owned())
            .spawn(move || {
                let _whole = Essential;
                work.run();
            })
            .map_err(|error| Failure::internal(STEP, error))?;
        Ok(finder)
    }

    /// Returns what is known of the path, and what limited the rate for most of the last second.
    pub fn found(&self) -> (Found, Option<RateLimit>) {
        let shared = self.lock();
        (shared.found, shared.limit)
    }

    /// Ends a second, and returns what the path was like in it; none while it is not used.
    pub fn end_second(&self) -> Option<PathPoint> {
        let mut shared = self.lock();
        let second = std::mem::take(&mut shared.second);
        // An epoch may take as long as a second.
        let point = second.point().or_else(|| {
            let mut last = Second::default();
            last.add(&shared.found, 1.0);
            last.point()
        });
        let point = point.filter(|_| shared.found.is_used);
        shared.limit = point.map(|point| point.limit);
        point
    }

    /// Has the thread never send more than that from now on, in bytes a second.
    pub fn limit(&self, ceiling: Option<f64>) {
        self.lock().ceiling = ceiling;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread has.
struct Work {
    leg: String,
    steering: Steering,
    shared: Finder,
    ledger: Ledger,
    order: Order,
    /// What each place had counted at the last look, and when its epoch began.
    counts: Vec<Counts>,
    before: Vec<Counts>,
    /// What connections of each class had sent at the last look.
    by_class: [u64; CLASSES],
    /// The sum of all counts at the last look, and when that was another before.
    sum: u64,
    used: f64,
    /// The length of the epoch that goes on.
    length: f64,
    /// The connections that were kept to what their own path carries, when something was sent last.
    capped: u64,
    naps: u64,
    /// For so many seconds a rate is found; infinite once the log was told of it.
    found_for: f64,
}

impl Work {
    /// Gives the first order.
    fn new(
        leg: &str,
        steering: Steering,
        shared: Finder,
        known: Option<Known>,
    ) -> Result<Self, Error> {
        let Counted { epochs, by_class } = steering.counts()?;
        let now = now()?;
        let ceiling = shared.lock().ceiling;
        let mut work = Self {
            leg: leg.to_owned(),
            steering,
            shared,
            ledger: Ledger::new(controller(ceiling, known), 1),
            order: Order::default(),
            counts: epochs.clone(),
            before: epochs,
            by_class,
            sum: 0,
            used: now,
            length: 0.0,
            capped: 0,
            naps: 0,
            found_for: 0.0,
        };
        work.turn(now)?;
        Ok(work)
    }

    /// Goes on for ever. Where the kernel refuses something it slows the connections down by itself meanwhile.
    fn run(&mut self) -> ! {
        let mut is_refused = false;
        loop {
            match self.step() {
                Ok(()) if is_refused => {
                    is_refused = false;
                    tracing::info!(leg = self.leg, "the leg's rate is looked for again");
                }
                Ok(()) => {}
                Err(error) => {
                    self.shared.lock().found.is_used = false;
                    if !is_refused {
                        is_refused = true;
                        tracing::error!(
                            leg = self.leg,
                            %error,
                            "the leg's rate cannot be looked for, and its connections slow down; it is tried again each \
                             second"
                        );
                    }
                    thread::park_timeout(LONGEST);
                }
            }
        }
    }

    /// Waits for the end of the epoch, and begins the next one.
    fn step(&mut self) -> Result<(), Error> {
        // Nobody wakes it; and an epoch that ends early is one, too.
        thread::park_timeout(Duration::try_from_secs_f64(self.length).unwrap_or(LONGEST));
        let mut now = now()?;
        self.read(now)?;
        let rtt = self.ledger.controller().least_rtt().unwrap_or_default();
        if now - self.used > QUIET.max(4.0 * rtt) {
            now = self.nap(now)?;
            self.read(now)?;
        }
        self.turn(now)
    }

    /// Waits until something is sent, and returns when that is.
    fn nap(&mut self, since: f64) -> Result<f64, Error> {
        self.shared.lock().found.is_used = false;
        loop {
            self.naps += 1;
            self.order.nap = self.naps;
            self.steering.set(&self.order)?;
            if self.sum != sum(&self.steering.counts()?.epochs) {
                break;
            }
            self.steering.wait(Duration::MAX);
        }
        let now = now()?;
        // What another process has known is not forgotten before anything was heard of the path.
        let is_heard = self.ledger.controller().least_rtt().is_some();
        if now - since > FORGOTTEN && is_heard {
            let ceiling = self.shared.lock().ceiling;
            self.ledger = Ledger::new(controller(ceiling, None), self.order.number + 1);
            self.found_for = 0.0;
        }
        self.used = now;
        Ok(now)
    }

    /// Takes over what was counted.
    fn read(&mut self, now: f64) -> Result<(), Error> {
        let Counted { epochs, by_class } = self.steering.counts()?;
        self.counts = epochs;
        let before = std::mem::replace(&mut self.by_class, by_class);
        for (class, (now, before)) in by_class.into_iter().zip(before).enumerate() {
            let bytes = float(now.wrapping_sub(before));
            self.ledger.near_mut().add(class, bytes);
        }
        let sum = sum(&self.counts);
        if sum != self.sum {
            self.sum = sum;
            self.used = now;
        }
        let queue = self.ledger.controller().queue();
        let mut heard = None;
        for epoch in self.ledger.counted_mut() {
            let place = place(epoch.number);
            let (Some(counts), Some(before)) = (self.counts.get(place), self.before.get(place))
            else {
                continue;
            };
            let known = (epoch.delivered, epoch.longest_rtt);
            take(epoch, counts, before, queue);
            if epoch.sent > 0.0 {
                self.capped = counts.capped;
            }
            // Also of a connection that has just been opened.
            let is_new = (epoch.delivered, epoch.longest_rtt) != known;
            if is_new && counts.number == epoch.number {
                let rtt = seconds(counts.least_rtt);
                heard = Some(heard.map_or(rtt, |least: f64| least.min(rtt)));
            }
        }
        let controller = self.ledger.controller_mut();
        if let Some(rtt) = heard {
            controller.heard(now, rtt);
        }
        controller.keeps(now, self.capped);
        Ok(())
    }

    /// Begins the next epoch.
    fn turn(&mut self, now: f64) -> Result<(), Error> {
        let ceiling = self.shared.lock().ceiling;
        self.ledger.controller_mut().limit(most(ceiling));
        let span = self.ledger.turn(now);
        self.length = span.length;
        let Some(number) = self.ledger.current().map(|epoch| epoch.number) else {
            return Ok(());
        };
        let place = place(number);
        let counts = self.counts.get(place);
        if let (Some(before), Some(counts)) = (self.before.get_mut(place), counts) {
            *before = *counts;
        }
        let controller = self.ledger.controller();
        tracing::trace!(
            number,
            rate = whole(8.0 * span.rate),
            length = span.length,
            capacity = whole(8.0 * controller.capacity()),
            starting = controller.is_starting(),
            limited = ?controller.limited_by(),
            share = controller.path_share(),
            queue = controller.queue(),
            rtt = controller.least_rtt(),
            is_empty = span.is_empty,
            waiting = ?self.ledger.open().map(|it| (it.sent, it.delivered)).collect::<Vec<_>>(),
            "an epoch begins"
        );
        self.order.nap = 0;
        self.order.rate = whole(span.rate).max(1);
        self.order.slack = whole(controller.slack() * MICROSECONDS);
        order_near(&mut self.order, self.ledger.near(), number);
        if span.is_empty {
            let goes_on = self.order.empty + self.order.empties == number;
            self.order.empty = if goes_on { self.order.empty } else { number };
            self.order.empties = number - self.order.empty + 1;
        }
        if let Some(began) = self.order.began.get_mut(place) {
            *began = whole(now * MICROSECONDS);
        }
        self.order.number = number;
        self.steering.set(&self.order)?;
        let found = Found {
            rate: span.rate,
            capacity: controller.capacity(),
            is_starting: controller.is_starting(),
            is_used: true,
            loss: 1.0 - controller.path_share(),
            queue: controller.queue().max(0.0),
            rtt: controller.least_rtt(),
            least_rtt: controller.least_rtt_for_long(),
            limit: limit(controller.limited_by()),
            capped: self.capped,
        };
        self.tell(&found, span.length);
        let mut shared = self.shared.lock();
        shared.found = found;
        shared.second.add(&found, span.length);
        Ok(())
    }

    /// Has the log say once what was found, when the queue was emptied after the start and what the path carries is
    /// seen again: it may begin with half of it.
    fn tell(&mut self, found: &Found, length: f64) {
        if found.is_starting {
            return;
        }
        self.found_for += length;
        let rtt = found.least_rtt.unwrap_or_default();
        if self.found_for.is_infinite() || self.found_for < SETTLED.max(SETTLED_ROUNDS * rtt) {
            return;
        }
        self.found_for = f64::INFINITY;
        tracing::info!(
            leg = self.leg,
            capacity = whole(8.0 * found.capacity),
            lost = found.loss,
            least_rtt = found.least_rtt,
            limited_by = found.limit.name(),
            "what the leg's path carries is found"
        );
    }
}

/// Writes who is near in an epoch into an order.
fn order_near(order: &mut Order, near: &Near, number: u64) {
    order.near = whole(near.most(number) * MICROSECONDS);
    order.near_before = whole(near.before() * MICROSECONDS);
    order.near_since = near.since();
}

fn controller(ceiling: Option<f64>, known: Option<Known>) -> Controller {
    match known {
        Some(known) => Controller::resume(most(ceiling), known),
        None => Controller::new(most(ceiling)),
    }
}

fn most(ceiling: Option<f64>) -> f64 {
    ceiling.unwrap_or(f64::INFINITY)
}

/// Writes what was counted of an epoch into it; `queue` is the queueing delay where nothing tells of it.
fn take(epoch: &mut Epoch, counts: &Counts, before: &Counts, queue: f64) {
    let difference = |of: fn(&Counts) -> u64| float(of(counts).wrapping_sub(of(before)));
    epoch.sent = difference(|it| it.sent);
    epoch.near = epoch.sent - difference(|it| it.far);
    epoch.delivered = difference(|it| it.delivered);
    epoch.flows = float(counts.flows);
    if epoch.delivered > 0.0 {
        let delay = difference(|it| it.delays) / epoch.delivered;
        epoch.acknowledged = epoch.began + delay / MICROSECONDS;
    }
    if counts.farthest_of == epoch.number % (1 << 32) {
        epoch.farthest = seconds(counts.farthest);
    }
    if counts.number == epoch.number {
        epoch.least_queue = seconds(counts.least_queue);
        epoch.first_queue = seconds(counts.first_queue);
        epoch.last_queue = seconds(counts.last_queue);
        epoch.longest_rtt = seconds(counts.longest_rtt);
        epoch.least_rtt = seconds(counts.least_rtt);
        epoch.revealed = seconds(counts.revealed);
        epoch.is_sure = counts.is_sure;
    } else if epoch.delivered > 0.0 {
        // What was acknowledged told no round trip (it was sent again).
        epoch.least_queue = queue;
        epoch.first_queue = queue;
        epoch.last_queue = queue;
    }
}

fn place(number: u64) -> usize {
    // Less than the number of places.
    usize::try_from(number % EPOCHS as u64).unwrap_or_default()
}

fn sum(counts: &[Counts]) -> u64 {
    let all = |it: &Counts| [it.sent, it.delivered, it.number, it.least_rtt];
    counts.iter().flat_map(all).fold(0, u64::wrapping_add)
}

fn seconds(microseconds: u64) -> f64 {
    float(microseconds) / MICROSECONDS
}

#[allow(
    clippy::cast_precision_loss,
    reason = "bytes and microseconds of one epoch, or since the machine's start: exact up to 2^53"
)]
fn float(value: u64) -> f64 {
    value as f64
}

/// Returns the time of the clock by which the kernel's TCP counts, in seconds.
fn now() -> Result<f64, Error> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|error| Error::Refused {
        step: "read the monotonic clock",
        message: error.to_string(),
    })?;
    Ok(Duration::from(time).as_secs_f64())
}
