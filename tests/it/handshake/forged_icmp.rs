//! ICMP errors that are made up, about both legs of a connection and about a SYN that is held: from the
//! client's side, from the server's, and from a bystander.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use pepd_packet::checksum::Checksum;
use pepd_packet::{Protocol, ip};
use pepd_testbed::forge::{Ear, Forger};
use pepd_testbed::traffic::{Rng, listen};
use pepd_testbed::{Family, Netns, Stage, Via, World, require, wait_until};
use rstest::rstest;

use super::held_syn::{connect_meanwhile, connected, end_of_silence, held, silence};
use crate::harness::{LIMIT, PEPD};

/// What is said, and the four bytes that follow: an MTU, the address of a better router.
#[derive(Clone, Copy, Debug)]
struct Lie {
    kind: u8,
    code: u8,
    more: [u8; 4],
}

/// Packets of this size are too big for the next link. Of IPv6 the code does not matter.
const FRAGMENTATION_NEEDED: (u8, u8) = (3, 4);
const TOO_BIG: u8 = 2;

fn lies(family: Family) -> Vec<Lie> {
    // Type, and the codes that it has and one that it has not.
    let kinds: &[(u8, u8)] = match family {
        // Unreachable, source quench, redirect, time exceeded, parameter problem.
        Family::V4 => &[(3, 16), (4, 1), (5, 4), (11, 2), (12, 3)],
        // Unreachable, too big, time exceeded, parameter problem, redirect.
        Family::V6 => &[(1, 8), (2, 1), (3, 2), (4, 3), (137, 1)],
    };
    let router = match World::outsider_address(family) {
        IpAddr::V4(router) => router.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    let small = [[0; 4], 68_u32.to_be_bytes(), 1280_u32.to_be_bytes(), router];
    let of = |&(kind, codes): &(u8, u8)| {
        (0..=codes).flat_map(move |code| small.map(|more| Lie { kind, code, more }))
    };
    kinds.iter().flat_map(of).collect()
}

/// A segment that was sent, as an ICMP error quotes it.
#[derive(Clone, Copy, Debug)]
struct Quoted {
    from: SocketAddr,
    to: SocketAddr,
    number: u32,
}

impl Lie {
    fn is_about_size(self) -> bool {
        self.kind == TOO_BIG || (self.kind, self.code) == FRAGMENTATION_NEEDED
    }

    /// Makes the packet, which has this source and goes to who has sent what it quotes.
    fn packet(self, source: IpAddr, quoted: Quoted) -> Vec<u8> {
        let Quoted { from, to, number } = quoted;
        let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        tcp.extend(number.to_be_bytes());
        tcp.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        let mut message = vec![self.kind, self.code, 0, 0];
        message.extend(self.more);
        match (source, from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(from), IpAddr::V4(to)) => {
                message.extend(ip::in_ipv4(from, to, Protocol::TCP, &tcp));
                let sum = Checksum::of(&message).value();
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                ip::in_ipv4(source, from, Protocol::ICMP, &message)
            }
            (IpAddr::V6(source), IpAddr::V6(from), IpAddr::V6(to)) => {
                message.extend(ip::in_ipv6(from, to, Protocol::TCP, &tcp));
                let (source, from) = (source.into(), from.into());
                let sum =
                    Checksum::with_pseudo_header(source, from, Protocol::ICMPV6, &message).value();
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                match (source, from) {
                    (IpAddr::V6(source), IpAddr::V6(from)) => {
                        ip::in_ipv6(source, from, Protocol::ICMPV6, &message)
                    }
                    _ => unreachable!(),
                }
            }
            _ => panic!("two families"),
        }
    }
}

/// Those who lie, and their addresses.
struct Liars<'w>(Vec<(&'w Netns, IpAddr, Forger)>);

impl<'w> Liars<'w> {
    fn new(world: &'w World, family: Family) -> Result<Self> {
        let all = [
            (world.client(), World::client_address(family)),
            (world.sibling(), World::sibling_address(family)),
            (world.outsider(), World::outsider_address(family)),
            (world.server(), World::server_address(family)),
        ];
        let with_forger = |(host, address)| Ok((host, address, Forger::new(host)?));
        Ok(Self(
            all.map(with_forger).into_iter().collect::<Result<_>>()?,
        ))
    }

    /// Has each of them tell all these lies about a segment, unless he has sent it himself.
    fn tell(&self, lies: &[Lie], quoted: Quoted) {
        for (_, address, forger) in &self.0 {
            for lie in lies.iter().filter(|_| *address != quoted.from.ip()) {
                forger.send_packet(&lie.packet(*address, quoted), quoted.from.ip());
            }
        }
    }
}

/// Gives how many ICMP errors the kernel has dropped because of the number that they quote.
fn refused(host: &Netns) -> Result<u64> {
    let script = "awk '/^TcpExt:/ { if (n++) print $c; else for (i = 1; i <= NF; i++) \
                  if ($i == \"OutOfWindowIcmps\") c = i }' /proc/net/netstat";
    Ok(host.sh(script)?.trim().parse()?)
}

/// Gives what the box has learned of paths by ICMP.
fn learned(host: &Netns) -> Result<String> {
    let learned = host.sh("ip route show cache; ip -6 route show cache")?;
    let said = |line: &&str| line.contains("mtu") || line.contains("redirected");
    Ok(learned.lines().filter(said).collect())
}

/// Whoever does not know what a leg has under way is not believed: the kernel drops and counts it. Who does, or
/// has guessed it, cannot end a connection either (RFC 5927, section 5.2).
#[rstest]
fn what_is_made_up_about_a_leg_is_not_believed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const ROUNDS: usize = 5;
    require!(root, program("nft"), program("ip"));
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let hb = world.hb();
    let ears = [
        Ear::new(world.client(), family)?,
        Ear::new(world.server(), family)?,
    ];
    let pair = world.pair(family)?;
    pair.exchange(10_000)?;
    let liars = Liars::new(world, family)?;
    let lies = lies(family);
    let (client, server) = (pair.client.local_addr()?, pair.client.peer_addr()?);
    let (mut rng, before) = (Rng::new(13), refused(hb)?);
    for _ in 0..ROUNDS {
        for (from, to) in [(client, server), (server, client)] {
            let [.., a, b, c, d] = rng.bits().to_be_bytes();
            let number = u32::from_be_bytes([a, b, c, d]);
            liars.tell(&lies, Quoted { from, to, number });
        }
    }
    let about = (ROUNDS * lies.len()) as u64;
    wait_until(LIMIT, "they are refused, and counted", || {
        refused(hb).is_ok_and(|now| now > before + about)
    })?;
    assert_eq!(learned(hb)?, "");
    pair.exchange(100_000)?;

    // The right number: what each leg sends next, since all is acknowledged. What is said of sizes may be true
    // then, and is not told here.
    let others: Vec<Lie> = lies
        .iter()
        .copied()
        .filter(|it| !it.is_about_size())
        .collect();
    for ((from, to), ear) in [(server, client), (client, server)].into_iter().zip(&ears) {
        let heard = ear.heard()?;
        let last = heard
            .iter()
            .rfind(|it| it.from == from.port() && it.data > 0);
        let number = last.context("what the leg has sent")?.next;
        liars.tell(&others, Quoted { from, to, number });
    }
    assert_eq!(learned(hb)?, "");
    pair.exchange(100_000)?;
    stage.finish()
}

/// Nor is whoever does not know the number of the box's own SYN: a client waits for its destination's word.
#[rstest]
fn what_is_made_up_about_a_held_syn_is_not_believed(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("ss"));
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let world = &stage.world;
    let hb = world.hb();
    let listener = listen(
        world.server(),
        SocketAddr::new(World::server_address(family), 4000),
    )?;
    let to = listener.local_addr()?;
    silence(world.server(), to.port())?;
    let attempt = connect_meanwhile(&stage, to)?;
    let mut from = None;
    wait_until(LIMIT, "it is dialed", || {
        let dialed = hb.sh(&format!("ss -Htn state syn-sent dst {to}"));
        from = dialed
            .ok()
            .and_then(|it| it.split_whitespace().nth(2)?.parse().ok());
        from.is_some()
    })?;
    let from: SocketAddr = from.context("a dial")?;
    let liars = Liars::new(world, family)?;
    let (lies, before) = (lies(family), refused(hb)?);
    for number in [0, 1, 7 << 20, u32::MAX] {
        // What the box has sent, and what the client would hear of it.
        for (from, to) in [(from, to), (to, from)] {
            liars.tell(&lies, Quoted { from, to, number });
        }
    }
    let about = lies.len() as u64;
    wait_until(LIMIT, "they are refused, and counted", || {
        refused(hb).is_ok_and(|now| now > before + about)
    })?;
    assert!(!attempt.is_finished(), "the client has been told something");
    assert_eq!(held(hb), Some(1), "its SYN waits");
    end_of_silence(world.server())?;
    let pair = connected(attempt, &listener)?;
    pair.client
        .set_read_timeout(Some(Duration::from_secs(60)))?;
    pair.exchange(10_000)?;
    assert_eq!(learned(hb)?, "");
    stage.finish()
}
