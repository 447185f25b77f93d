//! Capabilities: which are needed, and giving up all others.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

use crate::exit::{Failure, Result};

/// The capabilities without which pepd cannot work: transparent sockets, marks, nft, rules and
/// routes.
const NEEDED: &[Capability] = &[Capability::CAP_NET_ADMIN];

/// The capabilities that are kept where the process has them.
///
/// CAP_NET_BIND_SERVICE: a client whose own port is below 1024, as NFS has it.
/// CAP_NET_RAW: probes through the tunnels (raw(7)).
/// CAP_SYS_RESOURCE: pipes beyond `pipe-user-pages-soft` keep their size (pipe(7)).
const WANTED: &[Capability] = &[
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_RESOURCE,
];

/// The capabilities that this process lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Those without which pepd cannot work.
    pub needed: Vec<String>,
    /// Those that it uses where it has them.
    pub wanted: Vec<String>,
}

impl Privileges {
    /// Tells whether pipes keep their size however many there are.
    pub fn unbounded_pipes(&self) -> bool {
        let resource = Capability::CAP_SYS_RESOURCE.to_string();
        !self.wanted.contains(&resource)
    }
}

/// Finds out which capabilities this process lacks.
pub fn gather() -> Privileges {
    let missing = |capabilities: &[Capability]| {
        let there =
            |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
        let missing = capabilities
            .iter()
            .filter(|capability| !there(**capability));
        missing.map(ToString::to_string).collect()
    };
    Privileges {
        needed: missing(NEEDED),
        wanted: missing(WANTED),
    }
}

/// Checks that the process has the capabilities without which pepd cannot work.
pub fn require() -> Result {
    for capability in NEEDED {
        let there = caps::has_cap(None, CapSet::Effective, *capability)
            .map_err(|error| Failure::internal("read capabilities", error))?;
        if !there {
            return Err(Failure::not_permitted(format!(
                "{capability} is missing; run pepd as root, or give it the capability \
                 (AmbientCapabilities={capability} in its systemd unit)"
            )));
        }
    }
    Ok(())
}

/// Gives up every capability that pepd does not use, for good, in itself and in the programs
/// that it starts. To be called before there is a second thread: capabilities are per thread.
pub fn reduce() -> Result {
    let failed = |error: CapsError| Failure::internal("give up capabilities", error);
    let held = caps::read(None, CapSet::Permitted).map_err(failed)?;
    let kept: CapsHashSet = NEEDED
        .iter()
        .chain(WANTED)
        .copied()
        .filter(|c| held.contains(c))
        .collect();
    if held.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::runtime::thread_all_supported() {
            if !kept.contains(&capability) {
                caps::drop(None, CapSet::Bounding, capability).map_err(failed)?;
            }
        }
    }
    caps::set(None, CapSet::Effective, &kept).map_err(failed)?;
    caps::set(None, CapSet::Permitted, &kept).map_err(failed)?;
    // nft inherits them where pepd is not root.
    caps::set(None, CapSet::Inheritable, &kept).map_err(failed)?;
    caps::set(None, CapSet::Ambient, &kept).map_err(failed)?;
    nix::sys::prctl::set_no_new_privs()
        .map_err(|error| Failure::internal("set no_new_privs", error))
}
