//! Probes through an interface that is no tunnel: what makes them the tunnel's is its name.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use caps::{CapSet, Capability};
use pepd_config::{Config, Context, Tos};
use pepd_testbed::forge::Forger;
use pepd_testbed::{Netns, require, wait_until};
use socket2::{Domain, Protocol, Socket, Type};

use super::*;

const EVERY: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(120);

const PEPD_X: &str = "ip link add pepd-x address 02:00:00:00:00:01 type veth \
    peer name pepd-y address 02:00:00:00:00:02";

/// Two hosts with a plain link between them, and `pepd-x`, over which alone `there` takes echo
/// requests and `here` their answers. It has no address, and but for the probes no route. Both drop
/// what comes by another way than they would send by.
struct Hosts {
    here: Netns,
    there: Netns,
}

impl Hosts {
    fn new() -> Result<Self> {
        let (here, there) = (Netns::new("here")?, Netns::new("there")?);
        let other = there.name();
        here.sh(&format!(
            "ip link add path type veth peer name path netns {other}
             {PEPD_X} netns {other}
             ip address add 192.0.2.1/24 dev path
             ip link set path up; ip link set pepd-x up
             nft add table inet test
             nft 'add chain inet test input {{ type filter hook input priority 0; }}'
             nft add rule inet test input iifname != pepd-x icmp type echo-reply drop"
        ))?;
        there.sh("ip address add 192.0.2.2/24 dev path
             ip link set path up; ip link set pepd-y up
             nft add table inet test
             nft 'add chain inet test input { type filter hook input priority 0; }'
             nft add rule inet test input iifname != pepd-y icmp type echo-request drop")?;
        for host in [&here, &there] {
            host.sysctl("net.ipv4.conf.all.rp_filter", "1")?;
        }
        let hosts = Self { here, there };
        hosts.connect()?;
        Ok(hosts)
    }

    /// Makes what depends on the devices: routes and rules as pepd-net installs them, and the
    /// neighbours that a tunnel does not need.
    fn connect(&self) -> Result<()> {
        for (host, own, other, device, mac) in [
            (
                &self.here,
                "192.0.2.1",
                "192.0.2.2",
                "pepd-x",
                "02:00:00:00:00:02",
            ),
            (
                &self.there,
                "192.0.2.2",
                "192.0.2.1",
                "pepd-y",
                "02:00:00:00:00:01",
            ),
        ] {
            host.sh(&format!(
                "ip link set {device} up
                 ip neighbour replace {other} dev {device} lladdr {mac} nud permanent
                 ip route replace {other} dev {device} table 7302
                 ip rule del preference 72 2>/dev/null || true
                 ip rule add preference 72 from {own} to {other} tos 0x10 ipproto icmp lookup 7302"
            ))?;
        }
        Ok(())
    }
}

fn peer(probe: Option<Duration>) -> Peer {
    Peer {
        name: "x".to_owned(),
        local: [192, 0, 2, 1].into(),
        remote: [192, 0, 2, 2].into(),
        mtu: None,
        inside: Vec::new(),
        ttl: None,
        tos: Tos::Inherit,
        reverse_path_filter: false,
        keep: false,
        probe,
    }
}

fn config(peers: &[Peer]) -> Config {
    let text = "[node]\nname = \"here\"\n\
        [[campus]]\nname = \"a\"\nprefixes = [\"10.1.0.0/16\"]\n\
        [[campus]]\nname = \"b\"\nprefixes = [\"10.2.0.0/16\"]\n";
    let context = Context {
        ephemeral_ports: 32768..=60999,
        node: None,
        host: None,
    };
    Config {
        peers: peers.to_vec(),
        ..pepd_config::parse("test", text, &context).unwrap()
    }
}

fn within<T: Send>(netns: &Netns, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
    netns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(work())
    })
}

/// Waits until the only peer is so.
async fn becomes(probes: &Probes, liveness: Liveness) -> Result<PeerState> {
    let wait = async {
        loop {
            let state = probes.states().get().remove(0);
            if state.liveness == liveness {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait)
        .await
        .with_context(|| format!("it is {:?}, not {liveness:?}", probes.states().get()))
}

#[test]
fn a_peer_answers_falls_silent_and_answers_again() -> Result<()> {
    require!(root, program("nft"));
    let hosts = Hosts::new()?;
    within(&hosts.here, async || {
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        let state = becomes(&probes, Liveness::Answering).await?;
        assert!(state.rtt.is_some() && state.since.is_some(), "{state:?}");
        assert_eq!(probes.states().silent(), None);

        // Packets into the tunnel vanish, and nothing else has changed.
        hosts.there.sh("ip link set pepd-y down")?;
        let state = becomes(&probes, Liveness::Silent).await?;
        assert!(state.rtt.is_none() && state.lost >= 3, "{state:?}");
        assert_eq!(probes.states().silent().as_deref(), Some("x"));

        hosts.connect()?;
        becomes(&probes, Liveness::Answering).await?;

        // Somebody makes the interface again.
        hosts.here.sh("ip link delete pepd-x")?;
        becomes(&probes, Liveness::Silent).await?;
        hosts
            .here
            .sh(&format!("{PEPD_X} netns {}", hosts.there.name()))?;
        hosts.connect()?;
        becomes(&probes, Liveness::Answering).await?;
        Ok(())
    })
}

/// A peer whose first probe was lost is asked long before the next one is due: when the box is told to,
/// or when the peer asks.
#[test]
fn who_asks_is_asked() -> Result<()> {
    const SELDOM: Duration = Duration::from_secs(3600);
    require!(root, program("nft"), program("ping"));
    for by_peer in [false, true] {
        let hosts = Hosts::new()?;
        hosts.there.sh("ip link set pepd-y down")?;
        within(&hosts.here, async || {
            let mut probes = Probes::default();
            probes.follow(&config(&[peer(Some(SELDOM))]));
            // Its task has had its turn then, and the first probe has left.
            tokio::time::sleep(LEAST_INTERVAL).await;
            hosts.connect()?;
            let states = probes.states();
            let asked = async {
                while states.get()[0].liveness != Liveness::Answering {
                    if by_peer {
                        hosts
                            .there
                            .sh("ping -c 1 -W 1 -Q 0x10 -I 192.0.2.2 192.0.2.1 || true")?;
                    } else {
                        states.ask();
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                anyhow::Ok(())
            };
            tokio::time::timeout(LIMIT, asked).await?
        })?;
    }
    Ok(())
}

/// An ICMP message from the peer's address, as whoever is on the path may send it: `kind` 0 is an answer,
/// 8 a request.
fn forged(kind: u8, identifier: u16, sequence: u16) -> Vec<u8> {
    let [id, number] = [identifier, sequence].map(u16::to_be_bytes);
    from_peer(kind, &[&id[..], &number, &[0; 8]].concat())
}

/// An ICMP message from the peer's address, of this type and with that behind its checksum.
fn from_peer(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend([192, 0, 2, 2, 192, 0, 2, 1]);
    // The kernel that receives it looks at the checksum only after raw sockets have had it.
    packet.extend([kind, 0, 0, 0]);
    packet.extend(rest);
    packet
}

/// Whoever forges the peer's packets does not make it one that answers; and however many requests of its
/// are forged, it is asked no more often than is good.
#[test]
fn what_is_forged_tells_nothing_of_the_peer() -> Result<()> {
    const FORGED: u16 = 20_000;
    require!(root, program("nft"));
    let hosts = Hosts::new()?;
    // By whichever way they come; the peer itself answers nothing.
    hosts.here.sh("nft flush chain inet test input
        nft add counter inet test seen
        nft add rule inet test input ip protocol icmp ip saddr 192.0.2.2 counter name seen")?;
    hosts.there.sh("nft add counter inet test asked
        nft insert rule inet test input icmp type echo-request counter name asked drop")?;
    let count = |host: &Netns, name: &str| -> Result<u64> {
        let shown = host.sh(&format!("nft list counter inet test {name}"))?;
        let (_, rest) = shown.split_once("packets ").context("a counter")?;
        Ok(rest.split_once(' ').context("a number")?.0.parse()?)
    };
    let forger = Forger::new(&hosts.there)?;
    let forge = |kind: u8| -> Result<()> {
        let before = count(&hosts.here, "seen")?;
        for number in 0..FORGED {
            let packet = forged(kind, number.wrapping_mul(7), number % 64);
            forger.send_packet(&packet, [192, 0, 2, 1].into());
        }
        // A queue may have been full.
        wait_until(LIMIT, "most have come", || {
            count(&hosts.here, "seen").is_ok_and(|seen| seen > before + u64::from(FORGED) / 2)
        })
    };
    within(&hosts.here, async || {
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        becomes(&probes, Liveness::Silent).await?;
        let (begun, before) = (Instant::now(), count(&hosts.there, "asked")?);
        forge(0)?;
        forge(8)?;
        // So that its task has had them all.
        tokio::time::sleep(EVERY).await;
        assert_eq!(probes.states().get()[0].liveness, Liveness::Silent);
        let most = begun.elapsed().as_millis() / LEAST_INTERVAL.as_millis() + 2;
        let asked = count(&hosts.there, "asked")? - before;
        assert!(u128::from(asked) <= most, "{asked} of {most}");
        hosts.there.sh("nft flush chain inet test input")?;
        becomes(&probes, Liveness::Answering).await?;
        Ok(())
    })
}

/// A peer that is played by a test: its kernel does not answer.
struct Played {
    asked: Socket,
    forger: Forger,
    /// The type of service by which the other host expects it.
    tos: u8,
}

impl Played {
    /// What it sends leaves `beside` the tunnel or through it; by whatever way that comes it is taken.
    fn new(hosts: &Hosts, beside: bool) -> Result<Self> {
        hosts.here.sh("nft flush chain inet test input")?;
        hosts.there.sysctl("net.ipv4.icmp_echo_ignore_all", "1")?;
        if !beside {
            hosts
                .there
                .sh("ip rule add preference 71 to 192.0.2.1 lookup 7302")?;
        }
        let asked = hosts.there.run(|| {
            Ok(Socket::new(
                Domain::IPV4,
                Type::RAW,
                Some(Protocol::ICMPV4),
            )?)
        })?;
        asked.set_nonblocking(true)?;
        let forger = Forger::new(&hosts.there)?;
        let tos = if beside { 0 } else { pepd_net::PROBE_TOS };
        Ok(Self { asked, forger, tos })
    }

    fn send(&self, packet: &[u8]) {
        let mut packet = packet.to_vec();
        packet[1] = self.tos;
        self.forger.send_packet(&packet, [192, 0, 2, 1].into());
    }

    /// Returns the answer to a request that has come.
    fn answer(&self) -> Option<Vec<u8>> {
        /// Where an ICMP message has something behind its checksum, in an IPv4 packet.
        const REST: usize = 24;
        let mut request = [0; 256];
        let length = (&self.asked).read(&mut request).ok()?;
        Some(from_peer(0, request.get(REST..length)?))
    }
}

/// However much is sent in the peer's name, there is room for its answer.
#[test]
fn a_flood_in_the_peers_name_displaces_no_answer() -> Result<()> {
    /// Many times as many as a socket has room for.
    const FORGED: u16 = 20_000;
    require!(root, program("nft"));
    let hosts = Hosts::new()?;
    let there = Played::new(&hosts, false)?;
    within(&hosts.here, async || {
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        let answered = async {
            while probes.states().get()[0].liveness != Liveness::Answering {
                tokio::time::sleep(Duration::from_millis(5)).await;
                // The probes' task has no turn until there is an answer.
                let Some(answer) = there.answer() else {
                    continue;
                };
                // It comes later than all that is forged.
                for number in 0..FORGED {
                    there.send(&forged(0, number.wrapping_mul(7), number % 64));
                    there.send(&forged(8, number, number));
                }
                there.send(&answer);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LIMIT, answered).await?
    })
}

/// What comes beside the tunnel does not show that anything comes through it.
#[test]
fn an_answer_beside_the_tunnel_is_none() -> Result<()> {
    require!(root, program("nft"));
    let hosts = Hosts::new()?;
    let there = Played::new(&hosts, true)?;
    within(&hosts.here, async || {
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        let answering = async {
            loop {
                while let Some(answer) = there.answer() {
                    there.send(&answer);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let silent = becomes(&probes, Liveness::Silent);
        let state = tokio::select! {
            state = silent => state?,
            () = answering => unreachable!("it goes on for ever"),
        };
        assert!(state.lost >= 3, "{state:?}");
        hosts.there.sysctl("net.ipv4.icmp_echo_ignore_all", "0")?;
        becomes(&probes, Liveness::Answering).await?;
        Ok(())
    })
}

#[test]
fn a_reload_keeps_what_has_not_changed() -> Result<()> {
    require!(root, program("nft"));
    let hosts = Hosts::new()?;
    within(&hosts.here, async || {
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        let states = probes.states();
        let before = becomes(&probes, Liveness::Answering).await?;

        let mut other = peer(Some(EVERY));
        other.mtu = Some(1400);
        probes.follow(&config(&[other]));
        assert_eq!(states.get()[0].since, before.since);

        probes.follow(&config(&[peer(Some(EVERY * 2))]));
        assert_eq!(states.get()[0].liveness, Liveness::Unknown);
        becomes(&probes, Liveness::Answering).await?;

        probes.follow(&config(&[peer(None)]));
        assert_eq!(states.get()[0].liveness, Liveness::Unprobed);
        probes.follow(&config(&[]));
        assert!(states.get().is_empty());
        Ok(())
    })
}

/// Without a route nothing can be sent, which is as good as no answer; and it is tried again.
#[test]
fn what_cannot_be_sent_is_lost_until_it_can() -> Result<()> {
    require!(root, program("nft"));
    let hosts = Hosts::new()?;
    hosts.here.sh("ip route flush dev path")?;
    within(&hosts.here, async || {
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        becomes(&probes, Liveness::Silent).await?;
        hosts.here.sh("ip route add 192.0.2.0/24 dev path")?;
        becomes(&probes, Liveness::Answering).await?;
        Ok(())
    })
}

#[test]
fn without_the_capability_peers_are_not_probed() -> Result<()> {
    require!(root);
    within(&Netns::new("here")?, async || {
        // Of this thread only.
        caps::drop(None, CapSet::Effective, Capability::CAP_NET_RAW)?;
        let mut probes = Probes::default();
        probes.follow(&config(&[peer(Some(EVERY))]));
        becomes(&probes, Liveness::Unprobed).await?;
        Ok(())
    })
}
