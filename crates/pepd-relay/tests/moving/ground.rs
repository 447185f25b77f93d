//! A client and a server, and two boxes with a relay each, of which a router leads either's packets to one.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pepd_packet::snapshot::{SplitSnapshot, WaySnapshot, WayState};
use pepd_packet::{FourTuple, MarkValue, Size, SourcePrefix};
use pepd_relay::{
    Campus, Frozen, KernelBuffers, Leg, Limits, NotRestored, Prepared, Relay, Settings, Silent,
    Slots, Stays,
};
use pepd_sys::repair;
use pepd_telemetry::{Arrival, Counters};
use pepd_testbed::traffic::{PATIENCE, Pair, accept, connect, listen};
use pepd_testbed::{Deadline, Family, Link, Netns, Topology, wait_until};
use socket2::{Domain, Protocol, Socket, Type};

/// The boxes.
pub const BOXES: [&str; 2] = ["one", "two"];

const NODES: [&str; 4] = ["client", "server", BOXES[0], BOXES[1]];

/// All of it. The relays come first: they end before their boxes do.
pub struct Ground {
    relays: Vec<Option<Relay>>,
    topology: Topology,
    family: Family,
    runtime: tokio::runtime::Runtime,
}

impl Ground {
    pub fn open(family: Family) -> Result<Self> {
        let mut description = Topology::describe().router("middle");
        for (at, name) in NODES.into_iter().enumerate() {
            let at = at + 1;
            let link = Link::between(name, "middle")
                .v4(
                    format!("10.{at}.0.2/24").parse()?,
                    format!("10.{at}.0.1/24").parse()?,
                )
                .v6(
                    format!("fd00:{at}::2/64").parse()?,
                    format!("fd00:{at}::1/64").parse()?,
                );
            description = description
                .host(name)
                .link(link)
                .route(name, "default", "middle");
        }
        let topology = description.build()?;
        for name in BOXES {
            // Whatever comes is for a transparent socket.
            topology.node(name).sh("for family in -4 -6; do
                    ip $family rule add iif to-middle lookup 100
                done
                ip route add local default dev lo table 100
                ip -6 route add local default dev lo table 100
                nft 'table inet frozen {
                    chain in { type filter hook input priority -300; }
                    chain out { type filter hook output priority -300; }
                }'")?;
        }
        topology.node("middle").sh("for family in -4 -6; do
                for from in client server; do
                    ip $family rule add iif to-$from lookup 100
                done
            done
            nft 'table inet resets {
                counter resets { }
                chain pass {
                    type filter hook forward priority 0;
                    tcp flags & rst == rst counter name resets
                }
            }'")?;
        let relay = |name| topology.node(name).run(relay);
        let relays = vec![Some(relay(BOXES[0])?), Some(relay(BOXES[1])?)];
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        Ok(Self {
            relays,
            topology,
            family,
            runtime,
        })
    }

    pub fn node(&self, name: &str) -> &Netns {
        self.topology.node(name)
    }

    fn relay(&self, at: usize) -> Result<&Relay> {
        self.relays[at].as_ref().context("it has ended")
    }

    /// Has the packets of both ends go to a box.
    pub fn lead_to(&self, at: usize) -> Result<()> {
        let number = at + 3;
        let script = format!(
            "ip route replace default via 10.{number}.0.2 table 100
            ip -6 route replace default via fd00:{number}::2 table 100"
        );
        self.node("middle").sh(&script).map(drop)
    }

    /// Has a box drop what it gets and sends of these connections, and of no others.
    pub fn drop_packets(&self, at: usize, flows: &[FourTuple]) -> Result<()> {
        let mut rules = String::from("flush chain inet frozen in; flush chain inet frozen out;");
        for flow in flows {
            let [client, server] = [flow.client.port(), flow.server.port()];
            for chain in ["in", "out"] {
                for (from, to) in [(client, server), (server, client)] {
                    rules += &format!(
                        "add rule inet frozen {chain} tcp sport {from} tcp dport {to} drop;"
                    );
                }
            }
        }
        self.node(BOXES[at]).sh(&format!("nft '{rules}'")).map(drop)
    }

    fn address(&self, at: usize) -> Result<IpAddr> {
        Ok(match self.family {
            Family::V4 => format!("10.{at}.0.2").parse()?,
            Family::V6 => format!("fd00:{at}::2").parse()?,
        })
    }

    fn socket(&self, at: usize) -> Result<Socket> {
        self.node(BOXES[at]).run(|| {
            let domain = match self.family {
                Family::V4 => Domain::IPV4,
                Family::V6 => Domain::IPV6,
            };
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            match self.family {
                Family::V4 => socket.set_ip_transparent_v4(true)?,
                Family::V6 => pepd_sys::sockopt::set_transparent_v6(socket.as_fd(), 1)?,
            }
            Ok(socket)
        })
    }

    /// Opens a connection that the first box's relay splits.
    pub fn pair(&self) -> Result<(Pair, FourTuple)> {
        self.lead_to(0)?;
        let server = listen(self.node("server"), SocketAddr::new(self.address(2)?, 0))?;
        let address = server.local_addr()?;
        let in_its_place = self.socket(0)?;
        in_its_place.bind(&address.into())?;
        in_its_place.listen(1)?;
        let in_its_place = TcpListener::from(in_its_place);
        let client = connect(self.node("client"), address)?;
        let (client_leg, peer) = accept(&in_its_place)?;
        let upstream = self.socket(0)?;
        upstream.bind(&peer.into())?;
        upstream.connect_timeout(&address.into(), PATIENCE)?;
        let (server, _) = accept(&server)?;
        let flow = FourTuple {
            client: peer,
            server: address,
        };
        let legs = [TcpStream::from(upstream), client_leg];
        let [upstream, client_leg] = legs.map(|leg| -> Result<_> {
            let snapshot = repair::take(leg.as_fd())?;
            repair::close_silently(leg.into())?;
            Ok(snapshot)
        });
        let way = || WaySnapshot {
            state: WayState::Running,
            delivered: 0,
            in_pipe: Vec::new(),
        };
        let snapshot = SplitSnapshot {
            flow,
            age: Duration::ZERO,
            early: false,
            legs: [client_leg?, upstream?],
            ways: [way(), way()],
        };
        drop(in_its_place);
        let arrival = Arrival {
            from: "other".into(),
            pause: Duration::ZERO,
            at: Instant::now(),
        };
        self.restore_soon(&snapshot)?.activate(arrival)?;
        let pair = Pair { client, server };
        self.is_split(0, flow)?;
        Ok((pair, flow))
    }

    /// Gives a connection's id in a box; none where it has none.
    pub fn id(&self, at: usize, flow: FourTuple) -> Result<Option<u64>> {
        let flows = self.relay(at)?.observer().flows().flows(Instant::now());
        let mut those = flows
            .iter()
            .filter(|it| (it.client, it.server) == (flow.client, flow.server));
        Ok(those.next().map(|it| it.id))
    }

    /// Waits until a box's relay has a connection.
    fn is_split(&self, at: usize, flow: FourTuple) -> Result<()> {
        wait_until(PATIENCE, "a connection", || {
            self.id(at, flow).is_ok_and(|id| id.is_some())
        })
    }

    /// Takes a connection out of a box's relay; or why not.
    pub fn freeze(&self, at: usize, flow: FourTuple) -> Result<Result<Frozen, Stays>> {
        self.is_split(at, flow)?;
        let id = self.id(at, flow)?.context("it has ended")?;
        self.freeze_number(at, id)
    }

    /// The same, by its id.
    pub fn freeze_number(&self, at: usize, id: u64) -> Result<Result<Frozen, Stays>> {
        Ok(self.runtime.block_on(self.relay(at)?.mover().freeze(id)))
    }

    pub fn restore(&self, at: usize, snapshot: &SplitSnapshot) -> Result<Silent> {
        let mover = self.relay(at)?.mover();
        self.node(BOXES[at])
            .run(|| Ok(mover.restore(snapshot, [0, 1], 0)?))
    }

    /// Restores a connection whose sockets were closed just now: a program that another test starts has them
    /// from its fork on, until it runs.
    fn restore_soon(&self, snapshot: &SplitSnapshot) -> Result<Silent> {
        let deadline = Deadline::after(PATIENCE);
        loop {
            match self.restore(0, snapshot) {
                Err(error)
                    if !deadline.passed()
                        && error
                            .downcast_ref::<NotRestored>()
                            .is_some_and(|it| it.errno() == Some(libc::EADDRNOTAVAIL)) =>
                {
                    std::thread::yield_now();
                }
                restored => return restored,
            }
        }
    }

    /// Checks that nobody has said RST.
    pub fn no_resets(&self) -> Result<()> {
        let counted = self
            .node("middle")
            .sh("nft list counter inet resets resets")?;
        ensure!(counted.contains("packets 0 "), "{counted}");
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            if let Some(relay) = relay.take() {
                relay.stop();
            }
        }
    }
}

/// Starts a relay.
fn relay() -> Result<Relay> {
    let campus = |at: usize| -> Result<Campus> {
        Ok(Campus {
            name: NODES[at - 1].into(),
            prefixes: vec![
                format!("10.{at}.0.0/24").parse()?,
                format!("fd00:{at}::/64").parse()?,
            ],
            leg: 0,
        })
    };
    let settings = Settings {
        port: 7300,
        mark: MarkValue(1),
        limits: Limits {
            connections: 1000,
            per_source: 1000,
            source_prefix: SourcePrefix::NETWORK,
            memory: None,
            tcp_memory: Size(1 << 30),
        },
        kernel_buffers: KernelBuffers {
            send: 4 << 20,
            receive: 6 << 20,
        },
        end_to_end: None,
        legs: vec![Leg::kernel_defaults("lan")],
        campuses: vec![campus(1)?, campus(2)?],
        weights: Vec::new(),
        ended_lines: 0,
    };
    let workers = NonZeroUsize::new(2).context("two")?;
    let prepared = Prepared::new(settings, workers)?;
    let counters = Arc::new(Counters::default());
    Ok(Relay::start(
        prepared,
        64,
        counters,
        (None, None),
        Slots::unshared(100),
    )?)
}
