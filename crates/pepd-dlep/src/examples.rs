//! Signals and messages byte by byte, by the figures of RFC 8175, sections 11 to 13.

use std::net::IpAddr;

use proptest::prelude::*;

use crate::item::{ConnectionPoint, DataItem, ItemError, ItemKind};
use crate::mac::MacAddress;
use crate::message::{LONGEST, Message, MessageError, MessageKind};
use crate::signal::Signal;
use crate::status::{Status, StatusCode};

/// A MAC address for documentation (RFC 7042, section 2.1.2).
const ROUTER: [u8; 6] = [0x00, 0x00, 0x5e, 0x00, 0x53, 0x01];

fn peer_type(description: &str) -> DataItem {
    DataItem::PeerType {
        secured: false,
        description: description.to_owned(),
    }
}

/// Both ways: what is written is just these bytes, and they are read as what was written.
fn assert_message(message: &Message, parts: &[&[u8]]) {
    let bytes = parts.concat();
    assert_eq!(message.to_bytes(), bytes);
    let read = Message::read(&bytes);
    assert_eq!(read, Some((Ok(message.clone()), bytes.len())));
}

fn assert_signal(signal: &Signal, parts: &[&[u8]]) {
    let bytes = parts.concat();
    assert_eq!(signal.to_bytes(), bytes);
    assert_eq!(Signal::read(&bytes).as_ref(), Some(signal));
}

#[test]
fn peer_discovery_and_peer_offer() {
    let peer_type = Some("pepd".to_owned());
    assert_signal(
        &Signal::PeerDiscovery { peer_type },
        // The signature, type 1, nine bytes: peer type (4), five bytes: no flags, and text.
        &[b"DLEP", &[0, 1, 0, 9], &[0, 4, 0, 5], &[0], b"pepd"],
    );
    let peer_type = None;
    assert_signal(
        &Signal::PeerDiscovery { peer_type },
        &[b"DLEP", &[0, 1, 0, 0]],
    );
    let points = vec![
        ConnectionPoint {
            tls: false,
            address: IpAddr::from([192, 0, 2, 10]),
            port: Some(854),
        },
        ConnectionPoint {
            tls: true,
            address: "fe80::1".parse().unwrap(),
            port: None,
        },
    ];
    let peer_type = None;
    assert_signal(
        &Signal::PeerOffer { peer_type, points },
        &[
            b"DLEP",
            &[0, 2, 0, 32],
            // IPv4 connection point (2): flags, address, port.
            &[0, 2, 0, 7, 0, 192, 0, 2, 10, 3, 86],
            // IPv6 connection point (3) without a port: use TLS, address.
            &[0, 3, 0, 17, 1],
            &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        ],
    );
}

#[test]
fn what_is_no_signal_is_none() {
    let whole = [&b"DLEP"[..], &[0, 1, 0, 9, 0, 4, 0, 5, 0], b"pepd"].concat();
    assert!(Signal::read(&whole).is_some());
    for end in 0..whole.len() {
        assert_eq!(Signal::read(&whole[..end]), None, "{end}");
    }
    let longer = [&whole[..], &[0]].concat();
    assert_eq!(Signal::read(&longer), None);
    // Another signature, an unknown signal, one of them with a status, a discovery with a point.
    for bytes in [
        &b"DLEQ\0\x01\0\0"[..],
        b"DLEP\0\x03\0\0",
        b"DLEP\0\x02\0\x05\0\x01\0\x01\0",
        b"DLEP\0\x01\0\x09\0\x02\0\x05\0\xc0\0\x02\x0a",
    ] {
        assert_eq!(Signal::read(bytes), None, "{bytes:?}");
    }
}

#[test]
fn the_beginning_of_a_session() {
    let items = [DataItem::HeartbeatInterval(5000), peer_type("pepd")];
    assert_message(
        &Message::new(MessageKind::SessionInitialization, items),
        &[
            &[0, 1, 0, 17],
            &[0, 5, 0, 4, 0, 0, 0x13, 0x88],
            &[0, 4, 0, 5, 0],
            b"pepd",
        ],
    );
    let items = [
        DataItem::Status(StatusCode::SUCCESS.into()),
        peer_type("radio"),
        DataItem::HeartbeatInterval(60_000),
        DataItem::MaximumRateReceive(100_000_000),
        DataItem::MaximumRateTransmit(50_000_000),
        DataItem::CurrentRateReceive(10_000_000),
        DataItem::CurrentRateTransmit(5_000_000),
        DataItem::Latency(250_000),
        DataItem::Extensions(vec![1, 0xfff0]),
    ];
    assert_message(
        &Message::new(MessageKind::SessionInitializationResponse, items),
        &[
            &[0, 2, 0, 91],
            &[0, 1, 0, 1, 0],
            &[0, 4, 0, 6, 0],
            b"radio",
            &[0, 5, 0, 4, 0, 0, 0xea, 0x60],
            &[0, 12, 0, 8, 0, 0, 0, 0, 0x05, 0xf5, 0xe1, 0x00],
            &[0, 13, 0, 8, 0, 0, 0, 0, 0x02, 0xfa, 0xf0, 0x80],
            &[0, 14, 0, 8, 0, 0, 0, 0, 0x00, 0x98, 0x96, 0x80],
            &[0, 15, 0, 8, 0, 0, 0, 0, 0x00, 0x4c, 0x4b, 0x40],
            &[0, 16, 0, 8, 0, 0, 0, 0, 0x00, 0x03, 0xd0, 0x90],
            &[0, 6, 0, 4, 0, 1, 0xff, 0xf0],
        ],
    );
}

#[test]
fn the_end_of_a_session_and_its_heartbeat() {
    let status = Status {
        code: StatusCode::TIMED_OUT,
        text: "late".to_owned(),
    };
    assert_message(
        &Message::new(MessageKind::SessionTermination, [DataItem::Status(status)]),
        &[&[0, 5, 0, 9], &[0, 1, 0, 5, 132], b"late"],
    );
    let response = Message::new(MessageKind::SessionTerminationResponse, []);
    assert_message(&response, &[&[0, 6, 0, 0]]);
    assert_message(&Message::new(MessageKind::Heartbeat, []), &[&[0, 16, 0, 0]]);
}

#[test]
fn a_destination() {
    let mac = DataItem::Mac(MacAddress::Eui48(ROUTER));
    let mac_bytes = [&[0, 7, 0, 6][..], &ROUTER].concat();
    let subnet = |add, prefix: &str, length| DataItem::Subnet {
        add,
        prefix: prefix.parse().unwrap(),
        length,
    };
    let address = |add, address: &str| DataItem::Address {
        add,
        address: address.parse().unwrap(),
    };
    let items = [
        mac.clone(),
        address(true, "192.0.2.1"),
        address(false, "2001:db8::1"),
        subnet(true, "198.51.100.0", 24),
        subnet(true, "2001:db8:1::", 48),
        DataItem::Resources(100),
        DataItem::QualityReceive(99),
        DataItem::QualityTransmit(0),
        DataItem::Mtu(1500),
    ];
    assert_message(
        &Message::new(MessageKind::DestinationUp, items),
        &[
            &[0, 7, 0, 93],
            &mac_bytes,
            &[0, 8, 0, 5, 1, 192, 0, 2, 1],
            &[0, 9, 0, 17, 0],
            &[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[0, 10, 0, 6, 1, 198, 51, 100, 0, 24],
            &[0, 11, 0, 18, 1],
            &[
                0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 48,
            ],
            &[0, 17, 0, 1, 100],
            &[0, 18, 0, 1, 99],
            &[0, 19, 0, 1, 0],
            &[0, 20, 0, 2, 0x05, 0xdc],
        ],
    );
    let status = DataItem::Status(StatusCode::NOT_INTERESTED.into());
    assert_message(
        &Message::new(MessageKind::DestinationUpResponse, [mac.clone(), status]),
        &[&[0, 8, 0, 15], &mac_bytes, &[0, 1, 0, 1, 1]],
    );
    assert_message(
        &Message::new(MessageKind::DestinationDown, [mac]),
        &[&[0, 11, 0, 10], &mac_bytes],
    );
    // With an address of 64 bits.
    let mac = DataItem::Mac(MacAddress::Eui64([2, 0, 0, 0xff, 0xfe, 0, 0, 1]));
    assert_message(
        &Message::new(MessageKind::DestinationUpdate, [mac]),
        &[&[0, 13, 0, 12], &[0, 7, 0, 8, 2, 0, 0, 0xff, 0xfe, 0, 0, 1]],
    );
}

/// Bytes that are no message, why, and with which status the session ends for it.
const REFUSED: &[(&[u8], MessageError, StatusCode)] = &[
    (
        &[0, 17, 0, 0],
        MessageError::Unknown(17),
        StatusCode::UNKNOWN_MESSAGE,
    ),
    (
        // It ends within an item's header.
        &[0, 16, 0, 3, 0, 1, 0],
        MessageError::Item(MessageKind::Heartbeat, ItemError::Truncated),
        StatusCode::INVALID_DATA,
    ),
    (
        // An item goes beyond the message.
        &[0, 5, 0, 5, 0, 1, 0, 2, 0],
        MessageError::Item(MessageKind::SessionTermination, ItemError::Truncated),
        StatusCode::INVALID_DATA,
    ),
    (
        // The latency range of RFC 8757, an extension.
        &[0, 16, 0, 4, 0, 28, 0, 0],
        MessageError::Item(MessageKind::Heartbeat, ItemError::Unknown(28)),
        StatusCode::INVALID_DATA,
    ),
    (
        &[0, 11, 0, 9, 0, 7, 0, 5, 0, 0, 0, 0, 0],
        MessageError::Item(
            MessageKind::DestinationDown,
            ItemError::Length(ItemKind::Mac, 5),
        ),
        StatusCode::INVALID_DATA,
    ),
    (
        // 101 %.
        &[0, 3, 0, 5, 0, 17, 0, 1, 101],
        MessageError::Item(
            MessageKind::SessionUpdate,
            ItemError::Value(ItemKind::Resources),
        ),
        StatusCode::INVALID_DATA,
    ),
    (
        // A prefix of 33 bits.
        &[0, 3, 0, 10, 0, 10, 0, 6, 1, 192, 0, 2, 0, 33],
        MessageError::Item(
            MessageKind::SessionUpdate,
            ItemError::Value(ItemKind::Ipv4Subnet),
        ),
        StatusCode::INVALID_DATA,
    ),
    (
        &[0, 5, 0, 6, 0, 1, 0, 2, 0, 0xff],
        MessageError::Item(
            MessageKind::SessionTermination,
            ItemError::Value(ItemKind::Status),
        ),
        StatusCode::INVALID_DATA,
    ),
    (
        &[0, 16, 0, 5, 0, 1, 0, 1, 0],
        MessageError::Unwanted(MessageKind::Heartbeat, ItemKind::Status),
        StatusCode::INVALID_DATA,
    ),
    (
        &[0, 5, 0, 10, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0],
        MessageError::Repeated(MessageKind::SessionTermination, ItemKind::Status),
        StatusCode::INVALID_DATA,
    ),
    (
        &[0, 7, 0, 0],
        MessageError::Missing(MessageKind::DestinationUp, ItemKind::Mac),
        StatusCode::INVALID_DATA,
    ),
];

#[test]
fn what_is_not_understood_has_a_reason_and_a_status() {
    for (bytes, error, status) in REFUSED {
        assert_eq!(Message::read(bytes), Some((Err(*error), bytes.len())));
        assert_eq!(error.status(), *status);
    }
}

#[test]
fn a_message_that_is_not_there_as_a_whole_is_waited_for() {
    let bytes = [0, 5, 0, 5, 0, 1, 0, 1, 0];
    for end in 0..bytes.len() {
        assert_eq!(Message::read(&bytes[..end]), None);
    }
    let two = [bytes, bytes].concat();
    assert_eq!(Message::read(&two).unwrap().1, bytes.len());
}

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
    ]
}

fn mac() -> impl Strategy<Value = MacAddress> {
    prop_oneof![
        any::<[u8; 6]>().prop_map(MacAddress::Eui48),
        any::<[u8; 8]>().prop_map(MacAddress::Eui64),
    ]
}

fn optional(strategy: impl Strategy<Value = DataItem>) -> impl Strategy<Value = Vec<DataItem>> {
    prop::collection::vec(strategy, 0..=1)
}

/// Whatever a Destination Up may have.
pub(crate) fn destination_up() -> impl Strategy<Value = Message> {
    let address = (any::<bool>(), address());
    let subnet = (any::<bool>(), self::address(), 0_u8..=32);
    let items = (
        mac().prop_map(|mac| vec![DataItem::Mac(mac)]),
        optional(any::<u64>().prop_map(DataItem::MaximumRateReceive)),
        optional(any::<u64>().prop_map(DataItem::CurrentRateTransmit)),
        optional(any::<u64>().prop_map(DataItem::Latency)),
        optional((0_u8..=100).prop_map(DataItem::Resources)),
        optional(any::<u16>().prop_map(DataItem::Mtu)),
        prop::collection::vec(
            address.prop_map(|(add, address)| DataItem::Address { add, address }),
            0..5,
        ),
        prop::collection::vec(
            subnet.prop_map(|(add, prefix, length)| DataItem::Subnet {
                add,
                prefix,
                length,
            }),
            0..5,
        ),
    );
    items
        .prop_map(|(a, b, c, d, e, f, g, h)| [a, b, c, d, e, f, g, h].concat())
        .prop_shuffle()
        .prop_map(|items| Message::new(MessageKind::DestinationUp, items))
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in destination_up(), more in any::<Vec<u8>>()) {
        let mut bytes = message.to_bytes();
        let length = bytes.len();
        bytes.extend(more);
        prop_assert_eq!(Message::read(&bytes), Some((Ok(message), length)));
    }

    #[test]
    fn texts_are_read_as_they_are(code in any::<u8>(), text in text()) {
        let code = StatusCode(code);
        let status = DataItem::Status(Status { code, text });
        let message = Message::new(MessageKind::SessionTermination, [status]);
        let bytes = message.to_bytes();
        prop_assert_eq!(Message::read(&bytes), Some((Ok(message), bytes.len())));
    }

    #[test]
    fn whatever_comes_is_read_or_refused_and_never_beyond_its_end(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        code in 0_u16..20,
    ) {
        if let Some(header) = bytes.first_chunk_mut() {
            *header = code.to_be_bytes();
        }
        if let Some((message, length)) = Message::read(&bytes) {
            prop_assert!((4..=LONGEST).contains(&length) && length <= bytes.len());
            if let Ok(message) = message {
                prop_assert!(Message::read(&message.to_bytes()).unwrap().0.is_ok());
            }
        }
        _ = Signal::read(&bytes);
        _ = Signal::read(&[&b"DLEP"[..], &bytes].concat());
    }
}
