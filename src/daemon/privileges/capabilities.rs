//! Capabilities: which are needed, and giving up all others.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use nix::unistd::geteuid;
use pepd_config::Config;
use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits};

use super::programs;
use crate::daemon::resources;
use crate::exit::{Failure, Result};

/// The capabilities without which pepd cannot work: transparent sockets, marks, nft, rules and
/// routes.
const NEEDED: &[Capability] = &[Capability::CAP_NET_ADMIN];

/// The capabilities that are kept where the process has them and the configuration has a use for
/// them.
///
/// CAP_NET_BIND_SERVICE: a client whose own port is below 1024, as NFS has it, is served from it.
/// CAP_NET_RAW: probes through the tunnels (raw(7)), and an iptables that does not speak nf_tables. (What restarts legs after
/// an outage needs it at the start only.)
const WANTED: &[Capability] = &[Capability::CAP_NET_BIND_SERVICE, Capability::CAP_NET_RAW];

/// The capability that is kept by a service that was given it on purpose, and not where root
/// started the daemon and so gave it everything: with it pipes beyond `pipe-user-pages-soft` keep
/// their size (pipe(7)), and so does a sysctl.
const GRANTED: Capability = Capability::CAP_SYS_RESOURCE;

/// The capabilities that this process lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Those without which pepd cannot work.
    pub needed: Vec<String>,
    /// Those that it uses where it has them.
    pub wanted: Vec<String>,
    /// Whether pipes keep their size however many there are.
    pub unbounded_pipes: bool,
}

/// Finds out which capabilities this process lacks.
pub fn gather() -> Privileges {
    let missing = |capabilities: &mut dyn Iterator<Item = Capability>| {
        let missing = capabilities.filter(|capability| !is_effective(*capability));
        missing.map(|capability| capability.to_string()).collect()
    };
    Privileges {
        needed: missing(&mut NEEDED.iter().copied()),
        wanted: missing(&mut WANTED.iter().copied()),
        unbounded_pipes: !geteuid().is_root() && is_effective(GRANTED),
    }
}

fn is_effective(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

fn wanted(config: &Config) -> impl Iterator<Item = Capability> {
    let probes = config.peers.iter().any(|peer| peer.probe.is_some());
    let raw = probes || (resources::holds(config) && programs::has_legacy_iptables_only());
    WANTED
        .iter()
        .copied()
        .filter(move |capability| raw || *capability != Capability::CAP_NET_RAW)
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

/// The capabilities that outlive a change of the user, and are to be reduced after it.
#[must_use]
pub struct Held {
    kept: CapsHashSet,
}

impl Held {
    /// Chooses what is kept, takes everything else out of the bounding set, and has a change of
    /// the user leave the permitted ones alone.
    pub fn keep(config: &Config) -> Result<Self> {
        let held = caps::read(None, CapSet::Permitted).map_err(failed)?;
        let granted = (!geteuid().is_root()).then_some(GRANTED);
        let kept: CapsHashSet = NEEDED
            .iter()
            .copied()
            .chain(wanted(config))
            .chain(granted)
            .filter(|capability| held.contains(capability))
            .collect();
        if held.contains(&Capability::CAP_SETPCAP) {
            for capability in caps::runtime::thread_all_supported() {
                if !kept.contains(&capability) {
                    caps::drop(None, CapSet::Bounding, capability).map_err(failed)?;
                }
            }
            lock_secure_bits()?;
        } else {
            nix::sys::prctl::set_keepcaps(true)
                .map_err(|error| Failure::internal("keep capabilities", error))?;
        }
        Ok(Self { kept })
    }

    /// Gives up all others, in this process and in the programs that it starts, and names those
    /// that are left.
    pub fn give_up_the_rest(self) -> Result<Vec<String>> {
        let kept = &self.kept;
        caps::set(None, CapSet::Effective, kept).map_err(failed)?;
        caps::set(None, CapSet::Permitted, kept).map_err(failed)?;
        // nft inherits them where pepd is not root.
        caps::set(None, CapSet::Inheritable, kept).map_err(failed)?;
        caps::set(None, CapSet::Ambient, kept).map_err(failed)?;
        nix::sys::prctl::set_no_new_privs()
            .map_err(|error| Failure::internal("set no_new_privs", error))?;
        let mut names: Vec<String> = kept.iter().map(ToString::to_string).collect();
        names.sort();
        Ok(names)
    }
}

/// Has neither user 0 nor a change of the user give or take capabilities, for good: whoever is
/// root, or executes something, has what is inherited and nothing more (capabilities(7)).
fn lock_secure_bits() -> Result {
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED;
    set_capabilities_secure_bits(bits).map_err(|error| Failure::internal("set securebits", error))
}

fn failed(error: CapsError) -> Failure {
    Failure::internal("give up capabilities", error)
}
