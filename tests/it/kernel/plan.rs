//! The plan as an operator reads it, and that the kernel takes every plan.

use anyhow::Result;
use pepd_net::{Action, Peer, Plan, Request, Via};
use pepd_testbed::require;

use super::netns::{Netns, campus, request, rule};

/// Three campuses with nested prefixes, hostile names and every kind of rule.
fn three_campuses() -> Request {
    let mut request = request();
    request.node = "hb-a\" }\nflush ruleset #".to_owned();
    request.campuses[0]
        .prefixes
        .push("10.2.77.0/24".parse().unwrap());
    request.campuses[1].name = "größe\" ; drop\n\tb\\".to_owned();
    request
        .campuses
        .push(campus("everything else", &["0.0.0.0/0", "::/0"], 3));
    request.rules = vec![
        rule(
            &["10.1.9.0/24"],
            &[],
            &[22..=22, 8000..=8100],
            Action::Bypass,
        ),
        rule(
            &["10.0.0.0/8", "10.1.0.0/16", "fd00:a:9::/48"],
            &["10.2.0.5/32", "fd00:b::5/128"],
            &[],
            Action::Split,
        ),
        rule(&[], &["fd00:b::/64"], &[443..=443], Action::Bypass),
        rule(&[], &[], &[23..=23, 20..=22, 22..=30], Action::Bypass),
        rule(&[], &[], &[], Action::Split),
    ];
    request
}

#[test]
fn the_plan_of_three_campuses() {
    insta::assert_snapshot!(Plan::new(&three_campuses()));
}

/// A box in the middle. The MTU of one tunnel is the path's to decide.
#[test]
fn the_plan_of_two_tunnels() {
    let mut request = request();
    request.peers = vec![
        peer("hb-a", "192.0.2.1", Some(1380)),
        peer("hb-b", "203.0.113.1", None),
    ];
    for (index, campus) in request.campuses.iter_mut().enumerate() {
        campus.via = Via::Peer(index);
    }
    insta::assert_snapshot!(Plan::new(&request));
}

fn peer(name: &str, remote: &str, mtu: Option<u16>) -> Peer {
    Peer {
        name: name.to_owned(),
        local: "198.51.100.1".parse().unwrap(),
        remote: remote.parse().unwrap(),
        inside: Vec::new(),
        mtu,
        ttl: None,
        tos: None,
        reverse_path_filter: name == "hb-b",
        keep: false,
    }
}

#[test]
fn what_is_shown_starts_with_what_is_sent() {
    let plan = Plan::new(&three_campuses());
    assert!(plan.to_string().starts_with(&plan.nft()));
}

#[test]
fn a_rule_that_can_match_nothing_is_left_out_and_not_widened() {
    let mut request = request();
    #[allow(clippy::reversed_empty_ranges, reason = "what is tested")]
    let nothing = 9..=3;
    request.rules = vec![
        rule(&["10.1.0.0/16"], &["fd00:b::/48"], &[], Action::Bypass),
        rule(&[], &[], &[nothing], Action::Bypass),
    ];
    assert!(!Plan::new(&request).nft().contains("name bypassed"));
}

#[test]
fn a_family_without_prefixes_is_left_alone() {
    let mut request = request();
    for campus in &mut request.campuses {
        campus.prefixes.truncate(1);
    }
    let plan = Plan::new(&request).to_string();
    assert!(!plan.contains("ip -6") && !plan.contains("ip6"), "{plan}");
}

#[test]
fn the_kernel_takes_it_and_verifies() -> Result<()> {
    require!(root);
    let mut empty = request();
    empty.campuses.clear();
    let mut one_prefix = request();
    one_prefix.campuses[1].prefixes.clear();
    let mut many = request();
    for n in 0..2000u16 {
        let [high, low] = n.to_be_bytes();
        let campus = &mut many.campuses[usize::from(n % 2)];
        // Every second one within the other campus's prefix.
        campus
            .prefixes
            .push(format!("10.{}.{low}.0/25", 1 + high % 2).parse().unwrap());
        campus
            .prefixes
            .push(format!("fd00:a:0:{n:x}::/65").parse().unwrap());
    }
    for request in [three_campuses(), request(), empty, one_prefix, many] {
        Netns::new().leaves_no_trace(&request);
    }
    Ok(())
}
