//! What was counted of the packets that were sent at one rate.

use super::{PACKET, Span};

/// By so much more than it is let a leg sends without meaning to, and so many bytes, since packets are whole.
const MEANT: f64 = 1.05;
const WHOLE: f64 = 2.0 * PACKET;

/// A span of time at one rate, and what has become of what was sent in it. Each packet belongs to the
/// epoch in which it was *sent*, whenever its acknowledgement comes: so what arrived is an exact share of
/// what was sent, at any round trip, and an epoch may be shorter than that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Epoch {
    /// Its number, from 0 on.
    pub number: u64,
    /// The rate that was allowed, in bytes of IP packets a second.
    pub rate: f64,
    /// When it began, in seconds.
    pub began: f64,
    /// When the next one began, in seconds; infinite while it goes on.
    pub ended: f64,
    /// The bytes of IP packets that were sent.
    pub sent: f64,
    /// Those of them whose answers are waited for: of connections that are [near](super::Near). What follows is theirs.
    pub near: f64,
    /// Those of these that were acknowledged.
    pub delivered: f64,
    /// When these were acknowledged, in the mean, in seconds: what an acknowledgement that was lost has
    /// told late does not count for much then. 0 before the first.
    pub acknowledged: f64,
    /// The least queueing delay of those acknowledged: the round trip less the least of the same
    /// connection's, in seconds; infinite before the first.
    pub least_queue: f64,
    /// The queueing delay when the first of them was acknowledged, in seconds.
    pub first_queue: f64,
    /// And when the last one was.
    pub last_queue: f64,
    /// The connections that had more to send than they were let.
    pub flows: f64,
    /// The longest round trip of those acknowledged, in seconds.
    pub longest_rtt: f64,
    /// The shortest one, in seconds; infinite before the first.
    pub least_rtt: f64,
    /// The longest of the least round trips of who sent something, in seconds: the last of it is acknowledged so much later,
    /// where there is no queue.
    pub farthest: f64,
    /// Whether the queueing delays are those of connections whose least round trip is sure to be one without a queue.
    pub is_sure: bool,
    /// By how much a round trip was shorter than the least of its connection before, at most, in seconds: so much of a
    /// queue was not known.
    pub revealed: f64,
    /// Whether it was sent when there should be no queue.
    pub is_empty: bool,
}

impl Epoch {
    /// Returns an epoch that begins.
    pub fn new(number: u64, span: Span, began: f64) -> Self {
        Self {
            number,
            rate: span.rate,
            is_empty: span.is_empty,
            began,
            ended: f64::INFINITY,
            least_queue: f64::INFINITY,
            least_rtt: f64::INFINITY,
            ..Self::default()
        }
    }

    /// Returns its length, in seconds.
    pub fn length(&self) -> f64 {
        self.ended - self.began
    }

    /// Returns the share that was acknowledged; all of nothing.
    pub fn share(&self) -> f64 {
        if self.near > 0.0 {
            self.delivered / self.near
        } else {
            1.0
        }
    }

    /// Returns how many of the bytes that were sent have arrived, if of the others as many have.
    pub(super) fn arrived(&self) -> f64 {
        self.sent * self.share()
    }

    /// Returns what was sent beyond the rate in those of some that have ended, in bytes a second: the kernel does not pace the
    /// first packets of a connection (`tcp_update_skb_after_send`, net/ipv4/tcp_output.c), and where many begin that is a
    /// good part of what the link carries.
    pub(super) fn unasked(epochs: &[Self]) -> f64 {
        let [mut beyond, mut seconds] = [-WHOLE, 0.0];
        let mut before = 0.0_f64;
        for epoch in epochs.iter().filter(|epoch| epoch.ended.is_finite()) {
            // For how long a connection waits was decided at its last packet, by the rate of then.
            let rate = epoch.rate.max(before);
            before = epoch.rate;
            beyond += epoch.sent - MEANT * rate * epoch.length();
            seconds += epoch.length();
        }
        if seconds > 0.0 {
            (beyond / seconds).max(0.0)
        } else {
            0.0
        }
    }

    /// Counts what was acknowledged at a time, `queue` seconds later than at the best, `rtt` seconds after
    /// it was sent.
    pub fn acknowledge(&mut self, now: f64, bytes: f64, (queue, is_sure): (f64, bool), rtt: f64) {
        let is_first = self.delivered == 0.0 || is_sure && !self.is_sure;
        self.delivered += bytes;
        self.acknowledged += (now - self.acknowledged) * bytes / self.delivered;
        self.longest_rtt = self.longest_rtt.max(rtt);
        self.least_rtt = self.least_rtt.min(rtt);
        if is_first {
            self.is_sure = is_sure;
            self.first_queue = queue;
            self.least_queue = queue;
        } else if self.is_sure && !is_sure {
            return;
        }
        self.last_queue = queue;
        self.least_queue = self.least_queue.min(queue);
    }
}
