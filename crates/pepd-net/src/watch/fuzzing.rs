//! What the kernel counts and tells unasked, under a fuzzer.

use pepd_sys::nfnetlink::messages;

use super::{changes, tally};

/// Reads a datagram as a dump of counters, and as what is told of changes.
pub(crate) fn datagram(datagram: &[u8]) {
    for message in messages(datagram) {
        let _ = changes::matters(&message);
        if let Some((name, _)) = tally::counter(&message) {
            assert!(!name.ends_with('\0'));
        }
    }
}

/// Looks a statistic up: a number that is found stands in the text.
pub(crate) fn statistics(text: &str) {
    for name in ["ListenOverflows", "IPReversePathFilter"] {
        if let Some(number) = tally::find(text, name) {
            assert!(text.contains(name), "{number}");
        }
    }
}
