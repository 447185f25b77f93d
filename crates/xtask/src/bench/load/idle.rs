//! What a connection costs that is open and says nothing.

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use anyhow::Result;

use super::float;
use crate::bench::interrupt::Interrupt;
use crate::bench::lane::Lane;

/// Connections that stand open at once.
pub const CONNECTIONS: u16 = 1000;

/// Memory per connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The growth of the proxy's resident memory; `None` without a proxy.
    pub resident: Option<f64>,
    /// The growth of the kernel's objects for sockets, files and epoll, *the ends' included*: what
    /// plain forwarding needs is to be subtracted. `None` where the kernel does not tell.
    pub kernel: Option<f64>,
}

/// Opens the connections, has each carry a byte both ways, and measures the memory once nothing has
/// been sent for `quiet`. The lane is to be new: what a proxy keeps from earlier connections would
/// hide what these need.
///
/// # Errors
/// When a connection is not established, or the proxy ends.
pub fn run(lane: &Lane, quiet: Duration, interrupt: &Interrupt) -> Result<Memory> {
    lane.checked(|| {
        let listener = lane.listen()?;
        interrupt.wait(quiet)?;
        let (resident_before, kernel_before) = (lane.resident_bytes()?, kernel_bytes());
        let mut pairs = Vec::new();
        for _ in 0..CONNECTIONS {
            let (mut client, mut server) = lane.connect(&listener)?;
            let mut byte = [0];
            client.write_all(&byte)?;
            server.read_exact(&mut byte)?;
            server.write_all(&byte)?;
            client.read_exact(&mut byte)?;
            pairs.push((client, server));
            interrupt.check()?;
        }
        interrupt.wait(quiet)?;
        let growth = |before: Option<f64>, after: Option<f64>| {
            let (before, after) = before.zip(after)?;
            Some((after - before) / f64::from(CONNECTIONS))
        };
        let memory = Memory {
            resident: growth(resident_before, lane.resident_bytes()?),
            kernel: growth(kernel_before, kernel_bytes()),
        };
        Ok((memory, u64::from(CONNECTIONS)))
    })
}

/// The slab caches that a TCP socket, its descriptor and its registration with epoll come from.
/// Directory entries (one per socket, 192 bytes) are left out: any program that opens files changes
/// their number. So is the content of the buffers: there is none in an idle connection.
const CACHES: [&str; 5] = [
    "TCP",
    "sock_inode_cache",
    "filp",
    "eventpoll_epi",
    "eventpoll_pwq",
];

/// Returns the bytes of the kernel's objects for sockets, files and epoll; `None` where it does not tell.
pub fn kernel_bytes() -> Option<f64> {
    slab_bytes(&fs::read_to_string("/proc/slabinfo").ok()?)
}

/// Returns the active objects times their size (slabinfo(5)) in the caches above; `None` where the
/// cache of the sockets themselves is not listed.
fn slab_bytes(slabinfo: &str) -> Option<f64> {
    let rows = || {
        slabinfo.lines().filter_map(|line| {
            let mut fields = line.split_whitespace();
            let name = fields.next()?;
            let active: u64 = fields.next()?.parse().ok()?;
            let size: u64 = fields.nth(1)?.parse().ok()?;
            CACHES.contains(&name).then_some((name, active * size))
        })
    };
    rows().any(|(name, _)| name == "TCP").then_some(())?;
    Some(float(rows().map(|(_, bytes)| bytes).sum()))
}

#[cfg(test)]
mod tests {
    use super::slab_bytes;

    #[test]
    fn the_caches_are_added_up() {
        let slabinfo = "slabinfo - version: 2.1\n\
            # name <active_objs> <num_objs> <objsize> <objperslab>\n\
            TCPv6 9 9 2496 13 8 : tunables\n\
            TCP 10 182 2368 13 8 : tunables\n\
            filp 3 1575 192 21 1 : tunables\n";
        assert_eq!(slab_bytes(slabinfo), Some(f64::from(10 * 2368 + 3 * 192)));
        assert_eq!(slab_bytes("filp 3 1575 192 21 1"), None);
    }
}
