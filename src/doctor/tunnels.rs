//! Whether the kernel can make the tunnels that the peers need.

use std::net::IpAddr;

use pepd_config::{Config, Peer};

use super::finding::{Finding, Level};
use super::modules::{Modules, Presence};

/// Gives one finding per module: one for each family of the tunnels' outer addresses and of what
/// goes through them.
pub fn judge(modules: &Modules, config: &Config) -> Vec<Finding> {
    let mut wanted: Vec<(&str, Vec<&str>)> = Vec::new();
    for peer in &config.peers {
        for module in modules_of(peer, config) {
            match wanted.iter_mut().find(|(known, _)| *known == module) {
                Some((_, peers)) => peers.push(&peer.name),
                None => wanted.push((module, vec![&peer.name])),
            }
        }
    }
    wanted
        .into_iter()
        .map(|(module, peers)| judge_module(modules, module, &peers))
        .collect()
}

/// Names the modules that the peers' tunnels need and this kernel does not have, each with what that means.
pub fn refused_here(config: &Config) -> Vec<(String, String)> {
    let refused = judge(&Modules::gather(), config).into_iter();
    let refused = refused.filter(|finding| finding.level == Level::Stop);
    refused
        .filter_map(|finding| Some((finding.subject?, finding.found)))
        .collect()
}

/// Gives the modules that a peer's tunnel needs. Over IPv4, ipip carries IPv4 and sit carries both;
/// over IPv6, ip6_tunnel carries both.
fn modules_of(peer: &Peer, config: &Config) -> Vec<&'static str> {
    let prefixes = config.campuses.iter().flat_map(|campus| &campus.prefixes);
    let mut inner = prefixes.chain(&peer.inside);
    match peer.local {
        IpAddr::V6(_) => vec!["ip6_tunnel"],
        IpAddr::V4(_) if inner.any(|prefix| prefix.addr().is_ipv6()) => vec!["sit"],
        IpAddr::V4(_) => vec!["ipip"],
    }
}

fn judge_module(modules: &Modules, module: &str, peers: &[&str]) -> Finding {
    const ID: &str = "tunnel.module";
    let release = &modules.release;
    let finding = match modules.presence(module) {
        Presence::Loaded => Finding::ok(ID, "the kernel has it"),
        Presence::Loadable => Finding::ok(ID, "the kernel loads it when the tunnel is made"),
        Presence::Missing => Finding::stop(ID, format!("kernel {release} has no module {module}"))
            .because(format!(
                "the tunnel to {} cannot be made, and `pepd run` ends",
                peers.join(", ")
            ))
            .advice(
                "boot a kernel that has it, such as Debian's linux-image-amd64 or \
                 linux-image-arm64",
            ),
    };
    finding.about(module)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::fixture::config;

    fn with_peer(local: &str) -> Config {
        let mut config = config("");
        config.peers.push(Peer {
            name: "hb-i".to_owned(),
            local: local.parse().unwrap(),
            remote: local.parse().unwrap(),
            mtu: None,
            inside: Vec::new(),
            ttl: None,
            tos: pepd_config::Tos::Inherit,
            reverse_path_filter: false,
            keep: false,
            probe: None,
        });
        config
    }

    #[rstest]
    #[case::both_families("192.0.2.1", &["ipip"], &["sit"], &[("sit", Level::Ok)])]
    #[case::sit_missing("192.0.2.1", &["ipip"], &[], &[("sit", Level::Stop)])]
    #[case::over_v6("2001:db8::1", &["ipip", "sit"], &[], &[("ip6_tunnel", Level::Stop)])]
    fn modules(
        #[case] local: &str,
        #[case] loaded: &[&str],
        #[case] loadable: &[&str],
        #[case] expected: &[(&str, Level)],
    ) {
        let findings = judge(&Modules::of(loaded, loadable), &with_peer(local));
        let found: Vec<_> = findings
            .iter()
            .map(|finding| (finding.subject.as_deref().unwrap(), finding.level))
            .collect();
        assert_eq!(found, expected);
    }

    /// The campuses may have no IPv6, and the tunnel's ends some.
    #[rstest]
    #[case::none(&[], "ipip")]
    #[case::ipv4(&["10.255.0.1/30"], "ipip")]
    #[case::ipv6(&["10.255.0.1/30", "fd00:ffff::1/64"], "sit")]
    fn addresses_inside(#[case] inside: &[&str], #[case] expected: &str) {
        let mut config = with_peer("192.0.2.1");
        for campus in &mut config.campuses {
            campus.prefixes.retain(|prefix| prefix.addr().is_ipv4());
        }
        config.peers[0].inside = inside.iter().map(|net| net.parse().unwrap()).collect();
        let findings = judge(&Modules::of(&[], &[]), &config);
        assert_eq!(findings[0].subject.as_deref(), Some(expected));
    }

    #[test]
    fn without_peers_no_module_matters() {
        assert_eq!(judge(&Modules::of(&[], &[]), &config("")), []);
    }
}
