//! Types as the kernel and compilers describe them (BTF: Documentation/bpf/btf.rst of Linux).

use crate::kinds::{self, Layouts};

/// What types begin with.
const MAGIC: u16 = 0xeb9f;

/// How many types may stand for one another, or structs without a name in one another: the kernel's are few,
/// and what is read may be anything.
const DEPTH: u32 = 32;

/// The types of a kernel or an object.
#[derive(Debug)]
pub(crate) struct Types<'d> {
    strings: &'d [u8],
    words: Vec<u32>,
    /// Where each begins in `words`, by its number less 1: 0 is void. And where the last ends.
    starts: Vec<usize>,
    /// The first kind that nobody knows: what comes after it is not read.
    unknown: Option<u32>,
}

/// The number of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub u32);

/// What has a name that it is looked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    Struct,
    Enum,
    Variable,
}

/// A type as it is written down.
struct Type<'t> {
    name: u32,
    kind: u32,
    /// Of a struct or union: that the upper 8 bits of its members' places are the width of a bit field. Of an
    /// enum: that its values have a sign.
    is_flagged: bool,
    /// The size in bytes, or the type that this one is about.
    size_or_type: u32,
    body: &'t [u32],
}

/// A member of a struct or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member<'d> {
    /// Empty for a struct or union whose members are this one's.
    pub(crate) name: &'d str,
    pub(crate) of: Id,
    /// Its place in bytes; none of a bit field.
    offset: Option<u32>,
}

/// A part of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its place in bytes.
    pub(crate) offset: u32,
    pub(crate) of: Id,
}

/// A step from a type to a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'d> {
    /// The member of this name, whatever it is in.
    Member(&'d str),
    /// An element of an array.
    Element(u32),
}

impl<'d> Types<'d> {
    /// Reads what the kernel has in /sys/kernel/btf/vmlinux, or a compiler in the section `.BTF`; none if it is
    /// something else. Where it is not known how long a type is, it ends there.
    pub(crate) fn read(data: &'d [u8]) -> Option<Self> {
        if u16::from_ne_bytes(*data.first_chunk()?) != MAGIC {
            return None;
        }
        let header = words(data.get(4..24)?);
        let [length, types, types_length, strings, strings_length] = *header.first_chunk()?;
        let length = usize::try_from(length).ok()?;
        let part = |offset, size| {
            let start = length.checked_add(usize::try_from(offset).ok()?)?;
            data.get(start..)?.get(..usize::try_from(size).ok()?)
        };
        let strings = part(strings, strings_length)?;
        // The header may be longer, or end before that.
        let layouts = match words(data.get(24..length.min(32)).unwrap_or_default())[..] {
            [layouts, layouts_length] => part(layouts, layouts_length)?,
            _ => &[],
        };
        let layouts = Layouts::new(layouts);
        let words = words(part(types, types_length)?);
        let mut starts = vec![0];
        let mut start: usize = 0;
        let mut unknown = None;
        while start < words.len() {
            let info = *words.get(start.checked_add(1)?)?;
            let Some(body) = layouts.body_length(info) else {
                unknown = Some(kinds::of(info));
                break;
            };
            start = start.checked_add(body)?.checked_add(3)?;
            starts.push(start);
        }
        Some(Self {
            strings,
            words,
            starts,
            unknown,
        })
    }

    /// Returns the kind that nobody knows, if there is such a type: it and what comes after it are missing.
    pub(crate) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    /// Writes down some types, which are one: `int`.
    pub(crate) fn some() -> Vec<u8> {
        const NAMES: &[u8] = b"\0int\0";
        // The length of the header, the places and lengths of types and names; the type, with its name's place.
        let words: [u32; 9] = [24, 0, 16, 16, 5, 1, kinds::INTEGER << 24, 4, 1 << 24 | 32];
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        let version = [1, 0];
        let head = MAGIC.to_ne_bytes().into_iter().chain(version);
        head.chain(words).chain(NAMES.iter().copied()).collect()
    }

    /// Finds the types of a name.
    pub(crate) fn find(&self, what: Named, name: &str) -> impl Iterator<Item = Id> {
        let is_kind = move |kind: u32| match what {
            Named::Struct => kind == kinds::STRUCT,
            Named::Enum => matches!(kind, kinds::ENUM | kinds::ENUM64),
            Named::Variable => kind == kinds::VARIABLE,
        };
        let all = (1..).zip(&self.starts).map(|(number, _)| Id(number));
        all.filter(move |&id| {
            let found = self.get(id);
            found.is_some_and(|it| is_kind(it.kind) && self.name(it.name) == name)
        })
    }

    /// Returns the name of a type; empty if it has none.
    pub(crate) fn name_of(&self, id: Id) -> &'d str {
        self.get(id).map_or("", |it| self.name(it.name))
    }

    /// Returns the type of a variable, or what a pointer points to.
    pub(crate) fn target(&self, id: Id) -> Option<Id> {
        let it = self.get(self.resolved(id)?)?;
        matches!(it.kind, kinds::VARIABLE | kinds::POINTER).then_some(Id(it.size_or_type))
    }

    /// Returns the elements' type and number of an array.
    pub(crate) fn elements(&self, id: Id) -> Option<(Id, u32)> {
        let it = self.get(self.resolved(id)?)?;
        let [of, _, number] = *it.body.first_chunk()?;
        (it.kind == kinds::ARRAY).then_some((Id(of), number))
    }

    /// Returns the members of a struct or union; none of anything else.
    pub(crate) fn members(&self, id: Id) -> impl Iterator<Item = Member<'d>> {
        let it = self.resolved(id).and_then(|id| self.get(id));
        let it = it.filter(|it| matches!(it.kind, kinds::STRUCT | kinds::UNION));
        let has_bit_fields = it.as_ref().is_some_and(|it| it.is_flagged);
        let members = it.map_or(&[][..], |it| it.body.as_chunks::<3>().0);
        members.iter().map(move |&[name, of, place]| {
            let is_whole = !has_bit_fields || place >> 24 == 0;
            let bits = if has_bit_fields {
                place & 0xff_ffff
            } else {
                place
            };
            Member {
                name: self.name(name),
                of: Id(of),
                offset: (is_whole && bits.is_multiple_of(8)).then_some(bits / 8),
            }
        })
    }

    /// Returns the size of a type in bytes.
    pub(crate) fn size(&self, id: Id) -> Option<u32> {
        let mut id = id;
        let mut number: u32 = 1;
        for _ in 0..DEPTH {
            let of = self.get(self.resolved(id)?)?;
            let one = match of.kind {
                kinds::INTEGER | kinds::STRUCT | kinds::UNION | kinds::ENUM | kinds::ENUM64 => {
                    of.size_or_type
                }
                kinds::POINTER => u32::try_from(size_of::<usize>()).ok()?,
                kinds::ARRAY => {
                    let [element, _, elements] = *of.body.first_chunk()?;
                    id = Id(element);
                    number = number.checked_mul(elements)?;
                    continue;
                }
                _ => return None,
            };
            return number.checked_mul(one);
        }
        None
    }

    /// Returns whether a type is a number without a sign, which may be read as a wider or narrower one.
    pub(crate) fn is_unsigned(&self, id: Id) -> bool {
        const SIGNED: u32 = 1 << 24;
        let it = self.resolved(id).and_then(|id| self.get(id));
        it.is_some_and(|it| {
            it.kind == kinds::INTEGER && it.body.first().is_some_and(|word| word & SIGNED == 0)
        })
    }

    /// Follows indices of members and elements, as a compiler writes them down (`0:2:1`), and returns the steps
    /// by name.
    pub(crate) fn path(&self, of: Id, indices: &[u32]) -> Option<Vec<Step<'d>>> {
        let mut id = of;
        let mut steps = Vec::new();
        for &index in indices {
            if let Some((element, _)) = self.elements(id) {
                steps.push(Step::Element(index));
                id = element;
            } else {
                let member = self.members(id).nth(usize::try_from(index).ok()?)?;
                // What has no name is looked through: see `member`.
                if !member.name.is_empty() {
                    steps.push(Step::Member(member.name));
                }
                id = member.of;
            }
        }
        Some(steps)
    }

    /// Follows steps to a part of a type; none if there is none, or it is a bit field.
    pub(crate) fn part(&self, of: Id, steps: &[Step<'_>]) -> Option<Part> {
        let mut part = Part { offset: 0, of };
        for step in steps {
            let next = match *step {
                Step::Member(name) => self.member(part.of, name, DEPTH)?,
                Step::Element(index) => {
                    let (of, _) = self.elements(part.of)?;
                    Part {
                        offset: self.size(of)?.checked_mul(index)?,
                        of,
                    }
                }
            };
            part = Part {
                offset: part.offset.checked_add(next.offset)?,
                of: next.of,
            };
        }
        Some(part)
    }

    fn member(&self, of: Id, name: &str, depth: u32) -> Option<Part> {
        self.members(of).find_map(|member| {
            let offset = member.offset?;
            if member.name == name {
                return Some(Part {
                    offset,
                    of: member.of,
                });
            }
            if !member.name.is_empty() {
                return None;
            }
            let inner = self.member(member.of, name, depth.checked_sub(1)?)?;
            Some(Part {
                offset: offset.checked_add(inner.offset)?,
                of: inner.of,
            })
        })
    }

    /// Returns the name of an enum's value, by its index.
    pub(crate) fn value_name(&self, of: Id, index: u32) -> Option<&'d str> {
        let mut values = self.values(of);
        Some(values.nth(usize::try_from(index).ok()?)?.0)
    }

    /// Returns an enum's value, by its name.
    pub(crate) fn value(&self, of: Id, name: &str) -> Option<u64> {
        self.values(of)
            .find_map(|(it, value)| (it == name).then_some(value))
    }

    fn values(&self, of: Id) -> impl Iterator<Item = (&'d str, u64)> {
        let it = self.resolved(of).and_then(|id| self.get(id));
        let has_sign = it.as_ref().is_some_and(|it| it.is_flagged);
        let width = match it.as_ref().map(|it| it.kind) {
            Some(kinds::ENUM) => 2,
            Some(kinds::ENUM64) => 3,
            _ => usize::MAX,
        };
        let body = it.map_or(&[][..], |it| it.body);
        body.chunks_exact(width).map(move |value| {
            let [name, low] = [0, 1].map(|at| value.get(at).copied().unwrap_or(0));
            let high = match value.get(2) {
                Some(&high) => high,
                None if has_sign && low >> 31 == 1 => u32::MAX,
                None => 0,
            };
            (self.name(name), u64::from(high) << 32 | u64::from(low))
        })
    }

    /// Looks through names and qualifiers of a type.
    fn resolved(&self, id: Id) -> Option<Id> {
        let mut id = id;
        for _ in 0..DEPTH {
            let it = self.get(id)?;
            match it.kind {
                kinds::TYPEDEF..=kinds::RESTRICT | kinds::TYPE_TAG => id = Id(it.size_or_type),
                _ => return Some(id),
            }
        }
        None
    }

    fn get(&self, Id(number): Id) -> Option<Type<'_>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        let end = *self.starts.get(index.checked_add(1)?)?;
        let words = self.words.get(*self.starts.get(index)?..end)?;
        let (&[name, info, size_or_type], body) = words.split_first_chunk()?;
        Some(Type {
            name,
            kind: kinds::of(info),
            is_flagged: kinds::is_flagged(info),
            size_or_type,
            body,
        })
    }

    /// Returns a name; empty where there is none.
    pub(crate) fn name(&self, offset: u32) -> &'d str {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = self.strings.get(start..).unwrap_or_default();
        let name = rest.split(|&byte| byte == 0).next().unwrap_or_default();
        str::from_utf8(name).unwrap_or_default()
    }
}

/// Returns the words of a part.
pub(crate) fn words(data: &[u8]) -> Vec<u32> {
    let (words, _) = data.as_chunks();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[u8] = b"\0first\0last\0no\0";
    const FIRST: u32 = 1;
    const LAST: u32 = 7;
    const NO: u32 = 12;

    /// Writes types down; `layouts` as newer kernels have them, if any.
    fn written(types: &[u32], layouts: &[[u8; 4]]) -> Vec<u8> {
        let length = |it: usize| u32::try_from(it).unwrap();
        let header = if layouts.is_empty() { 24 } else { 32 };
        let types_length = length(4 * types.len());
        let names_length = length(NAMES.len());
        let head = [
            header,
            0,
            types_length,
            types_length,
            names_length,
            types_length + names_length,
            length(4 * layouts.len()),
        ];
        let head = &head[..if layouts.is_empty() { 5 } else { 7 }];
        let words = head.iter().chain(types).flat_map(|word| word.to_ne_bytes());
        let magic = MAGIC.to_ne_bytes().into_iter().chain([1, 0]);
        let names = NAMES.iter().copied();
        let layouts = layouts.iter().flatten().copied();
        magic.chain(words).chain(names).chain(layouts).collect()
    }

    /// A struct without members, something of kind 20 with a word and two more, and another struct.
    const WITH_UNKNOWN: [u32; 12] = [
        FIRST,
        kinds::STRUCT << 24,
        4,
        NO,
        20 << 24 | 2,
        0,
        1,
        2,
        3,
        LAST,
        kinds::STRUCT << 24,
        8,
    ];

    #[test]
    fn what_comes_after_an_unknown_kind_is_missing() {
        let data = written(&WITH_UNKNOWN, &[]);
        let types = Types::read(&data).unwrap();
        assert_eq!(types.unknown(), Some(20));
        assert_eq!(
            types.find(Named::Struct, "first").next(),
            Some(Id(1)),
            "what comes before it is there"
        );
        assert_eq!(types.find(Named::Struct, "last").next(), None);
    }

    #[test]
    fn the_kernel_may_say_how_long_an_unknown_kind_is() {
        let mut layouts = [[0; 4]; 21];
        layouts[20] = [4, 4, 0, 0];
        let data = written(&WITH_UNKNOWN, &layouts);
        let types = Types::read(&data).unwrap();
        assert_eq!(types.unknown(), None);
        let last = types.find(Named::Struct, "last").next();
        assert_eq!(last, Some(Id(3)));
        assert_eq!(types.size(Id(3)), Some(8));
    }

    #[test]
    fn values_have_a_sign_where_the_enum_says_so() {
        for (signed, value) in [(0, u64::from(u32::MAX)), (1 << 31, u64::MAX)] {
            let data = written(
                &[FIRST, signed | kinds::ENUM << 24 | 1, 4, NO, u32::MAX],
                &[],
            );
            let types = Types::read(&data).unwrap();
            assert_eq!(types.value(Id(1), "no"), Some(value));
        }
    }

    /// Whatever the header says, it is no more than there is.
    #[test]
    fn a_header_may_lie() {
        let data = written(&WITH_UNKNOWN, &[[0; 4]]);
        for place in (4..32).step_by(4) {
            let mut data = data.clone();
            data[place..place + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
            assert!(Types::read(&data).is_none(), "{place}");
        }
    }
}
