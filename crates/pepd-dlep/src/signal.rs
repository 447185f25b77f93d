//! What finds a modem: a router asks a group by UDP, and modems offer themselves.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |      'D'      |      'L'      |      'E'      |      'P'      |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Signal Type                   | Length                        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//! (section 11.1), then data items.

use crate::item::{ConnectionPoint, DataItem, read_all};

/// What a signal begins with.
const MAGIC: &[u8; 4] = b"DLEP";

/// A signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A router looks for modems (section 12.3).
    PeerDiscovery {
        /// What the router says it is.
        peer_type: Option<String>,
    },
    /// A modem offers itself (section 12.4).
    PeerOffer {
        /// What the modem says it is. Not trusted.
        peer_type: Option<String>,
        /// Where it waits for sessions; if nowhere, at the address that the offer comes from.
        points: Vec<ConnectionPoint>,
    },
}

impl Signal {
    /// Reads a datagram. None if it is not one signal with just the items that it may have: such a
    /// datagram is ignored (section 12.1).
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let rest = datagram.strip_prefix(MAGIC)?;
        let (&[a, b, c, d], rest) = rest.split_first_chunk()?;
        let (code, length) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        (rest.len() == usize::from(length)).then_some(())?;
        let (mut peer_type, mut points) = (None, Vec::new());
        for item in read_all(rest) {
            match item.ok()? {
                DataItem::PeerType { description, .. } if peer_type.is_none() => {
                    peer_type = Some(description);
                }
                DataItem::ConnectionPoint(point) => points.push(point),
                _ => return None,
            }
        }
        match code {
            1 if points.is_empty() => Some(Self::PeerDiscovery { peer_type }),
            2 => Some(Self::PeerOffer { peer_type, points }),
            _ => None,
        }
    }

    /// Returns the datagram.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (code, peer_type, points): (u16, _, &[_]) = match self {
            Self::PeerDiscovery { peer_type } => (1, peer_type, &[]),
            Self::PeerOffer { peer_type, points } => (2, peer_type, points),
        };
        let mut items = Vec::new();
        if let Some(description) = peer_type.clone() {
            let secured = false;
            DataItem::PeerType {
                secured,
                description,
            }
            .write(&mut items);
        }
        for point in points {
            DataItem::ConnectionPoint(*point).write(&mut items);
        }
        let length = u16::try_from(items.len()).unwrap_or(u16::MAX);
        let mut datagram = MAGIC.to_vec();
        datagram.extend(code.to_be_bytes());
        datagram.extend(length.to_be_bytes());
        datagram.extend(items);
        datagram
    }
}
