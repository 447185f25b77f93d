//! The attributes of a message (`struct nlattr`), written and read.

/// The flag of an attribute's type which says that its value consists of attributes.
const NESTED: u16 = 0x8000;

/// An attribute's type without its flags: nested, network byte order.
const TYPE_MASK: u16 = 0x3fff;

/// The bytes of an attribute's length and type.
const HEADER_BYTES: usize = 4;

/// The attributes of a message that is being written, or of one of its attributes.
#[derive(Debug)]
pub struct Attributes<'a>(&'a mut Vec<u8>);

impl<'a> Attributes<'a> {
    /// Attributes that are appended to `bytes`.
    pub(super) fn appended(bytes: &'a mut Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Appends an attribute.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        self.framed(kind, |bytes| bytes.extend(value));
    }

    /// Appends an attribute that is a text with a zero behind it.
    pub fn put_text(&mut self, kind: u16, text: &str) {
        self.framed(kind, |bytes| {
            bytes.extend(text.as_bytes());
            bytes.push(0);
        });
    }

    /// Appends an attribute that consists of others.
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Attributes<'_>)) {
        self.framed(kind | NESTED, |bytes| body(&mut Attributes(bytes)));
    }

    /// Appends an attribute with its header; the length counts the header and the value, not the
    /// padding to 4 bytes.
    fn framed(&mut self, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut *self.0;
        let start = bytes.len();
        bytes.extend([0; 2]);
        bytes.extend(kind.to_ne_bytes());
        body(bytes);
        let length = u16::try_from(bytes.len() - start).unwrap_or(u16::MAX);
        if let Some(field) = bytes.get_mut(start..start + 2) {
            field.copy_from_slice(&length.to_ne_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

/// Reads attributes: type, without its flags, and value. What is cut short ends them.
pub fn read(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(HEADER_BYTES..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    })
}

/// Returns the value of an attribute, if the list has it.
pub fn find(list: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut found = read(list);
    found.find(|(kind, _)| *kind == wanted).map(|(_, it)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let mut attributes = Attributes::appended(&mut bytes);
        attributes.put(1, &[6]);
        attributes.nest(2, |inner| {
            inner.put_text(3, "gate");
            inner.put(4, &[]);
        });
        let read_back: Vec<_> = read(&bytes).collect();
        assert_eq!(read_back[0], (1, &[6][..]));
        assert_eq!((read_back.len(), read_back[1].0), (2, 2));
        assert_eq!(find(&bytes, 1), Some(&[6][..]));
        assert_eq!(find(&bytes, 3), None, "it is within another");
        let inner: Vec<_> = read(read_back[1].1).collect();
        assert_eq!(inner, [(3, &b"gate\0"[..]), (4, &[])]);
    }
}
