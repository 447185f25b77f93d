//! Install, adopt, replace, verify and remove, against the real kernel.

use std::time::Duration;

use anyhow::Result;
use pepd_net::{Action, Gate, Plan, RouteTable, install, remove};
use pepd_packet::MarkValue;
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
        gate.shut_out("10.1.0.9".parse().unwrap(), Duration::from_secs(600))
            .unwrap();
        gate.shut_out("fd00:a::9".parse().unwrap(), Duration::from_secs(600))
            .unwrap();
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
