//! Asking the kernel where it would send a captured packet (RTM_GETROUTE with a mark and an
//! incoming device): by its own rules, routes and reverse-path check, without a packet.
//!
//! It is asked for an address of each campus that the host has a route to, as if it came by the
//! device that this leads to. Where there is no such route, nothing is known of the campus.

use std::net::IpAddr;

use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::finding::{Cause, Finding};
use crate::netlink::{NetlinkError, address_family, route_address};
use crate::plan::{Plan, PlannedCampus};
use crate::prefix::{Family, Range, address};
use crate::preflight::host::read;
use crate::route::netlink::Routing;

/// The most campuses that are asked about: a hundred more would tell nothing new.
const MOST: usize = 32;

/// Where in a campus's addresses one is looked for: the first ones are mostly a router's.
const OFFSETS: [u128; 3] = [2, 9, 77];

pub(super) async fn findings(routing: &Routing, plan: &Plan) -> Result<Vec<Finding>, NetlinkError> {
    let mut findings: Vec<Finding> = Vec::new();
    if !plan.captures {
        return Ok(findings);
    }
    for &family in &plan.families {
        let mut ends: Vec<End> = Vec::new();
        for campus in plan.campuses.iter().take(MOST) {
            ends.extend(End::of(routing, campus, family).await);
        }
        for (index, from) in ends.iter().enumerate() {
            let Some(to) = ends
                .get((index + 1) % ends.len())
                .filter(|to| to.address != from.address)
            else {
                continue;
            };
            let asked = Question {
                from: Some((from.address, from.device)),
                to: to.address,
                mark: plan.mark.value.0,
            };
            let found = match routing.lookup(family, &asked).await {
                Ok(route) if route.header.kind == RouteType::Local => None,
                Ok(_) => Some(overtaken(routing, family, plan).await?),
                Err(error) if is_martian(&error) => Some(refused(routing, from).await?),
                Err(_) => Some(overtaken(routing, family, plan).await?),
            };
            findings.extend(found.filter(|found| !findings.contains(found)));
        }
    }
    Ok(findings)
}

/// An address of a campus's, and the device that leads there.
struct End {
    address: IpAddr,
    device: u32,
}

impl End {
    async fn of(routing: &Routing, campus: &PlannedCampus, family: Family) -> Option<Self> {
        for range in campus.of(family).take(4) {
            for address in candidates(range) {
                let asked = Question {
                    from: None,
                    to: address,
                    mark: 0,
                };
                if let Ok(route) = routing.lookup(family, &asked).await
                    && route.header.kind == RouteType::Unicast
                    && let Some(device) = device(&route)
                {
                    return Some(Self { address, device });
                }
            }
        }
        None
    }
}

/// Gives a few addresses of a range that may be a host's.
fn candidates(range: &Range) -> impl Iterator<Item = IpAddr> {
    let offsets = OFFSETS
        .into_iter()
        .map(|offset| range.first.saturating_add(offset));
    let all = offsets.chain([range.last.saturating_sub(2), range.first]);
    all.filter(|number| (range.first..=range.last).contains(number))
        .map(|number| address(range.family, number))
        .filter(|address| match address {
            IpAddr::V4(v4) => (1..=223).contains(&v4.octets()[0]) && !v4.is_loopback(),
            // Global unicast and unique local addresses.
            IpAddr::V6(v6) => matches!(v6.octets()[0], 0x20..=0x3f | 0xfc | 0xfd),
        })
}

/// A packet whose way is asked for.
pub(crate) struct Question {
    /// Where it comes from, and by which device; none if it is this host's own.
    pub(crate) from: Option<(IpAddr, u32)>,
    pub(crate) to: IpAddr,
    pub(crate) mark: u32,
}

impl Routing {
    /// Asks which way the kernel would send a packet.
    async fn lookup(
        &self,
        family: Family,
        asked: &Question,
    ) -> Result<RouteMessage, std::io::Error> {
        let bits = family.everything().max_prefix_len();
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(family);
        message.header.destination_prefix_length = bits;
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Destination(route_address(asked.to)));
        attributes.push(RouteAttribute::Mark(asked.mark));
        if let Some((address, device)) = asked.from {
            message.header.source_prefix_length = bits;
            attributes.push(RouteAttribute::Source(route_address(address)));
            attributes.push(RouteAttribute::Iif(device));
        }
        self.way(message).await
    }
}

/// Returns the index of the interface to the network of this host's that an address is on: a packet for it goes there,
/// and not to a router. None where it goes to a router, or is this host's own.
///
/// # Errors
///
/// Where the kernel is not to be asked, or has no way there.
pub async fn link_to(address: IpAddr) -> std::io::Result<Option<u32>> {
    let route = way_to(address).await?;
    let mut attributes = route.attributes.iter();
    let by_router =
        attributes.any(|it| matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)));
    let is_on_link = route.header.kind == RouteType::Unicast && !by_router;
    Ok(device(&route).filter(|_| is_on_link))
}

/// Tells whether an address is one of this host's own.
///
/// # Errors
///
/// Where the kernel is not to be asked, or has no way there.
pub async fn is_local(address: IpAddr) -> std::io::Result<bool> {
    Ok(way_to(address).await?.header.kind == RouteType::Local)
}

/// Returns the address from which this host sends what it sends there of its own.
///
/// # Errors
///
/// Where the kernel is not to be asked, or has no way there.
pub async fn source_towards(address: IpAddr) -> std::io::Result<Option<IpAddr>> {
    let route = way_to(address).await?;
    let mut attributes = route.attributes.iter();
    Ok(attributes.find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => Some(IpAddr::from(*v4)),
        RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => Some(IpAddr::from(*v6)),
        _ => None,
    }))
}

/// Asks which way the kernel would send a packet of this host's own.
async fn way_to(address: IpAddr) -> std::io::Result<RouteMessage> {
    let routing = Routing::open().map_err(|error| error.source)?;
    let asked = Question {
        from: None,
        to: address,
        mark: 0,
    };
    routing.lookup(Family::of(address), &asked).await
}

/// Returns which of these packets, each from one address to another, the kernel would drop as ones that cannot come by an
/// interface (`rp_filter`; not IPv6).
///
/// # Errors
///
/// Where the kernel is not to be asked.
pub async fn impossible_by(
    device: u32,
    packets: &[(IpAddr, IpAddr)],
) -> std::io::Result<Vec<bool>> {
    let routing = Routing::open().map_err(|error| error.source)?;
    let mut impossible = Vec::with_capacity(packets.len());
    for &(from, to) in packets {
        let asked = Question {
            from: Some((from, device)),
            to,
            mark: 0,
        };
        // Whatever else is in the way is so for every packet to there.
        let way = routing.lookup(Family::of(to), &asked).await;
        impossible.push(way.is_err_and(|error| is_martian(&error)));
    }
    Ok(impossible)
}

fn device(route: &RouteMessage) -> Option<u32> {
    route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(device) => Some(*device),
            _ => None,
        })
}

/// Returns whether the kernel takes the source for impossible: fib_validate_source,
/// net/ipv4/fib_frontend.c.
fn is_martian(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EINVAL))
}

/// Another rule comes before pepd's, or pepd's are gone.
async fn overtaken(
    routing: &Routing,
    family: Family,
    plan: &Plan,
) -> Result<Finding, NetlinkError> {
    let (table, flag) = (plan.table, family.flag());
    let mark = plan.mark;
    let Some(preference) = routing.overtaking_rule(family).await? else {
        return Ok(Finding {
            cause: Cause::Routing,
            certain: true,
            text: format!(
                "captured {} packets would not be delivered to this host: the rule `fwmark {mark} \
                 lookup {table}`, or the local route in table {table}, is not in force",
                family.name()
            ),
            cure: format!("ip {flag} rule; ip {flag} route show table {table}"),
        });
    };
    Ok(Finding {
        cause: Cause::Routing,
        certain: true,
        text: format!(
            "captured {} packets would not be delivered to this host: your `ip rule` with \
             preference {preference} comes before pepd's `fwmark {mark} lookup {table}`",
            family.name()
        ),
        cure: format!(
            "give it a preference above 100, or exempt pepd's mark from it: ip {flag} rule show \
             preference {preference}"
        ),
    })
}

/// The reverse-path check drops captured packets that come by a device.
async fn refused(routing: &Routing, from: &End) -> Result<Finding, NetlinkError> {
    let name = routing.tunnels().names().await?;
    let name = name.get(&from.device).map_or("all", String::as_str);
    let set = |interface: &str, key: &str| {
        let value = read(&format!("net/ipv4/conf/{interface}/{key}"));
        value.is_some_and(|value| value != "0")
    };
    let marked = ["all", name]
        .into_iter()
        .find(|at| set(at, "src_valid_mark"));
    let (text, cure) = match marked {
        Some(at) => (
            format!(
                "net.ipv4.conf.{at}.src_valid_mark is 1: the kernel validates the source of \
                 captured packets against pepd's own table, and drops them"
            ),
            format!("sysctl -w net.ipv4.conf.{at}.src_valid_mark=0"),
        ),
        None => (
            format!(
                "the kernel takes {} for a source that cannot come by {name} (rp_filter), and \
                 drops captured packets from there",
                from.address
            ),
            format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2"),
        ),
    };
    Ok(Finding {
        cause: Cause::SourceValidation,
        certain: true,
        text,
        cure,
    })
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    fn of(prefix: &str) -> Vec<String> {
        let range = Range::from(prefix.parse::<IpNet>().unwrap());
        candidates(&range)
            .map(|address| address.to_string())
            .collect()
    }

    #[test]
    fn addresses_to_ask_about_may_be_hosts() {
        assert_eq!(
            of("10.1.0.0/24"),
            [
                "10.1.0.2",
                "10.1.0.9",
                "10.1.0.77",
                "10.1.0.253",
                "10.1.0.0"
            ]
        );
        assert_eq!(of("192.0.2.7/32"), ["192.0.2.7"]);
        assert!(of("240.0.0.0/4").is_empty());
        assert_eq!(of("fd00:a::/64")[0], "fd00:a::2");
        assert!(of("fe80::/10").is_empty());
    }
}
