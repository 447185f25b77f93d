//! Three helper boxes in a row, joined by tunnels: campus a – box a – a long path – box i – a
//! short path – box b – campus b. The router on each path knows nothing of the campuses.

use std::time::Duration;

use anyhow::{Context, Result};
use pepd_testbed::traffic::{End, Pair, Pattern, receive};
use pepd_testbed::{Family, Fleet, Iperf3, Nginx, Pepd, Process, require, run, wait_until};
use rstest::rstest;

use super::running::{BOXES, Running, lines};
use crate::harness::{LIMIT, PEPD};

#[rstest]
#[case::ipv4_over_ipv4(Family::V4, Family::V4)]
#[case::ipv6_over_ipv4(Family::V4, Family::V6)]
#[case::ipv4_over_ipv6(Family::V6, Family::V4)]
#[case::ipv6_over_ipv6(Family::V6, Family::V6)]
fn curl_both_ways(#[case] outer: Family, #[case] inner: Family) -> Result<()> {
    require!(
        root,
        tunnels,
        program("nginx"),
        program("curl"),
        program("tcpdump")
    );
    // Of IPv4 over IPv4 alone; the others are one tunnel for both families.
    let families = match (outer, inner) {
        (Family::V4, Family::V4) => vec![inner],
        _ => Family::BOTH.to_vec(),
    };
    let running = Running::start(Fleet::chain()?, outer, &families)?;
    let fleet = &running.fleet;
    let (ip, number) = match outer {
        Family::V4 => ("ip", "proto"),
        Family::V6 => ("ip6", "proto"),
    };
    let protocol = match inner {
        Family::V4 => 4,
        Family::V6 => 41,
    };
    let inside = format!("{ip} {number} {protocol}");
    // Neighbour discovery and the like are each link's own.
    // The boxes themselves ask each other through the tunnels, in the outer addresses' family.
    let tunnels = match outer {
        Family::V4 => format!("{ip} {number} 4 or {inside}"),
        Family::V6 => format!("{ip} {number} 4 or {ip} {number} 41"),
    };
    let other = format!("{ip} and not ({tunnels}) and not (ip6 and icmp6)");
    let (inside, other) = (listen(fleet, &inside)?, listen(fleet, &other)?);
    let content: Vec<u8> = (0..700_000u32).flat_map(u32::to_le_bytes).collect();
    for (client, server) in [("a", "b"), ("b", "a")] {
        let nginx = Nginx::start(fleet.host(server))?;
        nginx.put_file("file", &content)?;
        let before = running.split()?;
        let url = nginx.url(fleet.address(server, inner)?, "file");
        let mut curl = fleet.host(client).command("sh");
        curl.args(["-c", &format!("curl -sSgf {url} | sha256sum")]);
        let got = run(&mut curl, LIMIT)?.success()?;
        let mut sum = std::process::Command::new("sha256sum");
        let expected = run(sum.arg(nginx.files().join("file")), LIMIT)?.success()?;
        assert_eq!(got.split(' ').next(), expected.split(' ').next());
        let logged = nginx.logged("file")?;
        let address = fleet.address(client, inner)?.to_string();
        assert!(logged.starts_with(&address), "{logged}");
        assert_eq!(running.split_since(&before)?, [true; 3]);
    }
    wait_until(LIMIT, "packets within packets", || {
        inside.log().contains("IP")
    })?;
    let seen = lines(&other);
    assert!(seen.is_empty(), "not through the tunnel: {seen:#?}");
    running.finish()
}

/// `tcpdump` on the long path.
fn listen(fleet: &Fleet, filter: &str) -> Result<Process> {
    let mut command = fleet.path(0).command("tcpdump");
    let process = Process::spawn(command.args(["-ni", "to-box-i", "-Ul", filter]))?;
    wait_until(LIMIT, "tcpdump listens", || {
        process.log().contains("listening on")
    })?;
    Ok(process)
}

#[test]
fn each_leg_has_its_own_congestion_control() -> Result<()> {
    require!(root, tunnels, program("ss"));
    let running = Running::start(Fleet::chain()?, Family::V4, &[Family::V4])?;
    let fleet = &running.fleet;
    let pair = Pair::open(
        fleet.host("a"),
        fleet.host("b"),
        fleet.address("b", Family::V4)?,
    )?;
    pair.exchange(10_000)?;
    let port = pair.client.local_addr()?.port();
    let server_port = pair.server.local_addr()?.port();
    let filter = format!("( sport = :{port} or dport = :{port} )");
    let seen = fleet
        .helper("i")
        .sh(&format!("ss -Htin state established '{filter}'"))?;
    // Two sockets, of two lines each.
    assert_eq!(seen.lines().count(), 4, "{seen}");
    let leg = |local: &str| {
        let mut lines = seen
            .lines()
            .skip_while(|line| line.split_whitespace().nth(2) != Some(local));
        lines.nth(1).unwrap_or_default().trim_start().to_owned()
    };
    let towards_a = leg(&format!("10.2.0.2:{server_port}"));
    assert!(towards_a.starts_with("reno "), "{seen}");
    let towards_b = leg(&format!("10.1.0.2:{port}"));
    assert!(towards_b.starts_with("cubic "), "{seen}");
    running.finish()
}

/// Of the tunnel's MTU, its own, and of `mss`, whichever is least, on both sides of a leg.
#[test]
fn each_legs_mss_fits_its_tunnel() -> Result<()> {
    require!(root, tunnels, program("ss"));
    let edit = |config: String| {
        config
            .replace(
                "[[peer]]\nname = \"b\"\n",
                "[[peer]]\nname = \"b\"\nmtu = 1380\n",
            )
            .replace("[leg.lan]\n", "[leg.lan]\nmss = 1200\n")
    };
    let running = Running::edited(Fleet::chain()?, Family::V4, &[Family::V4], edit)?;
    let fleet = &running.fleet;
    let server = fleet.address("b", Family::V4)?;
    let pair = Pair::open(fleet.host("a"), fleet.host("b"), server)?;
    pair.exchange(100_000)?;
    let announced = |netns: &pepd_testbed::Netns| {
        netns.sh("ss -Htin state established | grep -o 'advmss:[0-9]*' | sort")
    };
    // Less the twelve bytes of timestamps. Box b does not know of the smaller MTU at the other
    // end.
    for (name, expected) in [
        ("a", "advmss:1188\nadvmss:1428\n"),
        ("i", "advmss:1328\nadvmss:1428\n"),
        ("b", "advmss:1188\nadvmss:1428\n"),
    ] {
        assert_eq!(announced(fleet.helper(name))?, expected, "box {name}");
    }
    running.finish()
}

#[test]
fn each_leg_has_its_own_initial_window() -> Result<()> {
    require!(root, tunnels, program("ss"));
    let edit = |config: String| {
        config
            .replace("[leg.lan]\n", "[leg.lan]\ninitial_window = 20\n")
            .replace("[leg.to-i]\n", "[leg.to-i]\ninitial_window = 32\n")
    };
    let running = Running::edited(Fleet::chain()?, Family::V4, &[Family::V4], edit)?;
    let fleet = &running.fleet;
    let server = fleet.address("b", Family::V4)?;
    let pair = Pair::open(fleet.host("a"), fleet.host("b"), server)?;
    let seen = fleet
        .helper("a")
        .sh("ss -Htin state established | grep -o 'cwnd:[0-9]*' | sort")?;
    assert_eq!(seen, "cwnd:20\ncwnd:32\n");
    pair.exchange(1000)?;
    running.finish()
}

#[test]
fn what_is_not_tcp_goes_through_the_tunnels() -> Result<()> {
    require!(root, tunnels, program("ping"), program("iperf3"));
    // With the inner packet's TTL a probe that is to die at a box would do so on the way there.
    let edit = |config: String| config.replace("[[peer]]\n", "[[peer]]\nttl = 64\n");
    let running = Running::edited(Fleet::chain()?, Family::V4, &Family::BOTH, edit)?;
    let fleet = &running.fleet;
    for family in Family::BOTH {
        let _server = Iperf3::start(fleet.host("b"))?;
        let server = fleet.address("b", family)?;
        fleet
            .host("a")
            .sh(&format!("ping -c 3 -i 0.2 -W 10 {server}"))?;
        let mut iperf3 = fleet.host("a").command("iperf3");
        let server = server.to_string();
        iperf3.args([
            "-uc", &server, "-t", "1", "-b", "1M", "-l", "1000", "--json",
        ]);
        let report = run(&mut iperf3, LIMIT)?.success()?;
        let lost = report
            .lines()
            .find(|line| line.contains("\"lost_percent\""));
        assert!(lost.is_some_and(|line| line.contains(":\t0")), "{report}");
        // A box in the middle answers what dies there, through the tunnel.
        let ttl = "ping -c 1 -W 10 -t 2";
        let answer = fleet.host("a").sh(&format!("{ttl} {server} || true"))?;
        assert!(
            answer.to_lowercase().contains("time") && answer.contains("exceeded"),
            "{answer}"
        );
    }
    assert_eq!(
        fleet
            .helper("i")
            .sh("ip -o link show type sit | wc -l")?
            .trim(),
        "3"
    );
    running.finish()
}

#[rstest]
fn a_killed_daemon_leaves_the_chain_whole_and_the_next_one_adopts_it(
    #[values(Family::V4, Family::V6)] outer: Family,
) -> Result<()> {
    require!(root, tunnels);
    let fleet = Fleet::chain()?;
    let before: Vec<String> = BOXES
        .iter()
        .map(|name| fleet.kernel_state(name))
        .collect::<Result<_>>()?;
    let mut running = Running::start(fleet, outer, &Family::BOTH)?;
    let server = running.fleet.address("b", Family::V4)?;
    let open = |fleet: &Fleet| Pair::open(fleet.host("a"), fleet.host("b"), server);
    let old = open(&running.fleet)?;
    old.exchange(1000)?;
    let links = |fleet: &Fleet| fleet.helper("i").sh("ip -o link show | grep pepd-");
    let tunnels = links(&running.fleet)?;

    running.take("i").kill()?;
    assert_eq!(links(&running.fleet)?, tunnels);
    for end in [&old.client, &old.server] {
        assert_eq!(receive(end, &Pattern::new(0), 0)?, (0, End::RESET));
    }
    let counts = running.split()?;
    let unsplit = open(&running.fleet)?;
    unsplit.exchange(100_000)?;
    assert_eq!(running.split_since(&counts)?, [true, false, true]);

    // The same devices: their numbers are in the listing.
    running.restart("i")?;
    assert_eq!(links(&running.fleet)?, tunnels);
    let counts = running.split()?;
    open(&running.fleet)?.exchange(100_000)?;
    assert_eq!(running.split_since(&counts)?, [true; 3]);
    unsplit.exchange(1000)?;
    drop((old, unsplit));

    for (name, before) in BOXES.iter().zip(before) {
        let (status, log) = running.take(name).stop()?;
        assert_eq!(status.code(), Some(0), "{log}");
        assert_eq!(running.fleet.kernel_state(name)?, before, "{name}: {log}");
    }
    Ok(())
}

#[test]
fn down_removes_what_a_crash_left() -> Result<()> {
    require!(root, tunnels);
    let fleet = Fleet::chain()?;
    let before = fleet.kernel_state("i")?;
    let mut running = Running::start(fleet, Family::V4, &Family::BOTH)?;
    let config = running.config("i")?;
    running.take("i").kill()?;
    let fleet = &running.fleet;
    assert_ne!(fleet.kernel_state("i")?, before);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), config)?;
    let mut down = fleet.helper("i").command(PEPD);
    let said = run(down.args(["down", "-c"]).arg(file.path()), LIMIT)?.success()?;
    assert!(said.contains("removed ip link pepd-a"), "{said}");
    assert_eq!(fleet.kernel_state("i")?, before);
    Ok(())
}

#[test]
fn a_kept_tunnel_goes_on_without_the_daemon() -> Result<()> {
    require!(root, tunnels);
    let mut running = Running::start(Fleet::chain()?, Family::V4, &[Family::V4])?;
    let config = running.config("i")?;
    let kept = config.replace("[[peer]]\n", "[[peer]]\nkeep = true\n");
    running.take("i").stop()?;
    let daemon = Pepd::start(PEPD, running.fleet.helper("i"), &kept)?;
    daemon.stop()?;
    let fleet = &running.fleet;
    let state = fleet.kernel_state("i")?;
    assert!(
        ["chain guard", "chain clamp"]
            .iter()
            .all(|it| state.contains(it))
            && !state.contains("tproxy"),
        "{state}"
    );
    let server = fleet.address("b", Family::V4)?;
    let counts = running.split()?;
    Pair::open(fleet.host("a"), fleet.host("b"), server)?.exchange(10_000)?;
    assert_eq!(running.split_since(&counts)?, [true, false, true]);
    Ok(())
}

#[test]
fn somebody_elses_interface_is_refused_by_name() -> Result<()> {
    require!(root, tunnels);
    let fleet = Fleet::chain()?;
    fleet.helper("i").sh("ip link add pepd-a type dummy")?;
    let before = fleet.kernel_state("i")?;
    let config = fleet.config("i", Family::V4, &[Family::V4])?;
    let (status, log) = Pepd::builder(PEPD).fails(fleet.helper("i"), &config)?;
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(log.contains("the interface pepd-a is not pepd's"), "{log}");
    assert_eq!(fleet.kernel_state("i")?, before);

    fleet.helper("i").sh("ip link del pepd-a
         ip link add mine type ipip local 198.18.1.1 remote 198.18.0.1")?;
    let before = fleet.kernel_state("i")?;
    let (status, log) = Pepd::builder(PEPD).fails(fleet.helper("i"), &config)?;
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(log.contains("mine") && log.contains("198.18.0.1"), "{log}");
    assert_eq!(fleet.kernel_state("i")?, before);
    Ok(())
}

/// Returns the addresses of box i's end inside its tunnel to box a, sorted.
fn inside(running: &Running) -> Result<Vec<String>> {
    let list = "ip -o address show pepd-a scope global; ip -o address show pepd-a scope host";
    let shown = running.fleet.helper("i").sh(list)?;
    let column = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    let mut addresses: Vec<String> = shown.lines().filter_map(column).collect();
    addresses.sort();
    Ok(addresses)
}

/// What differs is changed in place where that is possible, and repaired where somebody else
/// changes it.
#[test]
fn a_tunnel_is_changed_in_place() -> Result<()> {
    require!(root, tunnels);
    let mut running = Running::start(Fleet::chain()?, Family::V4, &Family::BOTH)?;
    let config = running.config("i")?;
    let fleet = &running.fleet;
    let number = fleet
        .helper("i")
        .sh("ip -o link show pepd-a | cut -d: -f1")?;
    let changed = config.replace(
        "[[peer]]\nname = \"a\"\n",
        "[[peer]]\nname = \"a\"\nttl = 9\nmtu = 1300\ntos = 8\n\
         inside = [\"192.168.73.1/30\", \"fd00:73::1/64\"]\n",
    );
    let daemon = running.daemon("i");
    daemon.reload(&changed)?;
    let shown = running.fleet.helper("i").sh("ip -d link show pepd-a")?;
    assert!(
        shown.contains("mtu 1300") && shown.contains("ttl 9") && shown.contains("tos 0x8"),
        "{shown}"
    );
    assert_eq!(
        running
            .fleet
            .helper("i")
            .sh("ip -o link show pepd-a | cut -d: -f1")?,
        number
    );

    assert_eq!(inside(&running)?, ["192.168.73.1/30", "fd00:73::1/64"]);
    let other = changed.replace("192.168.73.1/30", "192.168.74.1/31");
    running.daemon("i").reload(&other)?;
    let wanted = ["192.168.74.1/31", "fd00:73::1/64"];
    assert_eq!(inside(&running)?, wanted);

    running
        .fleet
        .helper("i")
        .sh("ip address del 192.168.74.1/31 dev pepd-a")?;
    wait_until(LIMIT, "its address is mended", || {
        inside(&running).is_ok_and(|it| it == wanted)
    })?;
    running
        .fleet
        .helper("i")
        .sh("ip link set pepd-a mtu 1400 down; ip link del pepd-b")?;
    // The last of its routes is the one in 7303.
    wait_until(Duration::from_secs(60), "it is mended", || {
        running
            .fleet
            .helper("i")
            .sh("ip link show pepd-a | grep -q 'UP.*mtu 1300' && ip -6 route show table 7303 | grep -q pepd-a && ip route show table 7301 | grep -q pepd-b")
            .is_ok()
    })?;
    // Whoever sent into the tunnel meanwhile was told by ICMP that nobody takes it, and the kernel
    // refuses as many packets afterwards (IPTUNNEL_ERR_TIMEO, net/ipv6/sit.c).
    let fleet = &running.fleet;
    let server = fleet.address("b", Family::V6)?;
    let mut pair = None;
    wait_until(LIMIT, "a connection", || {
        pair = Pair::open(fleet.host("a"), fleet.host("b"), server).ok();
        pair.is_some()
    })?;
    pair.context("no connection")?.exchange(10_000)?;
    running.finish()
}
