//! What a valid file comes to.

use std::net::IpAddr;
use std::time::Duration;

use pepd_packet::SourcePrefix;
use rstest::rstest;

use super::{MINIMAL, context, with};
use crate::{
    Action, Admin, CampusId, Config, Congestion, Context, Dscp, Handshake, Keepalive, LegId,
    Limits, LinkSource, MacAddress, Mark, MarkMask, MarkValue, Modem, Rate, Size, Table, Via,
    WhileGone, parse,
};

fn parsed(text: &str) -> Config {
    parse("pepd.toml", text, &context()).unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn defaults() {
    let config = parsed(MINIMAL);
    assert_eq!(config.node.name, "hb-a");
    assert_eq!(config.node.workers, None);
    assert_eq!(config.node.drain, Duration::from_secs(30));
    assert_eq!(config.capture.port, 7300);
    assert_eq!(config.capture.handshake, Handshake::EndToEnd);
    assert_eq!(
        config.capture.mark,
        Mark {
            value: MarkValue(0x7000_0000),
            mask: MarkMask(0x7000_0000)
        }
    );
    assert_eq!(config.capture.table, Table(7300));
    let limits = Limits {
        connections: 8000,
        connections_per_source: 1000,
        pending: 1024,
        memory: None,
        ipv6_source_prefix: SourcePrefix::NETWORK,
    };
    assert_eq!(config.limits, limits);
    assert_eq!(config.admin, Admin::default());
    assert!(config.peers.is_empty() && config.rules.is_empty());
    assert!(
        config
            .campuses
            .iter()
            .all(|campus| campus.via == Via::Local)
    );

    let [default] = config.legs.as_slice() else {
        panic!("one leg: {:?}", config.legs)
    };
    assert!(config.campuses.iter().all(|campus| campus.leg == LegId(0)));
    assert_eq!(default.name, "default");
    assert_eq!(default.congestion, None);
    assert_eq!(default.buffer, None);
    let (idle, interval) = (Duration::from_secs(120), Duration::from_secs(60));
    assert_eq!(
        default.keepalive,
        Keepalive {
            idle,
            interval,
            count: 15
        }
    );
    assert_eq!(default.dscp, Dscp::Copy);
    assert!(!default.fast_open && !default.thin);
}

/// One rule is enough, whatever the default is; a rule that answers at once takes nothing away.
#[rstest]
#[case::by_default("", true)]
#[case::nowhere("[capture]\nhandshake = \"early\"\n", false)]
#[case::by_one_rule(
    "[capture]\nhandshake = \"early\"\n[[rule]]\naction = \"split\"\nhandshake = \"end-to-end\"\n",
    true
)]
#[case::but_for_one_rule("[[rule]]\naction = \"split\"\nhandshake = \"early\"\n", true)]
fn whether_syns_are_held(#[case] more: &str, #[case] held: bool) {
    assert_eq!(parsed(&with(more)).holds_syns(), held);
}

/// What holds ACKs holds no SYNs: the connection is routed.
#[rstest]
#[case::by_default("", false)]
#[case::by_a_rule("[[rule]]\naction = \"hold-acks\"\n", true)]
#[case::by_the_last_of_them(
    "[[rule]]\ndestination_port = [22]\naction = \"bypass\"\n[[rule]]\naction = \"hold-acks\"\n",
    true
)]
fn whether_acks_are_held(#[case] more: &str, #[case] held: bool) {
    let early = "[capture]\nhandshake = \"early\"\n";
    let config = parsed(&with(&format!("{early}{more}")));
    assert_eq!((config.holds_acks(), config.holds_syns()), (held, false));
}

/// The controls that send on whatever is lost have more under way than the kernel's maximum is made for.
#[rstest]
#[case::found("congestion = \"find-rate\"", Some(crate::Buffer::Auto))]
#[case::fixed(
    "congestion = \"fixed-rate\"\nrate = \"9Mbit\"",
    Some(crate::Buffer::Auto)
)]
#[case::given("congestion = \"find-rate\"\nbuffer = \"1MiB\"", Some(crate::Buffer::Size(Size(1 << 20))))]
#[case::chosen("congestion = \"auto\"", Some(crate::Buffer::Auto))]
#[case::the_kernels("congestion = \"bbr\"", None)]
fn whose_buffers_are_found_unasked(#[case] keys: &str, #[case] buffer: Option<crate::Buffer>) {
    let text = MINIMAL.replace("name = \"b\"", "name = \"b\"\nleg = \"space\"");
    let config = parsed(&format!("{text}\n[leg.space]\n{keys}\n"));
    assert_eq!(config.leg(config.campuses[1].leg).buffer, buffer);
}

#[test]
fn every_key_of_a_leg() {
    let text = MINIMAL.replace("name = \"b\"", "name = \"b\"\nleg = \"space\"");
    let leg = r#"
        [leg.space]
        congestion = "bbr"
        buffer = "16MiB"
        rate = "1.5Gbit"
        fast_open = true
        initial_window = "auto"
        mss = 1400
        user_timeout = "1500ms"
        rto_max = "5s"
        keepalive = { idle = "60s", count = 6 }
        dscp = 46
        thin = true
        notsent_lowat = "128KiB"
        connect_timeout = "30s"
        link = { interface = "wwan0" }
        while_gone = "route"
    "#;
    let config = parsed(&(text + leg));
    let leg = config.leg(config.campuses[1].leg);
    assert_eq!(leg.name, "space");
    assert_eq!(leg.congestion, Some(Congestion::Kernel("bbr".into())));
    assert_eq!(leg.buffer, Some(crate::Buffer::Size(Size(16 << 20))));
    assert_eq!(leg.rate, Some(Rate(1_500_000_000)));
    assert_eq!(leg.initial_window, Some(crate::InitialWindow::Auto));
    assert_eq!(leg.mss, Some(1400));
    assert_eq!(leg.user_timeout, Some(Duration::from_millis(1500)));
    assert_eq!(leg.rto_max, Some(Duration::from_secs(5)));
    assert_eq!(leg.keepalive.idle, Duration::from_secs(60));
    assert_eq!(leg.keepalive.interval, Keepalive::default().interval);
    assert_eq!(leg.keepalive.count, 6);
    assert_eq!(leg.dscp, Dscp::Set(46));
    assert_eq!(leg.notsent_lowat, Some(Size(128 << 10)));
    assert_eq!(leg.connect_timeout, Duration::from_secs(30));
    assert_eq!(leg.link, Some(LinkSource::Interface("wwan0".into())));
    assert_eq!(leg.while_gone, WhileGone::Route);
    assert!(leg.fast_open && leg.thin);
    // Campus `a` names no leg, and the file has no `default`.
    assert_eq!(config.leg(config.campuses[0].leg).name, "default");
}

#[test]
fn modems() {
    let text = MINIMAL.replace("name = \"b\"", "name = \"b\"\nleg = \"space\"");
    let more = r#"
        [leg.space]
        link = { dlep = "modem" }
        [[dlep]]
        name = "modem"
        interface = "eth1"
    "#;
    let config = parsed(&format!("{text}{more}"));
    let by_default = Modem {
        name: "modem".into(),
        interface: Some("eth1".into()),
        address: None,
        port: 854,
        heartbeat: Duration::from_secs(5),
        destination: None,
        ttl_security: true,
    };
    assert_eq!(config.modems, [by_default]);
    let leg = config.leg(config.campuses[1].leg);
    assert_eq!(leg.link, Some(LinkSource::Dlep("modem".into())));
    let more = more.replace(
        "interface = \"eth1\"",
        "modem = \"192.0.2.10\"\nport = 8854\nheartbeat = \"250ms\"\n\
         destination = \"02-00-5E-10-00-01\"\nttl_security = false",
    );
    let as_given = Modem {
        name: "modem".into(),
        interface: None,
        address: Some([192, 0, 2, 10].into()),
        port: 8854,
        heartbeat: Duration::from_millis(250),
        destination: Some(MacAddress::Eui48([2, 0, 0x5e, 0x10, 0, 1])),
        ttl_security: false,
    };
    assert_eq!(parsed(&format!("{text}{more}")).modems, [as_given]);
}

#[test]
fn a_short_timer_leaves_the_kernels_patience() {
    let leg = |keys: &str| {
        let text = MINIMAL.replace("name = \"b\"", "name = \"b\"\nleg = \"space\"");
        let config = parsed(&format!("{text}\n[leg.space]\n{keys}\n"));
        config.leg(config.campuses[1].leg).user_timeout
    };
    assert_eq!(leg(""), None);
    assert_eq!(
        leg("rto_max = \"1s\""),
        Some(Duration::from_millis(924_600))
    );
    assert_eq!(
        leg("rto_max = \"1s\"\nuser_timeout = \"20s\""),
        Some(Duration::from_secs(20))
    );
}

#[test]
fn a_leg_named_default_is_the_default() {
    let config = parsed(&with("[leg.other]\n[leg.default]\nmss = 1000\n"));
    let names: Vec<_> = config.legs.iter().map(|leg| leg.name.as_str()).collect();
    assert_eq!(
        names,
        ["other", "default"],
        "in the order of the file, none added"
    );
    assert_eq!(config.leg(config.campuses[0].leg).mss, Some(1000));
}

#[test]
fn rules_keep_their_order_and_ports() {
    let config = parsed(&with(
        r#"
        [[rule]]
        source = ["10.1.9.0/24"]
        destination_port = [443, "8000-8100", 22]
        action = "bypass"
        [[rule]]
        source = ["10.1.0.0/16"]
        action = "split"
        [[rule]]
        action = "bypass"
        "#,
    ));
    assert_eq!(
        config.rules[0].destination_port,
        [443..=443, 8000..=8100, 22..=22]
    );
    assert_eq!(config.rules[0].source, ["10.1.9.0/24".parse().unwrap()]);
    let actions: Vec<_> = config.rules.iter().map(|rule| rule.action).collect();
    assert_eq!(actions, [Action::Bypass, Action::Split, Action::Bypass]);
}

/// A campus inside another's prefix is no overlap: the longest prefix wins.
#[rstest]
#[case("10.1.200.3", Some(2))]
#[case("10.1.3.3", Some(0))]
#[case("10.2.3.3", Some(1))]
#[case("192.0.2.1", None)]
#[case("::ffff:10.1.3.3", None)]
fn nested_campuses(#[case] address: IpAddr, #[case] campus: Option<usize>) {
    let config = parsed(&with(
        "[[campus]]\nname = \"c\"\nprefixes = [\"10.1.200.0/24\"]\n",
    ));
    assert_eq!(config.campus_of(address), campus.map(CampusId));
}

#[test]
fn a_low_total_lowers_the_default_per_source() {
    assert_eq!(
        parsed(&with("[limits]\nconnections = 100\n"))
            .limits
            .connections_per_source,
        100
    );
}

#[test]
fn a_port_beside_the_ephemeral_range_is_fine() {
    for port in [32767, 61000] {
        assert_eq!(
            parsed(&with(&format!("[capture]\nport = {port}\n")))
                .capture
                .port,
            port
        );
    }
    let context = Context {
        ephemeral_ports: 1024..=2000,
        ..context()
    };
    assert!(parse("pepd.toml", MINIMAL, &context).is_ok());
}

#[test]
fn a_congestion_control_may_be_chosen_by_the_daemon() {
    let text = with("[leg.lan]\ncongestion = \"auto\"\nshare = \"source\"\n");
    let config = parsed(&text);
    assert_eq!(config.legs[0].congestion, Some(Congestion::Auto));
    assert_eq!(Congestion::Auto.as_str(), "auto");
    assert!(!Congestion::Auto.is_own());
}
