//! Two hosts that can have the same end of a connection, and a third one that has the other.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, ensure};
use pepd_packet::snapshot::Snapshot;
use pepd_sys::repair::{Restored, restore, take};
use pepd_sys::sockopt;
use pepd_testbed::traffic::{PATIENCE, accept};
use pepd_testbed::{Family, Link, Netns, Topology};
use socket2::{Domain, Protocol, Socket, Type};

/// The two hosts.
pub const BOXES: [&str; 2] = ["one", "two"];

/// How the handshake of a connection differs from the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variation {
    Usual,
    WithoutTimestamps,
    WithoutScaling,
    WidestScaling,
    WithoutSack,
    SmallSegments,
}

impl Variation {
    fn sysctl(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Self::Usual | Self::SmallSegments => return None,
            Self::WithoutTimestamps => ("net.ipv4.tcp_timestamps", "0"),
            Self::WithoutScaling => ("net.ipv4.tcp_window_scaling", "0"),
            Self::WidestScaling => ("net.ipv4.tcp_rmem", "4096 131072 1073741824"),
            Self::WithoutSack => ("net.ipv4.tcp_sack", "0"),
        })
    }
}

/// Who has opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// The end that moves.
    Here,
    /// Its peer.
    Peer,
}

/// A connection.
pub struct Pair {
    /// The end that moves.
    pub here: TcpStream,
    pub peer: TcpStream,
}

/// A peer and two boxes around a router, which sends the address that both boxes have to one of them.
pub struct Ground {
    topology: Topology,
    family: Family,
    variation: Variation,
}

impl Ground {
    pub fn open(family: Family, variation: Variation) -> Result<Self> {
        let mut description = Topology::describe().host("peer").router("middle");
        for name in BOXES {
            description = description.host(name);
        }
        for (number, name) in ["peer", BOXES[0], BOXES[1]].into_iter().enumerate() {
            let number = number + 1;
            let [v4, v6] = [format!("10.9{number}.0."), format!("fd00:9{number}::")];
            let link = Link::between(name, "middle")
                .v4(
                    format!("{v4}2/24").parse().context("a prefix")?,
                    format!("{v4}1/24").parse().context("a prefix")?,
                )
                .v6(
                    format!("{v6}2/64").parse().context("a prefix")?,
                    format!("{v6}1/64").parse().context("a prefix")?,
                );
            description = description.link(link).route(name, "default", "middle");
        }
        let ground = Self {
            topology: description.build()?,
            family,
            variation,
        };
        ground.prepare()?;
        Ok(ground)
    }

    fn prepare(&self) -> Result<()> {
        for name in BOXES {
            self.node(name).sh("ip address add 10.90.0.1/32 dev lo
                ip address add fd00:90::1/128 dev lo nodad
                nft 'table inet frozen {
                    chain in { type filter hook input priority -300; }
                    chain out { type filter hook output priority -300; }
                }'")?;
        }
        self.node("middle").sh("nft 'table inet resets {
            counter resets { }
            chain pass {
                type filter hook forward priority 0;
                tcp flags & rst == rst counter name resets
            }
        }'")?;
        if let Some((key, value)) = self.variation.sysctl() {
            // The other box may have what it likes.
            for name in ["peer", BOXES[0]] {
                self.node(name).sysctl(key, value)?;
            }
        }
        self.lead_to(BOXES[0])
    }

    pub fn node(&self, name: &str) -> &Netns {
        self.topology.node(name)
    }

    /// Has the address that both boxes have lead to this one.
    pub fn lead_to(&self, name: &str) -> Result<()> {
        let number = if name == BOXES[0] { 2 } else { 3 };
        self.node("middle")
            .sh(&format!(
                "ip route replace 10.90.0.1 via 10.9{number}.0.2
                ip route replace fd00:90::1 via fd00:9{number}::2"
            ))
            .map(drop)
    }

    /// Drops what the connection's end in a box gets (`in`), or what it sends (`out`).
    pub fn drop_packets(&self, name: &str, chain: &str, here: &Ends) -> Result<()> {
        let Ends { local, peer } = here;
        let [from, to] = match chain {
            "in" => [peer, local],
            _ => [local, peer],
        };
        self.node(name)
            .sh(&format!(
                "nft add rule inet frozen {chain} tcp sport {} tcp dport {} drop",
                from.port(),
                to.port()
            ))
            .map(drop)
    }

    /// Drops nothing any more.
    pub fn drop_nothing(&self, name: &str) -> Result<()> {
        self.node(name)
            .sh("nft 'flush chain inet frozen in; flush chain inet frozen out'")
            .map(drop)
    }

    fn address(&self, v4: &str, v6: &str) -> Result<IpAddr> {
        Ok(match self.family {
            Family::V4 => v4.parse()?,
            Family::V6 => v6.parse()?,
        })
    }

    /// Opens a socket such as pepd's.
    pub fn socket(&self, name: &str) -> Result<Socket> {
        self.node(name).run(|| {
            let domain = match self.family {
                Family::V4 => Domain::IPV4,
                Family::V6 => Domain::IPV6,
            };
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.set_tcp_nodelay(true)?;
            socket.set_linger(Some(std::time::Duration::ZERO))?;
            Ok(socket)
        })
    }

    /// Opens a connection whose end here is in the first box.
    pub fn connect(&self, opener: Opener) -> Result<Pair> {
        let here = self.socket(BOXES[0])?;
        let peer = self.socket("peer")?;
        peer.set_linger(None)?;
        if self.variation == Variation::SmallSegments {
            sockopt::set_max_segment(peer.as_fd(), 536)?;
        }
        let of_here = SocketAddr::new(self.address("10.90.0.1", "fd00:90::1")?, 0);
        let of_peer = SocketAddr::new(self.address("10.91.0.2", "fd00:91::2")?, 0);
        let (listener, at, other, from) = match opener {
            Opener::Here => (peer, of_peer, here, of_here),
            Opener::Peer => (here, of_here, peer, of_peer),
        };
        listener.bind(&at.into())?;
        listener.listen(1)?;
        other.bind(&from.into())?;
        other.connect_timeout(&listener.local_addr()?, PATIENCE)?;
        let (accepted, _) = accept(&listener.into())?;
        accepted.set_nodelay(true)?;
        let opened: TcpStream = other.into();
        for stream in [&accepted, &opened] {
            patient(stream)?;
        }
        let (here, peer) = match opener {
            Opener::Here => (opened, accepted),
            Opener::Peer => (accepted, opened),
        };
        Ok(Pair { here, peer })
    }

    /// Freezes a connection's end in a box and takes it out of its socket.
    pub fn take(&self, name: &str, here: &TcpStream) -> Result<Snapshot> {
        let ends = Ends::of(here)?;
        for chain in ["in", "out"] {
            self.drop_packets(name, chain, &ends)?;
        }
        Ok(take(here.as_fd())?)
    }

    /// Puts it into a socket of the other box.
    pub fn restore(&self, name: &str, snapshot: &Snapshot) -> Result<Restored> {
        let socket = self.socket(name)?;
        Ok(restore(socket, snapshot)?)
    }

    /// Has it go on there.
    pub fn switch(&self, to: &str, restored: Restored) -> Result<TcpStream> {
        self.drop_nothing(to)?;
        self.lead_to(to)?;
        let stream = TcpStream::from(restored.activate()?);
        patient(&stream)?;
        Ok(stream)
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

/// The addresses of a connection, as the end that moves has them.
pub struct Ends {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

impl Ends {
    pub fn of(here: &TcpStream) -> Result<Self> {
        Ok(Self {
            local: here.local_addr()?,
            peer: here.peer_addr()?,
        })
    }
}

fn patient(stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(())
}
