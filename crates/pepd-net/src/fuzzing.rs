//! What this crate reads, for a fuzzer: each function reads its input as nft, iptables or the kernel
//! would have said it, and panics where what comes of it cannot be.

use crate::plan::Plan;
use crate::request::Mark;

/// Reads a datagram of netfilter's or of sock_diag's.
pub fn datagram(bytes: &[u8]) {
    crate::nft::fuzzing::elements(bytes);
    crate::watch::fuzzing::datagram(bytes);
    crate::diag::fuzzing::sockets(bytes, 7);
}

/// Reads a message of rtnetlink's.
pub fn route(bytes: &[u8]) {
    crate::route::fuzzing::message(bytes);
}

/// Reads `/proc/self/net/netstat`.
pub fn statistics(text: &str) {
    crate::watch::fuzzing::statistics(text);
}

/// Reads what nft lists of pepd's table, as JSON, and compares it with a plan.
pub fn listing(json: &str, plan: &Plan) {
    crate::nft::fuzzing::listing(json, plan);
}

/// Reads what nft lists of the operator's tables, as JSON, and judges their rules.
pub fn firewall(json: &str, mark: Mark) {
    crate::preflight::fuzzing::firewall(json, mark);
}

/// Reads what `iptables -S` lists.
pub fn iptables(listing: &str) {
    crate::iptables::fuzzing::listing(listing);
}
