//! Whether the host forwards: what is split is taken where it would be, and the rest is routed.

use pepd_config::Config;

use super::finding::Finding;
use super::links::Links;
use super::sysctl::{self, Sysctls};

const V4: &str = "net/ipv4/ip_forward";
const V6: &str = "net/ipv6/conf/all/forwarding";

const WHY: &str = "a connection is split where it would be forwarded, and what is not split (UDP, \
    ICMP, exempted, beyond a limit, without a daemon) is routed by the kernel; without forwarding \
    it ends here";

/// Judges forwarding of IPv4 and IPv6, where a campus has it; IPv4 also on each interface towards a
/// campus.
pub fn judge(sysctls: &Sysctls, links: &Links, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let prefixes = || config.campuses.iter().flat_map(|campus| &campus.prefixes);
    if prefixes().any(|prefix| prefix.addr().is_ipv4()) {
        findings.extend(switch(sysctls, "forwarding.ipv4", V4));
        if sysctls.number(V4) != Some(0) {
            findings.extend(
                links
                    .out()
                    .filter_map(|link| interface(sysctls, &link.name)),
            );
        }
    }
    // For IPv6 only `all` decides (ip6_forward, net/ipv6/ip6_output.c).
    if prefixes().any(|prefix| prefix.addr().is_ipv6()) {
        findings.push(switch(sysctls, "forwarding.ipv6", V6).unwrap_or_else(no_ipv6));
    }
    findings
}

fn switch(sysctls: &Sysctls, id: &'static str, path: &str) -> Option<Finding> {
    let name = sysctl::name(path);
    match sysctls.number(path)? {
        0 => Some(
            Finding::stop(id, format!("{name} is 0: this host forwards nothing"))
                .because(WHY)
                .cure(sysctl::set(path, 1)),
        ),
        value => Some(Finding::ok(id, format!("{name} is {value}"))),
    }
}

fn no_ipv6() -> Finding {
    Finding::note("forwarding.ipv6", "this host has no IPv6")
        .because("the IPv6 prefixes of the file are left out")
        .advice("boot without ipv6.disable=1, or remove the prefixes")
}

/// Judges an interface: for IPv4 the one a packet comes in by decides (ip_route_input_slow,
/// net/ipv4/route.c).
fn interface(sysctls: &Sysctls, interface: &str) -> Option<Finding> {
    let path = sysctl::of_interface(interface, "forwarding");
    (sysctls.number(&path) == Some(0)).then(|| {
        Finding::stop(
            "forwarding.interface",
            format!(
                "{} is 0: what comes in there is not forwarded",
                sysctl::name(&path)
            ),
        )
        .about(interface)
        .because(WHY)
        .cure(sysctl::set(&path, 1))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::{config, level};
    use crate::doctor::links::Link;

    #[rstest]
    #[case::on(&[(V4, "1"), (V6, "1")], None, None)]
    #[case::v4_off(&[(V4, "0"), (V6, "1")], Some("forwarding.ipv4"), Some("sysctl -w net.ipv4.ip_forward=1"))]
    #[case::v6_off(&[(V4, "1"), (V6, "0")], Some("forwarding.ipv6"), Some("sysctl -w net.ipv6.conf.all.forwarding=1"))]
    #[case::v6_not_there(&[(V4, "1")], None, None)]
    #[case::one_interface_off(
        &[(V4, "1"), ("net/ipv4/conf/wan.7/forwarding", "0")],
        Some("forwarding.interface"), Some("sysctl -w net/ipv4/conf/wan.7/forwarding=1"))]
    fn forwarding(
        #[case] values: &[(&str, &str)],
        #[case] stops: Option<&str>,
        #[case] cure: Option<&str>,
    ) {
        let links = Links::of(vec![Link::named("wan.7")]);
        let findings = judge(&Sysctls::of(values), &links, &config(""));
        let stop = findings.iter().find(|finding| finding.level == Level::Stop);
        assert_eq!(stop.map(|finding| finding.id), stops);
        assert_eq!(stop.and_then(|finding| finding.cure.as_deref()), cure);
    }

    #[test]
    fn a_family_that_no_campus_has_does_not_matter() {
        let mut config = config("");
        for campus in &mut config.campuses {
            campus.prefixes.retain(|prefix| prefix.addr().is_ipv4());
        }
        let findings = judge(
            &Sysctls::of(&[(V4, "1"), (V6, "0")]),
            &Links::default(),
            &config,
        );
        assert_eq!(level(&findings, "forwarding.ipv6"), None);
        assert_eq!(level(&findings, "forwarding.ipv4"), Some(Level::Ok));
    }
}
