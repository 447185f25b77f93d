//! Loading the program, and registering it as a congestion control.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use caps::{CapSet, Capability};
use libbpf_rs::query::MapInfoIter;
use libbpf_rs::{
    ErrorKind, Link, MapCore as _, MapFlags, MapHandle, MapType, Object, ObjectBuilder, PrintLevel,
};

use crate::{Error, Name, NetworkNamespace, Steering, Use};

/// Tells whether this program was built with the control.
pub const IS_BUILT: bool = true;

/// The compiled program; see build.rs.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/leg_rate.bpf.o"));

/// Room for a control's name in `struct tcp_congestion_ops`, where the program has it first
/// (`TCP_CA_NAME_MAX`, include/net/tcp.h).
const NAME: usize = 16;

/// The time that a killed daemon's controls may take to go: the kernel waits for readers (RCU).
const PATIENCE: Duration = Duration::from_secs(5);

/// A registered control. It goes when this is dropped; sockets that have it keep it.
pub struct Control {
    name: Name,
    // None where an earlier daemon's serves. Declared before the object: undoing it needs the
    // object's descriptors.
    link: Option<Link>,
    object: Option<Object>,
}

impl Control {
    /// Returns the name that sockets know it by (`TCP_CONGESTION`).
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns whether it is one that an earlier daemon left and this process may not replace: it
    /// stays when this is dropped.
    pub fn is_adopted(&self) -> bool {
        self.link.is_none()
    }

    /// Takes hold of what it is told and what it counts; none where an earlier daemon's serves.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn steering(&self) -> Result<Option<Steering>, Error> {
        self.object
            .as_ref()
            .map(Steering::of)
            .transpose()
            .map_err(|error| refused("steer a leg's control", &error))
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("name", &self.name).finish()
    }
}

/// Checks whether this kernel takes the program: loads it, without making it available to anybody.
///
/// # Errors
/// As [`register`].
pub fn probe() -> Result<(), Error> {
    load(&NetworkNamespace::new(0).name(0)).map(drop)
}

/// Makes the control of a leg available to sockets in `namespace`.
///
/// From Linux 6.4 on it goes with this process, however that ends. Before that, it outlives a kill;
/// what is then left is replaced. Where this process may not do that, it is adopted if its rate is
/// [given](Use::GivenRate), and else left where it is, and another name taken.
///
/// # Errors
/// If the kernel lacks what it takes, or this process the capabilities.
pub fn register(namespace: NetworkNamespace, leg: u8, of: Use) -> Result<Control, Error> {
    let deadline = Instant::now() + PATIENCE;
    let mut names = namespace.names(leg, of);
    let mut name = names.next();
    while let Some(wanted) = name.take() {
        let Loaded { mut object, linked } = load(&wanted)?;
        let error = match attach(&mut object) {
            Ok(link) => {
                return Ok(Control {
                    name: wanted,
                    link: Some(link),
                    object: Some(object),
                });
            }
            Err(error) => error,
        };
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(refused("register the congestion control", &error));
        }
        // One with a link goes by itself; one without stays until somebody removes it.
        if linked || has(&[Capability::CAP_SYS_ADMIN]) {
            wait(deadline, &wanted)?;
            name = Some(wanted);
        } else if of == Use::GivenRate {
            return Ok(Control {
                name: wanted,
                link: None,
                object: None,
            });
        } else {
            name = names.next();
            if name.is_none() {
                return Err(Error::NameTaken(wanted));
            }
        }
    }
    // There is a first name.
    Err(Error::NameTaken(namespace.name(leg)))
}

/// Waits a little for a killed daemon's control to go.
fn wait(deadline: Instant, name: &Name) -> Result<(), Error> {
    if Instant::now() > deadline {
        return Err(Error::NameTaken(name.clone()));
    }
    thread::park_timeout(Duration::from_millis(20));
    Ok(())
}

/// Removes what a killed daemon has left in `namespace`, and says what that was.
///
/// # Errors
/// If there is something and this process may not remove it (CAP_SYS_ADMIN).
pub fn remove_left(namespace: NetworkNamespace) -> Result<Vec<Name>, Error> {
    let deadline = Instant::now() + PATIENCE;
    let left = namespace.registered();
    while let [name, ..] = &*namespace.registered() {
        remove(&left)?;
        wait(deadline, name)?;
    }
    Ok(left)
}

/// The program in the kernel, available to nobody yet.
struct Loaded {
    object: Object,
    /// Whether it goes with the last descriptor that knows it, as from Linux 6.4 on.
    linked: bool,
}

/// Loads the BPF program under `name`.
fn load(name: &Name) -> Result<Loaded, Error> {
    const STEP: &str = "load the BPF program";
    // EPERM and what the verifier says of old kernels, EACCES, are one kind of error to libbpf-rs.
    if !has(&[Capability::CAP_SYS_ADMIN]) && !has(&[Capability::CAP_BPF, Capability::CAP_PERFMON]) {
        return Err(Error::NotPermitted { step: STEP });
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Error::NoTypes);
    }
    // Kernels before 6.4 have no links of struct_ops, and refuse the flag that asks for one.
    try_load(name, true)
        .or_else(|_| try_load(name, false))
        .map_err(|error| refused(STEP, &error))
}

fn try_load(name: &Name, linked: bool) -> libbpf_rs::Result<Loaded> {
    collect_messages();
    let mut object = ObjectBuilder::default().open_memory(PROGRAM)?;
    for mut map in object.maps_mut() {
        if map.map_type() != MapType::StructOps {
            continue;
        }
        if let Some(place) = map.initial_value_mut().and_then(|v| v.get_mut(..NAME)) {
            place.copy_from_slice(&field(name));
        }
        if !linked {
            map.set_map_flags(0)?;
        }
    }
    let object = object.load()?;
    Ok(Loaded { object, linked })
}

fn attach(object: &mut Object) -> libbpf_rs::Result<Link> {
    collect_messages();
    let is_control = |map: &libbpf_rs::MapMut<'_>| map.map_type() == MapType::StructOps;
    match object.maps_mut().find(is_control) {
        Some(mut map) => map.attach_struct_ops(),
        // It is in the program: see there.
        None => Err(std::io::Error::from(std::io::ErrorKind::NotFound).into()),
    }
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
    let key = 0_u32.to_ne_bytes();
    for info in MapInfoIter::default().filter(|map| map.ty == MapType::StructOps) {
        // It may have gone since.
        let Ok(map) = MapHandle::from_map_id(info.id) else {
            continue;
        };
        let value = map.lookup(&key, MapFlags::empty());
        if value.is_ok_and(|value| value.is_some_and(|value| is_wanted(&value))) {
            match map.delete(&key) {
                // It has a link, and goes with the process that has it.
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                other => other.map_err(|error| refused(STEP, &error))?,
            }
        }
    }
    Ok(())
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

/// The messages of libbpf since [`collect_messages`].
static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps what libbpf says, which would go to standard error otherwise, and forgets what it said.
fn collect_messages() {
    messages().clear();
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, message| {
        let line = message.trim().to_owned();
        messages().push(line);
    })));
}

fn messages() -> MutexGuard<'static, Vec<String>> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error of a step: libbpf's first words are the cause, and what follows is what came
/// of it; a log of the verifier is for debugging.
fn refused(step: &'static str, error: &libbpf_rs::Error) -> Error {
    let messages = messages();
    let first = messages.iter().flat_map(|message| message.lines()).next();
    let message = match first {
        Some(first) => format!("{error} ({first})"),
        None => error.to_string(),
    };
    Error::Refused { step, message }
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
