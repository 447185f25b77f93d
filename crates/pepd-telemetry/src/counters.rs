//! Counters of the whole process, turned up by the workers and read by anyone.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::measurements::Measurements;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Gives the number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How many there are at the moment.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Counts one more until what is returned is dropped: so it goes down exactly once, whatever
    /// ends first.
    #[must_use]
    pub fn increment(&self) -> GaugeGuard<'_> {
        self.0.fetch_add(1, Relaxed);
        GaugeGuard(self)
    }

    /// Sets the number, where something else does the counting.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Gives the number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// One unit of a [`Gauge`], which goes down when this is dropped.
#[derive(Debug)]
pub struct GaugeGuard<'a>(&'a Gauge);

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// Everything that pepd counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections being split now.
    pub live: Gauge,
    /// Connections accepted from captured traffic.
    pub accepted: Counter,
    /// Connections whose two directions both ended with a FIN, everything delivered.
    pub closed: Counter,
    /// Connections that ended with an error on the client leg.
    pub client_failed: Counter,
    /// Connections that ended with an error on the upstream leg.
    pub upstream_failed: Counter,
    /// Connections ended by pepd itself: the drain time was over, or nothing moved after one
    /// leg had failed.
    pub cut: Counter,
    /// Clients that got a RST because their destination could not be reached.
    pub unreachable: Counter,
    /// Upstream legs that could not use the client's port and took another of its address.
    pub other_port: Counter,
    /// Connections whose destination would have led to this host itself, the listener mostly;
    /// refused.
    pub refused: Counter,
    /// Times that accepting paused because descriptors had run out.
    pub accept_pauses: Counter,
    /// Times that a direction had to copy because the pipes had run out.
    pub copied_without_pipe: Counter,
    /// SYNs held until their destination answers, and upstream legs that wait for their
    /// clients, now.
    pub pending: Gauge,
    /// Flows whose SYN was held.
    pub held: Counter,
    /// Clients whose destination refused, and that got a RST before any SYN-ACK.
    pub refusals_passed_on: Counter,
    /// Clients that got the ICMP error that their destination gave.
    pub unreachable_passed_on: Counter,
    /// GaugeGuard SYNs whose destination never answered.
    pub unanswered: Counter,
    /// Upstream legs whose client never came: it had given up, or they had to make room.
    pub unclaimed: Counter,
    /// GaugeGuard SYNs routed unsplit: too many were pending.
    pub let_through_full: Counter,
    /// GaugeGuard SYNs routed unsplit: too many upstream legs were tried in vain.
    pub let_through_budget: Counter,
    /// GaugeGuard SYNs routed unsplit: the client's address and port, a route or a descriptor could
    /// not be had.
    pub let_through_not_possible: Counter,
    /// GaugeGuard SYNs routed unsplit: they had waited unread while others were routed, because the
    /// daemon had been paused or a limit reached.
    pub let_through_late: Counter,
    /// GaugeGuard SYNs routed unsplit: the destination's answers to the client take another way.
    pub let_through_detour: Counter,
    /// GaugeGuard packets that were no SYN that can be read.
    pub let_through_odd: Counter,
    /// SYNs still held when the daemon ended, routed unsplit.
    pub let_through_ending: Counter,
    /// Bytes from clients delivered to upstream legs.
    pub bytes_up: Counter,
    /// Bytes from upstream legs delivered to clients.
    pub bytes_down: Counter,
    /// What the metrics need beyond counts.
    pub measurements: Measurements,
}

impl Counters {
    /// GaugeGuard SYNs routed unsplit, for whatever reason.
    pub fn let_through(&self) -> u64 {
        [
            &self.let_through_full,
            &self.let_through_budget,
            &self.let_through_not_possible,
            &self.let_through_late,
            &self.let_through_detour,
            &self.let_through_odd,
            &self.let_through_ending,
        ]
        .into_iter()
        .map(Counter::get)
        .sum()
    }
}

/// One line for people: the numbers that say whether all is well.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} live, {} pending, {} accepted, {} closed, {} failed, {} unreachable, \
             {} on another port, {} refused and {} unreachable before they were accepted, {} let \
             through",
            self.live.get(),
            self.pending.get(),
            self.accepted.get(),
            self.closed.get(),
            self.client_failed.get() + self.upstream_failed.get() + self.cut.get(),
            self.unreachable.get(),
            self.other_port.get(),
            self.refusals_passed_on.get(),
            self.unreachable_passed_on.get(),
            self.let_through(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_goes_down_when_its_unit_is_dropped() {
        let counters = Counters::default();
        let guard = counters.live.increment();
        assert_eq!(counters.live.get(), 1);
        drop(guard);
        assert_eq!(counters.live.get(), 0);
    }
}
