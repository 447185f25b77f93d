//! What pepd reads of packets, and the words that its crates share about them; no I/O, no
//! clock.
//!
//! Packets come from the network, and nothing in them is trusted: what is not understood is none.
//!
//! - [`ip`]: IPv4 and IPv6 headers, read and written;
//! - [`protocol`]: what an IP packet carries;
//! - [`tcp`]: SYNs and RSTs, read;
//! - [`passing`]: segments between two other hosts, read;
//! - [`segment`]: TCP segments, made;
//! - [`icmp`]: errors that quote a segment, and echo messages;
//! - [`checksum`]: the Internet checksum;
//! - [`four_tuple`]: the addresses of a connection;
//! - [`snapshot`]: a connection as it is taken to another host.
//!
//! The kernel state and the data path never see each other, but have to mean the same thing by a
//! mark, a queue or a rate: each of these is a type here.
//!
//! - [`mark`]: the packet mark, and what its values say;
//! - [`queue`]: the numbers of NFQUEUEs;
//! - [`source`]: whom a limit per source counts as one;
//! - [`units`]: rates and sizes.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod four_tuple;
pub mod icmp;
pub mod ip;
pub mod mark;
pub mod passing;
pub mod protocol;
pub mod queue;
pub mod segment;
pub mod snapshot;
pub mod source;
pub mod tcp;
pub mod units;

#[cfg(test)]
mod examples;

pub use four_tuple::FourTuple;
pub use icmp::IcmpError;
pub use mark::{Mark, MarkMask, MarkValue, PacketMark, SocketMarks, VerdictMarks};
pub use passing::Passing;
pub use protocol::Protocol;
pub use queue::{LogGroup, QueueNumber};
pub use segment::Segment;
pub use source::{Source, SourcePrefix};
pub use tcp::{FastOpenCookie, SequenceNumber, Syn, SynData};
pub use units::{PerMyriad, Rate, Size};
