//! What is said in a session.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Message Type                  | Length                        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//! (section 11.2), then data items, in any order.

use std::fmt;

use crate::item::{DataItem, ItemError, ItemKind, read_all};
use crate::mac::MacAddress;
use crate::status::{Status, StatusCode};

/// The bytes of a message's header.
const HEADER: usize = 4;

/// The bytes of the longest message, with its header: its length has 16 bits.
pub const LONGEST: usize = HEADER + u16::MAX as usize;

/// The type of a message (section 15.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "they are named as the messages are")]
pub enum MessageKind {
    SessionInitialization = 1,
    SessionInitializationResponse = 2,
    SessionUpdate = 3,
    SessionUpdateResponse = 4,
    SessionTermination = 5,
    SessionTerminationResponse = 6,
    DestinationUp = 7,
    DestinationUpResponse = 8,
    DestinationAnnounce = 9,
    DestinationAnnounceResponse = 10,
    DestinationDown = 11,
    DestinationDownResponse = 12,
    DestinationUpdate = 13,
    LinkCharacteristicsRequest = 14,
    LinkCharacteristicsResponse = 15,
    Heartbeat = 16,
}

/// A message: its type, and the data items that such a message has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its type.
    pub kind: MessageKind,
    /// Its data items.
    pub items: Vec<DataItem>,
}

/// A message is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It is none of RFC 8175's, and no extension has been agreed on.
    #[error("message {0} is unknown")]
    Unknown(u16),
    /// One of its items is not understood.
    #[error("{0}: {1}")]
    Item(MessageKind, ItemError),
    /// Such a message has no such item.
    #[error("{0}: {1} does not belong there")]
    Unwanted(MessageKind, ItemKind),
    /// Such a message has no more than one.
    #[error("{0}: {1} is there twice")]
    Repeated(MessageKind, ItemKind),
    /// Such a message has one.
    #[error("{0}: {1} is missing")]
    Missing(MessageKind, ItemKind),
}

impl MessageError {
    /// Returns the code with which a session ends for it (section 12.1).
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unknown(_) => StatusCode::UNKNOWN_MESSAGE,
            _ => StatusCode::INVALID_DATA,
        }
    }
}

/// How often a message may have an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occurs {
    Once,
    Optional,
    Often,
    Never,
}

impl MessageKind {
    const ALL: [Self; 16] = [
        Self::SessionInitialization,
        Self::SessionInitializationResponse,
        Self::SessionUpdate,
        Self::SessionUpdateResponse,
        Self::SessionTermination,
        Self::SessionTerminationResponse,
        Self::DestinationUp,
        Self::DestinationUpResponse,
        Self::DestinationAnnounce,
        Self::DestinationAnnounceResponse,
        Self::DestinationDown,
        Self::DestinationDownResponse,
        Self::DestinationUpdate,
        Self::LinkCharacteristicsRequest,
        Self::LinkCharacteristicsResponse,
        Self::Heartbeat,
    ];

    /// Returns its number on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// Returns the one with this number on the wire.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns how often such a message has an item (sections 12.5 to 12.20).
    fn occurs(self, item: ItemKind) -> Occurs {
        use ItemKind as I;
        match item {
            I::Status => match self {
                Self::SessionInitializationResponse
                | Self::SessionUpdateResponse
                | Self::SessionTermination
                | Self::DestinationUpResponse
                | Self::DestinationAnnounceResponse
                | Self::DestinationDownResponse
                | Self::LinkCharacteristicsResponse => Occurs::Once,
                _ => Occurs::Never,
            },
            I::Mac if self.is_about_a_destination() => Occurs::Once,
            I::PeerType | I::HeartbeatInterval if self.begins_a_session() => Occurs::Once,
            I::Extensions if self.begins_a_session() => Occurs::Optional,
            I::Ipv4Address | I::Ipv6Address | I::Ipv4Subnet | I::Ipv6Subnet => match self {
                Self::SessionInitialization
                | Self::SessionInitializationResponse
                | Self::SessionUpdate
                | Self::DestinationUp
                | Self::DestinationAnnounce
                | Self::DestinationAnnounceResponse
                | Self::DestinationUpdate => Occurs::Often,
                _ => Occurs::Never,
            },
            I::MaximumRateReceive
            | I::MaximumRateTransmit
            | I::CurrentRateReceive
            | I::CurrentRateTransmit
            | I::Latency
                if self == Self::SessionInitializationResponse =>
            {
                Occurs::Once
            }
            I::CurrentRateReceive | I::CurrentRateTransmit | I::Latency
                if self == Self::LinkCharacteristicsRequest =>
            {
                Occurs::Optional
            }
            I::MaximumRateReceive
            | I::MaximumRateTransmit
            | I::CurrentRateReceive
            | I::CurrentRateTransmit
            | I::Latency
            | I::Resources
            | I::QualityReceive
            | I::QualityTransmit
            | I::Mtu
                if self.has_metrics() =>
            {
                Occurs::Optional
            }
            _ => Occurs::Never,
        }
    }

    fn begins_a_session(self) -> bool {
        matches!(
            self,
            Self::SessionInitialization | Self::SessionInitializationResponse
        )
    }

    fn is_about_a_destination(self) -> bool {
        let code = self.code();
        (Self::DestinationUp.code()..=Self::LinkCharacteristicsResponse.code()).contains(&code)
    }

    fn has_metrics(self) -> bool {
        matches!(
            self,
            Self::SessionInitializationResponse
                | Self::SessionUpdate
                | Self::DestinationUp
                | Self::DestinationAnnounceResponse
                | Self::DestinationUpdate
                | Self::LinkCharacteristicsResponse
        )
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {self:?}")
    }
}

impl Message {
    /// Makes a message of these items.
    pub fn new(kind: MessageKind, items: impl Into<Vec<DataItem>>) -> Self {
        let items = items.into();
        Self { kind, items }
    }

    /// Reads the first message of what has come, and says how many bytes it had. None if it is not
    /// there as a whole, for which it takes [`LONGEST`] bytes at most.
    pub fn read(bytes: &[u8]) -> Option<(Result<Self, MessageError>, usize)> {
        let (&[a, b, c, d], rest) = bytes.split_first_chunk()?;
        let (code, length) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let length = usize::from(length);
        let items = rest.get(..length)?;
        Some((Self::read_items(code, items), HEADER + length))
    }

    fn read_items(code: u16, items: &[u8]) -> Result<Self, MessageError> {
        let kind = MessageKind::from_code(code).ok_or(MessageError::Unknown(code))?;
        let mut message = Self::new(kind, []);
        // By the items' numbers.
        let mut seen = [false; 1 + ItemKind::Mtu as usize];
        for item in read_all(items) {
            let item = item.map_err(|error| MessageError::Item(kind, error))?;
            let seen = &mut seen[usize::from(item.kind().code())];
            match kind.occurs(item.kind()) {
                Occurs::Never => return Err(MessageError::Unwanted(kind, item.kind())),
                Occurs::Once | Occurs::Optional if *seen => {
                    return Err(MessageError::Repeated(kind, item.kind()));
                }
                _ => *seen = true,
            }
            message.items.push(item);
        }
        let has = |item: ItemKind| seen[usize::from(item.code())];
        let is_missing = |item: &ItemKind| kind.occurs(*item) == Occurs::Once && !has(*item);
        match ItemKind::ALL.into_iter().find(is_missing) {
            Some(item) => Err(MessageError::Missing(kind, item)),
            None => Ok(message),
        }
    }

    /// Returns it as it goes over the wire. Items beyond 65,535 bytes are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut items = Vec::new();
        for item in &self.items {
            let before = items.len();
            item.write(&mut items);
            if items.len() > usize::from(u16::MAX) {
                items.truncate(before);
                break;
            }
        }
        let length = u16::try_from(items.len()).unwrap_or(u16::MAX);
        let mut bytes = self.kind.code().to_be_bytes().to_vec();
        bytes.extend(length.to_be_bytes());
        bytes.extend(items);
        bytes
    }

    /// Returns the destination that it is about.
    pub fn destination(&self) -> Option<MacAddress> {
        self.items.iter().find_map(|item| match item {
            DataItem::Mac(address) => Some(*address),
            _ => None,
        })
    }

    /// Returns its status.
    pub fn status(&self) -> Option<&Status> {
        self.items.iter().find_map(|item| match item {
            DataItem::Status(status) => Some(status),
            _ => None,
        })
    }
}
