//! Addresses as words.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address in two words: an IPv4 address as the last 32 bits.
pub(super) fn words(ip: IpAddr) -> [u64; 2] {
    let bits = match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)];
    [high, low].map(|half| u64::try_from(half).unwrap_or(u64::MAX))
}

/// The address that two words are.
pub(super) fn address([high, low]: [u64; 2], port: u16, is_v6: bool) -> SocketAddr {
    let ip = if is_v6 {
        Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()
    } else {
        let low = low & u64::from(u32::MAX);
        Ipv4Addr::from(u32::try_from(low).unwrap_or(0)).into()
    };
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_its_words_say() {
        for text in [
            "10.1.0.2:80",
            "255.255.255.255:65535",
            "[fd00:a::2]:1",
            "[::1]:0",
        ] {
            let it: SocketAddr = text.parse().unwrap();
            assert_eq!(address(words(it.ip()), it.port(), it.is_ipv6()), it);
        }
    }
}
