//! Changes that are made together or not at all.

use super::attributes::Attributes;
use super::header::{Family, Flags, Header, MessageType, Subsystem};
use super::message::append;

/// A batch of changes in the making.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    subsystem: Subsystem,
    sequence: u32,
}

/// A batch that is ready to send.
#[derive(Debug)]
pub struct FinishedBatch {
    /// The messages, one after the other.
    pub bytes: Vec<u8>,
    /// The sequence number of the last change: its acknowledgement means that all were made.
    pub last_change: u32,
    /// The last sequence number used.
    pub last_sequence: u32,
}

impl Batch {
    /// Starts a batch of one subsystem's changes, numbered from `sequence` on.
    pub fn begin(subsystem: Subsystem, sequence: u32) -> Self {
        let mut batch = Self {
            bytes: Vec::with_capacity(512),
            subsystem,
            sequence,
        };
        batch.boundary(MessageType::BATCH_BEGIN);
        batch
    }

    /// Adds a change, the subsystem's message with this number, that is to be acknowledged.
    pub fn change(
        &mut self,
        message: u8,
        flags: Flags,
        family: Family,
        body: impl FnOnce(&mut Attributes<'_>),
    ) {
        let header = Header {
            kind: MessageType::of(self.subsystem, message),
            flags: Flags::ACK | flags,
            sequence: self.sequence,
            family,
            resource: 0,
        };
        self.append(header, body);
    }

    /// Ends the batch.
    pub fn end(mut self) -> FinishedBatch {
        let last_change = self.sequence.wrapping_sub(1);
        let last_sequence = self.sequence;
        self.boundary(MessageType::BATCH_END);
        FinishedBatch {
            bytes: self.bytes,
            last_change,
            last_sequence,
        }
    }

    fn boundary(&mut self, kind: MessageType) {
        let header = Header {
            kind,
            flags: Flags::NONE,
            sequence: self.sequence,
            family: Family::UNSPECIFIED,
            // The resource id says which subsystem the batch is for.
            resource: u16::from(self.subsystem.0),
        };
        self.append(header, |_| {});
    }

    fn append(&mut self, header: Header, body: impl FnOnce(&mut Attributes<'_>)) {
        append(&mut self.bytes, header, body);
        self.sequence = self.sequence.wrapping_add(1);
    }
}
