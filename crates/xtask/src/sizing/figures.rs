//! What the daemon and the kernel hold at a moment.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};
use pepd_testbed::Pepd;

use crate::bench;

/// What is held, of the daemon's and of the whole kernel, which is the hosts', too.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The daemon's open descriptors.
    pub descriptors: f64,
    /// Its resident memory in bytes.
    pub resident: f64,
    /// The kernel's objects for sockets, descriptors and epoll, in bytes.
    pub kernel: f64,
    /// All of the kernel's slabs, in bytes (proc_meminfo(5)).
    slab: f64,
    /// Bytes in the queues of all TCP sockets (`mem` of /proc/net/sockstat).
    queued: f64,
}

impl Figures {
    /// Reads them.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn read(pepd: &Pepd) -> Result<Self> {
        let daemon = format!("/proc/{}/fd", pepd.daemon()?);
        let page = 4096.0;
        Ok(Self {
            descriptors: bench::float(fs::read_dir(daemon)?.count() as u64),
            resident: bench::float(pepd.resident_bytes()?),
            kernel: kernel_bytes()?,
            slab: number("/proc/meminfo", "Slab:", 0)? * 1024.0,
            // TCP: inuse N orphan N tw N alloc N mem N
            queued: number("/proc/net/sockstat", "TCP:", 9)? * page,
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        write!(
            f,
            "{} descriptors, {:.1} MiB of the daemon; of the kernel's, hosts included: {:.1} MiB of sockets and \
             descriptors, {:.1} MiB of slabs, {:.1} MiB in TCP's queues",
            self.descriptors,
            mib(self.resident),
            mib(self.kernel),
            mib(self.slab),
            mib(self.queued)
        )
    }
}

/// Returns the bytes of the kernel's objects for sockets, descriptors and epoll.
///
/// # Errors
/// When the kernel does not tell (slabinfo(5) is root's).
pub fn kernel_bytes() -> Result<f64> {
    bench::kernel_bytes().context("/proc/slabinfo does not list the sockets")
}

/// Returns the number at this place behind the name of a line.
fn number(file: &str, name: &str, place: usize) -> Result<f64> {
    let text = fs::read_to_string(file).context(file.to_owned())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|rest| rest.split_whitespace().nth(place));
    let word = word.with_context(|| format!("no {name} in {file}"))?;
    Ok(word.parse()?)
}
