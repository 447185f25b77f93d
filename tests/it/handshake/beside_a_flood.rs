//! Floods of 10,000 packets a second that anybody can send in anybody's name: the attacked server
//! and everybody else are reached as if the router had no daemon.

use std::net::{IpAddr, SocketAddr, TcpListener};

use anyhow::{Result, ensure};
use pepd_testbed::forge::{Flood, Segment, flag, random_syn, stranger};
use pepd_testbed::traffic::{Pair, Rng, listen};
use pepd_testbed::{Family, Stage, Via, World, require, splits, wait_until};
use rstest::rstest;

use super::forged::{established_at, place_strangers};
use super::held_syn::{LIMIT, counter};
use crate::harness::PEPD;

const PER_SECOND: u32 = 10_000;

/// The connections that are tried to each server.
const CONNECTIONS: u32 = 100;

/// As many held SYNs as there can be.
const ROOM_FOR_ALL: &str = "[limits]\npending = 65535\n";

/// A port at which the attacked server answers nothing.
const SILENT: u16 = 9;

/// What the flood consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// SYNs to one server's listener, each from another address.
    OneServer,
    /// The same, each to another address of the campus.
    ManyServers,
    /// A hundred SYNs that are not answered, again and again.
    Repeated,
    /// RSTs to one server.
    Resets,
}

#[rstest]
#[case::one_server(Attack::OneServer, Via::Pepd, "", Family::V4)]
#[case::one_server_ipv6(Attack::OneServer, Via::Pepd, "", Family::V6)]
#[case::room_for_all(Attack::OneServer, Via::Pepd, ROOM_FOR_ALL, Family::V6)]
#[case::early(Attack::OneServer, Via::Early, "", Family::V4)]
#[case::many_servers(Attack::ManyServers, Via::Pepd, "", Family::V6)]
#[case::many_servers_room_for_all(Attack::ManyServers, Via::Pepd, ROOM_FOR_ALL, Family::V4)]
#[case::repeated(Attack::Repeated, Via::Pepd, "", Family::V4)]
#[case::resets(Attack::Resets, Via::Pepd, "", Family::V6)]
fn a_flood_leaves_everybody_what_plain_routing_does(
    #[case] attack: Attack,
    #[case] via: Via,
    #[case] limits: &str,
    #[case] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let plain = Scene::open(Via::Routing, "", family)?;
    let flood = plain.flood(attack)?;
    let without = plain.connect(None)?;
    flood.stop()?;
    plain.stage.finish()?;

    let scene = Scene::open(via, limits, family)?;
    let flood = scene.flood(attack)?;
    let with = scene.connect(Some(2 * CONNECTIONS - without.connected))?;
    println!("{attack:?} {via:?}: {with:?}; by plain routing {without:?}");
    assert!(with.connected >= without.connected, "{:?}", with.failed);
    if (attack, via) == (Attack::OneServer, Via::Pepd) {
        // While the flood goes on.
        assert!(counter(scene.stage.world.hb(), "flooded")? > u64::from(PER_SECOND));
        wait_until(LIMIT, "connections to another server are split", || {
            scene.is_split(&scene.other)
        })?;
        assert_eq!(established_at(scene.stage.world.server(), 7)?, 0);
    }
    flood.stop()?;
    wait_until(LIMIT, "connections to the attacked one are, too", || {
        scene.is_split(&scene.attacked)
    })?;
    scene.stage.finish()
}

/// A stage with a server that is attacked and one that is not.
struct Scene {
    stage: Stage,
    attacked: TcpListener,
    other: TcpListener,
}

/// What has become of connections.
#[derive(Debug, Default)]
struct Outcome {
    connected: u32,
    failed: Vec<String>,
}

impl Scene {
    fn open(via: Via, limits: &str, family: Family) -> Result<Self> {
        let config = match via {
            Via::Early => World::early_config(),
            Via::Routing | Via::Pepd => World::config(),
        };
        let config = format!("{config}\n{limits}");
        let world = World::standard()?;
        let address = World::server_address(family);
        let other: IpAddr = match family {
            Family::V4 => [10, 2, 0, 9].into(),
            Family::V6 => "fd00:b::9".parse()?,
        };
        world.server().sh(
            "ip addr add 10.2.0.9/32 dev lo; ip addr add fd00:b::9/128 dev lo; \
             nft add table inet silent; \
             nft add chain inet silent c '{ type filter hook input priority 0; }'; \
             nft add rule inet silent c tcp dport 9 drop",
        )?;
        // The addresses of campus b, most of which nobody has.
        world.hb().sh(
            "ip route add 10.2.0.0/16 via 10.2.0.2; ip route add fd00:b::/48 via fd00:b::2; \
                 ip route add 10.2.0.9/32 via 10.2.0.2; ip route add fd00:b::9/128 via fd00:b::2",
        )?;
        world.server().sysctl("net.ipv4.tcp_syncookies", "1")?;
        place_strangers(&world)?;
        let attacked = listen(world.server(), SocketAddr::new(address, 7))?;
        let other = listen(world.server(), SocketAddr::new(other, 0))?;
        let stage = Stage::in_world(world, via, PEPD, &config)?;
        for listener in [&attacked, &other] {
            Pair::through(listener, stage.world.sibling())?.exchange(1000)?;
        }
        Ok(Self {
            stage,
            attacked,
            other,
        })
    }

    /// Starts a flood, and waits until it has gone on for longer than any queue has room for.
    fn flood(&self, attack: Attack) -> Result<Flood> {
        let victim = self.attacked.local_addr()?;
        let silent = SocketAddr::new(victim.ip(), SILENT);
        let mut rng = Rng::new(7);
        let mut number = 0;
        let flood = Flood::start(self.stage.world.client(), PER_SECOND, move || {
            number += 1;
            let source = |host| stranger(host, victim.ip());
            match attack {
                Attack::OneServer => random_syn(&mut rng, source, victim),
                Attack::ManyServers => {
                    let to = SocketAddr::new(nobody(number, victim.ip()), victim.port());
                    random_syn(&mut rng, source, to)
                }
                Attack::Repeated => {
                    let number = rng.between(0, 99);
                    let from = SocketAddr::new(source(number), 4000);
                    Segment::syn(from, silent, u32::try_from(number).unwrap_or_default())
                }
                Attack::Resets => Segment {
                    flags: flag::RST,
                    ..random_syn(&mut rng, source, victim)
                },
            }
        })?;
        wait_until(LIMIT, "the flood has gone on for seconds", || {
            flood.sent() >= u64::from(3 * PER_SECOND)
        })?;
        Ok(flood)
    }

    /// Tries connections to both servers, from another host than the flood's, until more have failed
    /// than may.
    fn connect(&self, may_fail: Option<u32>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for _ in 0..CONNECTIONS {
            for (listener, name) in [(&self.attacked, "the attacked"), (&self.other, "another")] {
                let tried = Pair::through(listener, self.stage.world.sibling())
                    .and_then(|pair| pair.exchange(1000));
                match tried {
                    Ok(()) => outcome.connected += 1,
                    Err(error) => outcome.failed.push(format!("{name}: {error:#}")),
                }
            }
            let failed = u32::try_from(outcome.failed.len())?;
            ensure!(may_fail.is_none_or(|most| failed <= most), "{outcome:?}");
        }
        Ok(outcome)
    }

    fn is_split(&self, listener: &TcpListener) -> bool {
        let open = || Pair::through(listener, self.stage.world.sibling());
        splits(self.stage.world.hb(), open).is_ok_and(|(_, split)| split)
    }
}

/// Returns one of the addresses of campus b that nobody has, in the family of `to`.
fn nobody(number: u64, to: IpAddr) -> IpAddr {
    let [.., high, low] = number.to_be_bytes();
    match to {
        IpAddr::V4(_) => [10, 2, 16 + high % 200, low].into(),
        IpAddr::V6(_) => {
            let host = u16::from_be_bytes([high, low]);
            [0xfd00, 0xb, 0, 9, 0, 0, 0, host].into()
        }
    }
}
