//! Hearing that somebody changed nft's tables.
//!
//! The kernel sends a message for each object that changes (NFNLGRP_NFTABLES). They are read once a
//! second, and only their type is looked at; what finds the socket's buffer full is as good as a
//! change. The gate's own renewals are changes of elements, which nobody asks about.

use std::io;

use pepd_sys::nfnetlink::{Message, Socket, Subsystem, messages};

/// NFNLGRP_NFTABLES, include/uapi/linux/netfilter/nfnetlink.h.
const GROUP: u32 = 7;

/// The most datagrams that are read at once. More than these are a change without a look.
const AT_ONCE: usize = 512;

// NFT_MSG_…, include/uapi/linux/netfilter/nf_tables.h. Tables: one that is made dormant passes all.
const NEWTABLE: u8 = 0;
const DELTABLE: u8 = 2;
const NEWCHAIN: u8 = 3;
const DELCHAIN: u8 = 5;
const NEWRULE: u8 = 6;
const DELRULE: u8 = 8;

/// A listener to changes of tables, chains and rules.
#[derive(Debug)]
pub(super) struct Changes(Socket);

impl Changes {
    pub(super) fn listen() -> io::Result<Changes> {
        let socket = Socket::open()?;
        socket.join(GROUP)?;
        Ok(Changes(socket))
    }

    /// Reads what has come, and tells whether anything of it matters.
    pub(super) fn any(&self) -> bool {
        let mut buffer = [0; 8192];
        let mut found = false;
        for _ in 0..AT_ONCE {
            match self.0.receive(&mut buffer) {
                Ok(length) => {
                    let datagram = buffer.get(..length).unwrap_or_default();
                    found |= messages(datagram).any(|message| matters(&message));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return found,
                // Messages were lost, and with them it is not known what changed.
                Err(_) => found = true,
            }
        }
        true
    }
}

pub(super) fn matters(message: &Message<'_>) -> bool {
    matches!(
        message.kind.within(Subsystem::NFTABLES),
        Some(NEWTABLE | DELTABLE | NEWCHAIN | DELCHAIN | NEWRULE | DELRULE)
    )
}
