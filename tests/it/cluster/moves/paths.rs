//! What is known of a connection's path moves along, and hosts of all kinds go on.

use anyhow::{Context as _, Result};
use pepd_testbed::traffic::Pair;
use pepd_testbed::{Family, require};
use rstest::rstest;

use super::ground::Ground;

fn go_to_and_fro(ground: &Ground, pairs: &[Pair]) -> Result<()> {
    let carry = || pairs.iter().try_for_each(|pair| pair.exchange(300_000));
    carry().context("before it moves")?;
    for turn in 0..4 {
        ground.all_move(turn % 2, pairs.len())?;
        carry().with_context(|| format!("move {turn}"))?;
    }
    ground.no_resets()
}

/// Routers behind the boxes take smaller packets than the hosts and the boxes send; what they say of that comes to the
/// box that connections have left.
#[rstest]
fn a_narrow_path(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    for (router, host, net) in [("left", "client", 1), ("right", "server", 2)] {
        ground
            .node(router)
            .sh(&format!(
                "dev=$(ip -o route get 10.{net}.0.2 | sed 's/.* dev \\([^ ]*\\).*/\\1/')
             ip route replace 10.{net}.0.0/24 dev $dev mtu lock 1400
             ip -6 route replace fd00:{net}::2/128 dev $dev mtu lock 1400"
            ))
            .context(host)?;
    }
    let pairs = [ground.pair()?, ground.pair()?];
    go_to_and_fro(&ground, &pairs)
}

/// Each host says what it can when a connection begins, and its connections need no more.
#[rstest]
#[case::no_sack("net.ipv4.tcp_sack=0")]
#[case::no_timestamps("net.ipv4.tcp_timestamps=0")]
#[case::no_scaling("net.ipv4.tcp_window_scaling=0")]
#[case::the_widest_scaling("net.ipv4.tcp_rmem=4096 131072 1073725440")]
#[case::none_of_it("net.ipv4.tcp_sack=0 net.ipv4.tcp_timestamps=0 net.ipv4.tcp_window_scaling=0")]
fn hosts_of_all_kinds(
    #[case] settings: &str,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(family, ["", ""])?;
    for host in ["client", "server"] {
        let node = ground.node(host);
        match settings
            .split_once(' ')
            .filter(|_| settings.contains("rmem"))
        {
            Some(_) => node.sh(&format!("sysctl -qw '{settings}'"))?,
            None => node.sh(&format!("sysctl -qw {settings}"))?,
        };
    }
    let pairs = [ground.pair()?, ground.pair()?];
    go_to_and_fro(&ground, &pairs)
}

/// Hosts whose packets are the least that IPv4 has to carry.
#[test]
fn the_smallest_segments() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, ["", ""])?;
    for host in ["client", "server"] {
        ground
            .node(host)
            .sh("ip route change $(ip route show default) advmss 536")?;
    }
    let pairs = [ground.pair()?, ground.pair()?];
    go_to_and_fro(&ground, &pairs)
}
