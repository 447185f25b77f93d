//! What an operator's rules have to do with connections that move, asked of the kernel itself: a program takes longer
//! than such a connection may stand still (include/uapi/linux/netfilter/nf_tables.h; nf_tables_dump_chains and
//! nf_tables_dump_rules, net/netfilter/nf_tables_api.c).

use std::io;

use pepd_sys::nfnetlink::{
    Family as Protocols, Flags, Header, Message, MessageType, Reply, Socket, Subsystem, attributes,
    message, messages, replies,
};

use crate::prefix::Family;

const NFT_MSG_NEWCHAIN: u8 = 3;
const NFT_MSG_GETCHAIN: u8 = 4;
const NFT_MSG_NEWRULE: u8 = 6;
const NFT_MSG_GETRULE: u8 = 7;

const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

const NFTA_CT_KEY: u16 = 2;
const NFTA_CT_SREG: u16 = 4;
const NFT_CT_ZONE: u32 = 17;

/// What iptables-nft writes in place of an expression of nft's.
const NFTA_TARGET_NAME: u16 = 1;
const NFTA_TARGET_INFO: u16 = 3;

/// The most that the kernel sends at once (netlink_dump, net/netlink/af_netlink.c).
const DATAGRAM_BYTES: usize = 32 * 1024;

/// Tells whether any chain translates addresses of this family.
///
/// # Errors
///
/// As socket(2), or what the kernel refuses it for.
pub(crate) fn translate(family: Family) -> io::Result<bool> {
    let wanted = match family {
        Family::V4 => Protocols::IPV4,
        Family::V6 => Protocols::IPV6,
    };
    any(NFT_MSG_GETCHAIN, |message| translates(message, wanted))
}

/// Tells whether any rule puts packets into a zone of connection tracking.
///
/// # Errors
///
/// As socket(2), or what the kernel refuses it for.
pub(crate) fn make_zones() -> io::Result<bool> {
    any(NFT_MSG_GETRULE, makes_zone)
}

/// Tells whether this holds for any of what the kernel lists.
fn any(list: u8, holds: impl Fn(&Message<'_>) -> bool) -> io::Result<bool> {
    let socket = Socket::open()?;
    let header = Header {
        kind: MessageType::of(Subsystem::NFTABLES, list),
        flags: Flags::DUMP,
        sequence: 1,
        family: Protocols::UNSPECIFIED,
        resource: 0,
    };
    socket.send(&message(header, |_| {}))?;
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
            // What comes and goes meanwhile matters to nobody: what there is at the end is there all the time.
            if message.kind == MessageType::DONE {
                return Ok(found);
            }
            found |= holds(&message);
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

/// Tells whether a message is about a rule that sets a zone, be it nft's or iptables-nft's.
fn makes_zone(message: &Message<'_>) -> bool {
    if message.kind != MessageType::of(Subsystem::NFTABLES, NFT_MSG_NEWRULE) {
        return false;
    }
    let attributes = message.attributes().into_iter().flatten();
    let mut expressions = attributes
        .filter(|(kind, _)| *kind == NFTA_RULE_EXPRESSIONS)
        .flat_map(|(_, list)| attributes::read(list));
    expressions.any(|(_, expression)| {
        let data = attributes::find(expression, NFTA_EXPR_DATA).unwrap_or_default();
        match attributes::find(expression, NFTA_EXPR_NAME) {
            Some(b"ct\0") => {
                let key = attributes::find(data, NFTA_CT_KEY);
                key == Some(&NFT_CT_ZONE.to_be_bytes())
                    && attributes::find(data, NFTA_CT_SREG).is_some()
            }
            Some(b"target\0") if attributes::find(data, NFTA_TARGET_NAME) == Some(b"CT\0") => {
                // Its flags, and the zone (struct xt_ct_target_info, include/uapi/linux/netfilter/xt_CT.h).
                let info = attributes::find(data, NFTA_TARGET_INFO).unwrap_or_default();
                info.get(2..4).is_some_and(|zone| zone != [0; 2])
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use pepd_sys::nfnetlink::Attributes;

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

    #[test]
    fn a_rule_makes_a_zone_that_sets_one() {
        let is_zone = |name: &str, data: &dyn Fn(&mut Attributes<'_>)| {
            let header = Header {
                kind: MessageType::of(Subsystem::NFTABLES, NFT_MSG_NEWRULE),
                flags: Flags::NONE,
                sequence: 1,
                family: Protocols::INET,
                resource: 0,
            };
            let bytes = message(header, |body| {
                body.nest(NFTA_RULE_EXPRESSIONS, |list| {
                    for name in ["counter", name] {
                        list.nest(1, |expression| {
                            expression.put_text(NFTA_EXPR_NAME, name);
                            expression.nest(NFTA_EXPR_DATA, data);
                        });
                    }
                });
            });
            makes_zone(&messages(&bytes).next().unwrap())
        };
        let set = |key: u32, register: u16| {
            move |data: &mut Attributes<'_>| {
                data.put(NFTA_CT_KEY, &key.to_be_bytes());
                data.put(register, &1_u32.to_be_bytes());
            }
        };
        let reads = 1;
        assert!(is_zone("ct", &set(NFT_CT_ZONE, NFTA_CT_SREG)));
        assert!(!is_zone("ct", &set(NFT_CT_ZONE, reads)));
        assert!(!is_zone("ct", &set(3, NFTA_CT_SREG)));
        assert!(!is_zone("meta", &set(NFT_CT_ZONE, NFTA_CT_SREG)));
        let target = |info: &'static [u8]| {
            move |data: &mut Attributes<'_>| {
                data.put_text(NFTA_TARGET_NAME, "CT");
                data.put(NFTA_TARGET_INFO, info);
            }
        };
        assert!(is_zone("target", &target(&[0, 0, 5, 0, 0, 0, 0, 0])));
        assert!(!is_zone("target", &target(&[1, 0, 0, 0, 0, 0, 0, 0])));
        assert!(!is_zone("target", &target(&[1])));
    }
}
