//! Helper boxes side by side between two routers, as docs/cluster.md has the picture, and the programs of
//! routers with the files of config/.
//!
//! ```text
//!   client ── left ─┬─ box 1 ─┬─ right ── server
//!   10.1.0.2        ├─ box 2 ─┤           10.2.0.2
//!                   └─ box 3 ─┘
//! ```

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Netns, Process, World, run, wait_until};

use crate::harness::{LIMIT, PEPD};

/// The hosts, the routers, and the boxes.
pub struct Ground {
    pub client: Netns,
    pub left: Netns,
    pub boxes: Vec<Netns>,
    pub right: Netns,
    pub server: Netns,
}

/// The server's address.
pub const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 2, 0, 2));

/// A router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

impl Ground {
    /// Makes it, with so many boxes.
    pub fn new(boxes: usize) -> Result<Self> {
        let [client, left, right, server] = ["client", "left", "right", "server"].map(Netns::new);
        let (client, left, right, server) = (client?, left?, right?, server?);
        join(
            &client,
            "to-left 10.1.0.2/24",
            &left,
            "to-client 10.1.0.1/24",
        )?;
        join(
            &server,
            "to-right 10.2.0.2/24",
            &right,
            "to-server 10.2.0.1/24",
        )?;
        client.sh("ip route add default via 10.1.0.1")?;
        server.sh("ip route add default via 10.2.0.1")?;
        let mut made = Vec::new();
        for n in 1..=boxes {
            let netns = Netns::new(&format!("box{n}"))?;
            for (router, net, side) in [(&left, 8, "left"), (&right, 9, "right")] {
                let (near, far) = (
                    format!("to-box{n} 10.{net}.{n}.1/24"),
                    format!("to-{side} 10.{net}.{n}.2/24"),
                );
                join(router, &near, &netns, &far)?;
            }
            made.push(netns);
        }
        for router in made.iter().chain([&left, &right]) {
            router.sysctl("net.ipv4.ip_forward", "1")?;
        }
        Ok(Self {
            client,
            left,
            boxes: made,
            right,
            server,
        })
    }

    /// Opens a connection from the client to the server, and has it carry something.
    pub fn open(&self) -> Result<Pair> {
        let pair = Pair::open(&self.client, &self.server, SERVER)?;
        pair.exchange(1)?;
        Ok(pair)
    }
}

/// Returns the configuration of a box's daemon, which listens at its usual socket.
pub fn pepd_config(netns: &Netns) -> String {
    let config = World::config().replace("drain = \"5s\"", "drain = \"1h\"");
    format!(
        "{config}\n[admin]\nsocket = \"{}\"\n",
        socket(netns).display()
    )
}

/// Returns where that is.
pub fn socket(netns: &Netns) -> PathBuf {
    netns.runtime_directory().join("admin.sock")
}

/// Joins two namespaces, given a device and its address in each.
fn join(one: &Netns, near: &str, other: &Netns, far: &str) -> Result<()> {
    let end = |words: &str| -> Result<(String, String)> {
        let (device, address) = words.split_once(' ').context("a device and an address")?;
        Ok((device.to_owned(), address.to_owned()))
    };
    let ((near, address), (far, its)) = (end(near)?, end(far)?);
    let name = other.name();
    one.sh(&format!(
        "ip link add {near} type veth peer name {far} netns {name}
         ip addr add {address} dev {near}; ip link set {near} up"
    ))?;
    other.sh(&format!(
        "ip addr add {its} dev {far}; ip link set {far} up"
    ))?;
    Ok(())
}

/// What every BIRD of a test does otherwise. On a busy machine a daemon that lives may say nothing for a second.
const USUAL: [(&str, &str); 3] = [
    ("log syslog all", "log stderr all"),
    ("interval 300 ms", "interval 1 s"),
    ("multiplier 3", "multiplier 10"),
];

/// Returns config/bird-router.conf for one of the routers.
pub fn router_config(side: Side) -> Result<String> {
    if side == Side::Left {
        return adapted("bird-router.conf", &USUAL);
    }
    let text = adapted("bird-router.conf", &USUAL)?;
    let text = text.replace("10.8.", "10.9.").replace("65001", "65002");
    let swapped = text
        .replace("10.1.0.0/16", "behind")
        .replace("10.2.0.0/16", "10.1.0.0/16");
    Ok(swapped.replace("behind", "10.2.0.0/16"))
}

/// Returns config/bird-box.conf for the n-th box, which reads what pepd-announce writes in a directory.
pub fn box_config(n: usize, directory: &Path) -> Result<String> {
    let included = directory.join("bird.conf").display().to_string();
    let (left, right) = (format!("10.8.{n}."), format!("10.9.{n}."));
    let ours = [
        ("/run/pepd-announce/bird.conf", &*included),
        ("10.8.1.", &*left),
        ("10.9.1.", &*right),
    ];
    adapted("bird-box.conf", &[&USUAL[..], &ours].concat())
}

/// A running BIRD.
pub struct Bird {
    socket: PathBuf,
    process: Process,
}

impl Bird {
    /// Starts it with this configuration, in this directory.
    pub fn start(netns: &Netns, config: &str, directory: &Path) -> Result<Self> {
        let [file, socket] = ["bird-main.conf", "bird.ctl"].map(|it| directory.join(it));
        fs::write(&file, config)?;
        let mut command = netns.command("bird");
        command.arg("-fc").arg(&file).arg("-s").arg(&socket);
        let process = Process::spawn(&mut command)?;
        let bird = Self { socket, process };
        wait_until(LIMIT, "BIRD answers", || bird.ask("show status").is_ok())
            .with_context(|| bird.process.log())?;
        Ok(bird)
    }

    /// Asks it.
    pub fn ask(&self, words: &str) -> Result<String> {
        let mut birdc = Command::new("birdc");
        birdc.arg("-s").arg(&self.socket).args(words.split(' '));
        run(&mut birdc, LIMIT)?.success()
    }
}

/// Starts config/pepd-announce, which writes in a directory where the routing daemon on the box is asked as
/// well.
pub fn announce(netns: &Netns, daemon: &str, directory: &Path) -> Result<Process> {
    let at = directory.display();
    let mut command = netns.command(&config_file("pepd-announce").display().to_string());
    command
        .env("PEPD_ANNOUNCE_DIR", directory)
        .env("BIRDC", format!("birdc -s {at}/bird.ctl"))
        .env("VTYSH", format!("vtysh --vty_socket {at}"))
        .env("PEPD", PEPD)
        .args([daemon, "--socket"])
        .arg(socket(netns));
    let process = Process::spawn(&mut command)?;
    wait_until(LIMIT, "it says that the box is not ready", || {
        daemon != "bird" || directory.join("bird.conf").exists()
    })
    .with_context(|| process.log())?;
    Ok(process)
}

/// Returns where a file of config/ is.
pub fn config_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name)
}

/// Returns a file of config/ in which some words are others. Each has to be in it.
pub fn adapted(name: &str, changes: &[(&str, &str)]) -> Result<String> {
    let mut text = fs::read_to_string(config_file(name)).context(name.to_owned())?;
    for (from, to) in changes {
        anyhow::ensure!(text.contains(from), "config/{name} has no `{from}`");
        text = text.replace(from, to);
    }
    Ok(text)
}
