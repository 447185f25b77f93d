//! What the programs nft and iptables list.

use std::sync::LazyLock;

use pepd_net::{Plan, fuzzing};

use crate::config;

/// The box of `config/`.
static PLAN: LazyLock<Option<Plan>> =
    LazyLock::new(|| config::plan(include_str!("../../../config/campus-box.toml")));

/// Reads pepd's table.
pub fn table(bytes: &[u8]) {
    let plan = PLAN.as_ref().expect("the file is in order");
    crate::text(bytes, |json| fuzzing::listing(json, plan));
}

/// Reads the operator's tables.
pub fn firewall(bytes: &[u8]) {
    let mark = pepd_net::Mark {
        value: pepd_packet::MarkValue(0x7000_0000),
        mask: pepd_packet::MarkMask(0x7000_0000),
    };
    crate::text(bytes, |json| fuzzing::firewall(json, mark));
}

/// Reads the rules of a table of iptables'.
pub fn iptables(bytes: &[u8]) {
    crate::text(bytes, fuzzing::iptables);
}
