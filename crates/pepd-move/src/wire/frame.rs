//! What is said in a session.

use std::fmt;
use std::net::SocketAddr;

use pepd_packet::FourTuple;

use super::codec::{Reader, Writer};
use super::connection::Head;
use super::{LONGEST_FRAME, MOST_CONNECTIONS, MOST_IN_FRAME};

/// Which move is spoken of: drawn at random by the box that gives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MoveId(pub [u8; 16]);

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The connections that a box would like to give. In what follows each goes by its place in this list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The move.
    pub id: MoveId,
    /// The connections, each once.
    pub flows: Vec<Offered>,
}

/// A connection that a box would like to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The connection, as its client has it.
    pub flow: FourTuple,
    /// Its client's address and port as its server has them, where the box that gives translates them.
    pub translated: Option<Translated>,
}

/// What a client's address and port are translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// These.
    pub source: SocketAddr,
    /// Whether the address is the one with which the box that gives sends for itself: it does not go over to another
    /// box.
    pub own: bool,
}

impl Offered {
    /// Returns what its packets have between client and server: its own addresses and ports, and those with the
    /// translated source.
    #[must_use]
    pub fn tuples(&self) -> Vec<FourTuple> {
        let translated = self.translated.map(|it| FourTuple {
            client: it.source,
            ..self.flow
        });
        std::iter::once(self.flow).chain(translated).collect()
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let flow = reader.flow()?;
        let translated = reader.option(|reader| {
            Some(Translated {
                source: reader.address()?,
                own: reader.flag()?,
            })
        })?;
        let fits = translated.is_none_or(|it| it.source.is_ipv4() == flow.client.is_ipv4());
        fits.then_some(Self { flow, translated })
    }

    fn write(&self, writer: &mut Writer) {
        writer.flow(self.flow);
        writer.option(self.translated, |writer, it| {
            writer.address(it.source);
            writer.flag(it.own);
        });
    }
}

/// A connection that does not move, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which of those offered.
    pub index: u16,
    /// Why.
    pub why: Reason,
}

/// Writes an errno, where there is one.
fn with_errno(errno: u16) -> String {
    match errno {
        0 => String::new(),
        // EADDRNOTAVAIL.
        99 => ", as it has a socket with these addresses and ports: `ss -tn` there shows whose (errno 99)"
            .to_owned(),
        errno => format!(" (errno {errno})"),
    }
}

/// Why something does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The other box has no room under its limits.
    #[error("the other box is full")]
    Full,
    /// Source and destination are in no two campuses of the other box's.
    #[error("the other box does not split between these campuses")]
    NoCampus,
    /// The other box is about to end, or does not split now.
    #[error("the other box takes no new connections")]
    Draining,
    /// The other box's kernel has refused it, with this errno, or 0 without one.
    #[error("the other box's kernel refuses it{errno}", errno = with_errno(*.0))]
    Kernel(u16),
    /// The connection has ended, or failed, meanwhile.
    #[error("it has ended meanwhile")]
    Ended,
    /// It is not at a point at which it could move.
    #[error("it is in no state in which it could move")]
    Unfit,
    /// The other box cannot have what comes for it.
    #[error("the other box cannot have what comes for it")]
    Packets,
    /// It took too long.
    #[error(
        "the other box did not have it in time: the network between the boxes is slow or loses packets, or one of them is busy"
    )]
    Late,
    /// Somebody has asked for it.
    #[error("it was cancelled")]
    Cancelled,
    /// What the other box has said makes no sense here.
    #[error("the other box said what makes no sense")]
    Confused,
    /// It is translated to an address that is the first box's own.
    #[error(
        "this host translates its client's address to one of its own, which the other box does not have"
    )]
    Address,
    /// It is translated, and the other box has nothing that translates.
    #[error(
        "this host translates its client's address, and the other one translates none: it has no chain of the type nat"
    )]
    Untranslated,
    /// The address and port that it is translated to are another connection's at the other box.
    #[error("the other box has another connection that is translated to the same address and port")]
    Taken,
    /// The other box's kernel would drop what is sent on to it.
    #[error(
        "the other box's kernel would drop what is sent on to it (rp_filter): `pepd doctor` there has the cure"
    )]
    Filtered,
    /// It is translated, and the other box has zones of connection tracking.
    #[error(
        "this host translates its client's address, and the other one has zones of connection tracking (`ct zone`), in one of which it might not be known"
    )]
    Zones,
}

impl Reason {
    fn code(self) -> (u8, u16) {
        match self {
            Self::Full => (1, 0),
            Self::NoCampus => (2, 0),
            Self::Draining => (3, 0),
            Self::Kernel(errno) => (4, errno),
            Self::Ended => (5, 0),
            Self::Unfit => (6, 0),
            Self::Packets => (7, 0),
            Self::Late => (8, 0),
            Self::Cancelled => (9, 0),
            Self::Confused => (10, 0),
            Self::Address => (11, 0),
            Self::Untranslated => (12, 0),
            Self::Taken => (13, 0),
            Self::Filtered => (14, 0),
            Self::Zones => (15, 0),
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match (reader.u8()?, reader.u16()?) {
            (1, 0) => Self::Full,
            (2, 0) => Self::NoCampus,
            (3, 0) => Self::Draining,
            (4, errno) => Self::Kernel(errno),
            (5, 0) => Self::Ended,
            (6, 0) => Self::Unfit,
            (7, 0) => Self::Packets,
            (8, 0) => Self::Late,
            (9, 0) => Self::Cancelled,
            (10, 0) => Self::Confused,
            (11, 0) => Self::Address,
            (12, 0) => Self::Untranslated,
            (13, 0) => Self::Taken,
            (14, 0) => Self::Filtered,
            (15, 0) => Self::Zones,
            _ => return None,
        })
    }

    fn write(self, writer: &mut Writer) {
        let (kind, more) = self.code();
        writer.u8(kind);
        writer.u16(more);
    }
}

/// Something that is said. G: by the box that gives; T: by the one that takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// G: these connections could move.
    Offer(Offer),
    /// T: they are welcome, but for these.
    Accept(Vec<Refused>),
    /// G: a connection follows; then its data in [`Frame::Data`].
    Connection(Box<Head>),
    /// G: the next of the connection's data.
    Data(Vec<u8>),
    /// G: that was all.
    Transferred,
    /// T: they are there and silent, but for these.
    Restored(Vec<Refused>),
    /// G: it serves them no longer; T is to.
    Activate,
    /// T: it serves them, but for these, which are lost.
    Activated(Vec<Refused>),
    /// Either: nothing of it. T: and it will never serve them.
    Abort(Reason),
    /// G, in another session: what has become of this move?
    Ask(MoveId),
    /// T: which of those connections it serves, in ascending order. Others it never will.
    Answer(MoveId, Vec<u16>),
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// They begin as none does.
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    /// They are not what their kind says.
    #[error("a frame of kind {0} is malformed")]
    Malformed(u8),
    /// There are too many of them, or none.
    #[error("a frame of {0} bytes")]
    Length(usize),
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Offer(_) => 1,
            Self::Accept(_) => 2,
            Self::Connection(_) => 3,
            Self::Data(_) => 4,
            Self::Transferred => 5,
            Self::Restored(_) => 6,
            Self::Activate => 7,
            Self::Activated(_) => 8,
            Self::Abort(_) => 9,
            Self::Ask(_) => 10,
            Self::Answer(..) => 11,
        }
    }

    /// Returns the frame's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u8(self.kind());
        match self {
            Self::Offer(offer) => {
                writer.bytes(&offer.id.0);
                writer.list(&offer.flows, |writer, it| it.write(writer));
            }
            Self::Accept(refused) | Self::Restored(refused) | Self::Activated(refused) => {
                writer.list(refused, |writer, refused| {
                    writer.u16(refused.index);
                    refused.why.write(writer);
                });
            }
            Self::Connection(head) => head.write(&mut writer),
            Self::Data(bytes) => writer.bytes(bytes),
            Self::Transferred | Self::Activate => {}
            Self::Abort(why) => why.write(&mut writer),
            Self::Ask(id) => writer.bytes(&id.0),
            Self::Answer(id, serves) => {
                writer.bytes(&id.0);
                writer.list(serves, |writer, index| writer.u16(*index));
            }
        }
        writer.0
    }

    /// Reads a frame, which all of the bytes are.
    ///
    /// # Errors
    /// Where they are none.
    pub fn read(bytes: &[u8]) -> Result<Self, FrameError> {
        let length = FrameError::Length(bytes.len());
        let (&kind, rest) = bytes.split_first().ok_or(length)?;
        if bytes.len() > LONGEST_FRAME {
            return Err(length);
        }
        if !(1..=11).contains(&kind) {
            return Err(FrameError::Kind(kind));
        }
        let mut reader = Reader::new(rest);
        let frame = Self::body(kind, &mut reader).filter(|_| reader.is_empty());
        frame.ok_or(FrameError::Malformed(kind))
    }

    fn body(kind: u8, reader: &mut Reader<'_>) -> Option<Self> {
        Some(match kind {
            1 => Self::Offer(Offer {
                id: MoveId(reader.bytes()?),
                flows: reader
                    .list(MOST_CONNECTIONS, Offered::read)
                    .filter(|flows| is_a_set(flows))?,
            }),
            2 => Self::Accept(refused(reader)?),
            3 => Self::Connection(Box::new(Head::read(reader)?)),
            4 => {
                let bytes = reader.rest();
                (1..=MOST_IN_FRAME)
                    .contains(&bytes.len())
                    .then(|| Self::Data(bytes.to_vec()))?
            }
            5 => Self::Transferred,
            6 => Self::Restored(refused(reader)?),
            7 => Self::Activate,
            8 => Self::Activated(refused(reader)?),
            9 => Self::Abort(Reason::read(reader)?),
            10 => Self::Ask(MoveId(reader.bytes()?)),
            11 => {
                let id = MoveId(reader.bytes()?);
                let serves = reader.list(MOST_CONNECTIONS, Reader::u16)?;
                let ascends = serves.is_sorted_by(|one, next| one < next);
                ascends.then_some(Self::Answer(id, serves))?
            }
            _ => return None,
        })
    }
}

/// Returns whether there is something, and each of it once.
fn is_a_set(flows: &[Offered]) -> bool {
    let mut seen = std::collections::HashSet::new();
    !flows.is_empty() && flows.iter().all(|it| seen.insert(it.flow))
}

/// Reads a list whose places ascend.
fn refused(reader: &mut Reader<'_>) -> Option<Vec<Refused>> {
    let refused = reader.list(MOST_CONNECTIONS, |reader| {
        Some(Refused {
            index: reader.u16()?,
            why: Reason::read(reader)?,
        })
    })?;
    refused
        .is_sorted_by(|one, next| one.index < next.index)
        .then_some(refused)
}
