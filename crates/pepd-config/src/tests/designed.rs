//! The file of the design, with every key that there is.

use std::time::Duration;

use rstest::{Context, rstest};

use super::{designed, with};
use crate::{
    AdminSocket, Handshake, InitialWindow, IpNet, LinkSource, Log, LogFormat, PeerId, Tos, Via,
    keys,
};

/// The file in the design, with every key that there is.
const DESIGNED: &str = r#"
[node]
name = "hb-a"
workers = 0
drain = "30s"

[capture]
port = 7300
handshake = "end-to-end"
mark = "0x70000000/0x70000000"
table = 7300

[limits]
connections = 8000
connections_per_source = 1000
pending = 1024
ipv6_source_prefix = 64

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16", "fd00:a::/48"]
via = "local"
leg = "lan"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16", "fd00:b::/48"]
via = "hb-i"
leg = "satellite"

[[campus]]
name = "c"
prefixes = ["10.3.0.0/16"]
via = "routing"
leg = "satellite"

[[peer]]
name = "hb-i"
local = "192.0.2.1"
remote = "198.51.100.1"
inside = ["10.255.0.1/30", "fd00:ffff::1/64"]
mtu = 1480
ttl = 32
tos = 184
keep = true

[leg.lan]
congestion = "cubic"

[leg.satellite]
congestion = "bbr"
buffer = "16MiB"
rate = "50Mbit"
fast_open = true
initial_window = 32
mss = 1400
user_timeout = "120s"
rto_max = "5s"
keepalive = { idle = "60s", interval = "10s", count = 6 }
dscp = "copy"
thin = true
notsent_lowat = "128KiB"
connect_timeout = "60s"
link = { peer = "hb-i" }

[[rule]]
source = ["10.1.9.0/24"]
destination = ["10.2.0.0/16"]
destination_port = [22, "8000-8100"]
action = "split"
handshake = "early"

[admin]
socket = "/run/pepd/admin.sock"
group = "netadmin"
metrics = "127.0.0.1:9730"
names = ["hb-a.example.net"]

[log]
format = "json"
connections = 100
"#;

#[test]
fn the_designed_file_is_valid() {
    let config = designed(DESIGNED).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(config.capture.handshake, Handshake::EndToEnd);
    assert_eq!(config.rules[0].handshake, Some(Handshake::Early));
    assert_eq!(config.campuses[1].via, Via::Peer(PeerId(0)));
    assert_eq!(config.campuses[2].via, Via::Routing);
    assert_eq!(
        config.leg(config.campuses[1].leg).initial_window,
        Some(InitialWindow::Segments(32))
    );
    assert_eq!(config.limits.pending, 1024);
    let link = &config.leg(config.campuses[1].leg).link;
    assert_eq!(link, &Some(LinkSource::Peer("hb-i".into())));
    let log = Log {
        format: Some(LogFormat::Json),
        connections: 100,
    };
    assert_eq!(config.log, log);
    assert_eq!(
        config.admin.socket,
        AdminSocket::At("/run/pepd/admin.sock".into())
    );
    assert_eq!(config.admin.group.as_deref(), Some("netadmin"));
    assert_eq!(
        config.admin.metrics.map(|address| address.port()),
        Some(9730)
    );
    let peer = &config.peers[0];
    assert_eq!(
        (peer.mtu, peer.ttl, peer.tos, peer.keep),
        (Some(1480), Some(32), Tos::Set(184), true)
    );
    let inside: Vec<IpNet> = ["10.255.0.1/30", "fd00:ffff::1/64"]
        .map(|net| net.parse().unwrap())
        .to_vec();
    assert_eq!(peer.inside, inside);
    assert_eq!(
        config.rules[0].destination,
        ["10.2.0.0/16".parse::<IpNet>().unwrap()]
    );
}

/// A routing daemon may choose any of the peers.
#[test]
fn with_routing_no_peer_is_unused() {
    let routing = "[[campus]]\nname = \"c\"\nprefixes = [\"10.7.0.0/16\"]\nvia = \"routing\"\n";
    let config = designed(&with(&format!("{PEER}{routing}"))).unwrap();
    // The daemon's packets have a TTL of 1, which the outer ones are not to inherit.
    assert_eq!(config.peers[0].ttl, Some(64));
    assert!(designed(&with(PEER)).is_err());
    let config = designed(&with(&format!("{PEER}{BEHIND}"))).unwrap();
    assert_eq!(config.peers[0].ttl, None);
}

#[rstest]
#[case::by_default("", false)]
#[case::as_given("reverse_path_filter = true\n", true)]
fn reverse_path_filters(#[case] line: &str, #[case] expected: bool) {
    let config = designed(&with(&format!("{PEER}{line}{BEHIND}"))).unwrap();
    assert_eq!(config.peers[0].reverse_path_filter, expected);
}

#[rstest]
#[case::by_default("", Some(Duration::from_secs(5)))]
#[case::as_given("probe = \"250ms\"\n", Some(Duration::from_millis(250)))]
#[case::off("probe = \"off\"\n", None)]
fn probes(#[case] line: &str, #[case] every: Option<Duration>) {
    let config = designed(&with(&format!("{PEER}{line}{BEHIND}"))).unwrap();
    assert_eq!(config.peers[0].probe, every);
}

/// A key that is listed but not read, or read but not listed, would show here.
#[test]
fn every_listed_key_is_read() {
    for (title, keys) in keys::ALL {
        for key in *keys {
            let text = with(&format!("{title}\n{key} = 1979-05-27\n"))
                .replace("[node]\nname = \"hb-a\"\n\n[[campus]]", "[[campus]]");
            let report = designed(&text).expect_err(key);
            assert!(
                report.contains(&format!("`{key}` must be ")),
                "{title} {key}:\n{report}"
            );
        }
    }
}

const PEER: &str = "[[peer]]\nname = \"hb-i\"\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.1\"\n";

/// A peer without a campus behind it would be a problem of its own.
const BEHIND: &str =
    "[[campus]]\nname = \"behind\"\nprefixes = [\"10.7.0.0/16\"]\nvia = \"hb-i\"\n";

/// Returns a peer with these addresses inside its tunnel, and a campus behind it.
fn inside(addresses: &str) -> String {
    format!(
        "[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.9\"\n\
         inside = [{addresses}]\n\
         [[campus]]\nname = \"c\"\nprefixes = [\"10.8.0.0/16\"]\nvia = \"x\"\n"
    )
}

#[rstest]
#[case::peer_is_this_box("[[peer]]\nname = \"x\"\nlocal = \"192.0.2.2\"\nremote = \"192.0.2.1\"\n")]
#[case::inside_without_length(&inside("\"10.255.0.1\", \"fd00::1\""))]
#[case::inside_malformed(&inside("\"10.255.0.1/33\", \"here\", 5"))]
#[case::inside_not_a_host(&inside("\"10.255.0.0/30\", \"10.255.1.3/30\", \"fe80::1/64\""))]
#[case::inside_overlap(&inside("\"10.255.0.1/24\", \"10.255.0.5/31\""))]
#[case::peer_unused("[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.9\"\n")]
#[case::peer_missing_keys("[[peer]]\n")]
#[case::peer_to_itself("[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.1\"\n")]
#[case::peer_families("[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"2001:db8::1\"\n")]
#[case::peer_shared_remote(
    "[[peer]]\nname = \"hb-j\"\nlocal = \"192.0.2.1\"\nremote = \"198.51.100.1\"\n"
)]
#[case::peer_duplicate_name(
    "[[peer]]\nname = \"hb-i\"\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.1\"\n"
)]
#[case::peer_long_name(
    "[[peer]]\nname = \"helper-box-i\"\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.1\"\n"
)]
#[case::peer_reserved_name(
    "[[peer]]\nname = \"routing\"\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.1\"\n"
)]
#[case::peer_addresses(
    "[[peer]]\nname = \"x\"\nlocal = \"0.0.0.0\"\nremote = \"224.0.0.1\"\n[[peer]]\nname = \"y\"\nlocal = \"fe80::1\"\nremote = \"there\"\n"
)]
#[case::peer_numbers(
    "[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.1\"\nmtu = 68\nttl = 0\ntos = 3\n"
)]
#[case::peer_tos(
    "[[peer]]\nname = \"x\"\nlocal = \"192.0.2.1\"\nremote = \"203.0.113.1\"\ntos = \"EF\"\n"
)]
#[case::peer_unknown_near(
    "[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nvia = \"hb-j\"\n"
)]
#[case::peer_unknown("[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nvia = \"tunnel7\"\n")]
#[case::initial_window_zero("[leg.lan]\ninitial_window = 0\n")]
#[case::pending_absurd("[limits]\npending = 100000\n")]
#[case::rule_handshake_bypass("[[rule]]\naction = \"bypass\"\nhandshake = \"early\"\n")]
#[case::rule_handshake_hold_acks("[[rule]]\naction = \"hold-acks\"\nhandshake = \"early\"\n")]
#[case::admin_socket_relative("[admin]\nsocket = \"admin.sock\"\n")]
#[case::admin_socket_long(
    "[admin]\nsocket = \"/run/a-name-that-goes-on-and-on/and-on-and-on-and-on-and-on/and-on-and-on-and-on-and-on/and-on-and-on-for-ever\"\n"
)]
#[case::admin_group("[admin]\ngroup = \"net admin\"\n")]
#[case::admin_names("[admin]\nnames = [\"hb-a.example.net:9730\"]\n")]
#[case::admin_metrics("[admin]\nmetrics = \"localhost:9730\"\n")]
fn below_the_refusal(#[context] case: Context, #[case] lines: &str) {
    super::diagnostics::snapshot(
        &case,
        &designed(&with(&format!("{PEER}{lines}{BEHIND}"))).unwrap_err(),
    );
}
