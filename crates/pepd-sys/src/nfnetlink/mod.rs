//! nfnetlink: the messages by which one talks to netfilter's parts in the kernel.
//!
//! A message is a netlink header, nfnetlink's own ([`Header`] is both) and [`attributes`], which
//! may be nested. Changes of nf_tables are sent as a [`Batch`], which is made as a whole or not at
//! all. The meaning of a part's messages and attributes is known where they are used.
//!
//! It is code of its own because no crate has it: netlink-packet-core's `NetlinkMessage` is one
//! message to a buffer, and wants a type with five trait implementations for each of them;
//! netlink-packet-netfilter has conntrack and nflog; and the library that speaks nf_tables in
//! Rust is under the GPL, which pepd is not.
//!
//! Sources: include/uapi/linux/netlink.h, include/uapi/linux/netfilter/nfnetlink.h and
//! net/netfilter/nfnetlink.c. Headers are in the host's byte order, but for the resource id; so
//! are the lengths and types of attributes, while their values are in network byte order.

pub mod attributes;
mod batch;
mod header;
mod message;
mod socket;

pub use attributes::Attributes;
pub use batch::{Batch, FinishedBatch};
pub use header::{Family, Flags, Header, MessageType, Subsystem};
pub use message::{Message, Reply, message, messages, replies};
pub use socket::Socket;
