//! Clients that were answered early and whose packets a firewall then drops: they are let go, instead
//! of waiting with a connection that nobody has. Where SYNs are held nobody is answered: the upstream
//! leg does not come through either.

use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::traffic::connect;
use pepd_testbed::{Family, Via, require, wait_until};
use rstest::rstest;

use super::blackout::{open, wait_for_state};
use crate::harness::LIMIT;

/// A firewall as many have it: the copy of a SYN comes in by the loopback device, and nothing else
/// but ssh does. That makes it one that only may drop what matters.
const LOAD: &str = "nft 'add table inet late; add chain inet late input { type filter hook input \
                    priority 0; policy drop; }; add rule inet late input iif lo accept; \
                    add rule inet late input meta l4proto { icmp, icmpv6 } accept; \
                    add rule inet late input tcp dport 22 accept'";

/// Half of what the kernel keeps a handshake for that its client does not finish.
const WELL_BEFORE: Duration = Duration::from_secs(12);

#[rstest]
fn clients_that_were_answered_in_vain_are_let_go(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nft"), program("curl"), program("ss"));
    let stage = open(Via::Early)?;
    let world = &stage.world;
    assert!(world.probe(family)?.1);
    let listener = world.listen(family)?;
    world.hb().sh(LOAD)?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(world.client(), listener.local_addr()?)?);
    }
    wait_for_state(&stage, "blocked")?;
    for client in &mut clients {
        client.set_read_timeout(Some(WELL_BEFORE))?;
        client.write_all(b"to nobody")?;
        let error = client.read(&mut [0; 1]).expect_err("there is nobody");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let pepd = stage.pepd.as_ref().unwrap();
    wait_until(LIMIT, "the log says so", || {
        pepd.log()
            .contains("clients that were answered in vain are let go")
    })?;
    let half_open = world.hb().sh("ss -Htn state syn-recv")?;
    assert_eq!(half_open, "");
    stage.finish()
}
