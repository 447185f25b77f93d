//! The kernel's `struct tcp_congestion_ops`, and what it wants it in: where the running one has what.

use crate::fit::Misfit;
use crate::types::{Id, Named, Part, Step, Types};

/// Room for a control's name (`TCP_CA_NAME_MAX`, include/net/tcp.h).
pub(crate) const NAME: usize = 16;

const OPS: &str = "tcp_congestion_ops";

/// The struct with what the kernel keeps beside it (kernel/bpf/bpf_struct_ops.c).
const VALUE: &str = "bpf_struct_ops_tcp_congestion_ops";

/// The layout of the struct.
#[derive(Debug)]
pub(crate) struct Ops<'k> {
    kernel: &'k Types<'k>,
    /// The struct.
    pub(crate) id: Id,
    /// The one with it inside.
    pub(crate) value_id: Id,
    /// Where it is inside, in bytes.
    start: u32,
    size: usize,
}

/// A member of the struct that is a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Which member it is, counted from 0.
    pub(crate) index: u32,
    /// Its place, in bytes.
    offset: u32,
}

impl<'k> Ops<'k> {
    /// Finds the struct.
    pub(crate) fn of(kernel: &'k Types<'k>) -> Result<Self, Misfit> {
        let find = |name: &str| {
            let lacks = || Misfit::Kernel(format!("types have no struct {name}"));
            kernel.find(Named::Struct, name).next().ok_or_else(lacks)
        };
        let (id, value_id) = (find(OPS)?, find(VALUE)?);
        let inside = kernel.part(value_id, &[Step::Member("data")]);
        let size = kernel.size(value_id).and_then(|size| size.try_into().ok());
        let known = inside.filter(|part| part.of == id).zip(size);
        let (inside, size) =
            known.ok_or_else(|| Misfit::Kernel(format!("struct {VALUE} is of another form")))?;
        Ok(Self {
            kernel,
            id,
            value_id,
            start: inside.offset,
            size,
        })
    }

    /// Finds a function of the struct.
    pub(crate) fn function(&self, name: &str) -> Result<Function, Misfit> {
        let Part { offset, .. } = self.member(name)?;
        let mut members = (0..).zip(self.kernel.members(self.id));
        let index = members.find_map(|(index, member)| (member.name == name).then_some(index));
        let index = index.ok_or_else(|| lacks(name))?;
        Ok(Function { index, offset })
    }

    fn member(&self, name: &str) -> Result<Part, Misfit> {
        let part = self.kernel.part(self.id, &[Step::Member(name)]);
        part.ok_or_else(|| lacks(name))
    }

    /// Writes the struct down as the kernel wants it, with the descriptors of functions.
    pub(crate) fn value(
        &self,
        name: &[u8; NAME],
        functions: impl Iterator<Item = (Function, i32)>,
    ) -> Result<Vec<u8>, Misfit> {
        let mut value = vec![0; self.size];
        let mut put = |offset: u32, bytes: &[u8]| {
            let start = usize::try_from(self.start.checked_add(offset)?).ok()?;
            let place = value.get_mut(start..)?.get_mut(..bytes.len())?;
            place.copy_from_slice(bytes);
            Some(())
        };
        let mut fits = put(self.member("name")?.offset, name);
        for (function, descriptor) in functions {
            // The kernel reads it as a pointer.
            let descriptor = isize::try_from(descriptor).unwrap_or(-1).to_ne_bytes();
            fits = fits.and_then(|()| put(function.offset, &descriptor));
        }
        let other = || Misfit::Kernel(format!("struct {OPS} is of another form"));
        fits.map(|()| value).ok_or_else(other)
    }
}

fn lacks(name: &str) -> Misfit {
    Misfit::Kernel(format!("struct {OPS} has no {name}"))
}
