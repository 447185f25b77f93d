//! The operator's own rules, under a fuzzer.

use serde_json::Value;

use super::base_chain::BaseChain;
use super::judge::{Judgement, judge};
use crate::prefix::Family;
use crate::request::Mark;

/// Judges all base chains of a listing. A chain that drops by default lets no more pass than the same
/// one that accepts.
pub(crate) fn firewall(json: &str, mark: Mark) {
    let Ok(Value::Object(mut listing)) = serde_json::from_str(json) else {
        return;
    };
    let Some(Value::Array(objects)) = listing.remove("nftables") else {
        return;
    };
    for chain in BaseChain::all(&objects) {
        let rules = chain.rules(&objects);
        for packet in chain.packets(mark, &Family::ALL) {
            let [open, shut] = [false, true].map(|drops| judge(&rules, chain.name, drops, packet));
            if shut == Judgement::Passes {
                assert_eq!(open, Judgement::Passes);
            }
            if let Judgement::Drops(_) = open {
                assert_eq!(shut, open);
            }
        }
    }
}
