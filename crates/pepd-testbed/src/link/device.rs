//! The TUN devices at a link's ends, each in a namespace of its own.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::units::Mtu;

/// The number of packets that the kernel keeps for the link to read. The link reads all that comes
/// and has a queue of its own; this one only bridges the time until its thread is scheduled.
const RING: u32 = 10_000;

/// An end of a link: a device of this name, which the link makes, in that namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The file that stands for the namespace, such as `/run/netns/NAME`.
    pub namespace: PathBuf,
    /// The name of the device, at most 15 bytes.
    pub device: String,
}

impl Endpoint {
    /// Returns the device `device` in the namespace behind `namespace`.
    pub fn new(namespace: impl Into<PathBuf>, device: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            device: device.into(),
        }
    }

    /// Returns the device `device` in the namespace that `ip netns` calls `name`.
    pub fn named(name: &str, device: impl Into<String>) -> Self {
        Self::new(Path::new("/run/netns").join(name), device)
    }
}

/// A TUN device that could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no such namespace, or it must not be entered.
    #[error("cannot enter the network namespace {path}: {}", entry_cure(source))]
    Namespace {
        /// The namespace's file.
        path: PathBuf,
        /// The error, with its errno.
        source: io::Error,
    },
    /// The kernel did not make the device.
    #[error(
        "cannot make the TUN device {device} in {path}: {}",
        device_cure(source)
    )]
    Make {
        /// The device's name.
        device: String,
        /// The namespace's file.
        path: PathBuf,
        /// The error, with its errno.
        source: io::Error,
    },
    /// The device's counters cannot be read.
    #[error("cannot read the counters of {device} in {path}")]
    Counters {
        /// The device's name.
        device: String,
        /// The namespace's file.
        path: PathBuf,
        /// The error, with its errno.
        source: io::Error,
    },
    /// The device was removed, or its namespace was.
    #[error("the TUN device {device} in {path} is gone: stop the link before its namespace")]
    Gone {
        /// The device's name.
        device: String,
        /// The namespace's file.
        path: PathBuf,
    },
}

fn entry_cure(error: &io::Error) -> &'static str {
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EPERM | Errno::EACCES => "run as root (CAP_SYS_ADMIN)",
        Errno::ENOENT => "make it first, with `ip netns add`",
        Errno::EINVAL => "the file is not a network namespace",
        _ => "see the cause",
    }
}

fn device_cure(error: &io::Error) -> &'static str {
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::EPERM | Errno::EACCES => "run as root (CAP_NET_ADMIN)",
        Errno::ENOENT | Errno::ENODEV => "the kernel has no TUN: load the module `tun`",
        Errno::EBUSY | Errno::EEXIST => "the name is taken: choose another",
        _ => "see the cause",
    }
}

/// One end of a link: an open TUN device, up and with the link's MTU.
pub(super) struct Device {
    endpoint: Endpoint,
    namespace: File,
    tun: SyncDevice,
}

impl Device {
    /// Makes the device. The calling thread is in the device's namespace afterwards.
    pub(super) fn make(endpoint: &Endpoint, mtu: Mtu) -> Result<Self, DeviceError> {
        let path = &endpoint.namespace;
        let namespace = File::open(path).map_err(|source| DeviceError::Namespace {
            path: path.clone(),
            source,
        })?;
        enter(&namespace, path)?;
        let tun = build(&endpoint.device, mtu).map_err(|source| DeviceError::Make {
            device: endpoint.device.clone(),
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            endpoint: endpoint.clone(),
            namespace,
            tun,
        })
    }

    /// Reads the next packet: how long it is, or `None` if there is none.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>, DeviceError> {
        match self.tun.recv(buffer) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(_) => Err(self.gone()),
        }
    }

    /// Gives a packet to the namespace. False if it was not taken: the device is down.
    pub(super) fn write(&self, packet: &[u8]) -> bool {
        self.tun.send(packet).is_ok()
    }

    /// Returns how many packets the kernel has dropped because the ring was full, since the device
    /// was made. The calling thread is in the device's namespace afterwards.
    pub(super) fn overruns(&self) -> Result<u64, DeviceError> {
        enter(&self.namespace, &self.endpoint.namespace)?;
        let failed = |source| DeviceError::Counters {
            device: self.endpoint.device.clone(),
            path: self.endpoint.namespace.clone(),
            source,
        };
        let table = fs::read_to_string("/proc/thread-self/net/dev").map_err(failed)?;
        transmit_drops(&table, &self.endpoint.device).ok_or_else(|| self.gone())
    }

    pub(super) fn gone(&self) -> DeviceError {
        DeviceError::Gone {
            device: self.endpoint.device.clone(),
            path: self.endpoint.namespace.clone(),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}

fn enter(namespace: &File, path: &Path) -> Result<(), DeviceError> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| DeviceError::Namespace {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn build(name: &str, mtu: Mtu) -> io::Result<SyncDevice> {
    // Without offload (IFF_VNET_HDR) the kernel segments and sums before it hands a packet over,
    // so that none is larger than the MTU.
    let tun = DeviceBuilder::new()
        .name(name)
        .mtu(mtu.bytes())
        .offload(false)
        .enable(false)
        .with(|builder| {
            builder.tx_queue_len(RING);
        })
        .build_sync()?;
    // A link-local address would make the kernel solicit routers: traffic on an idle link, and a
    // loss sequence that depends on when it came. A kernel without IPv6 has no such file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
    tun.set_nonblocking(true)?;
    tun.enabled(true)?;
    Ok(tun)
}

/// Returns the transmit drops of `device` in a table such as `/proc/net/dev`
/// (`net/core/net-procfs.c`): the twelfth number of its line.
fn transmit_drops(table: &str, device: &str) -> Option<u64> {
    const TRANSMIT_DROPS: usize = 11;
    table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == device)
        .and_then(|(_, numbers)| numbers.split_whitespace().nth(TRANSMIT_DROPS)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transmit_drops_are_found_in_the_kernels_table() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       2    0    9    0     0          0         0      100       2    0    8    0     0       0          0
  eth0:       1       2    3    4    5     6          7         8        9      10   11   12   13    14      15         16
";
        assert_eq!(transmit_drops(table, "eth0"), Some(12));
        assert_eq!(transmit_drops(table, "lo"), Some(8));
        assert_eq!(transmit_drops(table, "eth"), None);
    }

    #[test]
    fn a_missing_namespace_names_the_cure() {
        let error = Device::make(
            &Endpoint::named("pepd-there-is-none", "eth0"),
            Mtu::ETHERNET,
        )
        .err()
        .unwrap()
        .to_string();
        assert!(
            error.contains("pepd-there-is-none") && error.contains("ip netns add"),
            "{error}"
        );
    }
}
