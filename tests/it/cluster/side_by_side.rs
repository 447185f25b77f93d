//! Three boxes between two routers that share connections among them: symmetric, and whatever comes, drains or
//! dies, the connections of the others notice nothing.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Pepd, Process, accepted, require, wait_until};
use tempfile::TempDir;

use super::ground::{
    Bird, Ground, SERVER, Side, announce, box_config, config_file, pepd_config, router_config,
    socket,
};
use crate::harness::{LIMIT, PEPD, many_descriptors};

/// Connections, one after the other, none of which may come back by another box.
const MANY: usize = 1500;

/// The cluster; what is dropped first comes first.
struct Cluster {
    boxes: Vec<Member>,
    _routers: [Bird; 2],
    ground: Ground,
    _places: [TempDir; 2],
}

/// What runs on a box.
#[derive(Default)]
struct Member {
    _announcer: Option<Process>,
    _bird: Option<Bird>,
    pepd: Option<Pepd>,
    _place: Option<TempDir>,
}

impl Cluster {
    /// Makes three boxes, on none of which anything runs yet; with routers that remember, or with those
    /// that go by the hash alone.
    fn new(remembers: bool) -> Result<Self> {
        let ground = Ground::new(3)?;
        for router in [&ground.left, &ground.right] {
            // Addresses, protocol and ports: policy 1 goes by a hash that differs from one way to the other.
            router.sysctl("net.ipv4.fib_multipath_hash_fields", "55")?;
            router.sysctl("net.ipv4.fib_multipath_hash_policy", "3")?;
            // Two machines would have one each of their own. Before Linux 6.11 nobody can say.
            if Path::new("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists() {
                router.sysctl("net.ipv4.fib_multipath_hash_seed", "7300")?;
            }
            if remembers {
                router.sh(&format!(
                    "nft -f {}",
                    config_file("cluster-router.nft").display()
                ))?;
                router.sh(
                    "for n in 1 2 3; do ip rule add fwmark 0x${n}00/0xff00 lookup 10$n; done",
                )?;
            }
        }
        let places = [tempfile::tempdir()?, tempfile::tempdir()?];
        let left = Bird::start(&ground.left, &router_config(Side::Left)?, places[0].path())?;
        let right = Bird::start(
            &ground.right,
            &router_config(Side::Right)?,
            places[1].path(),
        )?;
        Ok(Self {
            boxes: [(); 3].map(|()| Member::default()).into(),
            _routers: [left, right],
            ground,
            _places: places,
        })
    }

    /// Starts everything on a box, and waits until both routers lead connections there.
    fn add(&mut self, index: usize) -> Result<()> {
        let netns = &self.ground.boxes[index];
        let pepd = Pepd::start(PEPD, netns, &pepd_config(netns))?;
        let place = tempfile::tempdir()?;
        let announcer = announce(netns, "bird", place.path())?;
        let bird = Bird::start(netns, &box_config(index + 1, place.path())?, place.path())?;
        self.boxes[index] = Member {
            _announcer: Some(announcer),
            _bird: Some(bird),
            pepd: Some(pepd),
            _place: Some(place),
        };
        self.is_led_to(index, true)
    }

    /// Waits until both routers lead new connections to a box, or do not.
    fn is_led_to(&self, index: usize, wanted: bool) -> Result<()> {
        let device = format!("to-box{}", index + 1);
        let ways = [
            (&self.ground.left, "10.2.0.0/24"),
            (&self.ground.right, "10.1.0.0/24"),
        ];
        wait_until(LIMIT, &format!("{device}: {wanted}"), || {
            ways.iter().all(|(router, net)| {
                let route = router.sh(&format!("ip route show {net}"));
                route.is_ok_and(|route| route.contains(&device) == wanted)
            })
        })
        .with_context(|| self.state())
    }

    fn state(&self) -> String {
        let logs = self.boxes.iter().flat_map(|it| &it.pepd).map(Pepd::log);
        let routes = self.ground.left.sh("ip route; ip route show table 101");
        logs.collect::<String>() + &routes.unwrap_or_default()
    }

    /// Returns how many connections each box has split so far.
    fn split(&self) -> Result<Vec<u64>> {
        self.ground.boxes.iter().map(accepted).collect()
    }

    /// Returns connections by so many boxes that each of these has at least five, and which it is of each.
    fn pairs(&self, boxes: &[usize]) -> Result<Vec<(usize, Pair)>> {
        let mut pairs: Vec<(usize, Pair)> = Vec::new();
        let has = |pairs: &[(usize, Pair)], index: usize| {
            pairs.iter().filter(|(its, _)| *its == index).count()
        };
        while boxes.iter().any(|index| has(&pairs, *index) < 5) {
            let before = self.split()?;
            let pair = self.ground.open()?;
            let after = self.split()?;
            let index = before
                .iter()
                .zip(&after)
                .position(|(before, after)| after > before);
            pairs.push((index.context("no box has split it")?, pair));
            ensure!(
                pairs.len() < 200,
                "{:?}",
                pairs.iter().map(|it| it.0).collect::<Vec<_>>()
            );
        }
        Ok(pairs)
    }

    /// Checks that no box has seen a connection whose answers come back by another one.
    fn is_symmetric(&self) -> Result<()> {
        for (member, netns) in self.boxes.iter().zip(&self.ground.boxes) {
            if member.pepd.is_none() {
                continue;
            }
            let counters = pepd_testbed::ask(&socket(netns), "GET /v1/counters")?;
            let counters: serde_json::Value = serde_json::from_str(&counters)?;
            let named = |it: &&serde_json::Value| it["name"] == "let_through_detour";
            let all = counters["counters"].as_array().context("counters")?;
            let count = &all.iter().find(named).context("no such counter")?["count"];
            ensure!(*count == 0, "{count} asymmetric");
            let pairs = netns.sh("nft list set inet pepd detour4")?;
            ensure!(!pairs.contains("expires"), "{pairs}");
        }
        Ok(())
    }
}

/// With routers that remember: one is added, one drains, one dies.
#[test]
fn boxes_come_and_drain_and_die_and_the_others_connections_stay() -> Result<()> {
    require!(root, program("bird"), program("birdc"));
    let mut cluster = Cluster::new(true)?;
    cluster.add(0)?;
    cluster.add(1)?;
    let mut pairs = cluster.pairs(&[0, 1])?;
    cluster.add(2)?;
    for (index, pair) in &pairs {
        pair.exchange(10_000)
            .with_context(|| format!("box {index}, after one was added"))?;
    }
    pairs.extend(cluster.pairs(&[2])?);

    // The third one drains: no more new ones, and its own go on to their end.
    let netns = &cluster.ground.boxes[2];
    let pepd = cluster.boxes[2].pepd.as_ref().context("a daemon")?;
    pepd.subcommand(netns, "drain")?.success()?;
    cluster.is_led_to(2, false)?;
    let before = cluster.split()?[2];
    for _ in 0..20 {
        cluster.ground.open()?.exchange(1000)?;
    }
    ensure!(cluster.split()?[2] == before, "it takes new ones");
    for (index, pair) in &pairs {
        pair.exchange(10_000)
            .with_context(|| format!("box {index}, while one drains"))?;
    }
    pairs.retain(|(index, _)| *index != 2);
    let pepd = cluster.boxes[2].pepd.take().context("a daemon")?;
    let (status, log) = pepd.wait()?;
    ensure!(status.success(), "{log}");
    cluster.is_symmetric()?;

    // It is back, and the first one dies, with all that runs on it and its links.
    cluster.boxes[2] = Member::default();
    cluster.add(2)?;
    pairs.extend(cluster.pairs(&[2])?);
    let dead = std::mem::take(&mut cluster.boxes[0]);
    cluster.ground.boxes[0].sh("ip link set to-left down; ip link set to-right down")?;
    drop(dead);
    cluster.is_led_to(0, false)?;
    for _ in 0..20 {
        cluster.ground.open()?.exchange(1000)?;
    }
    for (index, pair) in pairs.iter().filter(|(index, _)| *index != 0) {
        pair.exchange(10_000)
            .with_context(|| format!("box {index}, after another one has died"))?;
    }
    cluster.is_symmetric()
}

/// With routers that remember, and with those that go by the hash alone.
#[test]
fn many_connections_and_none_is_asymmetric() -> Result<()> {
    require!(root, program("bird"), program("birdc"));
    let _turn = many_descriptors()?;
    for remembers in [true, false] {
        let mut cluster = Cluster::new(remembers)?;
        for index in 0..3 {
            cluster.add(index)?;
        }
        let before = cluster.split()?;
        let address = std::net::SocketAddr::new(SERVER, 0);
        let there = pepd_testbed::traffic::listen(&cluster.ground.server, address)?;
        for _ in 0..MANY {
            Pair::through(&there, &cluster.ground.client)?.exchange(1)?;
        }
        // The other way round as well.
        let address = std::net::SocketAddr::from(([10, 1, 0, 2], 0));
        let here = pepd_testbed::traffic::listen(&cluster.ground.client, address)?;
        for _ in 0..MANY / 3 {
            Pair::through(&here, &cluster.ground.server)?.exchange(1)?;
        }
        let after = cluster.split()?;
        let shares: Vec<u64> = after
            .iter()
            .zip(before)
            .map(|(now, then)| now - then)
            .collect();
        let all = (MANY + MANY / 3) as u64;
        ensure!(shares.iter().sum::<u64>() >= all, "{shares:?} of {all}");
        ensure!(shares.iter().all(|share| *share > all / 5), "{shares:?}");
        cluster.is_symmetric()?;
        println!("remembers: {remembers}, shares: {shares:?}");
    }
    Ok(())
}
