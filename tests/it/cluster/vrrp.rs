//! Two boxes of which one has the addresses, with the real keepalived and config/keepalived.conf.
//!
//! ```text
//!   client 10.1.0.2 ──┬── box 1 ──┬── far 192.0.2.100 ── server 10.2.0.2
//!            10.1.0.1 └── box 2 ──┘ 192.0.2.1
//! ```

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Netns, Pepd, Process, World, accepted, require, wait_until};
use rstest::rstest;
use tempfile::TempDir;

use super::ground::adapted;
use crate::harness::{LIMIT, PEPD};

const SERVER: [u8; 4] = [10, 2, 0, 2];

/// What leads from the boxes to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// A router.
    Router,
    /// A helper box, by a tunnel that has the address which moves.
    Tunnel,
}

/// All of it. What is dropped first comes first.
struct Scene {
    boxes: [Standby; 2],
    far: Option<Pepd>,
    client: Netns,
    server: Netns,
    rest: [Netns; 3],
}

/// One of the two boxes.
struct Standby {
    keepalived: Option<Process>,
    pepd: Option<Pepd>,
    config: String,
    netns: Netns,
    folder: TempDir,
}

impl Scene {
    fn new(beyond: Beyond) -> Result<Self> {
        let [client, lan, core, far, server] =
            ["client", "lan", "core", "far", "server"].map(Netns::new);
        let (client, lan, core, far, server) = (client?, lan?, core?, far?, server?);
        for switch in [&lan, &core] {
            switch.sh("ip link add name sw0 type bridge; ip link set sw0 up")?;
        }
        plug(&client, "eth0", &lan, "client", "10.1.0.2/24")?;
        client.sh("ip route add default via 10.1.0.1")?;
        plug(&far, "eth0", &core, "far", "192.0.2.100/24")?;
        let other = server.name();
        far.sh(&format!(
            "ip link add eth1 type veth peer name eth0 netns {other}
             ip addr add 10.2.0.1/24 dev eth1; ip link set eth1 up"
        ))?;
        server.sh("ip addr add 10.2.0.2/24 dev eth0; ip link set eth0 up
             ip route add default via 10.2.0.1")?;
        far.sysctl("net.ipv4.ip_forward", "1")?;
        let far_daemon = match beyond {
            Beyond::Router => {
                far.sh("ip route add 10.1.0.0/16 via 192.0.2.1")?;
                None
            }
            Beyond::Tunnel => Some(Pepd::start(PEPD, &far, &far_config())?),
        };
        let first = Standby::new("1", &lan, &core, beyond)?;
        let second = Standby::new("2", &lan, &core, beyond)?;
        Ok(Self {
            boxes: [first, second],
            far: far_daemon,
            client,
            server,
            rest: [lan, core, far],
        })
    }

    /// Waits until one box has both addresses, and returns which.
    fn settled(&self) -> Result<usize> {
        let mut master = None;
        wait_until(LIMIT, "one box has both addresses", || {
            let has = self.boxes.each_ref().map(|it| it.addresses().unwrap_or(0));
            master = match has {
                [2, 0] => Some(0),
                [0, 2] => Some(1),
                _ => None,
            };
            master.is_some()
        })
        .with_context(|| self.logs())?;
        master.context("none")
    }

    fn moves_to(&self, index: usize) -> Result<()> {
        wait_until(LIMIT, "the addresses move", || {
            let has = |index: usize| self.boxes[index].addresses().unwrap_or(9);
            has(index) == 2 && has(1 - index) == 0
        })
        .with_context(|| self.logs())
    }

    fn open(&self) -> Result<Pair> {
        Pair::open(&self.client, &self.server, SERVER.into())
    }

    /// Returns whether its neighbours on both sides have heard that the addresses are this box's.
    fn is_known(&self, index: usize) -> Result<bool> {
        let netns = &self.boxes[index].netns;
        let knows = |host: &Netns, address: &str, device: &str| -> Result<bool> {
            let link = netns.sh(&format!("ip -o link show {device}"))?;
            let mut words = link.split_whitespace();
            words.find(|word| *word == "link/ether");
            let own = words.next().context("an address of the link")?;
            // Who knows nobody asks.
            let known = host.sh(&format!("ip neigh show {address}"))?;
            Ok(!known.contains("lladdr") || known.contains(own))
        };
        let [_, _, far] = &self.rest;
        Ok(knows(&self.client, "10.1.0.1", "eth0")? && knows(far, "192.0.2.1", "eth1")?)
    }

    /// Waits until new connections flow, and are split by this box.
    fn flows_by(&self, index: usize) -> Result<Pair> {
        let netns = &self.boxes[index].netns;
        // A connection that came by one box, and whose answers went by the other, would have the next ones routed for
        // a time.
        wait_until(LIMIT, "the neighbours know where the addresses are", || {
            self.is_known(index).is_ok_and(|known| known)
        })
        .with_context(|| self.logs())?;
        let mut found = None;
        wait_until(LIMIT, "a new connection is split there", || {
            let before = accepted(netns).unwrap_or(0);
            let pair = self
                .open()
                .and_then(|pair| pair.exchange(1000).map(|()| pair));
            found = pair
                .ok()
                .filter(|_| accepted(netns).is_ok_and(|now| now > before));
            found.is_some()
        })
        .with_context(|| self.logs())?;
        found.context("none")
    }

    fn logs(&self) -> String {
        let logs = self.boxes.iter().map(|it| {
            let keepalived = it.keepalived.as_ref().map(Process::log).unwrap_or_default();
            let pepd = it.pepd.as_ref().map(Pepd::log).unwrap_or_default();
            format!("---- keepalived ----\n{keepalived}---- pepd ----\n{pepd}")
        });
        let far = self.far.as_ref().map(Pepd::log).unwrap_or_default();
        logs.collect::<String>() + "---- far ----\n" + &far
    }
}

impl Standby {
    fn new(number: &str, lan: &Netns, core: &Netns, beyond: Beyond) -> Result<Self> {
        let netns = Netns::new(&format!("box{number}"))?;
        plug(
            &netns,
            "eth0",
            lan,
            &format!("box{number}"),
            &format!("10.1.0.1{number}/24"),
        )?;
        plug(
            &netns,
            "eth1",
            core,
            &format!("box{number}"),
            &format!("192.0.2.1{number}/24"),
        )?;
        netns.sysctl("net.ipv4.ip_forward", "1")?;
        let socket = netns.runtime_directory().join("admin.sock");
        let admin = format!("[admin]\nsocket = \"{}\"\n", socket.display());
        let config = World::config().replace("drain = \"5s\"", "drain = \"1h\"");
        let config = match beyond {
            Beyond::Router => {
                netns.sh("ip route add 10.2.0.0/16 via 192.0.2.100")?;
                config
            }
            Beyond::Tunnel => by_tunnel(&config, "b", "192.0.2.1", "192.0.2.100"),
        };
        let mut standby = Self {
            keepalived: None,
            pepd: None,
            config: config + &admin,
            netns,
            folder: tempfile::tempdir()?,
        };
        standby.start_pepd()?;
        let ours = format!("{PEPD} ready --live --socket {}", socket.display());
        let theirs = "/usr/bin/pepd ready --live -c /etc/pepd/pepd.toml";
        let file = standby.path("keepalived.conf");
        fs::write(&file, adapted("keepalived.conf", &[(theirs, &ours)])?)?;
        let mut command = standby.netns.command("keepalived");
        command.args(["--dont-fork", "--log-console", "--log-detail", "-f"]);
        command.arg(&file);
        for (option, name) in [("-p", "pid"), ("-r", "vrrp.pid"), ("-c", "checkers.pid")] {
            command.arg(option).arg(standby.path(name));
        }
        standby.keepalived = Some(Process::spawn(&mut command)?);
        Ok(standby)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_pepd(&mut self) -> Result<()> {
        self.pepd = Some(Pepd::start(PEPD, &self.netns, &self.config)?);
        Ok(())
    }

    /// Returns how many of the two addresses it has.
    fn addresses(&self) -> Result<usize> {
        let listed = self.netns.sh("ip -4 -o addr")?;
        let has = |address: &str| listed.contains(&format!(" {address}/"));
        Ok(["10.1.0.1", "192.0.2.1"]
            .into_iter()
            .filter(|it| has(it))
            .count())
    }
}

/// Joins a namespace to a switch.
fn plug(netns: &Netns, device: &str, switch: &Netns, port: &str, address: &str) -> Result<()> {
    let other = switch.name();
    netns.sh(&format!(
        "ip link add {device} type veth peer name {port} netns {other}
         ip addr add {address} dev {device}; ip link set {device} up"
    ))?;
    switch.sh(&format!(
        "ip link set {port} master sw0; ip link set {port} up"
    ))?;
    Ok(())
}

/// Returns the configuration with a campus behind a tunnel.
fn by_tunnel(config: &str, campus: &str, local: &str, remote: &str) -> String {
    let head = format!("name = \"{campus}\"\n");
    let (before, after) = config.split_once(&head).unwrap();
    let after = after.replacen("via = \"local\"", "via = \"other\"", 1);
    format!(
        "{before}{head}{after}
[[peer]]
name = \"other\"
local = \"{local}\"
remote = \"{remote}\"
probe = \"500ms\"
"
    )
}

/// Returns that of the helper box beyond, which knows one peer, and not two.
fn far_config() -> String {
    by_tunnel(&World::config(), "a", "192.0.2.100", "192.0.2.1")
}

#[rstest]
#[case::to_a_router(Beyond::Router)]
#[case::to_a_tunnel(Beyond::Tunnel)]
fn the_addresses_are_where_connections_are_split(#[case] beyond: Beyond) -> Result<()> {
    require!(root, program("keepalived"));
    if beyond == Beyond::Tunnel {
        require!(tunnels);
    }
    let mut scene = Scene::new(beyond)?;
    let first = scene.settled()?;
    let second = 1 - first;
    let live = scene.flows_by(first)?;

    // It drains: what it has goes on, and when nothing is left the other one takes over.
    let pepd = scene.boxes[first].pepd.take().context("a daemon")?;
    pepd.subcommand(&scene.boxes[first].netns, "drain")?
        .success()?;
    for _ in 0..20 {
        live.exchange(10_000)?;
        ensure!(
            scene.settled()? == first,
            "they have moved:\n{}",
            scene.logs()
        );
    }
    drop(live);
    let (status, log) = pepd.wait()?;
    ensure!(status.success(), "{log}");
    scene.moves_to(second)?;
    let live = scene.flows_by(second)?;

    // It is back: the addresses stay where they are, and so do the connections.
    scene.boxes[first].start_pepd()?;
    let socket = scene.boxes[first]
        .netns
        .runtime_directory()
        .join("admin.sock");
    wait_until(LIMIT, "the first one is ready", || {
        super::is_ready(&socket, &["--live"]).is_ok_and(|(fit, _)| fit)
    })?;
    live.exchange(100_000)?;
    ensure!(scene.settled()? == second, "{}", scene.logs());

    // The second one is no more.
    let dead = &mut scene.boxes[second];
    dead.netns
        .sh("ip link set eth0 down; ip link set eth1 down")?;
    if let Some(keepalived) = dead.keepalived.take() {
        keepalived.signal(Signal::SIGKILL)?;
    }
    wait_until(LIMIT, "the first one has the addresses", || {
        scene.boxes[first].addresses().is_ok_and(|count| count == 2)
    })
    .with_context(|| scene.logs())?;
    drop(scene.flows_by(first)?);

    // Nobody is fit: somebody routes.
    if beyond == Beyond::Router {
        let pepd = scene.boxes[first].pepd.take().context("a daemon")?;
        pepd.kill()?;
        let socket = scene.boxes[first]
            .netns
            .runtime_directory()
            .join("admin.sock");
        assert_eq!(super::ready(&socket, &[])?.status.code(), Some(69));
        wait_until(LIMIT, "it routes", || {
            scene.open().and_then(|pair| pair.exchange(1000)).is_ok()
        })?;
        assert_eq!(scene.boxes[first].addresses()?, 2);
    }
    Ok(())
}
