//! What else the kernel says: sets and counters of nft's, sockets, rules, routes and devices.

use pepd_net::fuzzing;

/// Reads a datagram of netfilter's or sock_diag's, or a table of statistics.
pub fn run(bytes: &[u8]) {
    fuzzing::datagram(bytes);
    crate::text(bytes, fuzzing::statistics);
}

/// Reads a message of rtnetlink's.
pub fn route(bytes: &[u8]) {
    fuzzing::route(bytes);
}
