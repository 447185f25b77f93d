//! Connection tracking, where the operator's firewall uses it.

use pepd_config::Config;

use super::finding::Finding;
use super::sysctl::{self, Sysctls};

const MAX: &str = "net/netfilter/nf_conntrack_max";
const COUNT: &str = "net/netfilter/nf_conntrack_count";

/// Judges the size of the table. Without connection tracking there is nothing to say.
pub fn judge(sysctls: &Sysctls, config: &Config) -> Option<Finding> {
    const ID: &str = "conntrack";
    let most = sysctls.number(MAX)?;
    let count = sysctls.number(COUNT).unwrap_or(0);
    let connections = u64::from(config.limits.connections);
    let found = format!("{count} of {most} entries are used");
    // Split connections, and as many that are routed; ended ones stay for minutes.
    let needed = 4 * connections;
    Some(if count * 10 > most * 9 {
        Finding::slow(ID, found)
            .because("when the table is full, new connections are dropped, split or not")
            .cure(sysctl::set(MAX, most * 2))
    } else if most < needed {
        Finding::slow(ID, found)
            .because(format!(
                "[limits] connections is {connections}; with what is routed beside, and ended \
                 ones that stay for two minutes, that may need {needed}; when the table is full \
                 new connections are dropped"
            ))
            .cure(sysctl::set(MAX, needed.next_power_of_two()))
            .advice("it is one table for all network namespaces, set from the first one")
    } else {
        Finding::ok(ID, found)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::config;

    #[rstest]
    #[case::none(None, None)]
    #[case::roomy(Some((100, 262_144)), Some(Level::Ok))]
    #[case::small(Some((100, 8192)), Some(Level::Slow))]
    #[case::nearly_full(Some((260_000, 262_144)), Some(Level::Slow))]
    fn the_table(#[case] table: Option<(u64, u64)>, #[case] expected: Option<Level>) {
        let values = table.map(|(count, most)| (count.to_string(), most.to_string()));
        let sysctls = values
            .as_ref()
            .map_or_else(Sysctls::default, |(count, most)| {
                Sysctls::of(&[(COUNT, count), (MAX, most)])
            });
        let finding = judge(&sysctls, &config(""));
        assert_eq!(finding.map(|finding| finding.level), expected);
    }
}
