//! The kernel's devices and addresses, under a fuzzer.

use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::LinkMessage;

use super::link::{self, Link};
use super::spec::is_device;

/// Reads a device. One that counts as pepd's has a name of pepd's.
pub(crate) fn link(message: &LinkMessage) {
    let link = Link::read(message);
    if link.is_own() {
        assert!(is_device(&link.name));
    }
}

/// Reads an address. A network has no more bits than its address.
pub(crate) fn address(message: &AddressMessage) {
    if let Some(network) = link::address(message) {
        assert!(network.prefix_len() <= network.max_prefix_len());
    }
}
