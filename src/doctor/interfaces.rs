//! The interfaces towards campuses and peers: routes, state, MTU and offloads.

use pepd_config::{Config, LinkSource, Via};

use super::finding::Finding;
use super::links::{Link, Links, Target};

/// The least MTU that carries IPv6 (RFC 8200, section 5).
const IPV6_LEAST: u32 = 1280;

/// Bytes of an IPv4 or IPv6 header in front of a tunnel's packets.
const OUTER4: u32 = 20;
const OUTER6: u32 = 40;

/// Judges the routes and the interfaces that they lead out by.
pub fn judge(links: &Links, config: &Config) -> Vec<Finding> {
    let mut findings = missing_routes(links);
    for link in links.out() {
        findings.extend(state(link));
        findings.extend(mtu(link, links));
        findings.extend(offloads(link));
    }
    findings.extend(segments(links, config));
    findings.extend(tunnels(links, config));
    findings.extend(telling(links, config));
    findings
}

/// Judges the interfaces that tell of the links under legs: one that is not there says that its link is
/// gone, for as long as that is so.
fn telling(links: &Links, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for leg in &config.legs {
        let Some(LinkSource::Interface(name)) = &leg.link else {
            continue;
        };
        if links.lacks(name) {
            findings.push(
                Finding::stop("link", format!("there is no interface {name}"))
                    .about(format!("leg {}", leg.name))
                    .because(
                        "its link counts as gone until there is: nothing new is connected over it",
                    )
                    .advice("`ip -br link` names those that there are"),
            );
        }
    }
    findings
}

fn missing_routes(links: &Links) -> Vec<Finding> {
    const ID: &str = "route";
    let missing = links
        .routes
        .iter()
        .filter(|route| route.interfaces.is_empty());
    let mut findings: Vec<_> = missing
        .map(|route| {
            let finding = if matches!(route.to, Target::Peer(_)) {
                Finding::stop(ID, format!("no route to {}", route.prefix.addr()))
                    .because("the tunnel's packets have no way out")
            } else {
                Finding::note(ID, format!("no route to {}", route.prefix))
                    .because("connections to it find it unreachable, with pepd as without")
            };
            finding
                .about(route.to.to_string())
                .advice("see `ip route` and `ip -6 route`")
        })
        .collect();
    // The default route of one family often leads nowhere.
    if findings.is_empty() {
        findings.push(Finding::ok(ID, "there is a route to every campus and peer"));
    }
    findings
}

/// Notes a missing carrier. An interface that is switched off has no routes; one without a carrier
/// keeps them.
fn state(link: &Link) -> Option<Finding> {
    (!link.up).then(|| {
        Finding::note("interface", "has no carrier")
            .about(&link.name)
            .because("a campus or a peer is reached by it")
            .advice("look at the cable, the modem or the other end")
    })
}

fn mtu(link: &Link, links: &Links) -> Option<Finding> {
    const ID: &str = "mtu";
    // Below the least MTU the kernel takes IPv6, and so the route, off the interface.
    let v6 = links.routes.iter().any(|route| {
        let here = route.interfaces.is_empty() || route.interfaces.contains(&link.name);
        here && route.prefix.addr().is_ipv6()
    });
    let found = format!("{} bytes", link.mtu);
    let finding = if v6 && link.mtu < IPV6_LEAST {
        Finding::stop(ID, found)
            .because("IPv6 does not work below 1280 (RFC 8200, section 5)")
            .cure(format!("ip link set {} mtu {IPV6_LEAST}", link.name))
            .advice("the addresses that the kernel took off the interface have to be added again")
    } else {
        Finding::ok(ID, found)
    };
    Some(finding.about(&link.name))
}

/// Judges the offloads that ethtool(8) told; what it did not tell gives no finding.
fn offloads(link: &Link) -> Vec<Finding> {
    const LRO: &str = "large-receive-offload";
    const GRO: &str = "generic-receive-offload";
    const GSO: &str = "generic-segmentation-offload";
    let Some(features) = &link.features else {
        return vec![
            Finding::note(
                "offload",
                "could not be looked at: ethtool is missing or failed",
            )
            .about(&link.name)
            .because("of packets joined by LRO a router cannot restore the original ones")
            .cure("apt-get install ethtool"),
        ];
    };
    let is = |name: &str| features.get(name).copied();
    let mut findings = Vec::new();
    if is(LRO) == Some(true) {
        findings.push(
            Finding::slow("offload.lro", "large receive offload is on")
                .about(&link.name)
                .because(
                    "it joins packets for good: what is forwarded then is too large for the \
                     next hop and is dropped",
                )
                .cure(format!("ethtool -K {} lro off", link.name)),
        );
    }
    let (gro, gso) = (is(GRO) != Some(false), is(GSO) != Some(false));
    if gro && gso {
        findings.push(Finding::ok("offload.segments", "GRO and GSO are on").about(&link.name));
    } else {
        let off = match (gro, gso) {
            (false, false) => "GRO and GSO are off",
            (false, true) => "GRO is off",
            _ => "GSO is off",
        };
        findings.push(
            Finding::slow("offload.segments", off)
                .about(&link.name)
                .because(
                    "every packet goes through the kernel by itself instead of up to 45 at \
                     once: both legs cost several times the CPU",
                )
                .cure(format!("ethtool -K {} gro on gso on", link.name)),
        );
    }
    findings
}

/// Judges each leg's `mss` by the interfaces that its campuses are reached by.
fn segments(links: &Links, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for leg in &config.legs {
        let Some(mss) = leg.mss else { continue };
        let routes = config
            .campuses
            .iter()
            .filter(|campus| config.leg(campus.leg).name == leg.name)
            .flat_map(|campus| {
                let to = Target::Campus(campus.name.clone());
                links.routes.iter().filter(move |route| route.to == to)
            });
        let smallest = routes
            .flat_map(|route| &route.interfaces)
            .filter_map(|name| links.named(name))
            .min_by_key(|link| link.mtu);
        let Some(link) = smallest else { continue };
        // IPv4's and TCP's headers.
        let fits = link.mtu.saturating_sub(40);
        let found = format!("mss = {mss}; {} carries {fits} and headers", link.name);
        let finding = if u32::from(mss) > fits {
            Finding::note("mss", found)
                .because("the kernel uses the smaller one: the key has no effect")
                .advice(format!(
                    "leave `mss` out of [leg.{}], or lower it",
                    leg.name
                ))
        } else {
            Finding::ok("mss", found)
        };
        findings.push(finding.about(format!("leg {}", leg.name)));
    }
    findings
}

/// Judges each tunnel's MTU by the route that its packets take.
fn tunnels(links: &Links, config: &Config) -> Vec<Finding> {
    let behind = |name: &str| {
        config.campuses.iter().any(|campus| {
            matches!(campus.via, Via::Peer(id) if config.peers.get(id.0).is_some_and(|p| p.name == name))
        })
    };
    let mut findings = Vec::new();
    for peer in config.peers.iter().filter(|peer| behind(&peer.name)) {
        let to = Target::Peer(peer.name.clone());
        let route = links.routes.iter().find(|route| route.to == to);
        let link = route.and_then(|route| links.named(route.interfaces.first()?));
        let (Some(link), Some(mtu)) = (link, peer.mtu) else {
            continue;
        };
        let header = if peer.remote.is_ipv4() {
            OUTER4
        } else {
            OUTER6
        };
        let fits = link.mtu.saturating_sub(header);
        let found = format!(
            "mtu = {mtu}; {} carries {fits} and the outer header",
            link.name
        );
        let finding = if u32::from(mtu) > fits {
            Finding::slow("tunnel.mtu", found)
                .because("the largest packets are fragmented, or dropped where that is forbidden")
                .advice(format!(
                    "write mtu = {fits}, or leave it out: then it follows the path"
                ))
        } else {
            Finding::ok("tunnel.mtu", found)
        };
        findings.push(finding.about(to.to_string()));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::{Level, worst};
    use crate::doctor::fixture::{config, level};
    use crate::doctor::links::Route;

    fn way(to: &str, prefix: &str, interface: Option<&str>) -> Route {
        let to = match to.split_once(' ').unwrap() {
            ("peer", name) => Target::Peer(name.to_owned()),
            (_, name) => Target::Campus(name.to_owned()),
        };
        Route {
            to,
            prefix: prefix.parse().unwrap(),
            interfaces: interface.into_iter().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn an_interface_that_tells_of_a_link_is_there() {
        let text = "[leg.radio]\nlink = { interface = \"wan\" }\n";
        let config = config(text);
        let there = Links::of(vec![Link::named("wan")]);
        assert_eq!(level(&telling(&there, &config), "link"), None);
        let other = Links::of(vec![Link::named("eth0")]);
        assert_eq!(level(&telling(&other, &config), "link"), Some(Level::Stop));
        // Nobody has told which there are.
        assert_eq!(level(&telling(&Links::default(), &config), "link"), None);
    }

    #[rstest]
    #[case::lro("large-receive-offload", true, "offload.lro", Some(Level::Slow))]
    #[case::no_lro("large-receive-offload", false, "offload.lro", None)]
    #[case::no_gro(
        "generic-receive-offload",
        false,
        "offload.segments",
        Some(Level::Slow)
    )]
    #[case::gro("generic-receive-offload", true, "offload.segments", Some(Level::Ok))]
    fn features(
        #[case] name: &str,
        #[case] on: bool,
        #[case] id: &str,
        #[case] expected: Option<Level>,
    ) {
        let mut link = Link::named("wan");
        link.features = Some([(name.to_owned(), on)].into());
        assert_eq!(level(&offloads(&link), id), expected);
    }

    #[rstest]
    #[case::a_campus("campus b", Some("wan"), Level::Ok)]
    #[case::a_campus_without("campus b", None, Level::Note)]
    #[case::a_peer_without("peer hb-i", None, Level::Stop)]
    fn ways(#[case] to: &str, #[case] interface: Option<&str>, #[case] expected: Level) {
        let links = Links {
            names: BTreeSet::new(),
            routes: vec![way(to, "192.0.2.0/24", interface)],
            links: Vec::new(),
        };
        assert_eq!(worst(&missing_routes(&links)), expected);
    }

    #[rstest]
    #[case("2001:db8::/32", 1200, Level::Stop)]
    #[case("192.0.2.0/24", 1200, Level::Ok)]
    #[case("2001:db8::/32", 1280, Level::Ok)]
    fn ipv6_needs_1280(#[case] prefix: &str, #[case] bytes: u32, #[case] expected: Level) {
        let mut link = Link::named("wan");
        link.mtu = bytes;
        let links = Links {
            names: BTreeSet::new(),
            routes: vec![way("campus b", prefix, Some("wan"))],
            links: vec![link],
        };
        let finding = mtu(&links.links[0], &links).unwrap();
        assert_eq!(finding.level, expected);
    }

    #[rstest]
    #[case(1400, Level::Ok)]
    #[case(1460, Level::Ok)]
    #[case(8960, Level::Note)]
    fn a_segment_must_fit(#[case] mss: u16, #[case] expected: Level) {
        let mut config = config("");
        let leg = config.campuses[0].leg.0;
        config.legs[leg].mss = Some(mss);
        let to = format!("campus {}", config.campuses[0].name);
        let links = Links {
            names: BTreeSet::new(),
            routes: vec![way(&to, "192.0.2.0/24", Some("wan"))],
            links: vec![Link::named("wan")],
        };
        assert_eq!(worst(&segments(&links, &config)), expected);
    }
}
