//! DLEP, the Dynamic Link Exchange Protocol (RFC 8175): a modem tells a router which destinations its
//! radio reaches, how fast and in what time. No I/O, no clock.
//!
//! What comes from the network is not trusted: it is understood as a whole, or an error says why not
//! and with which status code a session ends for it.
//!
//! - [`item`]: data items, of which signals and messages consist (section 13);
//! - [`status`]: status codes (section 13.1);
//! - [`mac`]: by which address a destination goes (section 13.7);
//! - [`signal`]: what finds a modem, by UDP (sections 12.3 and 12.4);
//! - [`message`]: what is said in a session, by TCP (sections 12.5 to 12.20);
//! - [`session`]: the router's side of a session (section 7).

#![forbid(unsafe_code)]

pub mod item;
pub mod mac;
pub mod message;
pub mod session;
pub mod signal;
pub mod status;

#[cfg(test)]
mod examples;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use item::{DataItem, ItemKind};
pub use mac::MacAddress;
pub use message::{Message, MessageError, MessageKind};
pub use signal::Signal;
pub use status::{Status, StatusCode};

/// The port of DLEP, for UDP and for TCP (section 15.14).
pub const PORT: u16 = 854;

/// The group that Peer Discovery goes to (section 15.15).
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 117);

/// The group that Peer Discovery goes to with IPv6 (section 15.16).
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 7);
