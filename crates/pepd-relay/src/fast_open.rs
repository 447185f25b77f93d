//! Fast Open cookies of the listeners (RFC 7413), which the box can tell from forged ones by
//! itself.
//!
//! The kernel looks at the cookie of a client's SYN when the SYN reaches the listener. Where the
//! SYN is held, that is after the upstream SYN. So the listeners are given a key of pepd's own
//! (TCP_FASTOPEN_KEY), and a held SYN is judged as the kernel will judge it.

use std::hash::Hasher as _;
use std::io;
use std::net::IpAddr;

use pepd_packet::{FastOpenCookie, FourTuple};
use siphasher::sip::SipHasher24;

/// The key of all listeners, for the daemon's lifetime. A client with a cookie made by the key
/// before it is answered as one without, and given a new cookie.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; 16]);

impl Key {
    /// Creates a key that nobody knows.
    pub(crate) fn random() -> io::Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Takes the key that the listeners have already.
    pub(crate) fn known(key: [u8; 16]) -> Self {
        Self(key)
    }

    /// Returns the key for TCP_FASTOPEN_KEY.
    pub(crate) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns whether the client has had `cookie` from a listener, and so has the address that it
    /// says.
    pub(crate) fn vouches_for(&self, flow: FourTuple, cookie: FastOpenCookie) -> bool {
        self.cookie(flow) == Some(cookie)
    }

    /// Returns what the kernel makes of both addresses (__tcp_fastopen_cookie_gen_cipher,
    /// net/ipv4/tcp_fastopen.c); none where they are of two families.
    fn cookie(&self, flow: FourTuple) -> Option<FastOpenCookie> {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        match (flow.client.ip(), flow.server.ip()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                hasher.write(&client.octets());
                hasher.write(&server.octets());
            }
            (IpAddr::V6(client), IpAddr::V6(server)) => {
                hasher.write(&client.octets());
                hasher.write(&server.octets());
            }
            _ => return None,
        }
        Some(FastOpenCookie(hasher.finish().to_le_bytes()))
    }
}

/// Not the key itself: it must not get into a log.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(client: &str, server: &str) -> FourTuple {
        FourTuple {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        }
    }

    #[test]
    fn it_is_siphash_2_4_of_both_addresses() {
        // The key of SipHash's own test vectors, and the first 8 bytes of their message: its
        // hash is the ninth vector.
        let key = Key(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f");
        let flow = flow("0.1.2.3:1", "4.5.6.7:2");
        let vector = FastOpenCookie([0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]);
        assert_eq!(key.cookie(flow), Some(vector));
        assert!(key.vouches_for(flow, vector));
    }

    #[test]
    fn another_address_or_key_has_another_cookie() {
        let key = Key([7; 16]);
        let mine = flow("[fd00:a::2]:1", "[fd00:b::2]:2");
        let cookie = key.cookie(mine).unwrap();
        assert!(key.vouches_for(flow("[fd00:a::2]:9", "[fd00:b::2]:8"), cookie));
        for other in [
            flow("[fd00:a::3]:1", "[fd00:b::2]:2"),
            flow("[fd00:a::2]:1", "[fd00:b::3]:2"),
            flow("10.1.0.2:1", "10.2.0.2:2"),
        ] {
            assert!(!key.vouches_for(other, cookie), "{other:?}");
        }
        assert!(!Key([8; 16]).vouches_for(mine, cookie));
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
