//! What iptables lists, under a fuzzer.

use super::IptablesTable;
use super::rules::listed;
use crate::prefix::Family;

/// Reads a listing. What is found is deleted, so it has to be ours beyond doubt, and to be found
/// again as it is deleted.
pub(crate) fn listing(listing: &str) {
    for rule in listed(listing, Family::V4, IptablesTable::Raw) {
        let text = rule.to_string();
        let (_, line) = text.split_once("-t raw ").unwrap_or_default();
        assert!(listing.contains(line), "{line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = ["--comment", "pepd", "-j", "NFQUEUE"];
        assert!(words.windows(4).any(|words| words == ours), "{line}");
        let again = listed(line, Family::V4, IptablesTable::Raw);
        assert_eq!(again, [rule]);
    }
}
