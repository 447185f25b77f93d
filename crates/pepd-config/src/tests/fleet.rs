//! One file for every box of a fleet.

use std::collections::HashSet;
use std::fmt::Write;

use proptest::prelude::*;
// rstest's `#[context]` needs its `Context` under this very name.
use rstest::{Context, rstest};

use super::{context, designed, designed_for, diagnostics};
use crate::{Config, Context as Host, Via, Which, parse};

/// Jain & Ott's chain: the box in the middle has a campus of its own here.
const CHAIN: &str = r#"
[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]
leg = "lan"

[[campus]]
name = "i"
prefixes = ["10.9.0.0/16"]
leg = "lan"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]

[[box]]
name = "hb-a"
address = "192.0.2.1"
campuses = ["a"]

[[box]]
name = "hb-i"
address = "198.51.100.1"
campuses = ["i"]

[[box]]
name = "hb-b"
address = "203.0.113.1"
campuses = ["b"]

[[link]]
boxes = ["hb-a", "hb-i"]
leg = "long"
mtu = 1480
keep = true

[[link]]
boxes = ["hb-i", "hb-b"]
leg = ["to-b", "from-b"]
addresses = ["198.51.100.2", "203.0.113.2"]
probe = "off"

[leg.from-b]
congestion = "reno"
[leg.lan]
[leg.long]
congestion = "bbr"
[leg.to-b]
"#;

/// The same for the box in the middle, as if it were alone.
const MIDDLE: &str = r#"
[node]
name = "hb-i"

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]
via = "hb-a"
leg = "long"

[[campus]]
name = "i"
prefixes = ["10.9.0.0/16"]
leg = "lan"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]
via = "hb-b"
leg = "to-b"

[[peer]]
name = "hb-a"
local = "198.51.100.1"
remote = "192.0.2.1"
mtu = 1480
keep = true

[[peer]]
name = "hb-b"
local = "198.51.100.2"
remote = "203.0.113.2"
probe = "off"

[leg.lan]
[leg.long]
congestion = "bbr"
[leg.to-b]
"#;

/// And for the box at the end, from which both others are reached through the middle.
const END: &str = r#"
[node]
name = "hb-b"

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]
via = "hb-i"
leg = "from-b"

[[campus]]
name = "i"
prefixes = ["10.9.0.0/16"]
via = "hb-i"
leg = "from-b"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]

[[peer]]
name = "hb-i"
local = "203.0.113.2"
remote = "198.51.100.2"
probe = "off"

[leg.from-b]
congestion = "reno"
"#;

fn named(node: &str) -> Host {
    Host {
        node: Some(node.to_owned()),
        ..context()
    }
}

fn of_box(text: &str, host: &Host) -> Result<Config, String> {
    designed_for(text, host, Which::This).map(|mut configs| configs.remove(0))
}

fn all(text: &str) -> Vec<Config> {
    designed_for(text, &context(), Which::Every).unwrap_or_else(|report| panic!("{report}"))
}

#[rstest]
#[case::in_the_middle("hb-i", MIDDLE)]
#[case::at_the_end("hb-b", END)]
fn a_box_of_a_fleet_is_as_one_with_a_file_of_its_own(#[case] node: &str, #[case] alone: &str) {
    assert_eq!(of_box(CHAIN, &named(node)), designed(alone));
}

#[test]
fn every_box_is_each_box() {
    let each = ["hb-a", "hb-i", "hb-b"].map(|node| of_box(CHAIN, &named(node)).unwrap());
    assert_eq!(all(CHAIN), each);
    assert_eq!(all(MIDDLE), [designed(MIDDLE).unwrap()]);
}

#[rstest]
#[case::the_command_line_comes_first(Some("hb-a"), "[node]\nname = \"hb-b\"\n", "hb-i", "hb-a")]
#[case::then_the_file(None, "[node]\nname = \"hb-b\"\n", "hb-i", "hb-b")]
#[case::then_the_host(None, "", "hb-i", "hb-i")]
#[case::without_its_domain(None, "[node]\nworkers = 2\n", "hb-i.example.net", "hb-i")]
fn who_says_which_box_it_is(
    #[case] node: Option<&str>,
    #[case] lines: &str,
    #[case] host: &str,
    #[case] is: &str,
) {
    let host = Host {
        node: node.map(String::from),
        host: Some(host.to_owned()),
        ..context()
    };
    let config = of_box(&format!("{CHAIN}{lines}"), &host).unwrap();
    assert_eq!(config.node.name, is);
}

#[test]
fn the_file_of_a_single_box_may_be_named_with_its_own_name() {
    assert_eq!(of_box(MIDDLE, &named("hb-i")), designed(MIDDLE));
}

#[rstest]
#[case::node_of_another_box(MIDDLE, Some("hb-a"), None)]
#[case::node_unknown(CHAIN, Some("hb-z9"), None)]
#[case::node_unknown_far(CHAIN, Some("elsewhere"), None)]
#[case::node_of_no_host(CHAIN, None, None)]
#[case::node_of_another_host(CHAIN, None, Some("mail.example.net"))]
fn no_such_box(
    #[context] case: Context,
    #[case] text: &str,
    #[case] node: Option<&str>,
    #[case] host: Option<&str>,
) {
    let host = Host {
        node: node.map(String::from),
        host: host.map(String::from),
        ..context()
    };
    diagnostics::snapshot(&case, &of_box(text, &host).unwrap_err());
}

#[rstest]
#[case::fleet_node_unknown("", "", "[node]\nname = \"hb-x\"\n")]
#[case::fleet_with_peer(
    "",
    "",
    "[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\n"
)]
#[case::fleet_with_via(
    "prefixes = [\"10.9.0.0/16\"]",
    "prefixes = [\"10.9.0.0/16\"]\nvia = \"hb-a\"",
    ""
)]
#[case::box_missing_keys("", "", "[[box]]\n")]
#[case::box_duplicate_name("name = \"hb-b\"", "name = \"hb-a\"", "")]
#[case::box_long_name("name = \"hb-b\"", "name = \"helper-box-b\"", "")]
#[case::box_reserved_name("name = \"hb-b\"", "name = \"local\"", "")]
#[case::box_unknown_campus("campuses = [\"b\"]", "campuses = [\"bee\"]", "")]
#[case::box_shared_address("\"203.0.113.1\"", "\"192.0.2.1\"", "")]
#[case::box_without_address("address = \"192.0.2.1\"\n", "", "")]
#[case::box_idle("", "", "[[box]]\nname = \"hb-x\"\naddress = \"192.0.2.9\"\n")]
#[case::box_parted(
    "[[link]]\nboxes = [\"hb-i\", \"hb-b\"]\nleg = [\"to-b\", \"from-b\"]\naddresses = [\"198.51.100.2\", \"203.0.113.2\"]\nprobe = \"off\"\n",
    "",
    ""
)]
#[case::campus_behind_no_box("campuses = [\"b\"]\n", "", "")]
#[case::campus_behind_two_boxes("campuses = [\"b\"]", "campuses = [\"b\", \"a\"]", "")]
#[case::campus_behind_a_box_twice("campuses = [\"b\"]", "campuses = [\"b\", \"b\"]", "")]
#[case::link_missing_keys("boxes = [\"hb-a\", \"hb-i\"]\n", "", "")]
#[case::link_of_three("[\"hb-a\", \"hb-i\"]", "[\"hb-a\", \"hb-i\", \"hb-b\"]", "")]
#[case::link_to_itself("[\"hb-a\", \"hb-i\"]", "[\"hb-a\", \"hb-a\"]", "")]
#[case::link_unknown_box("[\"hb-a\", \"hb-i\"]", "[\"hb-a\", \"hb-y\"]", "")]
#[case::link_twice("", "", "[[link]]\nboxes = [\"hb-b\", \"hb-i\"]\n")]
#[case::link_families("\"203.0.113.2\"]", "\"2001:db8::2\"]", "")]
#[case::link_addresses_of_another(
    "[\"198.51.100.2\", \"203.0.113.2\"]",
    "[\"198.51.100.2\", \"192.0.2.1\"]",
    ""
)]
#[case::link_unknown_leg("[\"to-b\", \"from-b\"]", "[\"to-b\", \"from-c\"]", "")]
#[case::link_idle(
    "",
    "",
    "[[box]]\nname = \"hb-x\"\naddress = \"192.0.2.9\"\n[[link]]\nboxes = [\"hb-b\", \"hb-x\"]\n"
)]
#[case::link_probe("probe = \"off\"", "probe = \"never\"", "")]
#[case::link_probe_absurd("probe = \"off\"", "probe = \"1ms\"", "")]
fn wrong_with_the_fleet(
    #[context] case: Context,
    #[case] find: &str,
    #[case] put: &str,
    #[case] more: &str,
) {
    assert!(CHAIN.contains(find), "{find}");
    let text = CHAIN.replacen(find, put, usize::from(!find.is_empty())) + more;
    diagnostics::snapshot(
        &case,
        &designed_for(&text, &context(), Which::Every)
            .err()
            .unwrap_or_else(|| designed(&text).unwrap_err()),
    );
}

#[test]
fn links_without_boxes() {
    let (campuses, _) = CHAIN.split_once("[[box]]").unwrap();
    let text = format!("{campuses}[[link]]\nboxes = [\"a\", \"b\"]\n[leg.lan]\n");
    insta::assert_snapshot!(designed(&text).unwrap_err());
}

/// What is wrong with any box is wrong on every box.
/// Of one file each box has the modems of its own legs.
#[test]
fn a_box_has_the_modems_of_its_own_legs() {
    let modem = "[leg.to-b]\nlink = { dlep = \"modem\" }\n[[dlep]]\nname = \"modem\"\n\
                 interface = \"eth1\"\n";
    let text = CHAIN.replace("[leg.to-b]\n", modem);
    let configs = designed_for(&text, &context(), Which::Every).unwrap();
    let modems = configs
        .iter()
        .map(|it| (it.node.name.as_str(), it.modems.len()));
    assert_eq!(
        modems.collect::<Vec<_>>(),
        [("hb-a", 0), ("hb-i", 1), ("hb-b", 0)]
    );
}

#[test]
fn a_fleet_with_a_mistake_starts_nowhere() {
    let text = CHAIN.replace("campuses = [\"b\"]\n", "");
    for node in ["hb-a", "hb-i", "hb-b"] {
        let report = of_box(&text, &named(node)).unwrap_err();
        assert!(
            report.contains("no box can reach the campus `b`"),
            "{report}"
        );
    }
}

#[test]
fn every_box_of_a_fleet_can_run_with_its_file() {
    for node in ["hb-a", "hb-i", "hb-b"] {
        let config = parse("pepd.toml", CHAIN, &named(node)).unwrap();
        assert!(!config.peers.is_empty(), "{node}");
    }
}

/// Returns a fleet in which every box has a campus of its own, so that every link is of use: a
/// random tree, and some more links.
fn fleet() -> impl Strategy<Value = (usize, Vec<[usize; 2]>)> {
    (2..12_usize)
        .prop_flat_map(|boxes| {
            let tree = prop::collection::vec(any::<prop::sample::Index>(), boxes - 1);
            let more = prop::collection::vec((0..boxes, 0..boxes), 0..15);
            (Just(boxes), tree, more)
        })
        .prop_map(|(boxes, tree, more)| {
            let tree = tree
                .iter()
                .enumerate()
                .map(|(index, to)| (index + 1, to.index(index + 1)));
            let mut seen = HashSet::new();
            let all = more
                .into_iter()
                .chain(tree)
                .filter(|(one, other)| one != other)
                .filter(|(one, other)| seen.insert([*one.min(other), *one.max(other)]))
                .map(|(one, other)| [one, other])
                .collect();
            (boxes, all)
        })
}

fn written(boxes: usize, links: &[[usize; 2]]) -> String {
    let mut text = String::new();
    for index in 0..boxes {
        write!(
            text,
            "[[campus]]\nname = \"c{index}\"\nprefixes = [\"10.{index}.0.0/16\"]\n\
             [[box]]\nname = \"b{index}\"\naddress = \"192.0.2.{}\"\ncampuses = [\"c{index}\"]\n",
            index + 1
        )
        .unwrap();
    }
    for [one, other] in links {
        writeln!(text, "[[link]]\nboxes = [\"b{one}\", \"b{other}\"]").unwrap();
    }
    text
}

/// How many links the shortest way has, counted outwards from one box.
fn fewest(boxes: usize, links: &[[usize; 2]], from: usize, to: usize) -> usize {
    let mut reached = HashSet::from([from]);
    for distance in 0..boxes {
        if reached.contains(&to) {
            return distance;
        }
        let further: Vec<usize> = links
            .iter()
            .filter_map(
                |[one, other]| match (reached.contains(one), reached.contains(other)) {
                    (true, false) => Some(*other),
                    (false, true) => Some(*one),
                    _ => None,
                },
            )
            .collect();
        reached.extend(further);
    }
    panic!("{from} and {to} are not connected");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every box follows its own table, as the kernel does with a packet.
    #[test]
    fn every_campus_reaches_every_other_through_the_fewest_boxes((boxes, links) in fleet()) {
        let configs = all(&written(boxes, &links));
        for from in 0..boxes {
            for to in 0..boxes {
                let mut here = from;
                let mut crossed = Vec::new();
                while let Via::Peer(peer) = configs[here].campuses[to].via {
                    crossed.push(here);
                    let peer = &configs[here].peers[peer.0];
                    let there = configs
                        .iter()
                        .position(|config| config.node.name == peer.name)
                        .expect("a peer is a box");
                    // The other end of the same tunnel.
                    let other_end = configs[there].peers.iter().any(|back| {
                        (back.local, back.remote) == (peer.remote, peer.local)
                            && back.name == configs[here].node.name
                    });
                    prop_assert!(other_end, "no other end");
                    prop_assert!(!crossed.contains(&there), "a loop");
                    here = there;
                }
                prop_assert_eq!(here, to);
                prop_assert_eq!(crossed.len(), fewest(boxes, &links, from, to));
            }
        }
    }
}
