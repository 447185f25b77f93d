//! Loading the program, and registering it as a congestion control.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, thread};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use pepd_sys::bpf::{Map, MapKind};

use crate::load::{Registered, load};
use crate::object::{LEG_RATE, RESUME};
use crate::ops::NAME;
use crate::{Error, Name, NetworkNamespace, Steering, Use};

/// The time that a killed daemon's controls may take to go: the kernel waits for readers (RCU).
const PATIENCE: Duration = Duration::from_secs(5);

/// A registered control. It goes when this is dropped; sockets that have it keep it.
#[derive(Debug)]
pub struct Control {
    name: Name,
    /// None where an earlier daemon's serves.
    registered: Option<Registered>,
    /// By which an earlier daemon had registered it, where this one has taken that over.
    taken_over: Option<OwnedFd>,
}

impl Control {
    /// Returns the name that sockets know it by (`TCP_CONGESTION`).
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns whether it is one that an earlier daemon left and this process may not replace: it
    /// stays when this is dropped.
    pub fn is_adopted(&self) -> bool {
        self.registered.is_none()
    }

    /// Returns whether it goes by itself with this process, as from Linux 6.4 on; else to remove it takes
    /// a system call (bpf(2)).
    pub fn goes_by_itself(&self) -> bool {
        self.registered.as_ref().is_none_or(Registered::is_linked)
    }

    /// Takes over one for [outages](Use::Resume) that an earlier daemon has registered by `link`, and that
    /// has not gone since; none where there is none of that name. It has to be this program's
    /// ([`resume_program`]).
    pub fn take_over(namespace: NetworkNamespace, link: OwnedFd) -> Option<Self> {
        let name = namespace.names(0, Use::Resume).next()?;
        let is_there = namespace.registered().contains(&name);
        is_there.then_some(Self {
            name,
            registered: None,
            taken_over: Some(link),
        })
    }

    /// Borrows that by which it is registered, if it goes with that.
    pub fn link(&self) -> Option<BorrowedFd<'_>> {
        let own = self.registered.as_ref().and_then(Registered::link);
        own.or_else(|| self.taken_over.as_ref().map(OwnedFd::as_fd))
    }

    /// Takes hold of what it is told and what it counts; none where an earlier daemon's serves.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn steering(&self) -> Result<Option<Steering>, Error> {
        self.registered
            .as_ref()
            .map(Steering::of)
            .transpose()
            .map_err(|error| refused("steer a leg's control", &error))
    }
}

/// Checks whether this kernel takes the program: loads it, without making it available to anybody.
///
/// # Errors
/// As [`register`].
pub fn probe() -> Result<(), Error> {
    may_load()?;
    load(LEG_RATE, &field(&NetworkNamespace::new(0).name(0))).map(drop)
}

/// Makes the control of a leg available to sockets in `namespace`.
///
/// From Linux 6.4 on it goes with this process, however that ends. Before that, it outlives a kill;
/// what is then left is replaced. Where this process may not do that, it is adopted if its rate is
/// [given](Use::GivenRate), or it is for an [outage](Use::Resume), and else left where it is, and another
/// name taken.
///
/// # Errors
/// If the kernel lacks what it takes, or this process the capabilities.
pub fn register(namespace: NetworkNamespace, leg: u8, of: Use) -> Result<Control, Error> {
    let deadline = Instant::now() + PATIENCE;
    may_load()?;
    for name in namespace.names(leg, of) {
        let loaded = load(program(of), &field(&name))?;
        loop {
            match loaded.register() {
                Ok(link) => {
                    let registered = Some(Registered::new(loaded, link));
                    return Ok(Control {
                        name,
                        registered,
                        taken_over: None,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(refused("register the congestion control", &error)),
            }
            // One with a link goes by itself; one without stays until somebody removes it.
            if !loaded.is_linked() && !has(&[Capability::CAP_SYS_ADMIN]) {
                break;
            }
            wait(deadline, &name)?;
        }
        if of != Use::FoundRate {
            return Ok(Control {
                name,
                registered: None,
                taken_over: None,
            });
        }
    }
    let last = namespace.names(leg, of).last();
    Err(Error::NameTaken(last.unwrap_or(namespace.name(leg))))
}

fn program(of: Use) -> &'static [u8] {
    match of {
        Use::GivenRate | Use::FoundRate => LEG_RATE,
        Use::Resume => RESUME,
    }
}

/// Returns an error where this process may not load a program.
fn may_load() -> Result<(), Error> {
    const STEP: &str = "load the BPF program";
    // The verifier's refusals look the same on old kernels.
    if has(&[Capability::CAP_SYS_ADMIN]) || has(&[Capability::CAP_BPF, Capability::CAP_PERFMON]) {
        Ok(())
    } else {
        Err(Error::NotPermitted { step: STEP })
    }
}

/// Waits a little for a killed daemon's control to go.
fn wait(deadline: Instant, name: &Name) -> Result<(), Error> {
    if Instant::now() > deadline {
        return Err(Error::NameTaken(name.clone()));
    }
    thread::park_timeout(Duration::from_millis(20));
    Ok(())
}

/// Returns what tells the program for [outages](Use::Resume) from that of other versions; never 0.
pub fn resume_program() -> u64 {
    let mut hasher = DefaultHasher::new();
    RESUME.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Removes what a killed daemon has left in `namespace`, but for the one that is `kept`, and says what that
/// was.
///
/// # Errors
/// If there is something and this process may not remove it (CAP_SYS_ADMIN).
pub fn remove_left(
    namespace: NetworkNamespace,
    kept: Option<&Control>,
) -> Result<Vec<Name>, Error> {
    let deadline = Instant::now() + PATIENCE;
    let there = || {
        let mut names = namespace.registered();
        names.retain(|name| kept.is_none_or(|kept| kept.name != *name));
        names
    };
    let left = there();
    while let [name, ..] = &*there() {
        remove(&left)?;
        wait(deadline, name)?;
    }
    Ok(left)
}

/// Unregisters the controls called `names` that have no link, whoever loaded them.
fn remove(names: &[Name]) -> Result<(), Error> {
    const STEP: &str = "remove a congestion control";
    // A kernel that does not let this process look gives no maps, and no reason.
    if !has(&[Capability::CAP_SYS_ADMIN]) {
        return Err(Error::NotPermitted { step: STEP });
    }
    let fields: Vec<_> = names.iter().map(field).collect();
    let is_wanted = |value: &[u8]| {
        let mut places = value.windows(NAME);
        places.any(|place| fields.iter().any(|field| field == place))
    };
    let failed = |error: io::Error| refused(STEP, &error);
    for id in Map::ids().map_err(failed)? {
        // It may have gone since.
        let Ok(Some(map)) = Map::with_id(id, MapKind::StructOps) else {
            continue;
        };
        if map.value().is_ok_and(|value| is_wanted(&value)) {
            match map.delete_value() {
                Err(error) if stays(&error) => {}
                other => other.map_err(failed)?,
            }
        }
    }
    Ok(())
}

/// Tells whether there is nothing to remove: it has a link, and goes with the process that has it; or it is
/// removed already, and only sockets have it still (kernel/bpf/bpf_struct_ops.c,
/// bpf_struct_ops_map_delete_elem).
fn stays(error: &io::Error) -> bool {
    const NOTHING: [Errno; 3] = [Errno::EOPNOTSUPP, Errno::EINPROGRESS, Errno::ENOENT];
    let errno = error.raw_os_error().map(Errno::from_raw);
    errno.is_some_and(|errno| NOTHING.contains(&errno))
}

/// Returns the name as `struct tcp_congestion_ops` has it.
fn field(name: &Name) -> [u8; NAME] {
    let mut field = [0; NAME];
    let bytes = name.as_str().bytes();
    field
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = from);
    field
}

fn has(capabilities: &[Capability]) -> bool {
    let one = |capability: &Capability| caps::has_cap(None, CapSet::Effective, *capability);
    capabilities.iter().all(|it| one(it).unwrap_or(false))
}

fn refused(step: &'static str, error: &io::Error) -> Error {
    Error::Refused {
        step,
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_followed_by_a_zero() {
        let name = NetworkNamespace::new(u32::MAX).name(u8::MAX);
        assert_eq!(&field(&name), b"pepdffffffff_ff\0");
    }
}
