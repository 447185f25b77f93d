//! What is counted of one direction: its bytes, its phases, and what waits in this box.

use std::time::Instant;

use super::sample::{LegEstimate, SocketSample};
use crate::QueueBytes;
use crate::pairs::Progress;
use crate::phase::{Activity, PhaseClock};

/// A report on a step of a connection in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepReport {
    /// Bytes written to the outgoing socket since the start.
    pub bytes: u64,
    /// Bytes in the pipe.
    pub pipe: usize,
    /// Bytes that the outgoing socket had left to send when data came that ended a wait for it.
    pub unsent_after_wait: u64,
    /// The activity of the direction from now on.
    pub activity: Activity,
}

/// Measures one direction from the reports on its steps.
#[derive(Debug)]
pub(super) struct DirectionMeter {
    pub(super) clock: PhaseClock,
    /// Bytes written to the outgoing socket.
    pub(super) written: u64,
    /// Of these, what its peer had acknowledged at the last sample; none before the first.
    acknowledged: Option<u64>,
    pub(super) queue_max: u32,
    pipe: u32,
    /// The progress that has been added to the pair.
    added: Progress,
}

impl DirectionMeter {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            clock: PhaseClock::new(now),
            written: 0,
            acknowledged: None,
            pipe: 0,
            queue_max: 0,
            added: Progress::default(),
        }
    }

    /// Begins with bytes that another process had written, and counted.
    pub(super) fn had_written(&mut self, bytes: u64) {
        self.written = bytes;
        self.added.bytes = bytes;
    }

    /// Returns the bytes that are counted already, here or by another process.
    pub(super) fn counted(&self) -> u64 {
        self.added.bytes
    }

    /// Takes a report, and says whether anything happened in the step.
    pub(super) fn report(
        &mut self,
        woke: Instant,
        done: Instant,
        report: StepReport,
        incoming: &LegEstimate,
        outgoing: &LegEstimate,
    ) -> bool {
        let before = self.clock.activity();
        let same = std::mem::discriminant(&before) == std::mem::discriminant(&report.activity);
        if report.bytes == self.written && same {
            return false;
        }
        self.written = report.bytes;
        self.pipe = u32::try_from(report.pipe).unwrap_or(u32::MAX);
        let unsent = outgoing.backlog(report.unsent_after_wait);
        self.clock.settle(woke, unsent, outgoing.rate);
        self.clock.begin(woke, Activity::Moving, incoming.rtt);
        self.clock.settle(done, 0, None);
        let activity = match report.activity {
            Activity::AwaitsSource { unsent } => {
                self.note_queue(unsent);
                Activity::AwaitsSource {
                    unsent: outgoing.backlog(unsent),
                }
            }
            other => other,
        };
        self.clock.begin(done, activity, incoming.rtt);
        true
    }

    /// Returns the bytes that have been delivered: what the far end has acknowledged, as of the last
    /// sample. What is in a send buffer is not delivered, and may never be. Of a connection too short
    /// for a sample all that was written counts.
    pub(super) fn delivered(&self) -> u64 {
        self.acknowledged.unwrap_or(self.written)
    }

    /// Notes what the outgoing socket's peer has not acknowledged.
    pub(super) fn note_unacknowledged(&mut self, unacknowledged: u64) {
        // A direction that has ended has sent its FIN, which is the last to be acknowledged.
        let fin = u64::from(matches!(self.clock.activity(), Activity::Ended));
        let acknowledged = self
            .written
            .saturating_sub(unacknowledged.saturating_sub(fin));
        self.acknowledged = self.acknowledged.max(Some(acknowledged));
    }

    pub(super) fn note_queue(&mut self, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.queue_max = self.queue_max.max(bytes).max(self.pipe);
    }

    pub(super) fn queue(&self, incoming: &SocketSample, outgoing: &SocketSample) -> QueueBytes {
        let activity = self.clock.activity();
        let drained = matches!(activity, Activity::AwaitsSource { .. } | Activity::Ended);
        QueueBytes {
            unread: if drained { 0 } else { incoming.unread },
            pipe: self.pipe.into(),
            unsent: match activity {
                Activity::AwaitsSource { unsent } => unsent,
                _ => outgoing.unsent,
            },
        }
    }

    /// Takes the progress that has not been added to the pair yet.
    pub(super) fn take_progress(&mut self) -> Progress {
        let all = Progress {
            bytes: self.delivered(),
            times: self.clock.carrying(),
        };
        let before = std::mem::replace(&mut self.added, all);
        Progress {
            bytes: all.bytes.saturating_sub(before.bytes),
            times: all.times.since(before.times),
        }
    }
}
