//! Whether there are chains that translate addresses, asked of the kernel itself: a program takes longer than a
//! connection that moves may stand still (include/uapi/linux/netfilter/nf_tables.h; nf_tables_dump_chains,
//! net/netfilter/nf_tables_api.c).

use std::io;

use pepd_sys::nfnetlink::{
    Family as Protocols, Flags, Header, Message, MessageType, Reply, Socket, Subsystem, message,
    messages, replies,
};

use crate::prefix::Family;

const NFT_MSG_NEWCHAIN: u8 = 3;
const NFT_MSG_GETCHAIN: u8 = 4;

const NFTA_CHAIN_TYPE: u16 = 7;

/// The most that the kernel sends at once (netlink_dump, net/netlink/af_netlink.c).
const DATAGRAM_BYTES: usize = 32 * 1024;

/// Tells whether any chain translates addresses of this family.
///
/// # Errors
///
/// As socket(2), or what the kernel refuses it for.
pub(crate) fn of(family: Family) -> io::Result<bool> {
    let socket = Socket::open()?;
    let header = Header {
        kind: MessageType::of(Subsystem::NFTABLES, NFT_MSG_GETCHAIN),
        flags: Flags::DUMP,
        sequence: 1,
        family: Protocols::UNSPECIFIED,
        resource: 0,
    };
    socket.send(&message(header, |_| {}))?;
    let wanted = match family {
        Family::V4 => Protocols::IPV4,
        Family::V6 => Protocols::IPV6,
    };
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let mut found = false;
    loop {
        let length = socket.receive(&mut buffer)?;
        let datagram = buffer.get(..length).unwrap_or_default();
        for reply in replies(datagram) {
            if let Reply::Refused { errno, .. } = reply {
                return Err(io::Error::from_raw_os_error(errno));
            }
        }
        for message in messages(datagram) {
            // Chains that come and go meanwhile matter to nobody: what there is at the end is there all the time.
            if message.kind == MessageType::DONE {
                return Ok(found);
            }
            found |= translates(&message, wanted);
        }
    }
}

/// Tells whether a message is about a chain of the type `nat` that sees these protocols.
fn translates(message: &Message<'_>, wanted: Protocols) -> bool {
    let sees = message.family();
    let sees = sees == Some(wanted) || sees == Some(Protocols::INET);
    let is_chain = message.kind == MessageType::of(Subsystem::NFTABLES, NFT_MSG_NEWCHAIN);
    let mut attributes = message.attributes().into_iter().flatten();
    is_chain && sees && attributes.any(|it| it == (NFTA_CHAIN_TYPE, b"nat\0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_translates_what_its_family_sees() {
        let chain = |family, kind| {
            let header = Header {
                kind: MessageType::of(Subsystem::NFTABLES, NFT_MSG_NEWCHAIN),
                flags: Flags::NONE,
                sequence: 1,
                family,
                resource: 0,
            };
            message(header, |body| body.put_text(NFTA_CHAIN_TYPE, kind))
        };
        let of = |family, kind| {
            let bytes = chain(family, kind);
            let message = messages(&bytes).next().unwrap();
            [Protocols::IPV4, Protocols::IPV6].map(|it| translates(&message, it))
        };
        assert_eq!(of(Protocols::INET, "nat"), [true, true]);
        assert_eq!(of(Protocols::IPV4, "nat"), [true, false]);
        assert_eq!(of(Protocols::IPV6, "nat"), [false, true]);
        assert_eq!(of(Protocols::IPV4, "filter"), [false, false]);
    }
}
