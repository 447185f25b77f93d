//! The key of a pair of boxes.

use std::fmt;

/// The key that two boxes share, and nobody else. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has another length.
    #[error(
        "a key is 64 hexadecimal digits, and this is {0} characters: `openssl rand -hex 32` makes one"
    )]
    Length(usize),
    /// It has another character.
    #[error("a key is 64 hexadecimal digits, and character {0} is none")]
    Digit(usize),
    /// Nobody has drawn it.
    #[error("a key whose bytes are all the same is none: `openssl rand -hex 32` makes one")]
    Trivial,
}

impl Key {
    /// Reads a key: 64 hexadecimal digits, white space around them aside.
    ///
    /// # Errors
    /// Where the text is none.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let digits = text.trim().as_bytes();
        if digits.len() != 64 {
            return Err(KeyError::Length(text.trim().chars().count()));
        }
        let mut key = [0; 32];
        for (at, digit) in digits.iter().enumerate() {
            let value = char::from(*digit).to_digit(16);
            let value = value.and_then(|value| u8::try_from(value).ok());
            key[at / 2] = key[at / 2] << 4 | value.ok_or(KeyError::Digit(at + 1))?;
        }
        match key.iter().all(|byte| *byte == key[0]) {
            true => Err(KeyError::Trivial),
            false => Ok(Self(key)),
        }
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits() {
        let text = "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100";
        let key = Key::parse(&format!(" {text}\n")).unwrap();
        assert_eq!(key.bytes()[..3], [0, 0x11, 0x22]);
        assert_eq!(key.bytes()[29..], [0x22, 0x11, 0]);
        assert_eq!(format!("{key:?}"), "Key", "it is not printed");
        assert_eq!(Key::parse(&text[1..]), Err(KeyError::Length(63)));
        assert_eq!(Key::parse(""), Err(KeyError::Length(0)));
        assert_eq!(Key::parse(&text.replace('3', "x")), Err(KeyError::Digit(7)));
        assert_eq!(Key::parse(&"0".repeat(64)), Err(KeyError::Trivial));
    }
}
