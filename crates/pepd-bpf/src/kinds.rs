//! What kinds of types there are, and how long what is written down of each is (BTF: linux/btf.h).

pub(crate) const INTEGER: u32 = 1;
pub(crate) const POINTER: u32 = 2;
pub(crate) const ARRAY: u32 = 3;
pub(crate) const STRUCT: u32 = 4;
pub(crate) const UNION: u32 = 5;
pub(crate) const ENUM: u32 = 6;
pub(crate) const TYPEDEF: u32 = 8;
pub(crate) const RESTRICT: u32 = 11;
pub(crate) const VARIABLE: u32 = 14;
pub(crate) const TYPE_TAG: u32 = 18;
pub(crate) const ENUM64: u32 = 19;

/// Returns the kind of a type, by its second word. Of what is its kind here, and its number below, kernels that know
/// no kind beyond 31 have the upper bits 0.
pub(crate) fn of(info: u32) -> u32 {
    info >> 24 & 0x7f
}

/// Returns whether the last bit is set, which says something else of each kind.
pub(crate) fn is_flagged(info: u32) -> bool {
    info >> 31 == 1
}

/// How long types of each kind are, as newer kernels say it themselves (`struct btf_layout`).
#[derive(Debug)]
pub(crate) struct Layouts<'d>(&'d [u8]);

impl<'d> Layouts<'d> {
    /// Takes what the data have of that; nothing is said in it before Linux 7.
    pub(crate) fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    /// Returns how many words follow the three that all types have; none for a kind that nobody knows.
    pub(crate) fn body_length(&self, info: u32) -> Option<usize> {
        let number = usize::try_from(info & 0xff_ffff).ok()?;
        match of(info) {
            // Integers; variables and tags of declarations.
            1 | 14 | 17 => Some(1),
            // Pointers; declarations, names and qualifiers; functions, floats and tags of types.
            2 | 7..=12 | 16 | 18 => Some(0),
            // Arrays.
            3 => Some(3),
            // Structs, unions; sections; enums of 64 bits.
            4 | 5 | 15 | 19 => number.checked_mul(3),
            // Enums; prototypes of functions.
            6 | 13 => number.checked_mul(2),
            other => self.said(other, number),
        }
    }

    fn said(&self, kind: u32, number: usize) -> Option<usize> {
        let (layouts, _) = self.0.as_chunks();
        let &[once, each, _, _] = layouts.get(usize::try_from(kind).ok()?)?;
        let bytes = number.checked_mul(each.into())?.checked_add(once.into())?;
        bytes.is_multiple_of(4).then_some(bytes / 4)
    }
}
