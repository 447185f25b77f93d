//! The next-hop tables as `ip` commands.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use pepd_packet::{MarkMask, MarkValue};

use super::*;
use crate::request::{Handshake, InitialWindow, Listener, Mark, Peer, SourcePrefix};

pub(in crate::route) fn request(campuses: &[(&[&str], Via)], peers: &[&str]) -> Request {
    Request {
        node: "hb".to_owned(),
        mark: Mark {
            value: MarkValue(0x7000_0000),
            mask: MarkMask(0x7000_0000),
        },
        table: RouteTable(7300),
        port: 7300,
        source_prefix: SourcePrefix::NETWORK,
        handshake: Handshake::Early,
        queues: None,
        hold_acks: None,
        hold_coming: None,
        measure: None,
        neighbors: Vec::new(),
        campuses: campuses
            .iter()
            .map(|(prefixes, via)| Campus {
                name: "c".to_owned(),
                prefixes: prefixes.iter().map(|net| net.parse().unwrap()).collect(),
                listener: Listener {
                    v4: Ipv4Addr::LOCALHOST,
                    v6: Ipv6Addr::LOCALHOST,
                },
                via: *via,
                initial_window: None,
            })
            .collect(),
        peers: peers
            .iter()
            .enumerate()
            .map(|(index, remote)| Peer {
                name: format!("p{index}"),
                local: "192.0.2.1".parse().unwrap(),
                remote: remote.parse().unwrap(),
                mtu: None,
                inside: Vec::new(),
                ttl: None,
                tos: None,
                reverse_path_filter: false,
                keep: false,
            })
            .collect(),
        rules: Vec::new(),
        windows: BTreeMap::new(),
    }
}

fn shown(campuses: &[(&[&str], Via)], peers: &[&str]) -> Vec<String> {
    let items = items(&request(campuses, peers));
    items.iter().map(ToString::to_string).collect()
}

#[test]
fn a_box_at_the_end_of_a_chain() {
    let lines = shown(
        &[
            (&["10.1.0.0/16"], Via::Local),
            (&["10.2.0.0/16"], Via::Peer(0)),
        ],
        &["198.51.100.1"],
    );
    assert_eq!(
        lines,
        [
            "ip -4 route add 10.2.0.0/16 dev pepd-p0 table 7301 proto 73 src 192.0.2.1",
            "ip -4 route add 198.51.100.1/32 dev pepd-p0 table 7303 proto 73",
            "ip -4 rule add preference 74 iif lo lookup 7301 suppress_prefixlength 0 protocol 73",
            "ip -4 rule add preference 74 from 10.1.0.0/16 lookup 7301 protocol 73",
            "ip -4 rule add preference 72 from 192.0.2.1 to 198.51.100.1 tos 0x10 ipproto icmp lookup 7303 protocol 73",
        ]
    );
}

#[test]
fn a_box_in_the_middle_sends_nothing_back_where_it_came_from() {
    let lines = shown(
        &[
            (&["10.1.0.0/16"], Via::Peer(0)),
            (&["10.2.0.0/16"], Via::Peer(1)),
        ],
        &["198.51.100.1", "198.51.100.2"],
    );
    let expected = [
        "ip -4 route add 10.1.0.0/16 dev pepd-p0 table 7301 proto 73 src 192.0.2.1",
        "ip -4 route add 10.2.0.0/16 dev pepd-p1 table 7301 proto 73 src 192.0.2.1",
        "ip -4 route add 10.2.0.0/16 dev pepd-p1 table 7302 proto 73 src 192.0.2.1",
        "ip -4 route add 10.1.0.0/16 dev pepd-p0 table 7303 proto 73 src 192.0.2.1",
        "ip -4 route add 198.51.100.1/32 dev pepd-p0 table 7304 proto 73",
        "ip -4 route add 198.51.100.2/32 dev pepd-p1 table 7304 proto 73",
        "ip -4 rule add preference 74 iif lo lookup 7301 suppress_prefixlength 0 protocol 73",
        "ip -4 rule add preference 74 iif pepd-p0 lookup 7302 protocol 73",
        "ip -4 rule add preference 74 from 10.1.0.0/16 lookup 7302 protocol 73",
        "ip -4 rule add preference 74 iif pepd-p1 lookup 7303 protocol 73",
        "ip -4 rule add preference 74 from 10.2.0.0/16 lookup 7303 protocol 73",
        "ip -4 rule add preference 72 from 192.0.2.1 to 198.51.100.1 tos 0x10 ipproto icmp lookup 7304 protocol 73",
        "ip -4 rule add preference 72 from 192.0.2.1 to 198.51.100.2 tos 0x10 ipproto icmp lookup 7304 protocol 73",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_is_here_within_a_prefix_that_is_there_stays_here() {
    let lines = shown(
        &[
            (&["10.1.0.0/16", "fd00:a::/48"], Via::Local),
            (&["0.0.0.0/0", "::/0"], Via::Peer(0)),
            (&["10.1.9.0/24"], Via::Routing),
        ],
        &["198.51.100.1"],
    );
    let expected = [
        "ip -4 route add 0.0.0.0/0 dev pepd-p0 table 7301 proto 73 src 192.0.2.1",
        "ip -4 route add throw 10.1.0.0/16 table 7301 proto 73",
        "ip -4 route add throw 10.1.9.0/24 table 7301 proto 73",
        "ip -4 route add throw 198.51.100.1/32 table 7301 proto 73",
        "ip -6 route add ::/0 dev pepd-p0 table 7301 proto 73",
        "ip -6 route add throw fd00:a::/48 table 7301 proto 73",
        "ip -4 route add 198.51.100.1/32 dev pepd-p0 table 7303 proto 73",
        "ip -4 rule add preference 74 iif lo lookup 7301 suppress_prefixlength 0 protocol 73",
        "ip -4 rule add preference 74 from 10.1.0.0/16 lookup 7301 protocol 73",
        "ip -4 rule add preference 74 from 10.1.9.0/24 lookup 7301 protocol 73",
        "ip -6 rule add preference 74 iif lo lookup 7301 suppress_prefixlength 0 protocol 73",
        "ip -6 rule add preference 74 from fd00:a::/48 lookup 7301 protocol 73",
        "ip -4 rule add preference 72 from 192.0.2.1 to 198.51.100.1 tos 0x10 ipproto icmp lookup 7303 protocol 73",
    ];
    assert_eq!(lines, expected);
}

/// Networks within a campus that is behind a peer have the windows that were learned of them, from every side;
/// those of other campuses, and of campuses that learn nothing, have none.
#[test]
fn what_was_learned_is_said_of_networks_within() {
    let mut request = request(
        &[
            (&["10.1.0.0/16"], Via::Local),
            (&["10.2.0.0/16", "fd00:b::/48"], Via::Peer(0)),
            (&["10.2.9.0/24"], Via::Peer(1)),
        ],
        &["198.51.100.1", "198.51.100.2"],
    );
    request.campuses[1].initial_window = Some(InitialWindow::Learned);
    let windows = [
        ("10.1.5.0/24", 20),
        ("10.2.5.0/24", 40),
        ("10.2.9.0/24", 60),
        ("fd00:b::/48", 80),
        ("192.0.2.0/24", 99),
    ];
    request.windows = windows
        .map(|(net, window)| (net.parse().unwrap(), window))
        .into();
    let items = items(&request);
    let shown: Vec<String> = items.iter().map(ToString::to_string).collect();
    let lines: Vec<&str> = shown
        .iter()
        .map(String::as_str)
        .filter(|it| it.contains("initcwnd"))
        .collect();
    assert_eq!(
        lines,
        [
            "ip -4 route add 10.2.5.0/24 dev pepd-p0 table 7301 proto 73 src 192.0.2.1 initcwnd 40",
            "ip -4 route add 10.2.5.0/24 dev pepd-p0 table 7303 proto 73 src 192.0.2.1 initcwnd 40",
            "ip -6 route add fd00:b::/48 dev pepd-p0 table 7301 proto 73 initcwnd 80",
            "ip -6 route add fd00:b::/48 dev pepd-p0 table 7303 proto 73 initcwnd 80",
        ]
    );
    // One that is whole is there once.
    let of_the_whole = |item: &&String| item.contains("fd00:b::/48 dev") && item.contains("7301");
    assert_eq!(shown.iter().filter(of_the_whole).count(), 1);
    let is_other = |item: &Item| items.iter().all(|it| !it.is_in_place_of(item));
    request.windows.clear();
    let before = super::items(&request);
    assert!(!before.iter().any(is_other), "{before:?}");
}

/// No type of service would tell their answers from other ICMPv6.
#[test]
fn probes_over_ipv6_have_no_rules() {
    let mut request = request(
        &[
            (&["10.1.0.0/16"], Via::Local),
            (&["10.2.0.0/16"], Via::Peer(0)),
        ],
        &["2001:db8::2"],
    );
    request.peers[0].local = "2001:db8::1".parse().unwrap();
    let items = items(&request);
    let is_probe = |item: &Item| {
        matches!(
            item,
            Item::Rule(Rule {
                selector: Selector::Probe { .. },
                ..
            })
        )
    };
    assert!(
        items
            .iter()
            .all(|item| !is_probe(item) && item.family() == Family::V4)
    );
}

#[test]
fn without_peers_there_is_nothing() {
    let lines = shown(
        &[
            (&["10.1.0.0/16"], Via::Local),
            (&["10.2.0.0/16"], Via::Routing),
        ],
        &[],
    );
    assert!(lines.is_empty(), "{lines:?}");
    assert!(request(&[], &[]).route_tables().next_hop().is_empty());
}
