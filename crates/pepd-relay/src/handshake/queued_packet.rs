//! A packet that the kernel keeps until it is told what becomes of it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::{Mark, PacketMark, VerdictMarks};
use pepd_sys::nfqueue::{Queue, Recipient, Verdict};
use pepd_telemetry::{Counters, HeldSynFailure, Throttle, UnsplitReason};

use super::verdict::SynVerdict;

/// A packet in an NFQUEUE: a client's SYN or RST, or an ICMP error of this host's.
///
/// Whoever has it gives its verdict, once: all ways to do so consume it.
#[derive(Debug)]
pub(crate) struct QueuedPacket {
    queue: Arc<Queue>,
    id: u32,
    mark: PacketMark,
}

impl QueuedPacket {
    pub(crate) fn new(queue: &Arc<Queue>, id: u32, mark: PacketMark) -> Self {
        Self {
            queue: Arc::clone(queue),
            id,
            mark,
        }
    }

    /// Gives the verdict, and counts it.
    ///
    /// Without `marks` the capture holds no SYNs any more (it was reloaded): the client's
    /// next one goes where it has to.
    pub(crate) fn decide(
        self,
        verdict: SynVerdict,
        marks: Option<VerdictMarks>,
        counters: &Counters,
    ) {
        count(verdict, counters);
        let recipient = match verdict {
            SynVerdict::Split => Recipient::Reader,
            _ => Recipient::Anybody,
        };
        let verdict = match marks {
            Some(marks) if !verdict.is_drop() => Verdict::Accept(verdict.mark(self.mark, marks)),
            _ => Verdict::Drop,
        };
        self.give(verdict, recipient);
    }

    /// Drops the packet because another one speaks for its connection.
    pub(crate) fn supersede(self) {
        self.give(Verdict::Drop, Recipient::Anybody);
    }

    /// Lets the packet go on as it came.
    pub(crate) fn release(self) {
        self.give(Verdict::Accept(self.mark), Recipient::Anybody);
    }

    /// Lets the packet go on, with this value of pepd's bits of its mark.
    pub(crate) fn release_as(self, mark: Mark) {
        let verdict = Verdict::Accept(self.mark.with(mark.value, mark.mask));
        self.give(verdict, Recipient::Anybody);
    }

    fn give(&self, verdict: Verdict, recipient: Recipient) {
        if let Err(error) = self.queue.decide(self.id, verdict, recipient) {
            report_lost(&error);
        }
    }
}

/// Gives the verdicts that the kernel has not taken yet.
pub(crate) fn retry(queue: &Queue) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    let due = queue.retry();
    if due > 0
        && let Some(held_back) = THROTTLE.admit(Instant::now())
    {
        tracing::warn!(
            due,
            held_back,
            "the kernel takes no verdicts on held SYNs: trying again"
        );
    }
}

fn report_lost(error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::error!(%error, held_back, "no verdict on a held SYN: it waits until pepd ends");
    }
}

fn report_full() {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            held_back,
            "as many SYNs are held as [limits] pending allows, or half of that for one source: \
             others are routed unsplit"
        );
    }
}

fn count(verdict: SynVerdict, counters: &Counters) {
    let failure = match verdict {
        SynVerdict::Split | SynVerdict::Pass | SynVerdict::Superseded => return,
        SynVerdict::Bypass(reason) => {
            counters.unsplit[reason].increment();
            if reason == UnsplitReason::Full {
                report_full();
            }
            return;
        }
        SynVerdict::Refused => HeldSynFailure::Refused,
        SynVerdict::RefusedLinkGone => HeldSynFailure::LinkGone,
        SynVerdict::Unreachable(_) => HeldSynFailure::Unreachable,
        SynVerdict::Silence => HeldSynFailure::Unanswered,
    };
    counters.held_syns_failed[failure].increment();
}
