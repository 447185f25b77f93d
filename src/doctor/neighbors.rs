//! Whether connections can move to other boxes, and come from them.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use nix::net::if_::if_indextoname;
use pepd_config::{Config, Neighbor};
use pepd_move::session::{Key, Name};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::finding::Finding;
use super::sysctl::{self, Sysctls, of_interface};
use crate::daemon::moving::{keys, prove};

/// The time in which a neighbor is to answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// What is known of each neighbor, in the order of the file, and of where they find this box.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Neighbors {
    known: Vec<Known>,
    /// Where this box listens for them, if that is no address of this host's.
    elsewhere: Option<SocketAddr>,
}

/// What is known of one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: String,
    /// Where its key is.
    path: String,
    /// What is wrong with the key, if anything is.
    key: Result<(), String>,
    /// The interface that leads to each of its addresses, or why none does.
    ways: Vec<(IpAddr, Result<String, String>)>,
    /// Why it does not answer, if it does not.
    answer: Result<(), String>,
}

impl Neighbors {
    /// Reads the keys, and asks the kernel and each neighbor.
    pub async fn gather(config: &Config) -> Self {
        let mut known = Vec::new();
        for neighbor in &config.moves.neighbors {
            let mut ways = Vec::new();
            for address in addresses(neighbor) {
                ways.push((address, way(address).await));
            }
            let key = keys::with(neighbor);
            let answer = answer(config, neighbor, &key).await;
            known.push(Known {
                name: neighbor.name.clone(),
                path: neighbor.key.display().to_string(),
                key: key.map(drop),
                ways,
                answer,
            });
        }
        Self {
            known,
            elsewhere: config.moves.listen.filter(|at| is_elsewhere(at.ip())),
        }
    }
}

/// Finds out whether a neighbor is there; and whether it has the key, where this box has one.
async fn answer(
    config: &Config,
    neighbor: &Neighbor,
    key: &Result<(Name, Key), String>,
) -> Result<(), String> {
    if let (Some(own), Ok((name, key))) = (Name::new(&config.node.name), key) {
        return prove(&own, name.clone(), key.clone(), neighbor.address).await;
    }
    match timeout(ANSWER_TIME, TcpStream::connect(neighbor.address)).await {
        Ok(connected) => connected.map(drop).map_err(|error| error.to_string()),
        Err(_) => Err(format!("nothing within {} s", ANSWER_TIME.as_secs())),
    }
}

/// Returns whether this host has no such address.
fn is_elsewhere(address: IpAddr) -> bool {
    let bound = UdpSocket::bind((address, 0));
    bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

fn addresses(neighbor: &Neighbor) -> impl Iterator<Item = IpAddr> {
    let v4 = neighbor.v4.map(IpAddr::from);
    v4.into_iter().chain(neighbor.v6.map(IpAddr::from))
}

async fn way(address: IpAddr) -> Result<String, String> {
    match pepd_net::link_to(address).await {
        Ok(Some(index)) => Ok(if_indextoname(index).map_or_else(
            |_| index.to_string(),
            |name| name.to_string_lossy().into_owned(),
        )),
        Ok(None) => Err("it is on no network of this host's".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Judges them; nothing where there is no neighbor.
pub fn judge(neighbors: &Neighbors, sysctls: &Sysctls, config: &Config) -> Vec<Finding> {
    let elsewhere = neighbors.elsewhere.map(|at| {
        Finding::note(
            "neighbor.listen",
            format!("[move] listens at {at}, and this host has no such address"),
        )
        .because("no neighbor reaches it: nothing moves here until the address comes")
        .advice("give `listen` an address on the network of both boxes")
    });
    let known = neighbors.known.iter();
    let known = known.flat_map(|known| {
        let found = judge_one(known, sysctls, config);
        let well = Finding::ok(
            "neighbor",
            "it answers, and has the key; and there is a way to it",
        );
        let well = found.is_empty().then_some(well);
        let found = found.into_iter().chain(well);
        found.map(|finding| finding.about(&known.name))
    });
    elsewhere.into_iter().chain(known).collect()
}

fn judge_one(known: &Known, sysctls: &Sysctls, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Err(why) = &known.key {
        let key = Finding::stop("neighbor.key", format!("its key {}: {why}", known.path));
        found.push(key.because("`pepd run` ends").advice(
            "docs/move.md says how both boxes get one; and only root, as which `pepd run` reads it, may see it",
        ));
    }
    for (address, way) in &known.ways {
        match way {
            Ok(interface) => found.extend(strict(interface, *address, sysctls)),
            Err(why) => found.push(
                Finding::slow("neighbor.way", format!("{address}: {why}"))
                    .because("what still comes here cannot be sent on to it, so that nothing moves there")
                    .advice("give `via` its addresses on a network of both boxes"),
            ),
        }
    }
    let campuses = config.campuses.iter().flat_map(|campus| &campus.prefixes);
    let campuses = campuses.map(|prefix| prefix.addr().is_ipv6());
    for (is_v6, family) in [(false, "IPv4"), (true, "IPv6")] {
        let is_missing = known
            .ways
            .iter()
            .all(|(address, _)| address.is_ipv6() != is_v6);
        if is_missing && campuses.clone().any(|it| it == is_v6) {
            let way = Finding::note("neighbor.way", format!("`via` has no address of {family}"));
            found.push(way.because(format!("connections over {family} stay")));
        }
    }
    if let Err(why) = &known.answer {
        found.push(
            Finding::note("neighbor.answer", format!("no session with it: {why}"))
                .because("nothing moves there meanwhile")
                .advice(
                    "see that pepd runs there with [move] listen, that both boxes have the same key and each other's \
                     names, and what a firewall between says",
                ),
        );
    }
    found
}

/// Judges reverse-path filtering where what the neighbor sends on comes in.
fn strict(interface: &str, address: IpAddr, sysctls: &Sysctls) -> Option<Finding> {
    if address.is_ipv6() {
        return None;
    }
    let value = |interface: &str| sysctls.interface(interface, "rp_filter").unwrap_or(0);
    if value(interface).max(value("all")) != 1 {
        return None;
    }
    let path = of_interface(interface, "rp_filter");
    let finding = Finding::stop(
        "neighbor.way",
        format!("rp_filter is strict on {interface}"),
    );
    let finding = finding.because(
        "what it sends on for connections that have moved here comes from hosts that are elsewhere, and is dropped: \
         they stand still",
    );
    // The larger of the two counts, and 2 is loose.
    Some(finding.cure(sysctl::set(&path, 2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::config;

    fn known() -> Known {
        Known {
            name: "hb-c".to_owned(),
            path: "/etc/pepd/keys/hb-c".to_owned(),
            key: Ok(()),
            ways: vec![
                ("10.9.0.2".parse().unwrap(), Ok("lan".to_owned())),
                ("fd00:9::2".parse().unwrap(), Ok("lan".to_owned())),
            ],
            answer: Ok(()),
        }
    }

    fn found(known: Known, filter: &str) -> Vec<(&'static str, Level)> {
        let sysctls = Sysctls::of(&[("net/ipv4/conf/lan/rp_filter", filter)]);
        let neighbors = Neighbors {
            known: vec![known],
            elsewhere: None,
        };
        let found = judge(&neighbors, &sysctls, &config(""));
        assert!(found.iter().all(|it| it.subject.as_deref() == Some("hb-c")));
        found.iter().map(|it| (it.id, it.level)).collect()
    }

    #[test]
    fn all_is_well_where_it_answers_on_a_network_of_both() {
        assert_eq!(found(known(), "2"), [("neighbor", Level::Ok)]);
    }

    #[test]
    fn where_this_box_listens_has_to_be_here() {
        assert!(is_elsewhere("192.0.2.1".parse().unwrap()));
        assert!(!is_elsewhere("127.0.0.1".parse().unwrap()));
        assert!(!is_elsewhere("0.0.0.0".parse().unwrap()));
        let neighbors = Neighbors {
            known: Vec::new(),
            elsewhere: Some("192.0.2.1:7310".parse().unwrap()),
        };
        let found = judge(&neighbors, &Sysctls::default(), &config(""));
        let found: Vec<_> = found.iter().map(|it| (it.id, it.level)).collect();
        assert_eq!(found, [("neighbor.listen", Level::Note)]);
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let no = || "no".to_owned();
        let wrong = || Err(no());
        assert_eq!(found(known(), "1"), [("neighbor.way", Level::Stop)]);
        let key = Known {
            key: wrong(),
            ..known()
        };
        assert_eq!(found(key, "0"), [("neighbor.key", Level::Stop)]);
        let answer = Known {
            answer: wrong(),
            ..known()
        };
        assert_eq!(found(answer, "0"), [("neighbor.answer", Level::Note)]);
        let mut way = known();
        way.ways = vec![("10.9.0.2".parse().unwrap(), Err(no()))];
        assert_eq!(
            found(way, "0"),
            [("neighbor.way", Level::Slow), ("neighbor.way", Level::Note)]
        );
    }
}
