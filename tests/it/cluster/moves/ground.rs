//! Two boxes between two routers, which lead everything to the first one, and a network that both boxes are on.
//!
//! ```text
//!   client ── left ─┬─ one ─┬─ right ── server
//!                   │   │   │
//!                   └─ two ─┘
//! ```

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{Scope, ScopedJoinHandle};

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Deadline, Family, Finished, Link, Netns, Pepd, Topology, run, wait_until};
use serde_json::{Deserializer, Value};
use tempfile::TempDir;

use crate::harness::{LIMIT, PEPD};

/// The boxes, by their names.
pub const BOXES: [&str; 2] = ["one", "two"];

/// The key that both have.
pub const KEY: &str = "5f2a1c9e7b3d4f60815a2c3e4d5f6071829304a5b6c7d8e9fa0b1c2d3e4f5061";

/// One that is a third box's.
const ANOTHER: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// All of it. The daemons come first: they end before their boxes do.
pub struct Ground {
    pub daemons: Vec<Option<Pepd>>,
    pub topology: Topology,
    family: Family,
    place: TempDir,
}

fn v4(text: String) -> Result<ipnet::Ipv4Net> {
    Ok(text.parse()?)
}

fn v6(text: String) -> Result<ipnet::Ipv6Net> {
    Ok(text.parse()?)
}

/// Makes the hosts, the routers and the networks.
fn topology() -> Result<Topology> {
    let mut topology = Topology::describe().host("client").host("server");
    for router in ["left", "right", "one", "two"] {
        topology = topology.router(router);
    }
    let links = [
        ("client", "left", 1),
        ("server", "right", 2),
        ("one", "left", 11),
        ("one", "right", 12),
        ("two", "left", 21),
        ("two", "right", 22),
        ("one", "two", 9),
    ];
    for (near, far, net) in links {
        let link = Link::between(near, far)
            .v4(
                v4(format!("10.{net}.0.2/24"))?,
                v4(format!("10.{net}.0.1/24"))?,
            )
            .v6(
                v6(format!("fd00:{net}::2/64"))?,
                v6(format!("fd00:{net}::1/64"))?,
            );
        topology = topology.link(link);
    }
    let topology = topology
        .route("client", "default", "left")
        .route("server", "default", "right")
        .build()?;
    Ok(topology)
}

impl Ground {
    /// Makes it, with a daemon on each box whose configuration ends in `more`.
    pub fn open(family: Family, more: [&str; 2]) -> Result<Self> {
        let topology = topology()?;
        for (name, net) in [("one", 10), ("two", 20)] {
            topology.node(name).sh(&format!(
                "ip route add 10.1.0.0/24 via 10.{left}.0.1; ip route add 10.2.0.0/24 via 10.{right}.0.1
                 ip -6 route add fd00:1::/64 via fd00:{left}::1
                 ip -6 route add fd00:2::/64 via fd00:{right}::1
                 nft 'table inet resets {{
                    counter resets {{ }}
                    chain out {{
                        type filter hook postrouting priority 0
                        tcp sport {{ 7310, 7399 }} accept
                        tcp dport {{ 7310, 7399 }} accept
                        tcp flags & rst == rst counter name resets
                    }}
                    counter routed {{ }}
                    chain pass {{
                        type filter hook forward priority 0
                        tcp flags & syn == 0 counter name routed
                    }}
                 }}'",
                left = net + 1,
                right = net + 2,
            ))?;
        }
        let place = tempfile::tempdir()?;
        for (name, key) in [("key", KEY), ("key-of-another", ANOTHER)] {
            let file = place.path().join(name);
            fs::write(&file, key)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        }
        let mut ground = Self {
            daemons: vec![None, None],
            topology,
            family,
            place,
        };
        ground.lead_to(0)?;
        for (at, more) in more.into_iter().enumerate() {
            ground.start(at, more)?;
        }
        Ok(ground)
    }

    /// Starts a box's daemon.
    pub fn start(&mut self, at: usize, more: &str) -> Result<()> {
        let config = self.config(at) + more;
        self.daemons[at] = Some(Pepd::start(PEPD, self.node(BOXES[at]), &config)?);
        Ok(())
    }

    /// Waits until the second box listens to the first: that is a moment after it splits.
    pub fn listens(&self) -> Result<()> {
        let knock = || TcpStream::connect("10.9.0.1:7310").is_ok();
        self.node("one")
            .run(|| wait_until(LIMIT, "it listens", knock))
    }

    pub fn config(&self, at: usize) -> String {
        let key = self.place.path().join("key");
        let (own, other) = (BOXES[at], BOXES[1 - at]);
        // The first one is .2 on the network of both.
        let (here, there) = (2 - at, 1 + at);
        format!(
            "[node]
             name = \"{own}\"
             workers = 2
             drain = \"1h\"
             [[campus]]
             name = \"a\"
             prefixes = [\"10.1.0.0/24\", \"fd00:1::/64\"]
             via = \"local\"
             [[campus]]
             name = \"b\"
             prefixes = [\"10.2.0.0/24\", \"fd00:2::/64\"]
             via = \"local\"
             [admin]
             socket = \"{socket}\"
             [move]
             listen = \"10.9.0.{here}:7310\"
             [[neighbor]]
             name = \"{other}\"
             address = \"10.9.0.{there}:7310\"
             via = [\"10.9.0.{there}\", \"fd00:9::{there}\"]
             key = \"{key}\"\n",
            socket = self.socket(at).display(),
            key = key.display(),
        )
    }

    pub fn socket(&self, at: usize) -> PathBuf {
        self.node(BOXES[at]).runtime_directory().join("admin.sock")
    }

    pub fn node(&self, name: &str) -> &Netns {
        self.topology.node(name)
    }

    pub fn daemon(&mut self, at: usize) -> Result<&mut Pepd> {
        self.daemons[at].as_mut().context("it has ended")
    }

    /// Has both routers lead what is for the other side to a box.
    pub fn lead_to(&self, at: usize) -> Result<()> {
        let net = 10 * (at + 1);
        for (router, to, own, family) in [
            ("left", "10.2.0.0/24", net + 1, ""),
            ("right", "10.1.0.0/24", net + 2, ""),
            ("left", "fd00:2::/64", net + 1, "-6"),
            ("right", "fd00:1::/64", net + 2, "-6"),
        ] {
            let gateway = match family {
                "" => format!("10.{own}.0.2"),
                _ => format!("fd00:{own}::2"),
            };
            let script = format!("ip {family} route replace {to} via {gateway}");
            self.node(router).sh(&script)?;
        }
        Ok(())
    }

    pub fn server(&self) -> Result<IpAddr> {
        Ok(match self.family {
            Family::V4 => "10.2.0.2".parse()?,
            Family::V6 => "fd00:2::2".parse()?,
        })
    }

    /// Opens a connection, which has carried something.
    pub fn pair(&self) -> Result<Pair> {
        let pair = Pair::open(self.node("client"), self.node("server"), self.server()?)?;
        pair.exchange(1)?;
        Ok(pair)
    }

    /// A command to the daemon of a box.
    pub fn tells(&self, at: usize, words: &[&str]) -> Result<Finished> {
        let mut command = Command::new(PEPD);
        let socket = self.socket(at);
        run(command.args(words).arg("--socket").arg(socket), LIMIT)
    }

    /// `pepd move` on a box, to the other one.
    pub fn moves(&self, from: usize, words: &[&str]) -> Result<Finished> {
        let all = [&["move", "--to", BOXES[1 - from]], words].concat();
        self.tells(from, &all)
    }

    /// The same until all have moved: one that mends a loss stays for then. Gives for how long each stood still, in
    /// seconds.
    pub fn all_move(&self, from: usize, count: usize) -> Result<Vec<f64>> {
        let deadline = Deadline::after(LIMIT);
        let mut pauses = Vec::new();
        loop {
            let said = self.moves(from, &["--json"])?;
            // An answer for each some hundred.
            for report in Deserializer::from_str(&said.stdout).into_iter::<Value>() {
                let report = report.with_context(|| format!("{said:?}"))?;
                let lost = report["lost"].as_array().context("lost")?;
                ensure!(lost.is_empty(), "{said:?}");
                let moved = report["moved"].as_array().context("moved")?.iter();
                pauses.extend(moved.filter_map(|it| it["pause"].as_f64()));
            }
            if pauses.len() == count {
                return Ok(pauses);
            }
            let moved = pauses.len();
            ensure!(
                moved < count && !deadline.passed(),
                "{moved} of {count}: {said:?}"
            );
        }
    }

    /// Returns the connections that a box has, by their clients.
    pub fn flows(&self, at: usize) -> Result<Vec<SocketAddr>> {
        let flows = pepd_testbed::ask(&self.socket(at), "GET /v1/flows?limit=1000")?;
        let flows: Value = serde_json::from_str(&flows)?;
        let flows = flows["flows"].as_array().context("flows")?;
        let clients = flows.iter().filter_map(|flow| flow["client"].as_str());
        Ok(clients.map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Checks that nobody has said RST, but for the boxes to each other.
    pub fn no_resets(&self) -> Result<()> {
        for name in BOXES {
            let counted = self.node(name).sh("nft list counter inet resets resets")?;
            ensure!(counted.contains("packets 0 "), "{name}: {counted}");
        }
        Ok(())
    }

    /// Checks that no box has routed anything past itself, to ends that would take it for what the box says.
    pub fn nothing_is_routed(&self) -> Result<()> {
        for name in BOXES {
            let counted = self.node(name).sh("nft list counter inet resets routed")?;
            ensure!(
                counted.contains("packets 0 "),
                "{name}: {counted}\n{}",
                self.logs()
            );
        }
        Ok(())
    }

    /// Holds back at the second box what moves: it is more than fits a small packet, and does not get over until the table
    /// `hold` is gone.
    pub fn hold_back(&self) -> Result<()> {
        self.node("two").sh("nft 'table inet hold {
            chain in {
                type filter hook input priority 0
                tcp dport 7310 meta length > 600 drop
            }
        }'")?;
        Ok(())
    }

    /// Has all move to the second box, and waits until a set of a box has some of it, which with [what moves held
    /// back](Self::hold_back) it has for a while. One that mends a loss stays: where all have, it is ordered again.
    pub fn gets_under_way<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        at: usize,
        set: &str,
    ) -> Result<ScopedJoinHandle<'scope, Result<Finished>>> {
        let order = || {
            let mut order = Command::new(PEPD);
            order.args(["move", "--to", "two", "--socket"]);
            order.arg(self.socket(0));
            scope.spawn(move || run(&mut order, LIMIT))
        };
        let (mut moving, node) = (order(), self.node(BOXES[at]));
        wait_until(LIMIT, "they are on their way", || {
            if has_elements(node, set) {
                return true;
            }
            if moving.is_finished() {
                moving = order();
            }
            false
        })
        .with_context(|| self.logs())?;
        Ok(moving)
    }

    pub fn logs(&self) -> String {
        self.daemons.iter().flatten().map(Pepd::log).collect()
    }
}

/// The digit in the names of a family's sets.
pub fn digit(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

pub fn has_elements(node: &Netns, set: &str) -> bool {
    let those = node.sh(&format!("nft list set inet pepd {set}"));
    those.is_ok_and(|it| it.contains("elements"))
}

/// Has each connection carry something both ways.
pub fn exchange(pairs: &[Pair], what: &str) -> Result<()> {
    for (index, pair) in pairs.iter().enumerate() {
        pair.exchange(20_000)
            .with_context(|| format!("{what}: connection {index}"))?;
    }
    Ok(())
}
