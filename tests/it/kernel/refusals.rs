//! What is refused, or warned of, with the cure; and that nothing of pepd's is left then.

use std::time::Duration;

use anyhow::Result;
use pepd_net::{Classify, Gate, Kind, Mark, Plan, RouteTable, install, remove};
use pepd_packet::{MarkMask, MarkValue};
use pepd_testbed::{require, wait_until};

use super::netns::{MARK, Netns, TABLE, operated, request};
use crate::harness::LIMIT;

#[test]
fn a_table_with_somebody_elses_routes_is_refused() -> Result<()> {
    require!(root);
    for family in ["-4", "-6"] {
        let netns = operated();
        let net = if family == "-4" {
            "198.51.100.0/24"
        } else {
            "2001:db8:1::/48"
        };
        netns.ip(&format!("{family} route add {net} dev east table 7300"));
        let before = netns.state();
        let error = netns.install(&request()).unwrap_err();
        assert_eq!(error.exit_code(), 69, "{error}");
        assert!(error.to_string().contains("capture.table"), "{error}");
        assert_eq!(netns.state(), before);
        netns.block_on(|| remove(TABLE, MARK)).unwrap();
        assert_eq!(netns.state(), before);
    }
    Ok(())
}

#[test]
fn a_mark_that_somebody_else_uses_is_refused() -> Result<()> {
    require!(root);
    let netns = operated();
    netns.ip("rule add preference 40 fwmark 0x70000000/0x70000000 lookup 100");
    let before = netns.state();
    let error = netns.install(&request()).unwrap_err();
    assert_eq!(error.exit_code(), 69, "{error}");
    assert!(error.to_string().contains("preference 40"), "{error}");
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn a_failure_half_way_is_undone() -> Result<()> {
    require!(root);
    // The IPv6 route fails, after IPv4's route and rule were made.
    let netns = operated();
    netns.ip("link set lo down");
    let before = netns.state();
    let error = netns.install(&request()).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("ip link set lo up"), "{error}");
    assert_eq!(netns.state(), before);

    // nft fails, after all rules and routes were made: another program owns the table.
    let netns = operated();
    let owner = Owner::of_the_table(&netns, "pepd");
    let before = netns.state();
    let error = netns.install(&request()).unwrap_err();
    assert!(error.to_string().contains("own the table"), "{error}");
    assert_eq!(netns.state(), before);
    drop(owner);
    let installed = netns.install(&request()).unwrap();
    netns.block_on(|| installed.remove()).unwrap();
    Ok(())
}

/// Some versions of nft cannot list such a table as JSON, and firewalld has one.
#[test]
fn a_table_that_another_program_owns_is_no_obstacle() -> Result<()> {
    require!(root);
    let netns = operated();
    let owner = Owner::of_the_table(&netns, "firewalld");
    netns.leaves_no_trace(&request());
    drop(owner);
    Ok(())
}

/// An interactive nft that holds a table for itself until it is dropped.
struct Owner(std::process::Child);

impl Owner {
    fn of_the_table(netns: &Netns, table: &str) -> Owner {
        use std::io::Write as _;
        let mut child = netns.run(|| {
            std::process::Command::new("nft")
                .arg("-i")
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        });
        let stdin = child.stdin.as_mut().unwrap();
        stdin
            .write_all(format!("add table inet {table} {{ flags owner; }}\n").as_bytes())
            .unwrap();
        stdin.flush().unwrap();
        let owner = Owner(child);
        wait_until(LIMIT, "the table is owned", || {
            netns.nft("list ruleset").contains("flags owner")
        })
        .unwrap();
        owner
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn src_valid_mark_is_refused_with_the_cure() -> Result<()> {
    require!(root);
    for interface in ["all", "east"] {
        let netns = operated();
        let key = format!("net/ipv4/conf/{interface}/src_valid_mark");
        netns.sysctl(&key, "1");
        let before = netns.state();
        let error = netns.install(&request()).unwrap_err();
        assert_eq!(error.exit_code(), 69, "{error}");
        let cure = format!("sysctl -w net.ipv4.conf.{interface}.src_valid_mark=0");
        assert!(error.to_string().contains(&cure), "{error}");
        assert_eq!(netns.state(), before);
    }
    Ok(())
}

#[test]
fn forwarding_that_is_off_is_a_warning() -> Result<()> {
    require!(root);
    let netns = operated();
    netns.sysctl("net/ipv4/ip_forward", "0");
    netns.sysctl("net/ipv6/conf/all/forwarding", "0");
    let installed = netns.install(&request()).unwrap();
    let cures: Vec<&str> = installed
        .warnings()
        .iter()
        .map(|w| w.cure.as_str())
        .collect();
    assert_eq!(
        cures,
        [
            "sysctl -w net.ipv4.ip_forward=1",
            "sysctl -w net.ipv6.conf.all.forwarding=1"
        ]
    );
    netns.block_on(|| installed.remove()).unwrap();
    Ok(())
}

#[test]
fn a_host_without_ipv6_does_ipv4_only() -> Result<()> {
    require!(root);
    let netns = operated();
    netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1");
    let before = netns.state();
    let installed = netns.install(&request()).unwrap();
    assert!(
        installed.warnings()[0].text.contains("no IPv6"),
        "{:?}",
        installed.warnings()
    );
    assert!(!netns.nft("list table inet pepd").contains("ip6 "));
    assert!(!netns.ip("-6 rule show").contains("proto 73"));
    netns.block_on(|| installed.verify()).unwrap();
    netns.block_on(|| installed.remove()).unwrap();
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn without_the_capability_it_is_not_permitted() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let before = netns.state();
    let drop_it = || {
        use caps::{CapSet, Capability};
        // Of this thread and of what it starts: root's programs regain what is not bounded.
        for set in [CapSet::Bounding, CapSet::Effective, CapSet::Permitted] {
            caps::drop(None, set, Capability::CAP_NET_ADMIN).unwrap();
        }
    };
    let errors: [Box<dyn Classify>; 3] = [
        Box::new(netns.block_on(|| async {
            drop_it();
            install(&Plan::new(&request())).await.unwrap_err()
        })),
        Box::new(netns.block_on(|| async {
            drop_it();
            remove(TABLE, MARK).await.unwrap_err()
        })),
        Box::new(netns.run(|| {
            drop_it();
            Gate::open()
                .unwrap()
                .renew(Duration::from_secs(1))
                .unwrap_err()
        })),
    ];
    for error in errors {
        assert_eq!(error.exit_code(), 77, "{error}");
        assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
    }
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn without_nft_the_package_is_named_and_nothing_is_left() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let before = netns.state();
    let error = netns.block_on(|| async {
        use nix::mount::{MsFlags, mount};
        // A mount namespace of this thread's own, in which no place has nft.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        for place in std::env::var("PATH")
            .unwrap()
            .split(':')
            .chain(["/usr/sbin", "/sbin"])
        {
            if std::path::Path::new(place).join("nft").exists() {
                mount(none, place, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            }
        }
        install(&Plan::new(&request())).await.unwrap_err()
    });
    assert_eq!(error.exit_code(), 69, "{error}");
    assert!(error.to_string().contains("package nftables"), "{error}");
    assert_eq!(netns.state(), before);
    Ok(())
}

#[test]
fn a_request_that_would_take_the_kernels_own_table_is_refused() -> Result<()> {
    require!(root);
    let netns = Netns::new();
    let before = netns.state();
    let mut main = request();
    main.table = RouteTable(254);
    let mut stray = request();
    stray.mark.value = MarkValue(0x8000_0000);
    for request in [main, stray] {
        netns.install(&request).unwrap_err();
        assert_eq!(netns.state(), before);
    }
    Ok(())
}

/// Captured packets pass the input hook; and without a mark for each leg address translation
/// does not apply to them.
#[test]
fn a_firewall_in_the_way_is_named_with_the_cure() -> Result<()> {
    require!(root);
    let netns = operated();
    netns.nft(
        "table inet filter { \
         chain incoming { type filter hook input priority 0; policy drop; ct state established accept; }; \
         chain through { type filter hook forward priority 0; policy drop; }; }; \
         table ip nat { chain post { type nat hook postrouting priority 100; masquerade; }; }",
    );
    let warnings = |value: u32| {
        let mut request = request();
        request.mark = Mark {
            value: MarkValue(value),
            mask: MarkMask(value),
        };
        let installed = netns.install(&request).unwrap();
        let warnings: Vec<_> = installed
            .warnings()
            .iter()
            .map(ToString::to_string)
            .collect();
        netns.block_on(|| async { installed.remove().await.unwrap() });
        warnings
    };
    let narrow = warnings(0x8);
    assert_eq!(narrow.len(), 2, "{narrow:#?}");
    let translated = |text: &String| text.contains("chain ip nat post") && text.contains("0x8/0x8");
    assert!(narrow.iter().any(translated), "{narrow:#?}");
    let said = warnings(0x7000_0000);
    assert_eq!(said.len(), 1, "{said:#?}");
    let cure = said
        .iter()
        .find_map(|text| text.split_once("lets them in: "))
        .unwrap()
        .1;
    // The cure works as it is printed.
    netns.nft(cure.strip_prefix("nft ").unwrap());
    assert_eq!(warnings(0x7000_0000), [""; 0]);
    Ok(())
}
