//! Data items: a type, a length and a value each.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Data Item Type                | Length                        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                           Value...                            :
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//! (section 11.3), all numbers with their highest byte first.

use std::fmt;
use std::net::IpAddr;

use crate::mac::MacAddress;
use crate::status::{Status, StatusCode};

/// A data item (section 13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataItem {
    /// How a request has gone, or why the session ends (13.1).
    Status(Status),
    /// Where the modem waits for sessions (13.2 and 13.3).
    ConnectionPoint(ConnectionPoint),
    /// What the sender is (13.4).
    PeerType {
        /// The radio cannot be reached by others without a key.
        secured: bool,
        /// Text for people. Not trusted.
        description: String,
    },
    /// The time between two heartbeats of the sender, in milliseconds (13.5).
    HeartbeatInterval(u32),
    /// The extensions that the sender knows (13.6).
    Extensions(Vec<u16>),
    /// The destination that the message is about (13.7).
    Mac(MacAddress),
    /// An address of the destination's, or of the sender's (13.8 and 13.9).
    Address {
        /// It has it from now on; otherwise no more.
        add: bool,
        /// The address.
        address: IpAddr,
    },
    /// A subnet behind the destination, or behind the sender (13.10 and 13.11).
    Subnet {
        /// It has it from now on; otherwise no more.
        add: bool,
        /// The subnet's first address.
        prefix: IpAddr,
        /// The bits of the prefix.
        length: u8,
    },
    /// The highest rate at which the link could receive, in bits a second (13.12).
    MaximumRateReceive(u64),
    /// The highest rate at which the link could transmit, in bits a second (13.13).
    MaximumRateTransmit(u64),
    /// The rate at which the link receives at present, in bits a second (13.14).
    CurrentRateReceive(u64),
    /// The rate at which the link transmits at present, in bits a second (13.15).
    CurrentRateTransmit(u64),
    /// The time that a packet takes over the link, in microseconds (13.16).
    Latency(u64),
    /// What is left of the modem's battery and the like, in percent (13.17).
    Resources(u8),
    /// How good the link is at receiving, in percent (13.18).
    QualityReceive(u8),
    /// How good the link is at transmitting, in percent (13.19).
    QualityTransmit(u8),
    /// The longest packet that the link carries, in bytes (13.20).
    Mtu(u16),
}

/// Where a modem waits for sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionPoint {
    /// It speaks TLS there.
    pub tls: bool,
    /// The address.
    pub address: IpAddr,
    /// The TCP port, if it is not [`PORT`](crate::PORT).
    pub port: Option<u16>,
}

/// The type of a data item (section 15.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "they are named as the items are")]
pub enum ItemKind {
    Status = 1,
    Ipv4ConnectionPoint = 2,
    Ipv6ConnectionPoint = 3,
    PeerType = 4,
    HeartbeatInterval = 5,
    Extensions = 6,
    Mac = 7,
    Ipv4Address = 8,
    Ipv6Address = 9,
    Ipv4Subnet = 10,
    Ipv6Subnet = 11,
    MaximumRateReceive = 12,
    MaximumRateTransmit = 13,
    CurrentRateReceive = 14,
    CurrentRateTransmit = 15,
    Latency = 16,
    Resources = 17,
    QualityReceive = 18,
    QualityTransmit = 19,
    Mtu = 20,
}

/// A data item is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// The header or the value ends beyond the message.
    #[error("a data item goes beyond the end")]
    Truncated,
    /// It is none of RFC 8175's, and no extension has been agreed on.
    #[error("data item {0} is unknown")]
    Unknown(u16),
    /// It has another length than its type has.
    #[error("{0} has {1} bytes")]
    Length(ItemKind, u16),
    /// A value that there cannot be: more than 100 %, a prefix longer than an address, text that is
    /// not UTF-8.
    #[error("{0} has a value that there cannot be")]
    Value(ItemKind),
}

impl ItemKind {
    pub(crate) const ALL: [Self; 20] = [
        Self::Status,
        Self::Ipv4ConnectionPoint,
        Self::Ipv6ConnectionPoint,
        Self::PeerType,
        Self::HeartbeatInterval,
        Self::Extensions,
        Self::Mac,
        Self::Ipv4Address,
        Self::Ipv6Address,
        Self::Ipv4Subnet,
        Self::Ipv6Subnet,
        Self::MaximumRateReceive,
        Self::MaximumRateTransmit,
        Self::CurrentRateReceive,
        Self::CurrentRateTransmit,
        Self::Latency,
        Self::Resources,
        Self::QualityReceive,
        Self::QualityTransmit,
        Self::Mtu,
    ];

    /// Returns its number on the wire.
    pub fn code(self) -> u16 {
        self as u16
    }

    /// Returns the one with this number on the wire.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "data item {self:?}")
    }
}

impl DataItem {
    /// Returns its type.
    pub fn kind(&self) -> ItemKind {
        let of = |address: &IpAddr, v4, v6| if address.is_ipv4() { v4 } else { v6 };
        match self {
            Self::Status(_) => ItemKind::Status,
            Self::ConnectionPoint(ConnectionPoint { address, .. }) => of(
                address,
                ItemKind::Ipv4ConnectionPoint,
                ItemKind::Ipv6ConnectionPoint,
            ),
            Self::PeerType { .. } => ItemKind::PeerType,
            Self::HeartbeatInterval(_) => ItemKind::HeartbeatInterval,
            Self::Extensions(_) => ItemKind::Extensions,
            Self::Mac(_) => ItemKind::Mac,
            Self::Address { address, .. } => {
                of(address, ItemKind::Ipv4Address, ItemKind::Ipv6Address)
            }
            Self::Subnet { prefix, .. } => of(prefix, ItemKind::Ipv4Subnet, ItemKind::Ipv6Subnet),
            Self::MaximumRateReceive(_) => ItemKind::MaximumRateReceive,
            Self::MaximumRateTransmit(_) => ItemKind::MaximumRateTransmit,
            Self::CurrentRateReceive(_) => ItemKind::CurrentRateReceive,
            Self::CurrentRateTransmit(_) => ItemKind::CurrentRateTransmit,
            Self::Latency(_) => ItemKind::Latency,
            Self::Resources(_) => ItemKind::Resources,
            Self::QualityReceive(_) => ItemKind::QualityReceive,
            Self::QualityTransmit(_) => ItemKind::QualityTransmit,
            Self::Mtu(_) => ItemKind::Mtu,
        }
    }

    /// Writes it to the end of `out`. A value of more than 65,535 bytes is cut off there.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut value = Vec::new();
        self.write_value(&mut value);
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        out.extend(self.kind().code().to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(value.iter().take(length.into()));
    }

    fn write_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(Status { code, text }) => {
                out.push(code.0);
                out.extend(text.as_bytes());
            }
            Self::ConnectionPoint(ConnectionPoint { tls, address, port }) => {
                out.push(u8::from(*tls));
                write_address(address, out);
                out.extend(port.iter().flat_map(|port| port.to_be_bytes()));
            }
            Self::PeerType {
                secured,
                description,
            } => {
                out.push(u8::from(*secured));
                out.extend(description.as_bytes());
            }
            Self::HeartbeatInterval(interval) => out.extend(interval.to_be_bytes()),
            Self::Extensions(all) => out.extend(all.iter().flat_map(|one| one.to_be_bytes())),
            Self::Mac(address) => out.extend(address.octets()),
            Self::Address { add, address } => {
                out.push(u8::from(*add));
                write_address(address, out);
            }
            Self::Subnet {
                add,
                prefix,
                length,
            } => {
                out.push(u8::from(*add));
                write_address(prefix, out);
                out.push(*length);
            }
            Self::MaximumRateReceive(value)
            | Self::MaximumRateTransmit(value)
            | Self::CurrentRateReceive(value)
            | Self::CurrentRateTransmit(value)
            | Self::Latency(value) => out.extend(value.to_be_bytes()),
            Self::Resources(value) | Self::QualityReceive(value) | Self::QualityTransmit(value) => {
                out.push(*value);
            }
            Self::Mtu(value) => out.extend(value.to_be_bytes()),
        }
    }

    fn read_value(kind: ItemKind, value: &[u8]) -> Option<Result<Self, ItemError>> {
        let wrong = ItemError::Value(kind);
        let percent = || match value {
            [value] if *value <= 100 => Some(Ok(*value)),
            [_] => Some(Err(wrong)),
            _ => None,
        };
        let number = || value.try_into().ok().map(u64::from_be_bytes);
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).map_err(|_| wrong);
        Some(match kind {
            ItemKind::Status => {
                let (code, rest) = value.split_first()?;
                let code = StatusCode(*code);
                text(rest).map(|text| Self::Status(Status { code, text }))
            }
            ItemKind::Ipv4ConnectionPoint => Ok(read_point::<4>(value)?),
            ItemKind::Ipv6ConnectionPoint => Ok(read_point::<16>(value)?),
            ItemKind::PeerType => {
                let (flags, rest) = value.split_first()?;
                let secured = flags & 1 != 0;
                text(rest).map(|description| Self::PeerType {
                    secured,
                    description,
                })
            }
            ItemKind::HeartbeatInterval => Ok(Self::HeartbeatInterval(u32::from_be_bytes(
                value.try_into().ok()?,
            ))),
            ItemKind::Extensions => {
                let (pairs, rest) = value.as_chunks();
                rest.is_empty().then_some(())?;
                Ok(Self::Extensions(
                    pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect(),
                ))
            }
            ItemKind::Mac => Ok(Self::Mac(MacAddress::from_octets(value)?)),
            ItemKind::Ipv4Address => Ok(read_address::<4>(value)?),
            ItemKind::Ipv6Address => Ok(read_address::<16>(value)?),
            ItemKind::Ipv4Subnet => read_subnet::<4>(value)?.ok_or(wrong),
            ItemKind::Ipv6Subnet => read_subnet::<16>(value)?.ok_or(wrong),
            ItemKind::MaximumRateReceive => Ok(Self::MaximumRateReceive(number()?)),
            ItemKind::MaximumRateTransmit => Ok(Self::MaximumRateTransmit(number()?)),
            ItemKind::CurrentRateReceive => Ok(Self::CurrentRateReceive(number()?)),
            ItemKind::CurrentRateTransmit => Ok(Self::CurrentRateTransmit(number()?)),
            ItemKind::Latency => Ok(Self::Latency(number()?)),
            ItemKind::Resources => percent()?.map(Self::Resources),
            ItemKind::QualityReceive => percent()?.map(Self::QualityReceive),
            ItemKind::QualityTransmit => percent()?.map(Self::QualityTransmit),
            ItemKind::Mtu => Ok(Self::Mtu(u16::from_be_bytes(value.try_into().ok()?))),
        })
    }
}

/// Reads all data items of a signal or a message.
pub(crate) fn read_all(mut bytes: &[u8]) -> impl Iterator<Item = Result<DataItem, ItemError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let item = read(bytes);
        bytes = item.as_ref().map_or(&[], |(_, rest)| *rest);
        Some(item.map(|(item, _)| item))
    })
}

fn read(bytes: &[u8]) -> Result<(DataItem, &[u8]), ItemError> {
    let (header, rest) = bytes.split_at_checked(4).ok_or(ItemError::Truncated)?;
    let [a, b, c, d] = *header else {
        return Err(ItemError::Truncated);
    };
    let (code, length) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let value = rest.split_at_checked(length.into());
    let (value, rest) = value.ok_or(ItemError::Truncated)?;
    let kind = ItemKind::from_code(code).ok_or(ItemError::Unknown(code))?;
    let item = DataItem::read_value(kind, value).ok_or(ItemError::Length(kind, length))?;
    Ok((item?, rest))
}

fn write_address(address: &IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => out.extend(address.octets()),
        IpAddr::V6(address) => out.extend(address.octets()),
    }
}

/// Splits off flags, of which the lowest bit alone has a meaning, and an address of N bytes.
fn flag_and_address<const N: usize>(value: &[u8]) -> Option<(bool, IpAddr, &[u8])>
where
    IpAddr: From<[u8; N]>,
{
    let (flags, rest) = value.split_first()?;
    let (address, rest) = rest.split_first_chunk::<N>()?;
    Some((flags & 1 != 0, IpAddr::from(*address), rest))
}

fn read_point<const N: usize>(value: &[u8]) -> Option<DataItem>
where
    IpAddr: From<[u8; N]>,
{
    let (tls, address, rest) = flag_and_address::<N>(value)?;
    let port = match rest {
        [] => None,
        [high, low] => Some(u16::from_be_bytes([*high, *low])),
        _ => return None,
    };
    let point = ConnectionPoint { tls, address, port };
    Some(DataItem::ConnectionPoint(point))
}

fn read_address<const N: usize>(value: &[u8]) -> Option<DataItem>
where
    IpAddr: From<[u8; N]>,
{
    let (add, address, rest) = flag_and_address::<N>(value)?;
    rest.is_empty()
        .then_some(DataItem::Address { add, address })
}

/// Reads a subnet; `Some(None)` if its prefix is longer than an address.
fn read_subnet<const N: usize>(value: &[u8]) -> Option<Option<DataItem>>
where
    IpAddr: From<[u8; N]>,
{
    let (add, prefix, rest) = flag_and_address::<N>(value)?;
    let &[length] = rest else {
        return None;
    };
    let is_possible = usize::from(length) <= 8 * N;
    Some(is_possible.then_some(DataItem::Subnet {
        add,
        prefix,
        length,
    }))
}
