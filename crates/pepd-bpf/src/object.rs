//! The compiled programs as they are in the repository: ELF files of clang's.

use std::ffi::CStr;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SymbolKind};

use crate::instruction::{Instruction, operand};
use crate::types::{Id, Named, Types, words};

/// Gives a compiled program: `cargo xtask bpf` makes it of the files beside it.
macro_rules! program {
    ($name:literal) => {
        if cfg!(target_endian = "little") {
            include_bytes!(concat!("bpf/", $name, ".bpfel.o"))
        } else {
            include_bytes!(concat!("bpf/", $name, ".bpfeb.o"))
        }
    };
}

/// The control that keeps to a leg's rate.
pub(crate) const LEG_RATE: &[u8] = program!("leg_rate");
/// The one that opens a window.
pub(crate) const RESUME: &[u8] = program!("resume");

/// What an object consists of.
#[derive(Debug)]
pub(crate) struct Object<'d> {
    pub(crate) license: &'d CStr,
    pub(crate) maps: Vec<Map<'d>>,
    pub(crate) programs: Vec<Program<'d>>,
    pub(crate) types: Types<'d>,
}

/// A map that the programs use.
#[derive(Debug)]
pub(crate) struct Map<'d> {
    pub(crate) name: &'d str,
    pub(crate) content: Content<'d>,
}

/// What is in a map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content<'d> {
    /// Variables: so many bytes, which have these values, or are 0.
    Variables { size: usize, initial: &'d [u8] },
    /// A buffer of so many bytes from the programs to user space.
    Ring(u32),
}

/// A function that the kernel calls.
#[derive(Debug)]
pub(crate) struct Program<'d> {
    pub(crate) name: &'d str,
    /// The member of the kernel's `struct tcp_congestion_ops` that it is.
    pub(crate) member: &'d str,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) references: Vec<Reference>,
    pub(crate) relocations: Vec<Relocation<'d>>,
}

/// An instruction that has the address of a map, or of a variable in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) instruction: usize,
    /// The index of the map.
    pub(crate) map: usize,
    pub(crate) offset: u32,
}

/// An instruction in which is something about the kernel's types (BPF CO-RE; `struct bpf_core_relo`, linux/bpf.h).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Relocation<'d> {
    pub(crate) instruction: usize,
    /// The program's own type of that name.
    pub(crate) of: Id,
    /// Indices of members, elements and values.
    pub(crate) access: &'d str,
    /// What of that is asked for.
    pub(crate) kind: u32,
}

/// What is not understood in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pepd's own program is damaged: {0}")]
pub(crate) struct Damaged(pub(crate) &'static str);

/// The sections of programs begin with this, and end with the member that each is.
const PROGRAMS: &str = "struct_ops/";

/// The section of maps that are no variables.
const MAPS: &str = ".maps";

impl<'d> Object<'d> {
    /// Reads an object.
    pub(crate) fn read(data: &'d [u8]) -> Result<Self, Damaged> {
        let file = object::File::parse(data).map_err(|_| Damaged("no ELF file"))?;
        let section = |name| {
            let section = file.section_by_name(name);
            section.and_then(|section| section.data().ok())
        };
        let types = section(".BTF").and_then(Types::read);
        let types = types.ok_or(Damaged("its types"))?;
        let license = section("license").and_then(|it| CStr::from_bytes_with_nul(it).ok());
        let maps = maps(&file, &types)?;
        let (sections, maps): (Vec<_>, Vec<_>) = maps.into_iter().unzip();
        let relocations = section(".BTF.ext").and_then(|data| relocations(data, &types));
        let mut programs = programs(&file, &sections, &maps)?;
        for (name, relocation) in relocations.ok_or(Damaged("its relocations"))? {
            let member = name.strip_prefix(PROGRAMS).unwrap_or_default();
            let program = programs.iter_mut().find(|it| it.member == member);
            let program = program.ok_or(Damaged("a relocation of no program"))?;
            program.relocations.push(relocation);
        }
        Ok(Self {
            license: license.ok_or(Damaged("its licence"))?,
            maps,
            programs,
            types,
        })
    }
}

/// Finds the maps, each with the section that it is, or is in.
fn maps<'d>(
    file: &object::File<'d>,
    types: &Types<'_>,
) -> Result<Vec<(object::SectionIndex, Map<'d>)>, Damaged> {
    const BAD: Damaged = Damaged("a map");
    let mut maps = Vec::new();
    for section in file.sections() {
        let name = section.name().map_err(|_| BAD)?;
        let is_variables = [".bss", ".data", ".rodata"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if is_variables && section.size() > 0 {
            let content = Content::Variables {
                size: usize::try_from(section.size()).map_err(|_| BAD)?,
                initial: section.data().map_err(|_| BAD)?,
            };
            maps.push((section.index(), Map { name, content }));
        }
    }
    let Some(section) = file.section_by_name(MAPS) else {
        return Ok(maps);
    };
    for symbol in file.symbols() {
        if symbol.section_index() == Some(section.index()) && symbol.kind() == SymbolKind::Data {
            let name = symbol.name().map_err(|_| BAD)?;
            let content = declared(types, name).ok_or(BAD)?;
            maps.push((section.index(), Map { name, content }));
        }
    }
    Ok(maps)
}

/// Finds out what a map is that is declared as a variable: each member of its type is a pointer to an array, whose
/// number of elements counts.
fn declared(types: &Types<'_>, name: &str) -> Option<Content<'static>> {
    const RING: u32 = 27;
    let of = types.target(types.find(Named::Variable, name).next()?)?;
    let number = |wanted: &str| {
        let member = types.members(of).find(|member| member.name == wanted)?;
        Some(types.elements(types.target(member.of)?)?.1)
    };
    (number("type")? == RING).then_some(Content::Ring(number("max_entries")?))
}

/// Finds the programs, and what of the maps they refer to.
fn programs<'d>(
    file: &object::File<'d>,
    sections: &[object::SectionIndex],
    maps: &[Map<'_>],
) -> Result<Vec<Program<'d>>, Damaged> {
    const BAD: Damaged = Damaged("a function");
    let mut programs = Vec::new();
    for section in file.sections() {
        let Some(member) = section.name().ok().and_then(|it| it.strip_prefix(PROGRAMS)) else {
            continue;
        };
        let function = file.symbols().find(|symbol| {
            symbol.section_index() == Some(section.index()) && symbol.kind() == SymbolKind::Text
        });
        let (instructions, _) = section.data().map_err(|_| BAD)?.as_chunks();
        let mut references = Vec::new();
        for (place, relocation) in section.relocations() {
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                return Err(BAD);
            };
            let symbol = file.symbol_by_index(symbol).map_err(|_| BAD)?;
            let name = symbol.name().map_err(|_| BAD)?;
            let is_wanted = |(section, map): (&object::SectionIndex, &Map<'_>)| {
                let is_there = symbol.section_index() == Some(*section);
                is_there && (matches!(map.content, Content::Variables { .. }) || map.name == name)
            };
            let map = sections.iter().zip(maps).position(is_wanted).ok_or(BAD)?;
            let instruction = usize::try_from(place).map_err(|_| BAD)? / size_of::<Instruction>();
            let addend = instructions.get(instruction).map(|it| operand(*it));
            let offset = match maps.get(map).map(|map| &map.content) {
                Some(Content::Variables { .. }) => {
                    let address = u32::try_from(symbol.address()).map_err(|_| BAD)?;
                    address.checked_add(addend.ok_or(BAD)?).ok_or(BAD)?
                }
                _ => 0,
            };
            references.push(Reference {
                instruction,
                map,
                offset,
            });
        }
        programs.push(Program {
            name: function.and_then(|it| it.name().ok()).ok_or(BAD)?,
            member,
            instructions: instructions.to_vec(),
            references,
            relocations: Vec::new(),
        });
    }
    Ok(programs)
}

/// Reads what has to be fitted to the kernel's types, each with the section that it is in.
fn relocations<'d>(data: &[u8], types: &Types<'d>) -> Option<Vec<(&'d str, Relocation<'d>)>> {
    let words = words(data);
    // The first one has the magic number; then the length, and the places of three parts.
    let [_, header, _, _, _, _, start, length, ..] = words[..] else {
        return None;
    };
    let start = usize::try_from(header.checked_add(start)?).ok()? / 4;
    let part = words
        .get(start..)?
        .get(..usize::try_from(length).ok()? / 4)?;
    let (&size, mut rest) = part.split_first()?;
    let size = usize::try_from(size).ok()? / 4;
    let mut found = Vec::new();
    while let Some((&[section, number], records)) = rest.split_first_chunk() {
        let end = size.checked_mul(usize::try_from(number).ok()?)?;
        let (records, others) = records.split_at_checked(end)?;
        for record in records.chunks_exact(size.max(1)) {
            let [place, of, access, kind, ..] = record[..] else {
                return None;
            };
            let relocation = Relocation {
                instruction: usize::try_from(place).ok()? / size_of::<Instruction>(),
                of: Id(of),
                access: types.name(access),
                kind,
            };
            found.push((types.name(section), relocation));
        }
        rest = others;
    }
    Some(found)
}
