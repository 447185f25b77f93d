//! Whom a limit per source counts as one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The number of leading bits that the IPv6 addresses of one source have in common.
///
/// A host chooses any address in its network's /64 (RFC 4862, section 5.5.3; RFC 8981), and a site
/// may have a /56 or a /48 (RFC 6177): by whole addresses one host would be 2^64 sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePrefix(pub u8);

impl SourcePrefix {
    /// The prefix of one network (RFC 4291, section 2.5.1).
    pub const NETWORK: Self = Self(64);
    /// The prefix by which each address is a source of its own.
    pub const ADDRESS: Self = Self(128);

    /// Returns the source that a client's address belongs to. An IPv4 address is one of its own,
    /// however it is written (RFC 4291, section 2.5.5.2).
    pub fn source_of(self, client: IpAddr) -> Source {
        match client.to_canonical() {
            IpAddr::V4(client) => Source {
                network: client.into(),
                length: 32,
            },
            IpAddr::V6(client) => Source {
                network: Ipv6Addr::from_bits(client.to_bits() & self.bits()).into(),
                length: self.0.min(128),
            },
        }
    }

    /// Returns the mask that keeps these bits of an address; none if it keeps all of them.
    pub fn mask(self) -> Option<Ipv6Addr> {
        (self.0 < 128).then(|| Ipv6Addr::from_bits(self.bits()))
    }

    fn bits(self) -> u128 {
        let host = 128 - u32::from(self.0.min(128));
        u128::MAX.checked_shl(host).unwrap_or(0)
    }
}

/// One source of connections: an IPv4 address, or an IPv6 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    network: IpAddr,
    length: u8,
}

impl Source {
    /// Returns its address, or the first one of its prefix.
    pub fn network(self) -> IpAddr {
        self.network
    }
}

/// Makes a source of this address alone.
impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        SourcePrefix::ADDRESS.source_of(address)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.network, self.length) {
            (IpAddr::V4(_), _) | (IpAddr::V6(_), 128) => self.network.fmt(f),
            (IpAddr::V6(network), length) => write!(f, "{network}/{length}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_prefix() {
        let shown = |bits, client: &str| {
            let client = client.parse().unwrap();
            SourcePrefix(bits).source_of(client).to_string()
        };
        assert_eq!(shown(64, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(shown(56, "2001:db8:1:2ff::1"), "2001:db8:1:200::/56");
        assert_eq!(shown(1, "ffff::1"), "8000::/1");
        assert_eq!(shown(128, "2001:db8::1"), "2001:db8::1");
        assert_eq!(shown(64, "10.1.2.3"), "10.1.2.3");
        assert_eq!(shown(64, "::ffff:10.1.2.3"), "10.1.2.3");
    }

    #[test]
    fn the_mask_keeps_the_prefix() {
        let mask = |bits| SourcePrefix(bits).mask().map(|mask| mask.to_string());
        assert_eq!(mask(64).unwrap(), "ffff:ffff:ffff:ffff::");
        assert_eq!(mask(1).unwrap(), "8000::");
        assert_eq!(mask(0).unwrap(), "::");
        assert_eq!(mask(128), None);
    }
}
