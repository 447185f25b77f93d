//! A connection in frames: its head, and then its data.

use std::time::Duration;

use pepd_packet::snapshot::{
    Agreed, Buffers, Fin, Receiving, Sending, Snapshot, SplitSnapshot, WaySnapshot, WayState,
    Windows,
};

use super::codec::{Reader, Writer};
use super::frame::Frame;
use super::{MOST_DATA, MOST_IN_FRAME};

/// The pieces of data of a connection: of each leg what is sent, unsent and unread, and then each pipe.
const PIECES: usize = 8;

/// What precedes a connection's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which of those offered it is.
    pub index: u16,
    /// The connection, without its data.
    connection: SplitSnapshot,
    /// How long each piece of its data is.
    lengths: [u32; PIECES],
}

/// Data that is not as its head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssemblyError {
    /// There is too much.
    #[error("more data than the connection has")]
    TooMuch,
    /// Something else follows.
    #[error("less data than the connection has")]
    TooLittle,
}

/// Returns the pieces of a connection's data in the order in which they are sent.
fn pieces(connection: &mut SplitSnapshot) -> [&mut Vec<u8>; PIECES] {
    let [client, upstream] = &mut connection.legs;
    let [up, down] = &mut connection.ways;
    [
        &mut client.sending.sent,
        &mut client.sending.unsent,
        &mut client.receiving.unread,
        &mut upstream.sending.sent,
        &mut upstream.sending.unsent,
        &mut upstream.receiving.unread,
        &mut up.in_pipe,
        &mut down.in_pipe,
    ]
}

impl Head {
    /// Parts a connection into its head and the frames of its data. None where it has more than
    /// [`MOST_DATA`].
    #[must_use]
    pub fn part(index: u16, mut connection: SplitSnapshot) -> Option<(Self, Vec<Frame>)> {
        if connection.data() > MOST_DATA {
            return None;
        }
        let pieces = pieces(&mut connection).map(std::mem::take);
        // None of them is longer than all together.
        let lengths = std::array::from_fn(|at| u32::try_from(pieces[at].len()).unwrap_or(u32::MAX));
        let all = pieces.concat();
        let frames = all.chunks(MOST_IN_FRAME);
        let frames = frames.map(|chunk| Frame::Data(chunk.to_vec())).collect();
        let head = Self {
            index,
            connection,
            lengths,
        };
        Some((head, frames))
    }

    /// Returns the connection, without its data.
    #[must_use]
    pub fn connection(&self) -> &SplitSnapshot {
        &self.connection
    }

    /// Returns how many bytes of data follow.
    #[must_use]
    pub fn data(&self) -> usize {
        let lengths = self.lengths.iter().map(|length| usize::try_from(*length));
        lengths
            .map(|length| length.unwrap_or(usize::MAX))
            .fold(0, usize::saturating_add)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let connection = &self.connection;
        writer.u16(self.index);
        writer.flow(connection.flow);
        writer.u64(u64::try_from(connection.age.as_millis()).unwrap_or(u64::MAX));
        writer.flag(connection.early);
        for leg in &connection.legs {
            write_leg(writer, leg);
        }
        for way in &connection.ways {
            writer.u8(match way.state {
                WayState::Running => 0,
                WayState::ShuttingDown => 1,
                WayState::Done => 2,
            });
            writer.u64(way.delivered);
        }
        for length in self.lengths {
            writer.u32(length);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let index = reader.u16()?;
        let connection = SplitSnapshot {
            flow: reader.flow()?,
            age: Duration::from_millis(reader.u64()?),
            early: reader.flag()?,
            legs: [read_leg(reader)?, read_leg(reader)?],
            ways: [read_way(reader)?, read_way(reader)?],
        };
        let mut lengths = [0; PIECES];
        for length in &mut lengths {
            *length = reader.u32()?;
        }
        let head = Self {
            index,
            connection,
            lengths,
        };
        (head.data() <= MOST_DATA && head.holds_together()).then_some(head)
    }

    /// Returns whether it is what a box could have taken: its ends are the connection's, and what is sent
    /// comes before what is not.
    fn holds_together(&self) -> bool {
        let SplitSnapshot { flow, legs, .. } = &self.connection;
        let [client, upstream] = legs;
        let unsent = [self.lengths[1], self.lengths[4]];
        let in_order = legs.iter().zip(unsent).all(|(leg, unsent)| {
            (leg.sending.fin != Fin::Sent || unsent == 0)
                && leg.agreed.send_scale <= 14
                && leg.agreed.receive_scale <= 14
        });
        // The upstream leg may have another port where the client's was taken.
        in_order
            && (client.local, client.peer) == (flow.server, flow.client)
            && (upstream.local.ip(), upstream.peer) == (flow.client.ip(), flow.server)
    }
}

fn write_leg(writer: &mut Writer, leg: &Snapshot) {
    writer.address(leg.local);
    writer.address(leg.peer);
    writer.u8(leg.traffic_class);
    let agreed = leg.agreed;
    writer.u16(agreed.mss);
    writer.u8(agreed.send_scale);
    writer.u8(agreed.receive_scale);
    writer.flag(agreed.sack);
    writer.option(agreed.timestamp, Writer::u32);
    writer.u32(leg.sending.sequence);
    writer.u8(match leg.sending.fin {
        Fin::None => 0,
        Fin::Waits => 1,
        Fin::Sent => 2,
    });
    writer.u32(leg.receiving.next);
    writer.flag(leg.receiving.ended);
    let windows = leg.windows;
    for number in [
        windows.updated_by,
        windows.send,
        windows.largest,
        windows.receive,
        windows.announced_at,
        leg.buffers.receive,
        leg.buffers.send,
    ] {
        writer.u32(number);
    }
    writer.flag(leg.buffers.receive_fixed);
    writer.flag(leg.buffers.send_fixed);
}

fn read_leg(reader: &mut Reader<'_>) -> Option<Snapshot> {
    Some(Snapshot {
        local: reader.address()?,
        peer: reader.address()?,
        traffic_class: reader.u8()?,
        agreed: Agreed {
            mss: reader.u16()?,
            send_scale: reader.u8()?,
            receive_scale: reader.u8()?,
            sack: reader.flag()?,
            timestamp: reader.option(Reader::u32)?,
        },
        sending: Sending {
            sequence: reader.u32()?,
            sent: Vec::new(),
            unsent: Vec::new(),
            fin: match reader.u8()? {
                0 => Fin::None,
                1 => Fin::Waits,
                2 => Fin::Sent,
                _ => return None,
            },
        },
        receiving: Receiving {
            next: reader.u32()?,
            unread: Vec::new(),
            ended: reader.flag()?,
        },
        windows: Windows {
            updated_by: reader.u32()?,
            send: reader.u32()?,
            largest: reader.u32()?,
            receive: reader.u32()?,
            announced_at: reader.u32()?,
        },
        buffers: Buffers {
            receive: reader.u32()?,
            send: reader.u32()?,
            receive_fixed: reader.flag()?,
            send_fixed: reader.flag()?,
        },
    })
}

fn read_way(reader: &mut Reader<'_>) -> Option<WaySnapshot> {
    Some(WaySnapshot {
        state: match reader.u8()? {
            0 => WayState::Running,
            1 => WayState::ShuttingDown,
            2 => WayState::Done,
            _ => return None,
        },
        delivered: reader.u64()?,
        in_pipe: Vec::new(),
    })
}

/// A connection whose data is still coming. It holds no more than has come.
#[derive(Debug, PartialEq, Eq)]
pub struct Assembly {
    head: Head,
    data: Vec<u8>,
}

impl Assembly {
    /// Begins with a head.
    #[must_use]
    pub fn begin(head: Head) -> Self {
        Self {
            head,
            data: Vec::new(),
        }
    }

    /// Returns whether all of the data has come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.data.len() == self.head.data()
    }

    /// Takes the next data.
    ///
    /// # Errors
    /// Where that is more than there should be.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), AssemblyError> {
        if self.data.len() + bytes.len() > self.head.data() {
            return Err(AssemblyError::TooMuch);
        }
        self.data.extend_from_slice(bytes);
        Ok(())
    }

    /// Gives the connection, and which of those offered it is.
    ///
    /// # Errors
    /// Where data is missing.
    pub fn finish(self) -> Result<(u16, SplitSnapshot), AssemblyError> {
        if !self.is_complete() {
            return Err(AssemblyError::TooLittle);
        }
        let Head {
            index,
            mut connection,
            lengths,
        } = self.head;
        let mut rest = self.data.as_slice();
        for (piece, length) in pieces(&mut connection).into_iter().zip(lengths) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let (first, others) = rest
                .split_at_checked(length)
                .ok_or(AssemblyError::TooLittle)?;
            first.clone_into(piece);
            rest = others;
        }
        Ok((index, connection))
    }
}
