//! The Internet checksum (RFC 1071), which IPv4, TCP and ICMP have in common.

use std::net::IpAddr;

use crate::protocol::Protocol;

/// A checksum that is being computed: the sum of the 16-bit words so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum(u64);

impl Checksum {
    /// Returns the checksum of `bytes`; an odd one at the end counts as if a zero followed (RFC
    /// 1071, section 1).
    pub fn of(bytes: &[u8]) -> Self {
        Self::default().and(bytes)
    }

    /// Returns the checksum of `payload` as TCP and ICMPv6 have it: over the pseudo header of
    /// either family as well (RFC 9293, section 3.1, and RFC 8200, section 8.1).
    pub fn with_pseudo_header(
        source: IpAddr,
        destination: IpAddr,
        protocol: Protocol,
        payload: &[u8],
    ) -> Self {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Self::default()
            .and_address(source)
            .and_address(destination)
            .and(&length.to_be_bytes())
            .and(&[0, protocol.0])
            .and(payload)
    }

    /// Returns the checksum of what came before, which was of even length, and of `bytes`.
    #[must_use]
    pub fn and(self, bytes: &[u8]) -> Self {
        let word = |pair: &[u8]| match *pair {
            [high, low] => u64::from(u16::from_be_bytes([high, low])),
            [high] => u64::from(u16::from_be_bytes([high, 0])),
            _ => 0,
        };
        Self(self.0 + bytes.chunks(2).map(word).sum::<u64>())
    }

    fn and_address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.and(&v4.octets()),
            IpAddr::V6(v6) => self.and(&v6.octets()),
        }
    }

    /// Returns what a header holds: the complement of the sum. Over bytes that hold it already it
    /// is 0.
    pub fn value(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071_is_right() {
        // Section 3: the sum is ddf2, and the checksum its complement.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Checksum::of(&bytes).value(), !0xddf2);
        assert_eq!(Checksum::of(&[0xab]).value(), !0xab00);
        assert_eq!(Checksum::of(&[]).value(), 0xffff);
    }

    proptest! {
        #[test]
        fn what_holds_its_checksum_has_none(
            mut bytes in prop::collection::vec(any::<u8>(), 2..200),
            source: IpAddr,
            destination: IpAddr,
            number: u8,
        ) {
            bytes[..2].fill(0);
            let sum = |bytes: &[u8]| {
                Checksum::with_pseudo_header(source, destination, Protocol(number), bytes).value()
            };
            let value = sum(&bytes);
            bytes[..2].copy_from_slice(&value.to_be_bytes());
            prop_assert_eq!(sum(&bytes), 0);
        }

        #[test]
        fn pieces_are_summed_as_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            words in 0_usize..100,
        ) {
            let (first, rest) = bytes.split_at((2 * words).min(bytes.len()));
            prop_assert_eq!(Checksum::of(first).and(rest).value(), Checksum::of(&bytes).value());
        }
    }
}
