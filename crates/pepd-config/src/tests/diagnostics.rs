//! Every message, as the operator sees it. The snapshots are beside this file.

use std::io::{Error, ErrorKind};

use insta::assert_snapshot;
// rstest's `#[context]` needs its `Context` under this very name.
use rstest::{Context, rstest};

use super::{context, refusal, with};
use crate::{Report, parse};

/// What is wrong in the file as such.
#[rstest]
#[case::empty_file("")]
#[case::syntax_unclosed_table("[node\nname = \"hb-a\"\n")]
#[case::syntax_unquoted_string("[node]\nname = hb-a\n")]
#[case::syntax_duplicate_key("[node]\nname = \"a\"\nname = \"b\"\n")]
#[case::syntax_two_lines("[node]\nname = \nworkers = \"\n")]
#[case::syntax_duplicate_leg("[leg.lan]\n[leg.lan]\n")]
#[case::byte_order_mark_and_crlf(
    "\u{feff}[node]\r\n\tnam = \"hb-a\"\r\n[[campus]]\r\n[[campus]]\r\n"
)]
#[case::control_characters("[node]\nname = \"\\u001b[31m\\nred\"\n[[campus]]\n[[campus]]\n")]
fn whole_file(#[context] case: Context, #[case] text: &str) {
    snapshot(&case, &refusal(text));
}

/// What is wrong with the other boxes.
#[rstest]
#[case::neighbor_is_this_box(
    "[move]\nlisten = \"10.9.0.2:7310\"\n[[neighbor]]\nname = \"hb-b\"\naddress = \"10.9.0.2:7310\"\nkey = \"/k\"\n"
)]
#[case::neighbors_share_a_key(
    "[[neighbor]]\nname = \"hb-b\"\naddress = \"10.9.0.2:7310\"\nkey = \"/k\"\n[[neighbor]]\nname = \"hb-c\"\naddress = \"10.9.0.3:7310\"\nkey = \"/k\"\n"
)]
#[case::neighbors_share_an_address(
    "[[neighbor]]\nname = \"hb-b\"\naddress = \"10.9.0.2:7310\"\nkey = \"/k\"\n[[neighbor]]\nname = \"hb-c\"\naddress = \"10.9.0.2:7310\"\nkey = \"/l\"\n"
)]
#[case::moves_come_to_the_metrics(
    "[admin]\nmetrics = \"10.9.0.1:9730\"\n[move]\nlisten = \"10.9.0.1:9730\"\n[[neighbor]]\nname = \"hb-b\"\naddress = \"10.9.0.2:7310\"\nkey = \"/k\"\n"
)]
#[case::moves_come_to_the_captured_port(
    "[move]\nlisten = \"10.9.0.1:7300\"\n[[neighbor]]\nname = \"hb-b\"\naddress = \"10.9.0.2:7310\"\nkey = \"/k\"\n"
)]
fn neighbors(#[context] case: Context, #[case] more: &str) {
    snapshot(&case, &refusal(&with(more)));
}

/// What is wrong in lines that follow a valid file, or in the one that is complete itself.
#[rstest]
#[case::unknown_section("[limit]\nconnections = 5\n")]
#[case::unknown_key_near("[leg.lan]\ncongestoin = \"bbr\"\n")]
#[case::unknown_key_elsewhere("[capture]\nmss = 1400\n")]
#[case::unknown_key("[capture]\nspeed = 11\n")]
#[case::wrong_type_number("[capture]\nport = \"7300\"\ntable = true\n")]
#[case::wrong_type_unit("[leg.lan]\nbuffer = 8388608\nrate = 5.5\nuser_timeout = 120\n")]
#[case::wrong_type_boolean("[leg.lan]\nthin = \"yes\"\n")]
#[case::wrong_type_section("[[limits]]\nconnections = 5\n")]
#[case::wrong_type_all_legs("[[leg]]\nname = \"lan\"\n")]
#[case::via_without_peers(
    "[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nvia = \"hb-i\"\n"
)]
#[case::wrong_type_legs("[leg]\ncongestion = \"bbr\"\nlan = 3\n")]
#[case::missing_keys("[[campus]]\nvia = \"local\"\n[[rule]]\n")]
#[case::port_zero("[capture]\nport = 0\n")]
#[case::port_ephemeral("[capture]\nport = 40000\n")]
#[case::port_too_large("[capture]\nport = 70000\n")]
#[case::handshake_unknown("[capture]\nhandshake = \"late\"\n")]
#[case::split_unknown("[capture]\nsplit = \"never\"\n")]
#[case::mark_outside_mask("[capture]\nmark = \"0x30000000/0x10000000\"\n")]
#[case::mark_zero_mask("[capture]\nmark = \"0x0/0x0\"\n")]
#[case::mark_zero_value("[capture]\nmark = \"0x0/0xff\"\n")]
#[case::mark_narrow("[capture]\nmark = \"0x3/0x3\"\n")]
#[case::mark_narrow_for_acks(
    "[capture]\nmark = \"0x3/0x3\"\nhandshake = \"early\"\n[[rule]]\naction = \"hold-acks\"\n"
)]
#[case::mark_without_mask("[capture]\nmark = \"0x7\"\n")]
#[case::table_reserved("[capture]\ntable = 254\n")]
#[case::table_zero("[capture]\ntable = 0\n")]
#[case::limits_zero(
    "[limits]\nconnections = 0\nconnections_per_source = -1\nipv6_source_prefix = 0\n"
)]
#[case::share_zero("[measure]\nunsplit = \"0%\"\n")]
#[case::share_malformed("[measure]\nunsplit = \"one percent\"\n")]
#[case::share_off_for_auto("[measure]\nunsplit = \"off\"\n[capture]\nsplit = \"auto\"\n")]
#[case::share_without_unit("[measure]\nunsplit = 1\nsplit = \"1%\"\n")]
#[case::log_format("[log]\nformat = \"xml\"\nconnections = -1\n")]
#[case::limits_absurd("[limits]\nconnections = 99999999999999999999999999999999999999999999\n")]
#[case::wrong_type_leg(
    "[leg.lan]\n[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nleg = 5\n"
)]
#[case::size_zero("[leg.lan]\nbuffer = \"0\"\n")]
#[case::size_absurd("[leg.lan]\nbuffer = \"20TiB\"\nnotsent_lowat = \"1B\"\n")]
#[case::buffer_misspelt("[leg.lan]\nbuffer = \"automatic\"\n")]
#[case::find_rate_in_one_word("[leg.lan]\ncongestion = \"findrate\"\nshare = \"source\"\n")]
#[case::initial_window_misspelt("[leg.lan]\ninitial_window = \"automatic\"\n")]
#[case::initial_window_of_an_own_control(
    "[leg.lan]\ncongestion = \"find-rate\"\ninitial_window = \"auto\"\n"
)]
#[case::memory_absurd("[limits]\nmemory = \"1MiB\"\n")]
#[case::size_malformed("[leg.lan]\nbuffer = \"8 bananas\"\n")]
#[case::rate_zero("[leg.lan]\nrate = \"0Mbit\"\n")]
#[case::rate_absurd("[leg.lan]\nrate = \"5000Tbit\"\n")]
#[case::rate_malformed("[leg.lan]\nrate = \"50Mbps\"\n")]
#[case::time_zero("[leg.lan]\nuser_timeout = \"0s\"\nconnect_timeout = \"0s\"\n")]
#[case::time_absurd("[leg.lan]\nuser_timeout = \"3years\"\n")]
#[case::time_beyond_the_kernels("[leg.lan]\nrto_max = \"3min\"\n")]
#[case::time_malformed("[leg.lan]\nuser_timeout = \"120\"\n")]
#[case::time_too_fine(
    "[leg.lan]\nkeepalive = { idle = \"1500ms\", interval = \"10s\" }\nuser_timeout = \"1s 1us\"\n"
)]
#[case::keepalive_count("[leg.lan]\nkeepalive = { count = 0, tries = 3 }\n")]
#[case::mss_absurd("[leg.lan]\nmss = 87\n[leg.wan]\nmss = 40000\n")]
#[case::dscp_too_large("[leg.lan]\ndscp = 64\n[leg.wan]\ndscp = \"EF\"\n")]
#[case::congestion_name(
    "[leg.lan]\ncongestion = \"BBR\"\n[leg.wan]\ncongestion = \"a name of many words\"\n"
)]
#[case::fixed_rate_without_rate("[leg.lan]\nbuffer = \"8MiB\"\ncongestion = \"fixed-rate\"\n")]
#[case::find_rate_misspelt("[leg.lan]\ncongestion = \"find_rate\"\n")]
#[case::fixed_rate_misspelt("[leg.lan]\ncongestion = \"Fixed_Rate\"\nrate = \"5Mbit\"\n")]
#[case::link_of_two(
    "[leg.lan]\nlink = { interface = \"eth0\", peer = \"hb-i\" }\n[leg.wan]\nlink = {}\n"
)]
#[case::share_unknown("[leg.lan]\ncongestion = \"find-rate\"\nshare = \"user\"\n")]
#[case::share_of_nothing("[leg.lan]\ncongestion = \"cubic\"\nshare = \"source\"\n")]
#[case::rule_weight(
    "[leg.lan]\ncongestion = \"find-rate\"\n[[rule]]\naction = \"split\"\nweight = 17\n"
)]
#[case::rule_weight_bypass(
    "[leg.lan]\ncongestion = \"find-rate\"\n[[rule]]\naction = \"bypass\"\nweight = 2\n"
)]
#[case::rule_weight_of_nothing(
    "[leg.lan]\ncongestion = \"bbr\"\n[[rule]]\naction = \"split\"\nweight = 2\n"
)]
#[case::while_gone("[leg.lan]\nwhile_gone = \"later\"\n")]
#[case::link_unknown_peer("[leg.lan]\nlink = { peer = \"hb-i\" }\n")]
#[case::link_unprobed_peer(
    "[leg.lan]\nlink = { peer = \"hb-i\" }\n[[peer]]\nname = \"hb-i\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nprobe = \"off\"\n"
)]
#[case::link_interface(
    "[leg.lan]\nlink = { interface = \"a name of many words\" }\n[leg.wan]\nlink = \"eth0\"\n"
)]
#[case::dlep_unknown("[leg.lan]\nlink = { dlep = \"modem\" }\n")]
#[case::dlep_unknown_near(
    "[leg.lan]\nlink = { dlep = \"moden\" }\n[[dlep]]\nname = \"modem\"\ninterface = \"eth1\"\n"
)]
#[case::dlep_twice(
    "[leg.lan]\nlink = { dlep = \"modem\" }\n[[dlep]]\nname = \"modem\"\ninterface = \"eth1\"\n[[dlep]]\nname = \"modem\"\nmodem = \"192.0.2.10\"\n"
)]
#[case::dlep_missing_keys(
    "[leg.lan]\nlink = { dlep = \"modem\" }\n[[dlep]]\n[[dlep]]\nname = \"modem\"\n"
)]
#[case::dlep_values(
    "[leg.lan]\nlink = { dlep = \"modem\" }\n[[dlep]]\nname = \"modem\"\ninterface = \"a b\"\nmodem = \"224.0.0.117\"\nport = 0\nheartbeat = \"1ms\"\ndestination = \"02:00\"\n"
)]
#[case::dlep_link_local(
    "[leg.lan]\nlink = { dlep = \"modem\" }\n[[dlep]]\nname = \"modem\"\nmodem = \"fe80::1\"\n"
)]
#[case::dlep_port_of_none(
    "[leg.lan]\nlink = { dlep = \"modem\" }\n[[dlep]]\nname = \"modem\"\ninterface = \"eth1\"\nport = 8854\n"
)]
#[case::leg_name("[leg.\"to space!\"]\n")]
#[case::leg_unknown_near(
    "[leg.lan]\n[leg.satellite]\n[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nleg = \"satelite\"\n"
)]
#[case::leg_unknown(
    "[leg.lan]\n[leg.satellite]\n[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nleg = \"radio\"\n"
)]
#[case::leg_unknown_and_none(
    "[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\"]\nleg = \"radio\"\n"
)]
#[case::campus_duplicate_name("[[campus]]\nname = \"a\"\nprefixes = [\"10.3.0.0/16\"]\n")]
#[case::campus_empty_name("[[campus]]\nname = \"\"\nprefixes = [\"10.3.0.0/16\"]\n")]
#[case::prefix_twice_in_one(
    "[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\", \"10.3.0.0/16\"]\n"
)]
#[case::prefix_in_two("[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/16\", \"10.1.0.0/16\"]\n")]
#[case::prefix_redundant(
    "[[campus]]\nname = \"c\"\nprefixes = [\"10.3.7.0/24\", \"10.3.0.0/16\", \"10.3.9.0/24\"]\n"
)]
#[case::prefix_host_bits(
    "[[campus]]\nname = \"c\"\nprefixes = [\"10.3.2.3/16\", \"2001:db8::1/32\"]\n"
)]
#[case::prefix_no_length("[[campus]]\nname = \"c\"\nprefixes = [\"10.3.2.3\"]\n")]
#[case::prefix_length("[[campus]]\nname = \"c\"\nprefixes = [\"10.3.0.0/33\"]\n")]
#[case::prefix_malformed("[[campus]]\nname = \"c\"\nprefixes = [\"office\", 10]\n")]
#[case::prefix_none("[[campus]]\nname = \"c\"\nprefixes = []\n")]
#[case::rule_families(
    "[[rule]]\nsource = [\"10.1.0.0/24\"]\ndestination = [\"2001:db8::/32\"]\naction = \"bypass\"\n"
)]
#[case::rule_shadowed(
    "[[rule]]\nsource = [\"10.1.0.0/16\"]\naction = \"bypass\"\n[[rule]]\nsource = [\"10.1.4.0/24\"]\ndestination_port = [22]\naction = \"split\"\n"
)]
#[case::rule_ports_reversed("[[rule]]\ndestination_port = [\"8100-8000\"]\naction = \"bypass\"\n")]
#[case::rule_ports_overlap(
    "[[rule]]\ndestination_port = [8080, \"8000-8100\"]\naction = \"bypass\"\n"
)]
#[case::rule_ports_malformed(
    "[[rule]]\ndestination_port = [0, \"80\", \"1-99999\", true]\naction = \"bypass\"\n"
)]
#[case::rule_ports_not_a_list("[[rule]]\ndestination_port = 22\naction = \"bypass\"\n")]
#[case::rule_action("[[rule]]\naction = \"drop\"\n")]
#[case::rule_campus_unknown(
    "[[campus]]\nname = \"office\"\nprefixes = [\"10.3.0.0/16\", \"10.4.0.0/16\"]\n[[rule]]\nsource = [\"ofice\"]\naction = \"bypass\"\n"
)]
fn appended(#[context] case: Context, #[case] lines: &str) {
    snapshot(&case, &refusal(&with(lines)));
}

/// What is wrong with `[node]`, in an otherwise valid file.
#[rstest]
#[case::node_empty_name("name = \"\"")]
#[case::node_bad_name("name = \"höhe 7\"")]
#[case::node_long_name("name = \"a-name-that-goes-on-and-on-and-on-for-ever\"")]
#[case::node_no_name("drain = \"30s\"")]
#[case::node_absurd("name = \"a\"\nworkers = 100000\ndrain = \"2h\"")]
fn node(#[context] case: Context, #[case] keys: &str) {
    snapshot(&case, &refusal(&with("").replace("name = \"hb-a\"", keys)));
}

#[test]
fn node_missing() {
    assert_snapshot!(refusal(&with("").replace("[node]\nname = \"hb-a\"\n", "")));
}

#[test]
fn one_campus() {
    let text = with("");
    let (one, _) = text.rsplit_once("[[campus]]").unwrap();
    assert_snapshot!(refusal(one));
}

#[test]
fn campus_is_a_table() {
    assert_snapshot!(refusal("[node]\nname = \"a\"\n[campus]\nname = \"b\"\n"));
}

/// The default port is in the range of a host that has moved it.
#[test]
fn port_default_ephemeral() {
    let context = crate::Context {
        ephemeral_ports: 1024..=65535,
        ..context()
    };
    let report = parse("pepd.toml", &with(""), &context).unwrap_err();
    assert_snapshot!(report.to_string());
}

#[test]
fn several_problems_at_once() {
    let text = with("[leg.lan]\nbufer = \"8MiB\"\nmss = 3\n[capture]\nport = 0\n");
    let report = refusal(&text);
    assert_eq!(report.matches("error: ").count(), 3);
    assert_snapshot!(report);
}

/// The parser has one on each line after it.
#[test]
fn a_list_that_is_not_closed_is_one_problem() {
    let text = with("").replacen("\"]", "\"", 1);
    assert_ne!(text, with(""));
    let report = refusal(&text);
    assert_eq!(report.matches("error: ").count(), 1, "{report}");
    assert!(
        report.contains("close the list that begins above"),
        "{report}"
    );
}

#[test]
fn very_many_problems_are_counted() {
    let text: String = (0..1000)
        .map(|number| format!("key{number} = 1\n"))
        .collect();
    let report = refusal(&text);
    assert_eq!(report.matches("error: ").count(), 51);
    // Those keys, and neither `[node]` nor `[[campus]]`.
    assert!(
        report.ends_with("and 952 more problems in pepd.toml"),
        "{report}"
    );
}

#[test]
fn too_many_legs() {
    let legs = |count| {
        (0..count)
            .map(|number| format!("[leg.l{number}]\n"))
            .collect::<String>()
    };
    assert!(parse("pepd.toml", &with(&legs(249)), &context()).is_ok());
    assert_snapshot!(refusal(&with(&legs(251))));
}

#[test]
fn in_colour() {
    let report = parse("pepd.toml", &with("[capture]\nport = 0\n"), &context()).unwrap_err();
    let (plain, coloured) = (report.render(false), report.render(true));
    assert!(!plain.contains('\u{1b}'));
    assert!(coloured.contains("\u{1b}["));
    assert_eq!(plain, report.to_string());
}

#[rstest]
#[case::unreadable_missing("/etc/pepd/pepd.toml", ErrorKind::NotFound.into())]
#[case::unreadable_directory("/etc/pepd/", ErrorKind::IsADirectory.into())]
#[case::unreadable_permission("/etc/pepd/pepd.toml", ErrorKind::PermissionDenied.into())]
#[case::unreadable_binary("/bin/true", ErrorKind::InvalidData.into())]
// ENODEV, for which every C library has the same words.
#[case::unreadable_otherwise("/etc/pepd/pepd.toml", Error::from_raw_os_error(19))]
fn unreadable(#[context] case: Context, #[case] origin: &str, #[case] error: Error) {
    snapshot(&case, &Report::unreadable(origin, &error).to_string());
}

/// Under the name of the case: a number would change with every case put in between.
pub(super) fn snapshot(case: &Context, report: &str) {
    assert_snapshot!(case.description.expect("each case has a name"), report);
}
