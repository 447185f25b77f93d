//! What /proc/sys tells of a host on which no connection comes through, split or not.

use super::finding::{Cause, Finding};
use crate::plan::Plan;
use crate::preflight::host::{forwarding_is_off, read};

const CONNTRACK_COUNT: &str = "net/netfilter/nf_conntrack_count";
const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";

pub(super) fn findings(plan: &Plan) -> Vec<Finding> {
    let forwarding = forwarding_is_off(plan).into_iter().map(|warning| Finding {
        cause: Cause::Forwarding,
        certain: true,
        text: warning.text,
        cure: warning.cure,
    });
    forwarding.chain(conntrack()).collect()
}

/// Without connection tracking there is nothing to say.
fn conntrack() -> Option<Finding> {
    let number = |name| read(name)?.parse::<u64>().ok();
    full(number(CONNTRACK_COUNT)?, number(CONNTRACK_MAX)?)
}

/// The kernel drops what begins a connection when the table is full (nf_conntrack: table full,
/// dropping packet): upstream legs' SYNs and those that are routed alike. It makes room from time to
/// time, so it is not always at its very end.
fn full(count: u64, most: u64) -> Option<Finding> {
    (most > 0 && count >= most - most / 64).then(|| Finding {
        cause: Cause::Conntrack,
        certain: true,
        text: format!(
            "the table of tracked connections is full ({count} of {most}): new connections are \
             dropped, split or not"
        ),
        cure: format!("sysctl -w net.netfilter.nf_conntrack_max={}", most * 2),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_full_a_little_before_its_end() {
        assert!(full(1000, 262_144).is_none());
        assert!(full(0, 0).is_none());
        let finding = full(262_000, 262_144).unwrap();
        assert!(!finding.cause.ends_with_routing());
        assert!(finding.cure.ends_with("=524288"), "{}", finding.cure);
    }
}
