//! The addresses that destinations go by.

use std::fmt;
use std::str::FromStr;

/// The MAC address of a destination, which is a router's or a host's beyond the radio link
/// (section 13.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MacAddress {
    /// One of 48 bits.
    Eui48([u8; 6]),
    /// One of 64 bits.
    Eui64([u8; 8]),
}

/// Text is not a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address: six or eight bytes are expected, as in 02:00:5e:10:00:01")]
pub struct NotMacAddress;

impl MacAddress {
    /// Returns its bytes, as on the wire.
    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Eui48(octets) => octets,
            Self::Eui64(octets) => octets,
        }
    }

    /// Takes the bytes for an address, if there are as many as one has.
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        match octets.len() {
            6 => octets.try_into().ok().map(Self::Eui48),
            _ => octets.try_into().ok().map(Self::Eui64),
        }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, octet) in self.octets().iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{octet:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for MacAddress {
    type Err = NotMacAddress;

    /// Reads pairs of hexadecimal digits with colons, or hyphens, between them.
    ///
    /// # Errors
    /// If the text is anything else.
    fn from_str(text: &str) -> Result<Self, NotMacAddress> {
        let octet = |pair: &str| {
            let is_pair = pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_pair.then(|| u8::from_str_radix(pair, 16).ok()).flatten()
        };
        // What is longer than the longest is not worth the memory.
        let octets = text.split([':', '-']).take(9).map(octet);
        let octets: Vec<u8> = octets.collect::<Option<_>>().ok_or(NotMacAddress)?;
        Self::from_octets(&octets).ok_or(NotMacAddress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_address() {
        for text in ["02:00:5e:10:00:01", "02:00:5e:ff:fe:10:00:01"] {
            let address: MacAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let with_hyphens = text.replace(':', "-").to_uppercase();
            assert_eq!(with_hyphens.parse(), Ok(address));
        }
        for text in [
            "",
            "02",
            "02:00:5e:10:00",
            "02:00:5e:10:00:1",
            "02:00:5e:10:00:0g",
        ] {
            assert_eq!(text.parse::<MacAddress>(), Err(NotMacAddress), "{text}");
        }
        assert!("+1:00:5e:10:00:01".parse::<MacAddress>().is_err());
        assert!("00:".repeat(1 << 16).parse::<MacAddress>().is_err());
    }
}
