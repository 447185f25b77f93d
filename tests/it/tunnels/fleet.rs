//! Helper boxes that all run with the same file, and what each says of its peers.

use std::fmt::Write as _;

use anyhow::Result;
use pepd_testbed::{Family, Fleet, Nginx, Pepd, require, run, wait_until};

use super::running::{BOXES, split, split_since};
use crate::harness::{LIMIT, PEPD};

const LINKS: [[&str; 2]; 2] = [["a", "i"], ["i", "b"]];

/// One file for the whole chain.
fn file(fleet: &Fleet, outer: Family) -> Result<String> {
    // The box in the middle is no peer of its own: there nothing tells of the link.
    let mut text = "[leg.lan]\ncongestion = \"cubic\"\n\
                    [leg.long]\ncongestion = \"reno\"\nlink = { peer = \"i\" }\n"
        .to_owned();
    for (number, campus) in ["a", "b"].iter().enumerate() {
        writeln!(
            text,
            "[[campus]]\nname = \"{campus}\"\nprefixes = [\"10.{0}.0.0/16\", \"fd00:{0}::/48\"]\n\
             leg = \"lan\"\n[[box]]\nname = \"{campus}\"\ncampuses = [\"{campus}\"]",
            number + 1
        )?;
    }
    text.push_str("[[box]]\nname = \"i\"\n");
    for [one, other] in LINKS {
        writeln!(
            text,
            "[[link]]\nboxes = [\"{one}\", \"{other}\"]\nleg = \"long\"\nprobe = \"200ms\"\n\
             addresses = [\"{}\", \"{}\"]",
            fleet.end(one, other, outer)?,
            fleet.end(other, one, outer)?,
        )?;
    }
    Ok(text)
}

/// Starts a daemon on each box, all with the same file but for the name.
fn start(fleet: &Fleet, outer: Family) -> Result<Vec<Pepd>> {
    let file = file(fleet, outer)?;
    let mut daemons = Vec::new();
    for name in BOXES {
        // The strictest that an operator may have.
        fleet
            .helper(name)
            .sysctl("net.ipv4.conf.all.rp_filter", "1")?;
        let config = format!("{file}[node]\nname = \"{name}\"\nworkers = 1\ndrain = \"5s\"\n");
        daemons.push(Pepd::start(PEPD, fleet.helper(name), &config)?);
    }
    Ok(daemons)
}

/// Waits until the daemon has said, of this peer, this, more often than `before`.
fn hears(daemon: &Pepd, peer: &str, what: &str, before: usize) -> Result<()> {
    wait_until(LIMIT, &format!("{what}: peer {peer}"), || {
        said(daemon, peer, what) > before
    })
    .inspect_err(|_| println!("{}", daemon.log()))
}

fn said(daemon: &Pepd, peer: &str, what: &str) -> usize {
    let name = format!("peer=\"{peer}\"");
    let log = daemon.log();
    log.lines()
        .filter(|line| line.contains(what) && line.contains(&name))
        .count()
}

const ANSWERS: &str = "the peer answers through its tunnel";
const SILENT: &str = "the peer does not answer through its tunnel";

fn peers_are_watched(outer: Family) -> Result<()> {
    let fleet = Fleet::chain()?;
    let daemons = start(&fleet, outer)?;
    let [a, i, b] = daemons.as_slice() else {
        panic!("three boxes");
    };
    for (daemon, peer) in [(a, "i"), (i, "a"), (i, "b"), (b, "i")] {
        hears(daemon, peer, ANSWERS, 0)?;
    }
    // The first boxes may have found the last ones silent, which had not been started yet.
    let before = [(a, "i"), (i, "a"), (i, "b")]
        .map(|(daemon, peer)| [ANSWERS, SILENT].map(|what| said(daemon, peer, what)));

    // The long path is cut, the short one is not.
    fleet.path(0).sh("ip link set to-box-i down")?;
    hears(a, "i", SILENT, before[0][1])?;
    hears(i, "a", SILENT, before[1][1])?;
    let tells = |what: &str| {
        wait_until(LIMIT, what, || {
            let log = a.log();
            let last = log.lines().rfind(|line| line.contains("the link is"));
            last.is_some_and(|line| line.contains(what) && line.contains("by=\"peer i\""))
        })
    };
    tells("the link is gone")?;
    fleet.path(0).sh("ip link set to-box-i up")?;
    if outer == Family::V6 {
        // IPv6 addresses go with the link.
        fleet
            .path(0)
            .sh("ip address replace 2001:db8:1::2/64 dev to-box-i nodad")?;
    }
    hears(a, "i", ANSWERS, before[0][0])?;
    hears(i, "a", ANSWERS, before[1][0])?;
    tells("the link is up")?;
    assert!(!i.log().contains("the link is"), "{}", i.log());
    // Each was reported once, and nothing about the other path.
    assert_eq!(said(a, "i", SILENT), before[0][1] + 1, "{}", a.log());
    assert_eq!(said(i, "b", SILENT), before[2][1], "{}", i.log());
    for daemon in daemons {
        daemon.stop()?;
    }
    Ok(())
}

#[test]
fn a_peer_falls_silent_and_answers_again() -> Result<()> {
    require!(root, tunnels);
    peers_are_watched(Family::V4)
}

#[test]
fn a_peer_over_ipv6_falls_silent_and_answers_again() -> Result<()> {
    require!(root, tunnels);
    peers_are_watched(Family::V6)
}

/// The probes, too, are IP in IP: between two boxes nothing else is on the wire.
#[test]
fn one_file_makes_a_chain() -> Result<()> {
    require!(
        root,
        tunnels,
        program("nginx"),
        program("curl"),
        program("nft")
    );
    let fleet = Fleet::chain()?;
    fleet.path(0).sh("nft add table inet test
         nft 'add chain inet test other { type filter hook forward priority 0; }'
         nft add counter inet test other
         nft add rule inet test other meta l4proto != 4 meta l4proto != 41 counter name other")?;
    let daemons = start(&fleet, Family::V4)?;
    for (daemon, peer) in [(&daemons[0], "i"), (&daemons[1], "a"), (&daemons[2], "i")] {
        hears(daemon, peer, ANSWERS, 0)?;
    }
    // A box without its daemon has refused the first probes, with ICMP errors.
    fleet.path(0).sh("nft reset counter inet test other")?;
    for family in [Family::V4, Family::V6] {
        for (client, server) in [("a", "b"), ("b", "a")] {
            let nginx = Nginx::start(fleet.host(server))?;
            nginx.put_file("file", &[7; 300_000])?;
            let url = nginx.url(fleet.address(server, family)?, "file");
            let before = split(&fleet, &BOXES)?;
            let mut curl = fleet.host(client).command("curl");
            let got = run(
                curl.args(["-sSgf", "-o", "/dev/null", "-w", "%{size_download}", &url]),
                LIMIT,
            )?;
            assert_eq!(got.success()?, "300000");
            let by_all = split_since(&fleet, &BOXES, &before)?;
            assert_eq!(by_all, [true; 3], "from {client} to {server}, {family:?}");
        }
    }
    let counted = fleet.path(0).sh("nft list counter inet test other")?;
    assert!(counted.contains("packets 0"), "{counted}");
    for daemon in daemons {
        daemon.stop()?;
    }
    Ok(())
}
