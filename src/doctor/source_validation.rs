//! Reverse-path filtering, and its look at marks.

use pepd_config::Config;

use super::finding::Finding;
use super::links::Links;
use super::sysctl::{self, Sysctls, of_interface};

/// Judges `src_valid_mark` everywhere, `rp_filter` on the interfaces towards campuses.
pub fn judge(sysctls: &Sysctls, links: &Links, config: &Config) -> Vec<Finding> {
    let v4 = |prefix: &pepd_config::IpNet| prefix.addr().is_ipv4();
    if !config
        .campuses
        .iter()
        .any(|campus| campus.prefixes.iter().any(v4))
    {
        return Vec::new();
    }
    let mut findings = valid_mark(sysctls, !config.peers.is_empty());
    findings.extend(strict(sysctls, links));
    findings
}

/// Judges `src_valid_mark`: with it, the reverse-path check looks up the source with the packet's
/// mark, finds pepd's table, and drops the packet at any rp_filter (fib_validate_source,
/// net/ipv4/fib_frontend.c).
fn valid_mark(sysctls: &Sysctls, tunnels: bool) -> Vec<Finding> {
    const ID: &str = "src-valid-mark";
    let set = |interface: &str| sysctls.interface(interface, "src_valid_mark") == Some(1);
    let found = |interface: &str| {
        let path = of_interface(interface, "src_valid_mark");
        (
            format!("{} is 1", sysctl::name(&path)),
            sysctl::set(&path, 0),
        )
    };
    let mut findings = Vec::new();
    for interface in std::iter::once("all").chain(sysctls.interfaces()) {
        if set(interface) {
            let (found, cure) = found(interface);
            findings.push(
                Finding::stop(ID, found)
                    .about(interface)
                    .because(
                        "the kernel then checks the source of captured packets against pepd's \
                         own table and drops them all; `pepd run` refuses to start",
                    )
                    .cure(cure)
                    .advice("wg-quick sets it: look at what brings a WireGuard interface up"),
            );
        }
    }
    if set("default") {
        let (found, cure) = found("default");
        let finding = if tunnels {
            Finding::stop(ID, found).because(
                "the tunnels that pepd makes take it over, and then every captured packet out of \
                 them is dropped",
            )
        } else {
            Finding::note(ID, found)
                .because("an interface that is made later takes it over, and captures nothing")
        };
        findings.push(finding.about("default").cure(cure));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(ID, "src_valid_mark is 0 on all interfaces"));
    }
    findings
}

/// Judges `rp_filter`: the stricter of `all` and the interface's own counts (IN_DEV_RPFILTER,
/// include/linux/inetdevice.h).
fn strict(sysctls: &Sysctls, links: &Links) -> Vec<Finding> {
    const ID: &str = "rp-filter";
    let value = |interface: &str| sysctls.interface(interface, "rp_filter").unwrap_or(0);
    let mut findings: Vec<_> = links
        .out()
        .filter(|link| value(&link.name).max(value("all")) == 1)
        .map(|link| {
            let path = of_interface(&link.name, "rp_filter");
            Finding::note(ID, "strict: rp_filter is 1")
                .about(&link.name)
                .because(format!(
                    "a packet is dropped unless the route back to its source leads out by {} \
                     too; where a campus has two ways, connections come and go with the route",
                    link.name
                ))
                // The larger of the two counts, and 2 is loose.
                .cure(sysctl::set(&path, 2))
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::ok(
            ID,
            "not strict on any interface towards a campus",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::{Level, worst};
    use crate::doctor::fixture::{config, level};
    use crate::doctor::links::Link;

    #[rstest]
    #[case::nowhere(&[("all", "0"), ("default", "0"), ("wan", "0")], false, Level::Ok)]
    #[case::all(&[("all", "1")], false, Level::Stop)]
    #[case::one_interface(&[("all", "0"), ("wan", "1")], false, Level::Stop)]
    #[case::lo_does_not_matter(&[("lo", "1")], false, Level::Ok)]
    #[case::interfaces_to_come(&[("default", "1")], false, Level::Note)]
    #[case::tunnels_to_come(&[("default", "1")], true, Level::Stop)]
    fn source_validation_by_mark(
        #[case] values: &[(&str, &str)],
        #[case] tunnels: bool,
        #[case] expected: Level,
    ) {
        let paths: Vec<_> = values
            .iter()
            .map(|(interface, value)| (of_interface(interface, "src_valid_mark"), *value))
            .collect();
        let paths: Vec<_> = paths
            .iter()
            .map(|(path, value)| (path.as_str(), *value))
            .collect();
        assert_eq!(worst(&valid_mark(&Sysctls::of(&paths), tunnels)), expected);
    }

    #[rstest]
    #[case::off("0", "0", Level::Ok)]
    #[case::strict("0", "1", Level::Note)]
    #[case::strict_by_all("1", "0", Level::Note)]
    #[case::loose_wins("1", "2", Level::Ok)]
    fn reverse_path(#[case] all: &str, #[case] own: &str, #[case] expected: Level) {
        let sysctls = Sysctls::of(&[
            ("net/ipv4/conf/all/rp_filter", all),
            ("net/ipv4/conf/wan/rp_filter", own),
        ]);
        let links = Links::of(vec![Link::named("wan")]);
        let findings = judge(&sysctls, &links, &config(""));
        assert_eq!(level(&findings, "rp-filter"), Some(expected));
    }
}
