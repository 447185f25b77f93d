//! Which cores belong to whom, on a machine that plays three.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use pepd_testbed::{Netns, run};

/// The box's cores: one for each of a proxy's two workers.
const BOX_CORES: usize = 2;

/// Just below what the kernel's own threads may need.
const NICENESS: &str = "-15";

/// `renice` does not take this long.
const LIMIT: Duration = Duration::from_secs(30);

/// The box has cores of its own, and the two hosts the others. Otherwise the hosts, which in
/// plain forwarding have the machine to themselves, would compete with a proxy for it.
///
/// The devices are told as well (receive packet steering; the kernel's
/// Documentation/networking/scaling.rst): veth else processes a packet, up to the receiving
/// socket, on the core of whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    hosts: Vec<usize>,
    the_box: Vec<usize>,
}

/// The shares of the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sharing {
    /// Two belong to the box, the others to the hosts.
    Split,
    /// All are everyone's.
    Shared,
}

impl Cores {
    /// Shares out the cores that this process may use.
    ///
    /// # Errors
    /// When there are too few.
    pub fn share(sharing: Sharing) -> Result<Self> {
        let allowed = sched_getaffinity(Pid::this())?;
        let mut hosts = (0..CpuSet::count())
            .filter(|&core| allowed.is_set(core).unwrap_or(false))
            .collect::<Vec<_>>();
        if sharing == Sharing::Shared {
            let the_box = hosts.clone();
            return Ok(Self { hosts, the_box });
        }
        ensure!(
            hosts.len() >= 2 * BOX_CORES,
            "the benchmark needs {} cores, half of them for the box, and this machine has {}; \
             --cores shared does without",
            2 * BOX_CORES,
            hosts.len()
        );
        let the_box = hosts.split_off(hosts.len() - BOX_CORES);
        Ok(Self { hosts, the_box })
    }

    /// Puts this process, and what it starts, before other programs on the machine: packets are
    /// forwarded in softirq, which no program holds up, but a proxy has to wait its turn.
    /// Call it before there are other threads.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take_precedence() -> Result<()> {
        let pid = std::process::id().to_string();
        let mut renice = Command::new("renice");
        run(renice.args(["-n", NICENESS, "-p", &pid]), LIMIT)?.success()?;
        Ok(())
    }

    /// Keeps this process, and so the hosts' traffic, on the hosts' cores.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn keep_hosts(&self) -> Result<()> {
        let mut set = CpuSet::new();
        for &core in &self.hosts {
            set.set(core)?;
        }
        Ok(sched_setaffinity(Pid::this(), &set)?)
    }

    /// Returns the words by which a program is started on the box's cores.
    pub fn on_box(&self) -> [String; 3] {
        ["taskset".to_owned(), "-c".to_owned(), list(&self.the_box)]
    }

    /// Has the packets that a host receives processed on the hosts' cores.
    ///
    /// # Errors
    /// When the kernel has no receive packet steering.
    pub fn steer_host(&self, host: &Netns) -> Result<()> {
        self.steer(host, &self.hosts)
    }

    /// Has the packets that the box receives processed on the box's cores.
    ///
    /// # Errors
    /// When the kernel has no receive packet steering.
    pub fn steer_box(&self, hb: &Netns) -> Result<()> {
        self.steer(hb, &self.the_box)
    }

    fn steer(&self, netns: &Netns, cores: &[usize]) -> Result<()> {
        if self.hosts != self.the_box {
            let mask = mask(cores);
            netns.sh(&format!(
                "for device in /sys/class/net/to-*; do
                    echo {mask} > $device/queues/rx-0/rps_cpus
                done"
            ))?;
        }
        Ok(())
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, the_box) = (list(&self.hosts), list(&self.the_box));
        write!(f, "hosts on cores {hosts}; box on cores {the_box}")
    }
}

fn list(cores: &[usize]) -> String {
    let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
    cores.join(",")
}

/// Returns a bitmap as the kernel reads it: words of 32 bits in hexadecimal, the highest first.
fn mask(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |highest| highest / 32 + 1);
    let mut bits = vec![0_u32; words];
    for core in cores {
        bits[core / 32] |= 1 << (core % 32);
    }
    let words: Vec<String> = bits
        .iter()
        .rev()
        .map(|word| format!("{word:08x}"))
        .collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn masks_are_written_as_the_kernel_reads_them() {
        assert_eq!(mask(&[2, 3]), "0000000c");
        assert_eq!(mask(&[0, 33]), "00000002,00000001");
    }
}
