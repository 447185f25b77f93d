//! What comes out of a tunnel, or to its end, and does not belong there.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use pepd_packet::checksum::Checksum;
use pepd_packet::{Protocol, ip};
use pepd_testbed::forge::Forger;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, Fleet, Netns, Process, require, wait_until};
use rstest::rstest;

use super::running::{BOXES, Running, lines};
use crate::harness::LIMIT;

/// Returns what a counter of pepd's has counted on a box.
fn counted(helper: &Netns, table: &str, counter: &str) -> Result<u64> {
    let listing = helper.sh(&format!("nft list counter inet {table} {counter}"))?;
    let count = listing.split("packets ").nth(1).context("no count")?;
    Ok(count.split(' ').next().unwrap_or_default().parse()?)
}

#[test]
fn strangers_and_spoofed_sources_do_not_get_through() -> Result<()> {
    require!(
        root,
        tunnels,
        program("ping"),
        program("tcpdump"),
        program("curl")
    );
    let running = Running::edited(Fleet::chain()?, Family::V4, &Family::BOTH, |config| {
        format!("{config}\n[admin]\nmetrics = \"127.0.0.1:9730\"\n")
    })?;
    let fleet = &running.fleet;
    let mut heard = fleet.host("b").command("tcpdump");
    let heard = Process::spawn(heard.args(["-ni", "to-box-b", "-Ul", "icmp or icmp6"]))?;
    wait_until(LIMIT, "tcpdump listens", || {
        heard.log().contains("listening on")
    })?;
    let dropped = |counter| counted(fleet.helper("i"), "pepd", counter);

    // A router on the path sends IP in IP of its own.
    fleet.path(0).sh("ip addr add 10.1.0.9/32 dev lo
        ip link add evil type ipip local 198.18.1.2 remote 198.18.1.1
        ip link set evil up
        ip route add 10.2.0.0/16 dev evil
        ping -c 2 -i 0.2 -W 1 -I 10.1.0.9 10.2.0.2 && exit 1 || true")?;
    assert_eq!(dropped("strangers")?, 2);
    assert_eq!(dropped("guard-a")?, 0);

    // Box a sends what is not from campus a.
    let spoof = "for pair in '10.9.9.9 10.2.0.2' '10.2.0.9 10.2.0.2' 'fd00:9::9 fd00:2::2'; do
            set -- $pair
            ip addr add $1 dev lo
            ip route replace $2 dev pepd-i src $1
            ping -c 1 -W 1 -I $1 $2 && exit 1 || true
        done";
    fleet.helper("a").sh(spoof)?;
    assert_eq!(dropped("guard-a")?, 3);
    // What is from campus a gets through.
    fleet.host("a").sh("ping -c 1 -W 10 10.2.0.2")?;
    wait_until(LIMIT, "an echo and its answer", || lines(&heard).len() >= 2)?;
    let seen = lines(&heard);
    assert_eq!(seen.len(), 2, "{seen:#?}");
    wait_until(LIMIT, "the daemon's own count", || {
        let metrics = fleet
            .helper("i")
            .sh("curl -s http://127.0.0.1:9730/metrics");
        metrics.is_ok_and(|metrics| {
            metrics.contains("pepd_guard_dropped_packets_total{peer=\"a\"} 3")
                && metrics.contains("pepd_guard_strangers_packets_total 2")
        })
    })?;
    running.finish()
}

/// Has a host of campus a send, to its own box, what could come from campus b through the tunnel
/// from box i, with the address of box i.
fn forge(fleet: &Fleet, outer: Family) -> Result<()> {
    let (kind, length) = match outer {
        Family::V4 => ("ipip", 32),
        Family::V6 => ("ip6tnl mode any encaplimit none", 128),
    };
    let (peer, own) = (fleet.end("i", "a", outer)?, fleet.end("a", "i", outer)?);
    fleet.host("a").sh(&format!(
        "if ! ip link show forged >/dev/null 2>&1; then
             ip address add {peer}/{length} dev lo
             ip address add 10.2.0.9/32 dev lo
             ip link add forged type {kind} local {peer} remote {own}
             ip link set forged up
             ip route add 10.1.0.77/32 dev forged
         fi
         ping -c 2 -i 0.2 -W 1 -I 10.2.0.9 10.1.0.77 && exit 1 || true"
    ))?;
    Ok(())
}

/// What got through the guard of box a is then on its way to campus a.
const WATCH: &str = "nft -f - <<END
table inet watch {
    counter forged { }
    chain forward {
        type filter hook forward priority 0;
        ip saddr 10.2.0.9 ip daddr 10.1.0.77 counter name forged
    }
}
END";

/// Counts the errors that come, before anything looks at them.
const ERRORS: &str = "nft -f - <<END
table inet watch {
    counter told { }
    chain early {
        type filter hook prerouting priority -1000;
        icmp type { destination-unreachable, time-exceeded } counter name told
    }
}
END";

#[rstest]
fn a_forged_peer_comes_from_the_wrong_side(
    #[values(Family::V4, Family::V6)] outer: Family,
) -> Result<()> {
    require!(root, tunnels, program("ping"), program("nft"));
    const FILTER: &str = "reverse_path_filter = true\n";
    let edit = |config: String| {
        let peer = format!("[[peer]]\nprobe = \"200ms\"\n{FILTER}");
        config.replace("[[peer]]\n", &peer)
    };
    let mut running = Running::edited(Fleet::chain()?, outer, &Family::BOTH, edit)?;
    running.fleet.helper("a").sh(WATCH)?;
    let through = |fleet: &Fleet| counted(fleet.helper("a"), "watch", "forged");
    let dropped = |fleet: &Fleet| counted(fleet.helper("a"), "pepd", "guard-i");
    forge(&running.fleet, outer)?;
    assert_eq!(through(&running.fleet)?, 0);
    assert_eq!(dropped(&running.fleet)?, 2);

    // What the peers themselves send comes through: probes, connections, and all else.
    for name in BOXES {
        let daemon = running.daemon(name);
        wait_until(LIMIT, "the peers answer", || {
            daemon.log().contains("the peer answers through its tunnel")
        })?;
    }
    for inner in Family::BOTH {
        let fleet = &running.fleet;
        let server = fleet.address("b", inner)?;
        let split = running.split()?;
        Pair::open(fleet.host("a"), fleet.host("b"), server)?.exchange(10_000)?;
        assert_eq!(running.split_since(&split)?, [true; 3]);
        fleet.host("a").sh(&format!("ping -c 1 -W 20 {server}"))?;
    }
    assert_eq!(dropped(&running.fleet)?, 2);

    // Without the filter nothing tells the forged packets from the peer's own.
    let without = running.config("a")?.replace(FILTER, "");
    running.daemon("a").reload(&without)?;
    forge(&running.fleet, outer)?;
    assert_eq!(through(&running.fleet)?, 2);
    assert_eq!(dropped(&running.fleet)?, 2);
    running.finish()
}

/// Makes an ICMP error about a packet of a tunnel between these ends, as a router on the way would send it, which
/// quotes so much of what was in it.
fn error_about(
    (kind, code): (u8, u8),
    [own, peer]: [IpAddr; 2],
    inner: Family,
    quoted: usize,
) -> Result<Vec<u8>> {
    let [IpAddr::V4(own), IpAddr::V4(peer)] = [own, peer] else {
        bail!("IPv4 only");
    };
    // IPv4 in IPv4, or IPv6 in it.
    let (protocol, first) = match inner {
        Family::V4 => (4, 0x45),
        Family::V6 => (41, 0x60),
    };
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.extend(ip::in_ipv4(
        own,
        peer,
        Protocol(protocol),
        &vec![first; quoted],
    ));
    let sum = Checksum::of(&message).value();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Ok(ip::in_ipv4(peer, own, Protocol::ICMP, &message))
}

/// Who says that a peer cannot be reached is not believed: nothing in such a message is a secret, and the kernel
/// would fail connections that are being established through the tunnel.
#[rstest]
fn a_peer_is_not_unreachable_because_somebody_says_so(
    #[values(Family::V4, Family::V6)] inner: Family,
) -> Result<()> {
    require!(root, tunnels, guest, program("nft"), program("tc"));
    let running = Running::start(Fleet::chain()?, Family::V4, &Family::BOTH)?;
    let fleet = &running.fleet;
    // What is said of the peer would be heard before it answers.
    fleet.path(0).sh("for each in $(ls /sys/class/net); do
             [ $each = lo ] || tc qdisc add dev $each root netem delay 150ms
         done")?;
    let ends = [
        fleet.end("a", "i", Family::V4)?,
        fleet.end("i", "a", Family::V4)?,
    ];
    fleet.helper("a").sh(ERRORS)?;
    // While the boxes started, some was true.
    let before = counted(fleet.helper("a"), "pepd", "unreachable-i")?;
    let forger = Forger::new(fleet.path(0))?;
    let mut told = 0;
    // Unreachable, of every kind but that it is too big; the time is over.
    let codes = (0..=15).filter(|code| *code != 4);
    for kind in codes.map(|code| (3, code)).chain([(11, 0)]) {
        for quoted in [8, 64].repeat(10) {
            forger.send_packet(&error_about(kind, ends, inner, quoted)?, ends[0]);
            told += 1;
        }
    }
    wait_until(LIMIT, "all of them have come", || {
        counted(fleet.helper("a"), "watch", "told").is_ok_and(|came| came == told)
    })?;
    let dropped = counted(fleet.helper("a"), "pepd", "unreachable-i")? - before;
    assert_eq!(dropped, told);
    let server = fleet.address("b", inner)?;
    for _ in 0..10 {
        let split = running.split()?;
        Pair::open(fleet.host("a"), fleet.host("b"), server)?.exchange(10_000)?;
        assert_eq!(running.split_since(&split)?, [true; 3]);
    }
    running.finish()
}
