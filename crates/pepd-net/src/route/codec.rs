//! Rules and routes as netlink has them: made from [`Item`]s, and read back.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use pepd_packet::{MarkMask, MarkValue};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};

use super::item::{Hop, Item, Source};
use super::netlink::{
    LOOPBACK, LOOPBACK_NAME, NEXT_PREFERENCE, PREFERENCE, PROBE_PREFERENCE, PROBE_TOS, PROTOCOL,
    WINDOWS_PREFERENCE, address_family,
};
use super::{initcwnd as windows, next_hop as next};
use crate::error::Error;
use crate::prefix::Family;
use crate::request::Mark;
use crate::tunnel;

pub(super) fn route_message(family: Family, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.kind = RouteType::Local;
    message.header.scope = match family {
        Family::V4 => RouteScope::Host,
        Family::V6 => RouteScope::Universe,
    };
    message.attributes.push(RouteAttribute::Table(table));
    message.attributes.push(RouteAttribute::Oif(LOOPBACK));
    message
}

pub(super) fn rule_message(preference: u32, family: Family, mark: Mark, table: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(family);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(preference),
        RuleAttribute::FwMark(mark.value.0),
        RuleAttribute::FwMask(mark.mask.0),
        RuleAttribute::Table(table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    message
}

pub(super) fn select_message(family: Family, from: &Source, table: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(family);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(NEXT_PREFERENCE),
        RuleAttribute::Table(table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    match from {
        Source::Prefix(net) => {
            message.header.src_len = net.prefix_len();
            // The kernel takes no address of length 0.
            if net.prefix_len() > 0 {
                message.attributes.push(RuleAttribute::Source(net.addr()));
            }
        }
        Source::Device(name) => {
            let name = name.clone();
            message.attributes.push(RuleAttribute::Iifname(name));
        }
        Source::Own => message.attributes.extend([
            RuleAttribute::Iifname(LOOPBACK_NAME.to_owned()),
            RuleAttribute::SuppressPrefixLen(0),
        ]),
    }
    message
}

pub(super) fn probe_message(local: Ipv4Addr, remote: Ipv4Addr, table: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.action = RuleAction::ToTable;
    message.header.tos = PROBE_TOS;
    message.header.src_len = 32;
    message.header.dst_len = 32;
    message.attributes = vec![
        RuleAttribute::Priority(PROBE_PREFERENCE),
        RuleAttribute::Source(local.into()),
        RuleAttribute::Destination(remote.into()),
        RuleAttribute::IpProtocol(IpProtocol::Icmp),
        RuleAttribute::Table(table),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    message
}

pub(super) fn way_message(
    table: u32,
    to: IpNet,
    hop: Option<&Hop>,
    devices: &BTreeMap<u32, String>,
) -> Result<RouteMessage, Error> {
    let family = Family::of(to.addr());
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.destination_prefix_length = to.prefix_len();
    message.attributes.push(RouteAttribute::Table(table));
    message
        .attributes
        .push(RouteAttribute::Destination(route_address(to.addr())));
    let Some(hop) = hop else {
        message.header.kind = RouteType::Throw;
        return Ok(message);
    };
    let index = devices
        .iter()
        .find(|(_, name)| **name == hop.device)
        .map(|(index, _)| *index)
        .ok_or_else(|| Error::Drift {
            what: format!("the tunnel {} is not there", hop.device),
        })?;
    message.header.kind = RouteType::Unicast;
    message.header.scope = match family {
        Family::V4 => RouteScope::Link,
        Family::V6 => RouteScope::Universe,
    };
    message.attributes.push(RouteAttribute::Oif(index));
    let source = hop.source.map(route_address);
    message
        .attributes
        .extend(source.map(RouteAttribute::PrefSource));
    if let Some(window) = hop.window {
        message.attributes.push(RouteAttribute::Metrics(vec![
            RouteMetric::InitCwnd(window),
            RouteMetric::InitRwnd(window),
        ]));
    }
    Ok(message)
}

pub(super) fn copy_message(
    family: Family,
    table: u32,
    to: IpNet,
    route: &RouteMessage,
) -> RouteMessage {
    let mut message = route.clone();
    message.header.address_family = address_family(family);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.destination_prefix_length = to.prefix_len();
    message.attributes.extend([
        RouteAttribute::Table(table),
        RouteAttribute::Destination(route_address(to.addr())),
    ]);
    message
}

/// A rule that pepd made; none for anybody else's.
pub(super) fn own_rule(family: Family, rule: &RuleMessage) -> Option<Item> {
    let protocol = RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL));
    if !rule.attributes.contains(&protocol) || rule.header.action != RuleAction::ToTable {
        return None;
    }
    let table = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        });
    let table = table.unwrap_or(u32::from(rule.header.table));
    match rule_preference(rule) {
        PREFERENCE => rule_mark(rule).map(|mark| Item::Rule {
            family,
            mark,
            table,
        }),
        WINDOWS_PREFERENCE => rule_mark(rule).map(|mark| Item::Windows {
            family,
            mark,
            table,
        }),
        NEXT_PREFERENCE => {
            let mut from = Source::Prefix(next::everything(family));
            for attribute in &rule.attributes {
                match attribute {
                    RuleAttribute::Source(source) => {
                        from = Source::Prefix(IpNet::new(*source, rule.header.src_len).ok()?);
                    }
                    RuleAttribute::Iifname(name) if name == LOOPBACK_NAME => from = Source::Own,
                    RuleAttribute::Iifname(name) => from = Source::Device(name.clone()),
                    _ => {}
                }
            }
            Some(Item::Select {
                family,
                from,
                table,
            })
        }
        PROBE_PREFERENCE => {
            let (mut local, mut remote) = (None, None);
            for attribute in &rule.attributes {
                match attribute {
                    RuleAttribute::Source(IpAddr::V4(source)) => local = Some(*source),
                    RuleAttribute::Destination(IpAddr::V4(end)) => remote = Some(*end),
                    _ => {}
                }
            }
            Some(Item::Probe {
                local: local?,
                remote: remote?,
                table,
            })
        }
        _ => None,
    }
}

pub(super) fn rule_mark(rule: &RuleMessage) -> Option<Mark> {
    let value = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::FwMark(value) => Some(MarkValue(*value)),
            _ => None,
        })?;
    let mask = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::FwMask(mask) => Some(MarkMask(*mask)),
            _ => None,
        });
    Some(Mark {
        value,
        mask: mask.unwrap_or(MarkMask(u32::MAX)),
    })
}

pub(super) fn rule_preference(rule: &RuleMessage) -> u32 {
    let preference = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Priority(preference) => Some(*preference),
            _ => None,
        });
    // The kernel leaves the attribute out for preference 0.
    preference.unwrap_or_default()
}

/// A route that pepd made; none for anybody else's.
pub(super) fn own_route(
    family: Family,
    table: u32,
    route: &RouteMessage,
    devices: &BTreeMap<u32, String>,
) -> Option<Item> {
    if route.header.protocol != RouteProtocol::Other(PROTOCOL) {
        return None;
    }
    let to = next::destination(family, route)?;
    let mut hop = Hop {
        device: String::new(),
        source: None,
        window: None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => hop.source = Some((*v4).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => hop.source = Some((*v6).into()),
            RouteAttribute::Oif(index) => {
                hop.device = devices.get(index).cloned().unwrap_or_default()
            }
            RouteAttribute::Metrics(metrics) => {
                hop.window = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::InitCwnd(window) => Some(*window),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    match route.header.kind {
        RouteType::Local if to.prefix_len() == 0 && hop.device == LOOPBACK_NAME => {
            Some(Item::Route { family, table })
        }
        RouteType::Throw => Some(Item::Way {
            table,
            to,
            hop: None,
        }),
        RouteType::Unicast if tunnel::is_device(&hop.device) => Some(Item::Way {
            table,
            to,
            hop: Some(hop),
        }),
        RouteType::Unicast
        | RouteType::BlackHole
        | RouteType::Unreachable
        | RouteType::Prohibit => Some(Item::Copy {
            family,
            table,
            to,
            route: Box::new(windows::normal(route)),
        }),
        _ => None,
    }
}

pub(crate) fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(v4) => RouteAddress::Inet(v4),
        IpAddr::V6(v6) => RouteAddress::Inet6(v6),
    }
}

pub(crate) fn route_table(route: &RouteMessage) -> u32 {
    let table = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
    table.unwrap_or(u32::from(route.header.table))
}
