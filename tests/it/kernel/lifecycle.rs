//! Install, adopt, replace, verify and remove, against the real kernel.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use pepd_net::{Action, Gate, Plan, RouteTable, install, remove};
use pepd_packet::{MarkValue, Source};
use pepd_testbed::require;

use super::netns::{MARK, Netns, TABLE, campus, operated, request, rule};

#[test]
fn removing_leaves_everything_as_it_was() -> Result<()> {
    require!(root);
    let netns = operated();
    let before = netns.state();
    let installed = netns.block_on(|| async {
        let installed = install(&Plan::new(&request())).await.unwrap();
        installed.verify().await.unwrap();
        assert_eq!(installed.warnings(), []);
        installed
    });
    let during = netns.state();
    for expected in [
        "table inet pepd",
        "73:\tfrom all fwmark 0x70000000/0x70000000 lookup 7300 proto 73",
        "local default dev lo table 7300 proto 73",
    ] {
        assert!(during.contains(expected), "{expected} not in {during}");
    }
    netns.block_on(|| installed.remove()).unwrap();
    assert_eq!(netns.state(), before);

    // Nothing is there: no error, and nothing is said to have been removed.
    let removed = netns.block_on(|| remove(TABLE, MARK)).unwrap();
    assert!(removed.is_empty(), "{removed}");
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn what_the_plan_shows_is_what_is_installed() -> Result<()> {
    require!(root);
    let plan = Plan::new(&request());
    let by_hand = Netns::new();
    by_hand.run(|| {
        use std::io::Write as _;
        let mut child = std::process::Command::new("nft")
            .args(["-f", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(plan.nft().as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
    });
    for line in plan
        .to_string()
        .lines()
        .filter(|line| line.starts_with("ip "))
    {
        by_hand.ip(line.trim_start_matches("ip "));
    }
    let installed = Netns::new();
    let guard = installed.block_on(|| install(&plan)).unwrap();
    assert_eq!(installed.state(), by_hand.state());
    installed.block_on(|| guard.remove()).unwrap();
    Ok(())
}

#[test]
fn installing_again_adopts_what_a_crash_left() -> Result<()> {
    require!(root);
    let netns = operated();
    let before = netns.state();
    let mut other = request();
    other.table = RouteTable(7301);
    other.mark.value = MarkValue(0x3000_0000);
    // Dropped without removal, as a killed daemon leaves it: once with another mark and
    // table, twice with the same.
    for request in [&other, &request(), &request()] {
        let installed = netns.install(request).unwrap();
        drop(installed);
    }
    let rules = netns.ip("-4 rule show");
    assert_eq!(rules.matches("proto 73").count(), 1, "{rules}");
    let installed = netns.install(&request()).unwrap();
    netns.block_on(|| installed.verify()).unwrap();

    let removed = netns.block_on(|| remove(TABLE, MARK)).unwrap();
    assert_eq!(removed.items.len(), 7, "{removed}");
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn a_crashed_daemon_with_another_table_is_removed_by_down() -> Result<()> {
    require!(root);
    let netns = operated();
    let before = netns.state();
    let mut other = request();
    other.table = RouteTable(7301);
    drop(netns.install(&other).unwrap());
    netns.block_on(|| remove(TABLE, MARK)).unwrap();
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn replacing_is_whole_and_keeps_gate_sources_and_counters() -> Result<()> {
    require!(root);
    let netns = operated();
    let before = netns.state();
    let mut installed = netns.install(&request()).unwrap();
    netns.run(|| {
        let gate = Gate::open().unwrap();
        gate.renew(Duration::from_secs(600)).unwrap();
        let full = ["10.1.0.9", "fd00:a::9"].map(source);
        gate.shut_out(&full, Duration::from_secs(600)).unwrap();
    });

    let mut changed = request();
    changed.campuses.push(campus("c", &["10.3.0.0/16"], 3));
    changed
        .rules
        .push(rule(&[], &[], &[22..=22], Action::Bypass));
    changed.table = RouteTable(7301);
    netns.replace(&mut installed, &changed).unwrap();
    netns.block_on(|| installed.verify()).unwrap();
    let after = netns.state();
    assert!(
        after.contains("10.3.0.0/16") && after.contains("rule 1: bypass"),
        "{after}"
    );
    assert!(
        after.contains("lookup 7301") && !after.contains("7300 proto"),
        "{after}"
    );
    for element in ["tcp timeout", "10.1.0.9 timeout", "fd00:a::9 timeout"] {
        assert!(after.contains(element), "{element} not in {after}");
    }

    // One that the kernel refuses half-way changes nothing.
    let table = netns.nft("-s list table inet pepd");
    let mut broken = changed.clone();
    broken.table = RouteTable(7302);
    broken.mark.value = MarkValue(0x1000_0000);
    netns.ip("link set lo down");
    netns.replace(&mut installed, &broken).unwrap_err();
    netns.ip("link set lo up");
    let without_times = |text: &str| {
        let cut = |line: &str| line.split(" expires").next().unwrap_or_default().to_owned();
        text.lines().map(cut).collect::<Vec<_>>()
    };
    assert_eq!(
        without_times(&netns.nft("-s list table inet pepd")),
        without_times(&table)
    );
    assert!(!netns.ip("rule show").contains("0x10000000"));

    netns.block_on(|| installed.remove()).unwrap();
    assert_eq!(netns.state(), before);
    Ok(())
}

/// A chain that is made anew has the kernel drop what waits in queues, and a set of ranges of addresses is empty for a moment.
#[test]
fn what_is_the_same_is_not_made_anew() -> Result<()> {
    require!(root);
    let netns = operated();
    let mut installed = netns.install(&request()).unwrap();
    let mut before = handles(&netns);
    let mut made_anew = || {
        let after = handles(&netns);
        let anew = after
            .iter()
            .filter(|(name, it)| before.get(*name) != Some(*it));
        let anew: Vec<String> = anew.map(|(name, _)| name.clone()).collect();
        before = after;
        anew
    };
    let mut changed = request();
    let ssh = rule(&[], &[], &[22..=22], Action::Bypass);
    changed.rules.push(ssh);
    changed.campuses[0].name = "another name".to_owned();
    netns.replace(&mut installed, &changed).unwrap();
    assert_eq!(made_anew(), [""; 0]);

    changed.campuses.push(campus("c", &["10.3.0.0/16"], 3));
    netns.replace(&mut installed, &changed).unwrap();
    let of_c = ["campus4_2", "campus6_2", "from_2", "to_2"];
    let of_all = ["all4", "origin4", "source4"];
    let mut expected = [&of_c[..], &of_all].concat();
    expected.sort_unstable();
    assert_eq!(made_anew(), expected);

    for damage in [
        "add element inet pepd campus4_0 { 10.200.0.0/16 }",
        "delete element inet pepd campus4_0 { 10.1.0.0/16 }",
    ] {
        netns.nft(damage);
        netns.replace(&mut installed, &changed).unwrap();
        assert_eq!(made_anew(), ["campus4_0"]);
        netns.block_on(|| installed.verify()).unwrap();
    }
    // As a killed daemon leaves it.
    drop(installed);
    let installed = netns.install(&changed).unwrap();
    let anew = made_anew();
    assert!(anew.contains(&"gate".to_owned()), "{anew:?}");
    assert!(
        !anew.contains(&"source4".to_owned()) && !anew.contains(&"legs".to_owned()),
        "{anew:?}"
    );
    netns.block_on(|| installed.remove()).unwrap();
    Ok(())
}

/// Gives the handles of chains, sets and maps: one that is made anew gets another.
fn handles(netns: &Netns) -> BTreeMap<String, String> {
    let table = netns.nft("-a list table inet pepd");
    let handle = |line: &str| {
        let (object, handle) = line.split_once(" { # handle ")?;
        let (kind, name) = object.trim().split_once(' ')?;
        let is_of_table = ["chain", "set", "map"].contains(&kind);
        is_of_table.then(|| (name.to_owned(), handle.to_owned()))
    };
    table.lines().filter_map(handle).collect()
}

#[test]
fn verification_sees_what_somebody_changed() -> Result<()> {
    require!(root);
    for damage in [
        "nft delete table inet pepd",
        "nft flush chain inet pepd own",
        "nft add element inet pepd campus4_0 { 10.200.0.0/16 }",
        "nft delete element inet pepd all6 { fd00:a::/48 }",
        "nft insert rule inet pepd rules accept",
        "ip rule del preference 73",
        "ip -6 rule del preference 73",
        "ip route flush table 7300",
        "ip -6 route flush table 7300",
    ] {
        let netns = operated();
        let installed = netns.install(&request()).unwrap();
        netns.block_on(|| installed.verify()).unwrap();
        let (program, args) = damage.split_once(' ').unwrap();
        match program {
            "nft" => netns.nft(args),
            _ => netns.ip(args),
        };
        let error = netns.block_on(|| installed.verify()).unwrap_err();
        assert!(
            matches!(error, pepd_net::VerifyError::Drift(_)),
            "{damage}: {error}"
        );
        netns.block_on(|| installed.remove()).unwrap();
    }
    Ok(())
}

/// Gives the source of this address alone.
fn source(address: &str) -> Source {
    address.parse::<IpAddr>().unwrap().into()
}
