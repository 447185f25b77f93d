//! Which tests run where. Each filter is part of a `target::test`, or several parts.
//!
//! The gate has to end within an hour on a slow machine, and an emulated machine takes some ten
//! seconds for a test. So of each thing one test is in the gate, and the others of the same thing are
//! in the long form, as is what a guest on a busy machine has no time for before a client gives up.
//! `cargo xtask vm --tests` runs everything in the guest, which takes hours.

/// The tests of the daemon that the long form alone runs here: what they judge is the kernel's own
/// routing, without pepd.
pub const NOT_HERE: &[&str] = &["Via__Routing"];

/// Those of the testbed that the long form alone runs: they boot guests to compare them, for minutes each.
pub const TESTBEDS_LONG: &[&str] = &["netem::"];

/// The tests that run in the guest kernel, too: of each thing that its nft, TPROXY, `queue` and TCP
/// might do differently one, and those that need tunnels, which other kernels may lack.
pub const IN_GUEST: &[&str] = &[
    "capture::firewall::the_rules_in_forward",
    "capture::nat::what_is_split",
    "handshake::connections::a_port",
    "handshake::connections::the_servers_syn",
    "handshake::held::a_held_syn Event__Kill",
    "handshake::routed::what_repeats_a_routed",
    "kernel::gate::it_opens",
    "kernel::hold::it_is_installed",
    "kernel::hold::the_plan",
    "kernel::hold::where_nft",
    "lifecycle::systemd::",
    "relay::fixed_rate::with::a_transfer false FIXED",
    "survival::deaths::whatever killed",
    "tunnels::chain::a_kept",
    "tunnels::chain::curl_both_ways ipv6_over_ipv4",
    "tunnels::fleet::one_file",
    "tunnels::guard::strangers",
    "tunnels::missing_modules",
    "tunnels::mss::no_black_hole outer_1_Family__V4",
    "tunnels::path::a_narrow_hop_on outer_2_Family__V6",
];

/// Those that the long form adds.
pub const IN_GUEST_LONG: &[&str] = &[
    "capture::asymmetric::answers",
    "capture::firewall::a_client_port",
    "capture::firewall::what_is_dropped case_2",
    "capture::nat::what_is_not_split",
    "capture::transparency::a_client_port",
    "capture::transparency::nginx",
    "capture::transparency::the_listener",
    "handshake::connections::data fast_open_1_true",
    "handshake::connections::nobody many_at_once",
    "handshake::errors::a_client",
    "handshake::errors::a_reset_right",
    "handshake::gate::a_destination Killed",
    "handshake::gate::what_repeats Closed__Full",
    "handshake::held::a_held_syn Event__Reload:",
    "limits::shortage::",
    "relay::fixed_rate::with::a_transfer false FIND",
    "relay::fixed_rate::with::killed true",
    "relay::late:: Via__Pepd Family__V4 By__Server",
    "survival::deaths::memory",
    "survival::deaths::without_its_keeper",
    "survival::half_way:: Family__V4",
    "survival::upgrade::connections",
    "tunnels::",
];

/// What of these tests is left to everybody's own kernel: how it routes without pepd, and of two
/// address families, or two ways to shake hands, the one whose rules are the other's. Of a tunnel's
/// two families those stay that differ from each other.
pub const NOT_IN_GUEST: &[&str] = &[
    "Via__Routing",
    "capture::asymmetric:: Family__V6",
    "capture::firewall:: Family__V6",
    "capture::firewall:: Via__Early",
    "capture::nat:: Family__V4",
    "capture::nat:: Via__Early",
    "capture::transparency:: Family__V6",
    "handshake:: Family__V6",
    "limits:: Family__V6",
    "tunnels:: outer_1_Family__V4::inner_1_Family__V4",
    "tunnels:: outer_2_Family__V6::inner_2_Family__V6",
    "tunnels::chain::a_killed_daemon Family__V6",
    "tunnels::chain::curl_both_ways ipv4_over_ipv4",
    "tunnels::chain::curl_both_ways ipv6_over_ipv6",
    "tunnels::fleet::a_peer_falls",
    "tunnels::guard::a_forged_peer Family__V6",
    "tunnels::mss::a_tunnel inner_1_Family__V4",
    "tunnels::mss::an_mss inner_2_Family__V6",
    "tunnels::path::a_narrow_hop_behind inner_2_Family__V6",
    "tunnels::path::what_may Family__V6",
    "tunnels::routing:: ipv4",
];

/// The tests that judge times: they run on the guest's virtual clock only, where a busy machine
/// changes nothing.
pub const IN_VIRTUAL_TIME: &[&str] = &[
    "handshake::times::a_client Family__V6 false",
    "handshake::times::curl_fails_over how_1_0 first_1_Family__V4::second_2_Family__V6",
    "handshake::times::the_first_byte Family__V6",
    "relay::find_rate::it_finds case_2",
    "relay::interactive::an_echo Via__Pepd Family__V6",
    "relay::interactive::a_lone Via__Pepd Family__V6",
    "relay::phases::the_slow_leg Flow__Download Slow__Incoming",
    "weather::held_acks:: Family__V6 seconds_2_10 known_1_true",
    "weather::outage_lengths:: Gone__Both seconds_2_70",
    "weather::outage_again:: case_1 up_4",
    "weather::outage_shares::many case_1",
    "weather::outage_shares::who_is_idle case_1 waiting_2",
    "weather::outage_shares::who_is_idle case_1 waiting_3",
    "weather::outage_shares::whoever case_2 later_1",
    "weather::outage_times::a_link case_2",
    "weather::outage_times::who_hardly Family__V6",
];

/// Those that the long form adds.
pub const IN_VIRTUAL_TIME_LONG: &[&str] = &[
    "handshake::times::a_client Family__V6 true",
    "handshake::times::many Family__V4",
    "relay::advised::more_is_carried",
    "relay::find_rate::a_long_path",
    "relay::find_rate::little case_1",
    "relay::find_rate::what_was_found",
    "relay::interactive:: Family__V6",
    "relay::other_way::",
    "relay::own_links::",
    "relay::phases::each_legs",
    "relay::phases::the_slow_leg",
    "relay::two_legs::",
    "weather::auto::",
    "weather::held_acks:: Family__V6",
    "weather::outage_lengths::",
    "weather::outage_again::",
    "weather::outage_shares::",
    "weather::outage_times::",
];
