//! Packets of hosts that nobody trusts: SYNs, RSTs, acknowledgements and ICMP errors.

use std::net::IpAddr;

use pepd_packet::checksum::Checksum;
use pepd_packet::ip::{self, Packet};
use pepd_packet::tcp::{self, Reset};
use pepd_packet::{FourTuple, Protocol, Syn, icmp};

/// Reads a packet in every way. What is read of it stands in it, and is read of a packet that is
/// written of it as well.
pub fn run(bytes: &[u8]) {
    let syn = Syn::read(bytes);
    let reset = Reset::read(bytes);
    let acknowledgement = tcp::read_ack(bytes);
    let error = icmp::read_error(bytes);
    let kinds = [
        syn.is_some(),
        reset.is_some(),
        acknowledgement.is_some(),
        error.is_some(),
    ];
    assert!(kinds.iter().filter(|is| **is).count() <= 1, "{kinds:?}");
    for message in [
        icmp::Echo::read_reply(bytes),
        icmp::Echo::read_reply_v6(bytes),
    ] {
        assert!(message.is_none_or(|echo| bytes.ends_with(echo.data)));
    }
    let Some(packet) = Packet::read(bytes) else {
        assert!(!kinds.contains(&true));
        return;
    };
    let header = if packet.source.is_ipv4() { 20 } else { 40 };
    assert!(bytes.len() - packet.payload.len() >= header);
    assert!(bytes.ends_with(packet.payload));
    assert_eq!(ip::dscp(bytes), Some(packet.dscp));
    let flow = syn.as_ref().map(|syn| syn.four_tuple);
    let flow = flow.or(reset.map(|reset| reset.four_tuple));
    if let Some(flow) = flow.or(acknowledgement) {
        named(&packet, flow);
    }
    if let Some(data) = syn.as_ref().and_then(|syn| syn.data.as_ref()) {
        assert!(!data.bytes.is_empty() && bytes.ends_with(&data.bytes));
        assert_eq!(packet.payload_checksum(), 0);
    }
    rewritten(&packet, syn);
}

/// A connection's addresses are the packet's.
fn named(packet: &Packet<'_>, flow: FourTuple) {
    assert_eq!(flow.client.ip(), packet.source);
    assert_eq!(flow.server.ip(), packet.destination);
    assert_eq!(flow.reversed().reversed(), flow);
}

/// Writes a packet with what another carries, and reads that.
fn rewritten(packet: &Packet<'_>, syn: Option<Syn>) {
    let Packet {
        source,
        protocol,
        payload,
        ..
    } = *packet;
    const LONGEST: usize = 65_515;
    if payload.len() > LONGEST {
        return;
    }
    let written = written(packet, payload);
    if source.is_ipv4() {
        assert_eq!(Checksum::of(&written[..20]).value(), 0);
    }
    // These say of IPv6 that more headers follow, which are no longer there.
    if !matches!(protocol, Protocol(0 | 43 | 60)) || source.is_ipv4() {
        let expected = Packet { dscp: 0, ..*packet };
        assert_eq!(Packet::read(&written), Some(expected));
        let expected = syn.map(|syn| Syn { dscp: 0, ..syn });
        assert_eq!(Syn::read(&written), expected);
    }
    repaired(packet);
}

/// Writes a packet from where another is to where that goes.
fn written(packet: &Packet<'_>, payload: &[u8]) -> Vec<u8> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ip::in_ipv4(from, to, packet.protocol, payload),
        (IpAddr::V6(from), IpAddr::V6(to)) => ip::in_ipv6(from, to, packet.protocol, payload),
        _ => unreachable!("two families in one header"),
    }
}

/// A segment's checksum is right once what is computed has been entered.
fn repaired(packet: &Packet<'_>) {
    if packet.protocol != Protocol::TCP || packet.payload.len() < 18 {
        return;
    }
    let mut segment = packet.payload.to_vec();
    segment[16..18].fill(0);
    let sum = |payload: &[u8]| Packet { payload, ..*packet }.payload_checksum();
    let entered = sum(&segment).to_be_bytes();
    segment[16..18].copy_from_slice(&entered);
    assert_eq!(sum(&segment), 0);
    // Few of those that are drawn are right by themselves.
    let read = Syn::read(&written(packet, &segment)).map(|syn| syn.four_tuple);
    assert!(read.is_none_or(|read| read.client.ip() == packet.source));
}
