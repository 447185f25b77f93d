//! Fitting a program to the running kernel: where its structs have what, and what its enums' values are (BPF
//! CO-RE, <https://docs.kernel.org/bpf/libbpf/libbpf_overview.html>).

use std::collections::BTreeMap;

use crate::instruction::{
    Form, Instruction, UNKNOWN_CALL, form, offset, operand, set_offset, set_operand, set_size,
};
use crate::object::Relocation;
use crate::types::{Id, Named, Part, Step, Types};

/// Why a program does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    /// The kernel has not what the program is about.
    #[error("this kernel's {0}")]
    Kernel(String),
    /// The program has something that this loader does not know.
    #[error("pepd's own program has a relocation that nobody knows: {0}")]
    Unknown(String),
}

/// What an instruction asks for (`enum bpf_core_relo_kind`).
const OFFSET: u32 = 0;
const EXISTS: u32 = 2;
const VALUE: u32 = 11;

/// What fits programs of one object to one kernel.
pub(crate) struct Fitter<'o> {
    own: &'o Types<'o>,
    kernel: &'o Types<'o>,
    /// The kernel's types of a kind and a name, which have been looked for.
    found: BTreeMap<(Named, &'o str), Vec<Id>>,
}

impl<'o> Fitter<'o> {
    pub(crate) fn new(own: &'o Types<'o>, kernel: &'o Types<'o>) -> Self {
        let found = BTreeMap::new();
        Self { own, kernel, found }
    }

    /// Puts into a program what the kernel has.
    pub(crate) fn fit(
        &mut self,
        instructions: &mut [Instruction],
        relocations: &[Relocation<'_>],
    ) -> Result<(), Misfit> {
        for relocation in relocations {
            let at = instructions.get_mut(relocation.instruction..);
            let at = at.ok_or_else(|| unknown(relocation))?;
            let may_lack = relocations.iter().any(|it| asks_for(it, relocation));
            self.put(at, relocation, may_lack)?;
        }
        Ok(())
    }

    /// Puts in one thing, which the kernel may lack where the program asks for that.
    fn put(
        &mut self,
        at: &mut [Instruction],
        relocation: &Relocation<'_>,
        may_lack: bool,
    ) -> Result<(), Misfit> {
        let unknown = || unknown(relocation);
        let indices = relocation.access.split(':').map(str::parse);
        let indices: Vec<u32> = indices.collect::<Result<_, _>>().map_err(|_| unknown())?;
        match (relocation.kind, &*indices) {
            // The first index is that of a pointer, as in `pointer[0]`.
            (kind @ (OFFSET | EXISTS), [0, indices @ ..]) => {
                let steps = self.own.path(relocation.of, indices);
                let steps = steps.ok_or_else(unknown)?;
                let own = self.own.part(relocation.of, &steps).ok_or_else(unknown)?;
                let kernel = self.kernel_part(self.own.name_of(relocation.of), &steps);
                if kind == EXISTS {
                    return put(at, 1, kernel.is_ok().into(), None).ok_or_else(unknown);
                }
                let kernel = match kernel {
                    Err(_) if may_lack => return never(at).ok_or_else(unknown),
                    kernel => kernel?,
                };
                // Of what only an address is computed any size will do.
                let is_read = at.first().and_then(|it| form(*it)) == Some(Form::Memory);
                let size = match is_read {
                    true => self.size(own, kernel, &steps)?,
                    false => None,
                };
                put(at, own.offset.into(), kernel.offset.into(), size).ok_or_else(unknown)
            }
            (VALUE, &[index]) => {
                let name = self.own.value_name(relocation.of, index);
                let name = name.ok_or_else(unknown)?;
                let own = self.own.value(relocation.of, name).ok_or_else(unknown)?;
                let kernel = self.kernel_value(self.own.name_of(relocation.of), name)?;
                put(at, own, kernel, None).ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }

    fn kernel_part(&mut self, name: &'o str, steps: &[Step<'_>]) -> Result<Part, Misfit> {
        let kernel = self.kernel;
        let parts = self.kernel_types(Named::Struct, name);
        let parts = parts.iter().filter_map(|&id| kernel.part(id, steps));
        only(parts).ok_or_else(|| {
            let what = written(steps);
            Misfit::Kernel(format!("struct {name} has no {what}"))
        })
    }

    fn kernel_value(&mut self, name: &'o str, value: &str) -> Result<u64, Misfit> {
        let kernel = self.kernel;
        let types = self.kernel_types(Named::Enum, name);
        let values = types.iter().filter_map(|&id| kernel.value(id, value));
        only(values).ok_or_else(|| Misfit::Kernel(format!("enum {name} has no {value}")))
    }

    fn kernel_types(&mut self, what: Named, name: &'o str) -> &[Id] {
        let kernel = self.kernel;
        let found = self.found.entry((what, name));
        found.or_insert_with(|| kernel.find(what, name).collect())
    }

    /// Returns how many bytes are to be read or written in the kernel, if that is not as many as in the program.
    fn size(&self, own: Part, kernel: Part, steps: &[Step<'_>]) -> Result<Option<u32>, Misfit> {
        let (before, after) = (self.own.size(own.of), self.kernel.size(kernel.of));
        if before == after {
            return Ok(None);
        }
        if self.own.is_unsigned(own.of) && self.kernel.is_unsigned(kernel.of) {
            return Ok(after);
        }
        let what = written(steps);
        Err(Misfit::Kernel(format!("{what} is of another type")))
    }
}

fn unknown(relocation: &Relocation<'_>) -> Misfit {
    Misfit::Unknown(format!("{relocation:?}"))
}

/// Tells whether a program asks if the kernel has a member, which another relocation is about, or a part of which.
fn asks_for(asking: &Relocation<'_>, about: &Relocation<'_>) -> bool {
    let rest = about.access.strip_prefix(asking.access);
    asking.kind == EXISTS
        && asking.of == about.of
        && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Returns what all of them are.
fn only<T: PartialEq>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

fn written(steps: &[Step<'_>]) -> String {
    let steps = steps.iter().map(|step| match step {
        Step::Member(name) => (*name).to_owned(),
        Step::Element(index) => index.to_string(),
    });
    steps.collect::<Vec<_>>().join(".")
}

/// Replaces what the first of these instructions has; none if that is something else than `own`.
fn put(at: &mut [Instruction], own: u64, kernel: u64, size: Option<u32>) -> Option<()> {
    let (first, rest) = at.split_first_mut()?;
    match form(*first)? {
        Form::Memory if u64::try_from(offset(*first)) == Ok(own) => {
            set_offset(first, kernel.try_into().ok()?);
            size.map_or(Some(()), |size| set_size(first, size))
        }
        Form::Computes if u64::from(operand(*first)) == own => {
            set_operand(first, kernel.try_into().ok()?);
            Some(())
        }
        Form::Wide => {
            let (second, _) = rest.split_first_mut()?;
            let value = u64::from(operand(*second)) << 32 | u64::from(operand(*first));
            let [low, high] = [kernel, kernel >> 32].map(|it| it & u64::from(u32::MAX));
            set_operand(first, low.try_into().ok()?);
            set_operand(second, high.try_into().ok()?);
            (value == own).then_some(())
        }
        _ => None,
    }
}

/// Makes of an instruction one that the kernel's verifier refuses if it finds that it may be reached.
fn never(at: &mut [Instruction]) -> Option<()> {
    let (first, _) = at.split_first_mut()?;
    matches!(form(*first)?, Form::Memory | Form::Computes).then(|| *first = UNKNOWN_CALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{LEG_RATE, Object, RESUME};

    /// In the types that it was compiled for everything is where the compiler has put it.
    #[test]
    fn a_program_fits_its_own_types_as_it_is() {
        for object in [LEG_RATE, RESUME] {
            let object = Object::read(object).unwrap();
            let mut fitter = Fitter::new(&object.types, &object.types);
            for program in &object.programs {
                let mut instructions = program.instructions.clone();
                let fitted = fitter.fit(&mut instructions, &program.relocations);
                fitted.unwrap();
                assert_eq!(instructions, program.instructions, "{}", program.name);
            }
        }
    }

    /// A read of 4 bytes at 8, as it is in a kernel that has 2 at 12 there.
    #[test]
    fn a_number_of_another_width_is_read_as_such() {
        let read = |code, place| -> Instruction {
            let mut instruction = [code, 0x12, 0, 0, 0, 0, 0, 0];
            set_offset(&mut instruction, place);
            instruction
        };
        let mut instructions = [read(0x61, 8)];
        assert_eq!(put(&mut instructions, 8, 12, Some(2)), Some(()));
        assert_eq!(instructions, [read(0x69, 12)]);
        // It is no read at 8 any more.
        assert_eq!(put(&mut instructions, 8, 12, None), None);
    }

    #[test]
    fn what_is_asked_for_is_a_member_or_part_of_it() {
        let relocation = |of, access, kind| Relocation {
            instruction: 0,
            of: Id(of),
            access,
            kind,
        };
        let asking = relocation(1, "0:3", EXISTS);
        for (of, access, kind, is_asked_for) in [
            (1, "0:3", OFFSET, true),
            (1, "0:3:0:1", OFFSET, true),
            (1, "0:31", OFFSET, false),
            (1, "0", OFFSET, false),
            (2, "0:3", OFFSET, false),
        ] {
            let about = relocation(of, access, kind);
            assert_eq!(asks_for(&asking, &about), is_asked_for, "{about:?}");
        }
        let read = relocation(1, "0:3", OFFSET);
        assert!(!asks_for(&read, &read));
    }

    #[test]
    fn what_is_never_reached_is_one_instruction() {
        let mut instructions = [[0x61, 0x12, 8, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        assert_eq!(never(&mut instructions), Some(()));
        assert_eq!(instructions[0], UNKNOWN_CALL);
        // An exit has nothing that is put into it.
        assert_eq!(never(&mut instructions[1..]), None);
    }

    #[test]
    fn a_value_may_be_in_two_instructions() {
        let mut wide = [[0x18, 1, 0, 0, 0, 0, 0, 0], [0; 8]];
        set_operand(&mut wide[0], 3);
        assert_eq!(put(&mut wide, 3, 1 << 32 | 5, None), Some(()));
        assert_eq!(wide.map(operand), [5, 1]);
    }
}
