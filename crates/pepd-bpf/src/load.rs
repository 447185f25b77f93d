//! Giving the program to the kernel.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use pepd_sys::bpf;

use crate::Error;
use crate::fit::{Fitter, Misfit};
use crate::instruction::{Instruction, set_operand, set_source};
use crate::object::{Content, Damaged, Map, Object, Program};
use crate::ops::{NAME, Ops};
use crate::types::Types;

/// Where the kernel describes its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// What tools call the map of the struct.
const CONTROL: &str = "leg_rate_ops";

/// The program in the kernel.
#[derive(Debug)]
pub(crate) struct Loaded {
    maps: Vec<(String, bpf::Map)>,
    ops: bpf::Map,
    /// What registers it where there are no links.
    value: Vec<u8>,
    /// Those whose descriptors are in the value.
    _functions: Vec<OwnedFd>,
    is_linked: bool,
}

/// The program as a control that sockets can have, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    loaded: Loaded,
    link: Option<OwnedFd>,
}

/// Loads a program under `name`, available to nobody yet.
pub(crate) fn load(program: &[u8], name: &[u8; NAME]) -> Result<Loaded, Error> {
    let kernel = match fs::read(KERNEL_TYPES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NoTypes),
        other => other.map_err(|error| Refusal::of(KERNEL_TYPES, error)),
    };
    let loaded = kernel.and_then(|kernel| {
        let object = Object::read(program)?;
        load_object(&object, &kernel, name)
    });
    loaded.map_err(|refusal| Error::Refused {
        step: "load the BPF program",
        message: refusal.to_string(),
    })
}

impl Loaded {
    /// Returns whether it goes with the last descriptor that knows it, as from Linux 6.4 on.
    pub(crate) fn is_linked(&self) -> bool {
        self.is_linked
    }

    /// Makes it available to sockets for as long as what is returned is open, or, if that is nothing, until its
    /// map has no value.
    pub(crate) fn register(&self) -> io::Result<Option<OwnedFd>> {
        if self.is_linked {
            self.ops.link().map(Some)
        } else {
            self.ops.set_value(&self.value).map(|()| None)
        }
    }
}

impl Registered {
    /// Takes a program that has been [registered](Loaded::register).
    pub(crate) fn new(loaded: Loaded, link: Option<OwnedFd>) -> Self {
        Self { loaded, link }
    }

    /// Returns whether it goes with its link.
    pub(crate) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Borrows its link, if it has one.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(OwnedFd::as_fd)
    }

    /// Takes hold of one of its maps.
    pub(crate) fn map(&self, name: &str) -> io::Result<bpf::Map> {
        let map = self.loaded.maps.iter().find(|(it, _)| it == name);
        // It is in the program: see there.
        let (_, map) = map.ok_or(io::ErrorKind::NotFound)?;
        map.try_clone()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.link.is_none() {
            // There is nobody to be told: what stays is removed at the next start.
            let _ = self.loaded.ops.delete_value();
        }
    }
}

/// Why the program is not loaded.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error(transparent)]
    Misfit(#[from] Misfit),
    #[error("{what}: {error}")]
    Call { what: String, error: io::Error },
    #[error("{function}: {error} ({said})")]
    Verifier {
        function: String,
        error: io::Error,
        /// What the kernel's verifier said at last, which is why.
        said: String,
    },
}

impl Refusal {
    fn of(what: &str, error: io::Error) -> Self {
        let what = what.to_owned();
        Self::Call { what, error }
    }
}

fn load_object(object: &Object<'_>, kernel: &[u8], name: &[u8; NAME]) -> Result<Loaded, Refusal> {
    let unknown = || Misfit::Kernel("types are described in another form".to_owned());
    let kernel = Types::read(kernel).ok_or_else(unknown)?;
    load_fitted(object, &kernel, name).map_err(|refusal| match (refusal, kernel.unknown()) {
        (Refusal::Misfit(Misfit::Kernel(what)), Some(kind)) => {
            let what = format!(
                "{what} (its types are read up to one of kind {kind}, which this pepd does not know)"
            );
            Misfit::Kernel(what).into()
        }
        (refusal, _) => refusal,
    })
}

fn load_fitted(
    object: &Object<'_>,
    kernel: &Types<'_>,
    name: &[u8; NAME],
) -> Result<Loaded, Refusal> {
    let ops = Ops::of(kernel)?;
    // What it lacks altogether is looked for first.
    let members = object.programs.iter().map(|it| ops.function(it.member));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    let maps = object.maps.iter().map(make);
    let maps = maps.collect::<Result<Vec<_>, _>>()?;
    let mut fitter = Fitter::new(&object.types, kernel);
    let mut functions = Vec::new();
    for (program, member) in object.programs.iter().zip(&members) {
        let mut instructions = program.instructions.clone();
        fitter.fit(&mut instructions, &program.relocations)?;
        refer(&mut instructions, program, object, &maps)?;
        let function = bpf::Program {
            name: program.name,
            instructions: &instructions,
            license: object.license,
            of: ops.id.0,
            member: member.index,
        };
        functions.push(function.load().map_err(|error| Refusal::Verifier {
            function: program.name.to_owned(),
            error,
            said: last_words(&function.verifier_log()),
        })?);
    }
    let descriptors = functions.iter().map(|function| function.as_raw_fd());
    let value = ops.value(name, members.into_iter().zip(descriptors))?;
    let refused = |error| Refusal::of(CONTROL, error);
    let (map, is_linked) = make_ops(&ops, &value).map_err(refused)?;
    let names = object.maps.iter().map(|map| map.name.to_owned());
    Ok(Loaded {
        maps: names.zip(maps).collect(),
        ops: map,
        value,
        _functions: functions,
        is_linked,
    })
}

/// Makes a map of the program's.
fn make(map: &Map<'_>) -> Result<bpf::Map, Refusal> {
    let made = match map.content {
        Content::Ring(size) => bpf::Map::ring(map.name, size),
        Content::Variables { size, initial } => {
            bpf::Map::variables(map.name, size).and_then(|made| {
                if !initial.is_empty() {
                    made.set_value(initial)?;
                }
                Ok(made)
            })
        }
    };
    made.map_err(|error| Refusal::of(map.name, error))
}

/// Puts the maps into the instructions that refer to them.
fn refer(
    instructions: &mut [Instruction],
    program: &Program<'_>,
    object: &Object<'_>,
    maps: &[bpf::Map],
) -> Result<(), Damaged> {
    /// What the value of a wide instruction is: a map, or the address of its variables (`BPF_PSEUDO_MAP_FD`,
    /// `BPF_PSEUDO_MAP_VALUE`).
    const MAP: u8 = 1;
    const VARIABLES: u8 = 2;
    for reference in &program.references {
        let at = instructions.get_mut(reference.instruction..);
        let Some(([first, second], _)) = at.and_then(|at| at.split_first_chunk_mut()) else {
            return Err(Damaged("a reference"));
        };
        let map = maps.get(reference.map).zip(object.maps.get(reference.map));
        let (map, of) = map.ok_or(Damaged("a reference"))?;
        let source = match of.content {
            Content::Ring(_) => MAP,
            Content::Variables { .. } => VARIABLES,
        };
        set_source(first, source);
        set_operand(first, map.as_fd().as_raw_fd().cast_unsigned());
        set_operand(second, reference.offset);
    }
    Ok(())
}

/// Makes the map of the struct, and returns whether it goes with its link.
fn make_ops(ops: &Ops<'_>, value: &[u8]) -> io::Result<(bpf::Map, bool)> {
    // The kernel wants to have types of whoever makes such a map, and looks into its own.
    let types = bpf::load_types(&Types::some())?;
    let make = |is_linked| {
        bpf::Map::struct_ops(
            CONTROL,
            ops.value_id.0,
            value.len(),
            types.as_fd(),
            is_linked,
        )
    };
    match make(true) {
        Ok(map) => {
            map.set_value(value)?;
            Ok((map, true))
        }
        // Kernels before 6.4 have no links of such things, and refuse the flag that asks for one.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok((make(false)?, false)),
        Err(error) => Err(error),
    }
}

/// Returns what the verifier said before it summed up.
fn last_words(log: &str) -> String {
    let is_sum =
        |line: &str| line.starts_with("processed ") || line.starts_with("verification time");
    let mut lines = log
        .lines()
        .filter(|line| !line.trim().is_empty() && !is_sum(line));
    lines
        .next_back()
        .unwrap_or("it does not say why")
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use pepd_testbed::require;

    use super::*;
    use crate::object::{LEG_RATE, RESUME};

    const NONE: &[u8; NAME] = b"pepd_test\0\0\0\0\0\0\0";

    #[test]
    fn this_kernel_takes_them() -> Result<(), Error> {
        require!(root);
        load(LEG_RATE, NONE)?;
        load(RESUME, NONE).map(drop)
    }

    /// A kernel without IPv6 has no such addresses in its sockets: what reads them is never reached there.
    #[test]
    fn a_kernel_may_lack_what_the_program_asks_for() -> Result<(), Refusal> {
        require!(root);
        let without_one = renamed(&types(), "skc_v6_daddr", "skc_v7_daddr");
        let without = renamed(&without_one, "skc_v6_rcv_saddr", "skc_v7_rcv_saddr");
        let object = Object::read(LEG_RATE)?;
        for kernel in [without_one, without] {
            load_object(&object, &kernel, NONE)?;
        }
        Ok(())
    }

    /// Nobody has to be root to be told what the kernel lacks.
    #[test]
    fn a_kernel_that_calls_a_function_by_another_name_is_told_so() {
        let kernel = renamed(&types(), "min_tso_segs", "max_tso_segs");
        let object = Object::read(LEG_RATE).unwrap();
        let refused = load_object(&object, &kernel, NONE).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "this kernel's struct tcp_congestion_ops has no min_tso_segs"
        );
    }

    #[test]
    fn what_the_verifier_refuses_is_said_with_its_reason() -> Result<(), Refusal> {
        require!(root);
        let mut object = Object::read(LEG_RATE)?;
        let mut programs = object.programs.iter_mut();
        let program = programs.find(|it| it.member == "ssthresh").unwrap();
        // r0 = r9, which nobody has set (BPF_ALU64 | BPF_MOV | BPF_X).
        let registers = if cfg!(target_endian = "big") {
            0x09
        } else {
            0x90
        };
        program.instructions[0] = [0xbf, registers, 0, 0, 0, 0, 0, 0];
        program.relocations.clear();
        let kernel = fs::read(KERNEL_TYPES).unwrap();
        let refused = load_object(&object, &kernel, NONE).unwrap_err().to_string();
        assert!(refused.starts_with("leg_rate_ssthresh: "), "{refused}");
        assert!(
            refused.ends_with("(os error 13) (R9 !read_ok)"),
            "{refused}"
        );
        Ok(())
    }

    #[test]
    fn types_in_another_form_are_refused() {
        let object = Object::read(LEG_RATE).unwrap();
        for kernel in [&b""[..], b"another", &[0; 100]] {
            let refused = load_object(&object, kernel, NONE).unwrap_err().to_string();
            assert!(refused.contains("in another form"), "{refused}");
        }
    }

    #[test]
    fn the_verifiers_last_words_are_no_sum() {
        let log =
            "0: R1=ctx()\n0: (bf) r0 = r9\nR9 !read_ok\nprocessed 1 insns (limit 1000000)\n\n";
        assert_eq!(last_words(log), "R9 !read_ok");
        assert_eq!(last_words(""), "it does not say why");
    }

    /// What comes after a type of a kind that nobody knows is missing: that is said, too.
    #[test]
    fn types_that_end_early_are_said() {
        // The first type becomes one of kind 127: its second word begins 4 bytes into what follows the header.
        let mut kernel = types();
        let header = u32::from_ne_bytes(*kernel[4..].first_chunk().unwrap());
        let info = usize::try_from(header).unwrap() + 4;
        kernel[info..info + 4].copy_from_slice(&(127_u32 << 24).to_ne_bytes());
        let object = Object::read(LEG_RATE).unwrap();
        let refused = load_object(&object, &kernel, NONE).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "this kernel's types have no struct tcp_congestion_ops (its types are read up to one of kind 127, \
             which this pepd does not know)"
        );
    }

    fn types() -> Vec<u8> {
        fs::read(KERNEL_TYPES).unwrap()
    }

    /// Returns a kernel's types with another name in them, of the same length.
    fn renamed(kernel: &[u8], name: &str, other: &str) -> Vec<u8> {
        let mut kernel = kernel.to_vec();
        let wanted = format!("\0{name}\0");
        let places = kernel.windows(wanted.len());
        let place = places.into_iter().position(|it| it == wanted.as_bytes());
        let place = place.unwrap() + 1;
        kernel[place..place + name.len()].copy_from_slice(other.as_bytes());
        kernel
    }
}
