//! Packets for the tests of the modules beside this one.

use std::net::{Ipv6Addr, SocketAddr};

use crate::four_tuple::FourTuple;
use crate::ip::Packet;
use crate::protocol::Protocol;

pub const TCP: u8 = 6;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;

pub const CLIENT: [u8; 4] = [10, 1, 0, 2];
pub const SERVER: [u8; 4] = [10, 2, 0, 2];
pub const SYN_NUMBER: u32 = 0x8123_4567;

pub fn four_tuple() -> FourTuple {
    FourTuple {
        client: SocketAddr::from((CLIENT, 40000)),
        server: SocketAddr::from((SERVER, 80)),
    }
}

/// Returns a segment with an MSS option behind two that say nothing.
pub fn segment(flags: u8, mss: u16) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
    tcp[4..8].copy_from_slice(&SYN_NUMBER.to_be_bytes());
    tcp[12] = 7 << 4;
    tcp[13] = flags;
    tcp.extend([1, 1, 2, 4]);
    tcp.extend(mss.to_be_bytes());
    tcp.extend([0, 0]);
    tcp
}

pub fn v4(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0; 20];
    ip[0] = 0x45;
    ip[1] = 46 << 2 | 1;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&from);
    ip[16..20].copy_from_slice(&to);
    ip.extend(payload);
    sealed(ip)
}

pub fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0; 40];
    // DSCP 46, spread over two bytes.
    ip[..2].copy_from_slice(&[0x6b, 0x80]);
    ip[6] = next;
    ip[8..24].copy_from_slice(&"fd00:a::2".parse::<Ipv6Addr>().unwrap().octets());
    ip[24..40].copy_from_slice(&"fd00:b::2".parse::<Ipv6Addr>().unwrap().octets());
    ip.extend(payload);
    sealed(ip)
}

/// Enters the checksum of a segment that has none.
fn sealed(mut packet: Vec<u8>) -> Vec<u8> {
    let read = Packet::read(&packet).filter(|read| read.protocol == Protocol::TCP);
    let sum = read.map(|read| (read.payload_checksum(), read.payload.len()));
    if let Some((sum, length)) = sum {
        let place = packet.len() - length + 16;
        if let Some(place) = packet.get_mut(place..place + 2) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
    }
    packet
}
