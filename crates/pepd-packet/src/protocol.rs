//! The protocols that an IP packet carries.

/// A protocol number assigned by IANA, as IPv4's protocol and IPv6's next header have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
}
