//! BPF programs and their maps (bpf(2)): as much of it as it takes to give the kernel a congestion
//! control.
//!
//! Programs here are members of a `struct` of functions that the kernel knows (`struct_ops`), and maps have
//! one value, whose key is 0.

mod attributes;
mod ring;

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{ffi::CStr, ptr};

use crate::syscall::check;
use attributes::{
    BtfLoad, Command, Id, InfoByFd, LinkCreate, MapCreate, MapElement, MapInfo, ProgramLoad, name,
};

pub use ring::Ring;

/// The most of the verifier's log that is asked for, in bytes. What it says at last is not cut off before
/// Linux 6.4 only if all of it fits.
const LOG: usize = 1 << 20;

/// The type of a program that is a member of a `struct_ops` (`BPF_PROG_TYPE_STRUCT_OPS`).
const STRUCT_OPS: u32 = 27;

/// What a `struct_ops` is attached as (`BPF_STRUCT_OPS`).
const ATTACH_STRUCT_OPS: u32 = 44;

/// A `struct_ops` map that registers by a link (`BPF_F_LINK`), from Linux 6.4 on.
const LINKED: u32 = 1 << 13;

/// The one key of a map.
static KEY: u32 = 0;

/// What a map is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Variables of programs (`BPF_MAP_TYPE_ARRAY`).
    Variables,
    /// The functions of a `struct_ops` (`BPF_MAP_TYPE_STRUCT_OPS`).
    StructOps,
    /// A buffer from programs to user space (`BPF_MAP_TYPE_RINGBUF`).
    Ring,
}

impl MapKind {
    fn number(self) -> u32 {
        match self {
            Self::Variables => 2,
            Self::StructOps => 26,
            Self::Ring => 27,
        }
    }
}

/// A map with one value, or a [`Ring`]'s.
#[derive(Debug)]
pub struct Map {
    descriptor: OwnedFd,
    /// Of its value, in bytes: at least what the kernel reads and writes of one.
    size: usize,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Map {
    /// Makes a map of variables of `size` bytes, all of them 0.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_MAP_CREATE`).
    pub fn variables(called: &str, size: usize) -> io::Result<Self> {
        let attributes = MapCreate {
            map_type: MapKind::Variables.number(),
            key_size: width(size_of_val(&KEY))?,
            value_size: width(size)?,
            max_entries: 1,
            map_name: name(called),
            ..MapCreate::default()
        };
        Self::create(&attributes)
    }

    /// Makes a buffer of `size` bytes, a power of 2 and whole pages.
    ///
    /// # Errors
    /// As [`Map::variables`].
    pub fn ring(called: &str, size: u32) -> io::Result<Self> {
        let attributes = MapCreate {
            map_type: MapKind::Ring.number(),
            max_entries: size,
            map_name: name(called),
            ..MapCreate::default()
        };
        Self::create(&attributes)
    }

    /// Makes a map for a `struct_ops`: `size` bytes are the kernel's type `value_type` with what surrounds it.
    /// The kernel wants some types of the caller's, too, though it makes no use of them.
    ///
    /// # Errors
    /// As [`Map::variables`]. EINVAL before Linux 6.4 if it is to be linked.
    pub fn struct_ops(
        called: &str,
        value_type: u32,
        size: usize,
        types: BorrowedFd<'_>,
        is_linked: bool,
    ) -> io::Result<Self> {
        let attributes = MapCreate {
            map_type: MapKind::StructOps.number(),
            key_size: width(size_of_val(&KEY))?,
            value_size: width(size)?,
            max_entries: 1,
            map_flags: if is_linked { LINKED } else { 0 },
            map_name: name(called),
            btf_fd: types.as_raw_fd(),
            btf_vmlinux_value_type_id: value_type,
            ..MapCreate::default()
        };
        Self::create(&attributes)
    }

    fn create(attributes: &MapCreate) -> io::Result<Self> {
        Ok(Self {
            descriptor: open(Command::MapCreate, attributes)?,
            size: usize::try_from(attributes.value_size).unwrap_or(usize::MAX),
        })
    }

    /// Opens it once more.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            descriptor: self.descriptor.try_clone()?,
            size: self.size,
        })
    }

    /// Opens the map of a kind that has this number; none if it has gone or is of another kind.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_MAP_GET_FD_BY_ID`).
    pub fn with_id(id: u32, kind: MapKind) -> io::Result<Option<Self>> {
        let attributes = Id {
            start: id,
            ..Id::default()
        };
        let descriptor = match open(Command::MapGetFdById, &attributes) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            other => other?,
        };
        let mut info = MapInfo::default();
        let attributes = InfoByFd {
            descriptor: descriptor.as_raw_fd(),
            length: width(size_of_val(&info))?,
            info: address((&raw mut info).cast()),
        };
        call(Command::ObjGetInfoByFd, &attributes)?;
        let is_wanted = info.map_type == kind.number()
            && usize::try_from(info.key_size).is_ok_and(|size| size == size_of_val(&KEY));
        Ok(is_wanted.then_some(Self {
            descriptor,
            size: usize::try_from(info.value_size).unwrap_or(usize::MAX),
        }))
    }

    /// Gives the numbers of all maps that there are.
    ///
    /// # Errors
    /// If the kernel does not let this process look (`BPF_MAP_GET_NEXT_ID`, CAP_SYS_ADMIN).
    pub fn ids() -> io::Result<Vec<u32>> {
        let mut ids = Vec::new();
        loop {
            let mut attributes = Id {
                start: ids.last().copied().unwrap_or(0),
                ..Id::default()
            };
            match call_mut(Command::MapGetNextId, &mut attributes) {
                Ok(_) => ids.push(attributes.next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_MAP_LOOKUP_ELEM`).
    pub fn value(&self) -> io::Result<Vec<u8>> {
        let mut value = vec![0; self.size];
        let attributes = self.element(value.as_mut_ptr());
        call(Command::MapLookup, &attributes)?;
        Ok(value)
    }

    /// Replaces the value, which has the map's size. A `struct_ops` that is not linked is registered by that.
    ///
    /// # Errors
    /// If it has another size, or the kernel refuses (`BPF_MAP_UPDATE_ELEM`).
    pub fn set_value(&self, value: &[u8]) -> io::Result<()> {
        if value.len() != self.size {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let attributes = self.element(value.as_ptr().cast_mut());
        call(Command::MapUpdate, &attributes).map(drop)
    }

    /// Takes the value away. A `struct_ops` that is not linked is unregistered by that.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_MAP_DELETE_ELEM`).
    pub fn delete_value(&self) -> io::Result<()> {
        let attributes = self.element(ptr::null_mut());
        call(Command::MapDelete, &attributes).map(drop)
    }

    fn element(&self, value: *mut u8) -> MapElement {
        MapElement {
            map: self.descriptor.as_raw_fd(),
            padding: 0,
            key: address((&raw const KEY).cast()),
            value: address(value),
            flags: 0,
        }
    }

    /// Registers the `struct_ops` for as long as what is returned is open.
    ///
    /// # Errors
    /// If the kernel refuses (`BPF_LINK_CREATE`): EEXIST if something is registered under the same name.
    pub fn link(&self) -> io::Result<OwnedFd> {
        let attributes = LinkCreate {
            map: self.descriptor.as_raw_fd(),
            target: 0,
            attach_type: ATTACH_STRUCT_OPS,
            flags: 0,
        };
        open(Command::LinkCreate, &attributes)
    }
}

/// A program that is a member of a `struct_ops`.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What tools call it; cut to 15 bytes.
    pub name: &'a str,
    /// Its instructions, each of 8 bytes (linux/bpf.h, `struct bpf_insn`).
    pub instructions: &'a [[u8; 8]],
    /// The licence that it may be used under.
    pub license: &'a CStr,
    /// The number of the `struct` among the kernel's types.
    pub of: u32,
    /// Which of its members it is, counted from 0.
    pub member: u32,
}

impl Program<'_> {
    /// Has the kernel verify and compile it.
    ///
    /// # Errors
    /// If it refuses (`BPF_PROG_LOAD`). EAGAIN if a signal is pending time and again.
    pub fn load(&self) -> io::Result<OwnedFd> {
        let attributes = self.attributes(&mut [])?;
        retry_on_eagain(|| open(Command::ProgramLoad, &attributes))
    }

    /// Tries that again, and returns what the kernel's verifier says.
    pub fn verifier_log(&self) -> String {
        let mut log = vec![0; LOG];
        if let Ok(attributes) = self.attributes(&mut log) {
            // That it fails is why this is called.
            drop(retry_on_eagain(|| open(Command::ProgramLoad, &attributes)));
        }
        let text = log.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    fn attributes(&self, log: &mut [u8]) -> io::Result<ProgramLoad> {
        Ok(ProgramLoad {
            program_type: STRUCT_OPS,
            instruction_count: width(self.instructions.len())?,
            instructions: address(self.instructions.as_ptr().cast()),
            license: address(self.license.as_ptr().cast()),
            log_level: u32::from(!log.is_empty()),
            log_size: width(log.len())?,
            log: if log.is_empty() {
                0
            } else {
                address(log.as_mut_ptr())
            },
            program_name: name(self.name),
            expected_attach_type: self.member,
            attach_btf_id: self.of,
            ..ProgramLoad::default()
        })
    }
}

/// Gives the kernel types of the caller's (BTF).
///
/// # Errors
/// If it refuses (`BPF_BTF_LOAD`).
pub fn load_types(types: &[u8]) -> io::Result<OwnedFd> {
    let attributes = BtfLoad {
        types: address(types.as_ptr()),
        size: width(types.len())?,
        ..BtfLoad::default()
    };
    open(Command::BtfLoad, &attributes)
}

/// How often a load is tried: as often as libbpf does.
const LOADS: u32 = 5;

/// Has a program loaded again where the verifier was interrupted by a signal, which it says by EAGAIN and not EINTR
/// (kernel/bpf/verifier.c, do_check).
fn retry_on_eagain<T>(mut load: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..LOADS {
        match load() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
    load()
}

fn width(size: usize) -> io::Result<u32> {
    u32::try_from(size).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn address(of: *const u8) -> u64 {
    of.expose_provenance() as u64
}

/// Makes a call that returns a descriptor.
fn open<A: attributes::Plain>(command: Command, attributes: &A) -> io::Result<OwnedFd> {
    let descriptor = call(command, attributes)?;
    // SAFETY: the commands that come here return a new descriptor (with close-on-exec), which nobody else
    // has.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn call<A: attributes::Plain>(command: Command, attributes: &A) -> io::Result<libc::c_int> {
    call_mut(command, &mut attributes.clone())
}

/// Makes a call that may write into its attributes.
fn call_mut<A: attributes::Plain>(command: Command, attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: the attributes are those of the command, without padding, and no longer than their size says:
    // the kernel takes what is missing for 0. What they point to is borrowed by the callers for as long as the
    // call takes, and as long as the kernel takes it to be: a map's value by its map, see `Map.size`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    check(libc::c_int::try_from(result).unwrap_or(-1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_load_is_tried_again() {
        let mut loads = 0;
        let mut interrupted = |times| {
            loads = 0;
            retry_on_eagain(|| {
                loads += 1;
                match loads <= times {
                    true => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                    false => Ok(loads),
                }
            })
        };
        assert_eq!(interrupted(0).unwrap(), 1);
        assert_eq!(interrupted(4).unwrap(), 5);
        let refused = interrupted(5).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EAGAIN));
        assert_eq!(loads, 5);
    }

    #[test]
    fn what_is_refused_is_not_tried_again() {
        let mut loads = 0;
        let refused = retry_on_eagain::<()>(|| {
            loads += 1;
            Err(io::Error::from_raw_os_error(libc::EACCES))
        });
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert_eq!(loads, 1);
    }
}
