//! What the kernel says of sockets, under a fuzzer.

use super::codec::{Reply, end, replies};

/// Reads a datagram. A socket that is found is the one that is ended, and nothing is read twice.
pub(crate) fn sockets(datagram: &[u8], sequence: u32) {
    let found: Vec<Reply> = replies(datagram, sequence).collect();
    assert!(found.len() <= datagram.len() / 16);
    for reply in found {
        if let Reply::Socket(socket) = reply {
            let asked = end(sequence, &socket);
            let id = asked.get(24..).unwrap_or_default();
            assert!(datagram.windows(id.len()).any(|bytes| bytes == id));
        }
    }
}
