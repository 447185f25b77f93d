//! Types as the kernel and compilers describe them (BTF: Documentation/bpf/btf.rst of Linux).

/// The kinds of types (`BTF_KIND_…`), as far as they are told apart.
mod kind {
    pub const INTEGER: u32 = 1;
    pub const POINTER: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const TYPEDEF: u32 = 8;
    pub const RESTRICT: u32 = 11;
    pub const VARIABLE: u32 = 14;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

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
    /// Where each begins in `words`, by its number less 1: 0 is void.
    starts: Vec<usize>,
}

/// The number of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(pub u32);

/// What has a name that it is looked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Struct,
    Enum,
    Variable,
}

/// A type as it is written down.
struct Type<'t> {
    name: u32,
    kind: u32,
    /// Of a struct or union: that the upper 8 bits of its members' places are the width of a bit field.
    has_bit_fields: bool,
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
    /// something else.
    pub(crate) fn read(data: &'d [u8]) -> Option<Self> {
        if u16::from_ne_bytes(*data.first_chunk()?) != MAGIC {
            return None;
        }
        let header = words(data.get(4..24)?);
        let [length, types, types_length, strings, strings_length] = *header.first_chunk()?;
        let part = |offset, size| {
            let start = usize::try_from(length).ok()? + usize::try_from(offset).ok()?;
            data.get(start..)?.get(..usize::try_from(size).ok()?)
        };
        let strings = part(strings, strings_length)?;
        let words = words(part(types, types_length)?);
        let mut starts = Vec::new();
        let mut start = 0;
        while start < words.len() {
            starts.push(start);
            start += 3 + body_length(*words.get(start + 1)?)?;
        }
        Some(Self {
            strings,
            words,
            starts,
        })
    }

    /// Writes down some types, which are one: `int`.
    pub(crate) fn some() -> Vec<u8> {
        const NAMES: &[u8] = b"\0int\0";
        // The length of the header, the places and lengths of types and names; the type, with its name's place.
        let words: [u32; 9] = [24, 0, 16, 16, 5, 1, kind::INTEGER << 24, 4, 1 << 24 | 32];
        let words = words.iter().flat_map(|word| word.to_ne_bytes());
        let version = [1, 0];
        let head = MAGIC.to_ne_bytes().into_iter().chain(version);
        head.chain(words).chain(NAMES.iter().copied()).collect()
    }

    /// Finds the types of a name.
    pub(crate) fn find(&self, what: Named, name: &str) -> impl Iterator<Item = Id> {
        let is_kind = move |kind: u32| match what {
            Named::Struct => kind == kind::STRUCT,
            Named::Enum => matches!(kind, kind::ENUM | kind::ENUM64),
            Named::Variable => kind == kind::VARIABLE,
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
        matches!(it.kind, kind::VARIABLE | kind::POINTER).then_some(Id(it.size_or_type))
    }

    /// Returns the elements' type and number of an array.
    pub(crate) fn elements(&self, id: Id) -> Option<(Id, u32)> {
        let it = self.get(self.resolved(id)?)?;
        let [of, _, number] = *it.body.first_chunk()?;
        (it.kind == kind::ARRAY).then_some((Id(of), number))
    }

    /// Returns the members of a struct or union; none of anything else.
    pub(crate) fn members(&self, id: Id) -> impl Iterator<Item = Member<'d>> {
        let it = self.resolved(id).and_then(|id| self.get(id));
        let it = it.filter(|it| matches!(it.kind, kind::STRUCT | kind::UNION));
        let has_bit_fields = it.as_ref().is_some_and(|it| it.has_bit_fields);
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
                kind::INTEGER | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 => {
                    of.size_or_type
                }
                kind::POINTER => u32::try_from(size_of::<usize>()).ok()?,
                kind::ARRAY => {
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
            it.kind == kind::INTEGER && it.body.first().is_some_and(|word| word & SIGNED == 0)
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
        let width = match it.as_ref().map(|it| it.kind) {
            Some(kind::ENUM) => 2,
            Some(kind::ENUM64) => 3,
            _ => usize::MAX,
        };
        let body = it.map_or(&[][..], |it| it.body);
        body.chunks_exact(width).map(|value| {
            let [name, low, high] = [0, 1, 2].map(|at| value.get(at).copied().unwrap_or(0));
            (self.name(name), u64::from(high) << 32 | u64::from(low))
        })
    }

    /// Looks through names and qualifiers of a type.
    fn resolved(&self, id: Id) -> Option<Id> {
        let mut id = id;
        for _ in 0..DEPTH {
            let it = self.get(id)?;
            match it.kind {
                kind::TYPEDEF..=kind::RESTRICT | kind::TYPE_TAG => id = Id(it.size_or_type),
                _ => return Some(id),
            }
        }
        None
    }

    fn get(&self, Id(number): Id) -> Option<Type<'_>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        let words = self.words.get(*self.starts.get(index)?..)?;
        let (&[name, info, size_or_type], rest) = words.split_first_chunk()?;
        Some(Type {
            name,
            kind: kind_of(info),
            has_bit_fields: info >> 31 == 1,
            size_or_type,
            body: rest.get(..body_length(info)?)?,
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

fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x1f
}

/// Returns how many words follow the three that all types have; none for a kind that nobody knows.
fn body_length(info: u32) -> Option<usize> {
    let number = usize::try_from(info & 0xffff).ok()?;
    match kind_of(info) {
        // Integers; variables and tags of declarations.
        1 | 14 | 17 => Some(1),
        // Pointers; declarations, names and qualifiers; functions, floats and tags of types.
        2 | 7..=12 | 16 | 18 => Some(0),
        // Arrays.
        3 => Some(3),
        // Structs, unions; sections; enums of 64 bits.
        4 | 5 | 15 | 19 => Some(3 * number),
        // Enums; prototypes of functions.
        6 | 13 => Some(2 * number),
        _ => None,
    }
}
