//! What nft and the kernel say of the table, under a fuzzer.

use super::carried::Earlier;
use super::elements;
use super::listing::Listing;
use super::ruleset;
use crate::plan::Plan;

/// Reads a listing as JSON, compares it with a plan, and writes the table that would take its place:
/// its commands are pepd's own, whatever the names in the listing are.
pub(crate) fn listing(json: &str, plan: &Plan) {
    let Ok(listing) = Listing::parse(json) else {
        return;
    };
    let _ = (listing.counters(), listing.has_table("ip"));
    let Some(listing) = listing.of_tables() else {
        return;
    };
    let fingerprint = listing.fingerprint();
    assert_eq!(fingerprint, fingerprint.fingerprint());
    let expected = ruleset::write(plan, Earlier::Discarded);
    let hooks = expected.text.matches("type filter hook ").count();
    assert_eq!(hooks, expected.hooks.len(), "one that is not understood");
    assert_eq!(
        listing.check(&expected).is_ok(),
        fingerprint.check(&expected).is_ok()
    );
    for earlier in [Earlier::Own(&listing), Earlier::Left(&listing)] {
        let text = earlier.cleared_for(&expected);
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_of_pepds = match words[..] {
                ["add" | "delete", "table", "inet" | "ip" | "ip6", "pepd"]
                | ["flush", "table", "inet" | "ip" | "ip6", "pepd"] => true,
                ["delete", "chain", "inet" | "ip" | "ip6", "pepd", name]
                | ["delete", "set" | "map" | "counter", "inet", "pepd", name] => {
                    !name.contains([';', '{', '}', '"', '#'])
                }
                _ => false,
            };
            assert!(is_of_pepds, "not a command of pepd's: {line}");
        }
    }
}

/// Reads the elements of a set.
pub(crate) fn elements(datagram: &[u8]) {
    let elements = elements::fuzzed(datagram);
    let _ = elements.count();
    let _ = elements.keys().count();
}
