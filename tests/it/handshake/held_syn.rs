//! Held SYNs: how to have one, and how to see that there is none.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::traffic::{Pair, accept};
use pepd_testbed::{Netns, Stage, wait_until};

pub const LIMIT: Duration = Duration::from_secs(60);

/// Connects while nothing comes back from the server, on a thread.
pub fn connect_meanwhile(stage: &Stage, to: SocketAddr) -> Result<JoinHandle<Result<TcpStream>>> {
    let attempt = stage
        .world
        .client()
        .spawn(move || Ok(TcpStream::connect(to)?))?;
    wait_until(LIMIT, "the SYN is held", || {
        held(stage.world.hb()).is_some_and(|waiting| waiting > 0)
    })?;
    Ok(attempt)
}

/// Returns the connection that it led to after all, from the client's own address.
pub fn connected(attempt: JoinHandle<Result<TcpStream>>, listener: &TcpListener) -> Result<Pair> {
    let client = attempt.join().unwrap()?;
    client.set_read_timeout(Some(LIMIT))?;
    let (server, peer) = accept(listener)?;
    assert_eq!(peer, client.local_addr()?);
    Ok(Pair { client, server })
}

/// Has the server drop what comes to a port.
pub fn silence(server: &Netns, port: u16) -> Result<()> {
    server.sh(&format!(
        "nft add table inet silent; \
         nft add chain inet silent c '{{ type filter hook input priority 0; }}'; \
         nft add rule inet silent c tcp dport {port} drop"
    ))?;
    Ok(())
}

pub fn end_of_silence(server: &Netns) -> Result<()> {
    server.sh("nft delete table inet silent")?;
    Ok(())
}

/// Waits until new connections are split, or are not.
pub fn wait_for_gate(hb: &Netns, open: bool) -> Result<()> {
    let state = if open { "open" } else { "closed" };
    wait_until(LIMIT, &format!("the gate is {state}"), || {
        let gate = hb.sh("nft list set inet pepd gate; nft list set inet pepd second_gate");
        gate.is_ok_and(|gate| gate.contains("expires") == open)
    })
}

/// Waits until the daemon says that it reads what is held.
///
/// Where a routed SYN of the client's and the box's meet at a server that listens, the second may
/// be refused, and with it the client: its sequence number, of the same addresses and ports and
/// nearly the same moment, falls into the first one's window (net/core/secure_seq.c: all namespaces
/// have one secret; tcp_check_req, net/ipv4/tcp_minisocks.c). Between two hosts that does not
/// happen.
pub fn wait_for_readers(hb: &Netns) -> Result<()> {
    wait_until(LIMIT, "the daemon reads what is held", || {
        let readers = hb.sh("nft list set inet pepd readers");
        readers.is_ok_and(|readers| readers.contains("expires"))
    })
}

/// Returns how many packets a counter of pepd's table has seen.
pub fn counter(hb: &Netns, name: &str) -> Result<u64> {
    counter_in(hb, "pepd", name)
}

/// Returns how many packets a counter of another table of the family `inet` has seen.
pub fn counter_in(netns: &Netns, table: &str, name: &str) -> Result<u64> {
    let said = netns.sh(&format!("nft list counter inet {table} {name}"))?;
    Ok(before(&said, " bytes"))
}

/// Nothing waits for a verdict.
pub fn nothing_is_held(stage: &Stage) -> Result<()> {
    wait_until(LIMIT, "no packet waits in a queue", || {
        held(stage.world.hb()) == Some(0)
    })
}

/// Packets that wait for their verdict (nfnetlink_queue's queue_total).
pub fn held(hb: &Netns) -> Option<u64> {
    let queues = hb.sh("cat /proc/net/netfilter/nfnetlink_queue").ok()?;
    let waiting = queues.lines().map(|line| {
        let field = line.split_whitespace().nth(2)?;
        field.parse::<u64>().ok()
    });
    waiting.sum()
}

/// Returns the number right before `word`; 0 where there is none.
pub fn before(text: &str, word: &str) -> u64 {
    let number = text.split_once(word).and_then(|(text, _)| {
        let start = text
            .rfind(|c: char| !c.is_ascii_digit())
            .map_or(0, |at| at + 1);
        text[start..].parse().ok()
    });
    number.unwrap_or(0)
}
