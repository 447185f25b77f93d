//! Rules and routes as netlink has them: made from [`Item`]s, and read back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use pepd_packet::{MarkMask, MarkValue};
use rtnetlink::packet_core::Nla as _;
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::ids::{LOOPBACK, LOOPBACK_NAME, PROBE_TOS, PROTOCOL, Preference, RouteTable};
use super::item::{Item, NextHop, Route, Rule, Selector, Source, Target};
use crate::error::Drift;
use crate::netlink::{address_family, route_address};
use crate::prefix::Family;
use crate::request::{Mark, RouteWindows};
use crate::tunnel::spec as tunnel;

/// A message that carries an item to the kernel.
pub(super) enum Message {
    Route(RouteMessage),
    Rule(RuleMessage),
}

/// Makes the message that makes or deletes an item. It fails if the device that a route leads to is
/// not among `devices` (index to name).
pub(super) fn message(item: &Item, devices: &BTreeMap<u32, String>) -> Result<Message, Drift> {
    match item {
        Item::Route(route) => route_message(route, devices).map(Message::Route),
        Item::Rule(rule) => Ok(Message::Rule(rule_message(rule))),
    }
}

fn rule_message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(rule.family);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(rule.selector.preference().0),
        RuleAttribute::Table(rule.table.0),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    let attributes = &mut message.attributes;
    match &rule.selector {
        Selector::Captured(mark) | Selector::Relay(mark) => attributes.extend([
            RuleAttribute::FwMark(mark.value.0),
            RuleAttribute::FwMask(mark.mask.0),
        ]),
        Selector::From(Source::Prefix(net)) => {
            message.header.src_len = net.prefix_len();
            // The kernel takes no address of length 0.
            if net.prefix_len() > 0 {
                attributes.push(RuleAttribute::Source(net.addr()));
            }
        }
        Selector::From(Source::Device(name)) => {
            attributes.push(RuleAttribute::Iifname(name.clone()));
        }
        Selector::From(Source::Own) => attributes.extend([
            RuleAttribute::Iifname(LOOPBACK_NAME.to_owned()),
            RuleAttribute::SuppressPrefixLen(0),
        ]),
        Selector::Probe { local, remote } => {
            message.header.tos = PROBE_TOS;
            message.header.src_len = 32;
            message.header.dst_len = 32;
            attributes.extend([
                RuleAttribute::Source((*local).into()),
                RuleAttribute::Destination((*remote).into()),
                RuleAttribute::IpProtocol(IpProtocol::Icmp),
            ]);
        }
    }
    message
}

fn route_message(route: &Route, devices: &BTreeMap<u32, String>) -> Result<RouteMessage, Drift> {
    let Route { table, to, target } = route;
    let family = Family::of(to.addr());
    let mut message = match target {
        Target::Copied(copied) => (**copied).clone(),
        Target::Local | Target::Tunnel(_) | Target::Throw => RouteMessage::default(),
    };
    message.header.address_family = address_family(family);
    message.header.protocol = RouteProtocol::Other(PROTOCOL);
    message.header.destination_prefix_length = to.prefix_len();
    message.attributes.push(RouteAttribute::Table(table.0));
    if *target != Target::Local {
        message
            .attributes
            .push(RouteAttribute::Destination(route_address(to.addr())));
    }
    match target {
        Target::Copied(_) => {}
        Target::Throw => message.header.kind = RouteType::Throw,
        Target::Local => {
            message.header.kind = RouteType::Local;
            message.header.scope = match family {
                Family::V4 => RouteScope::Host,
                Family::V6 => RouteScope::Universe,
            };
            message.attributes.push(RouteAttribute::Oif(LOOPBACK));
        }
        Target::Tunnel(next_hop) => {
            message.header.kind = RouteType::Unicast;
            message.header.scope = match family {
                Family::V4 => RouteScope::Link,
                Family::V6 => RouteScope::Universe,
            };
            message.attributes.extend(into_tunnel(next_hop, devices)?);
        }
    }
    Ok(message)
}

fn into_tunnel(
    next_hop: &NextHop,
    devices: &BTreeMap<u32, String>,
) -> Result<Vec<RouteAttribute>, Drift> {
    let index = devices
        .iter()
        .find(|(_, name)| **name == next_hop.device)
        .map(|(index, _)| *index)
        .ok_or_else(|| Drift::new(format!("the tunnel {} is not there", next_hop.device)))?;
    let mut attributes = vec![RouteAttribute::Oif(index)];
    let source = next_hop.source.map(route_address);
    attributes.extend(source.map(RouteAttribute::PrefSource));
    let windows = next_hop.windows.map(metrics);
    attributes.extend(windows.map(RouteAttribute::Metrics));
    Ok(attributes)
}

/// Gives the attributes by which a route has windows.
pub(super) fn metrics(windows: RouteWindows) -> Vec<RouteMetric> {
    let initrwnd = windows.initrwnd.map(RouteMetric::InitRwnd);
    let initcwnd = RouteMetric::InitCwnd(windows.initcwnd);
    std::iter::once(initcwnd).chain(initrwnd).collect()
}

/// Reads the windows that a route has.
fn windows(metrics: &[RouteMetric]) -> Option<RouteWindows> {
    let initcwnd = metrics.iter().find_map(|metric| match metric {
        RouteMetric::InitCwnd(window) => Some(*window),
        _ => None,
    });
    let initrwnd = metrics.iter().find_map(|metric| match metric {
        RouteMetric::InitRwnd(window) => Some(*window),
        _ => None,
    });
    initcwnd.map(|initcwnd| RouteWindows { initcwnd, initrwnd })
}

/// Reads a rule that pepd made; none if it is anybody else's.
pub(super) fn own_rule(family: Family, rule: &RuleMessage) -> Option<Rule> {
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
    let selector = match rule_preference(rule) {
        Preference::CAPTURE => Selector::Captured(rule_mark(rule)?),
        Preference::INITCWND => Selector::Relay(rule_mark(rule)?),
        Preference::NEXT_HOP => Selector::From(rule_source(family, rule)?),
        Preference::PROBE => rule_ends(rule)?,
        _ => return None,
    };
    Some(Rule {
        family,
        selector,
        table: RouteTable(table.unwrap_or(u32::from(rule.header.table))),
    })
}

fn rule_source(family: Family, rule: &RuleMessage) -> Option<Source> {
    let mut from = Source::Prefix(family.everything());
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
    Some(from)
}

fn rule_ends(rule: &RuleMessage) -> Option<Selector> {
    let (mut local, mut remote) = (None, None);
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Source(IpAddr::V4(source)) => local = Some(*source),
            RuleAttribute::Destination(IpAddr::V4(end)) => remote = Some(*end),
            _ => {}
        }
    }
    Some(Selector::Probe {
        local: local?,
        remote: remote?,
    })
}

/// Reads the mark that a rule is about; none if it is about something else.
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

/// Reads the place of a rule among all rules.
pub(super) fn rule_preference(rule: &RuleMessage) -> Preference {
    let preference = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Priority(preference) => Some(*preference),
            _ => None,
        });
    // The kernel leaves the attribute out for preference 0.
    Preference(preference.unwrap_or_default())
}

/// Reads a route that pepd made; none if it is anybody else's.
pub(super) fn own_route(
    family: Family,
    table: RouteTable,
    route: &RouteMessage,
    devices: &BTreeMap<u32, String>,
) -> Option<Route> {
    if route.header.protocol != RouteProtocol::Other(PROTOCOL) {
        return None;
    }
    let to = destination(family, route)?;
    let next_hop = next_hop(route, devices);
    let target = match route.header.kind {
        RouteType::Local if to.prefix_len() == 0 && next_hop.device == LOOPBACK_NAME => {
            Target::Local
        }
        RouteType::Throw => Target::Throw,
        RouteType::Unicast if tunnel::is_device(&next_hop.device) => Target::Tunnel(next_hop),
        RouteType::Unicast
        | RouteType::BlackHole
        | RouteType::Unreachable
        | RouteType::Prohibit => Target::Copied(Box::new(normal(route))),
        _ => return None,
    };
    Some(Route { table, to, target })
}

fn next_hop(route: &RouteMessage, devices: &BTreeMap<u32, String>) -> NextHop {
    let mut hop = NextHop {
        device: String::new(),
        source: None,
        windows: None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::PrefSource(RouteAddress::Inet(v4)) => hop.source = Some((*v4).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet6(v6)) => hop.source = Some((*v6).into()),
            RouteAttribute::Oif(index) => {
                hop.device = devices.get(index).cloned().unwrap_or_default()
            }
            RouteAttribute::Metrics(metrics) => {
                hop.windows = windows(metrics);
            }
            _ => {}
        }
    }
    hop
}

/// Reads where a route leads; none if the kernel's answer makes no sense.
pub(crate) fn destination(family: Family, route: &RouteMessage) -> Option<IpNet> {
    let length = route.header.destination_prefix_length;
    for attribute in &route.attributes {
        if let RouteAttribute::Destination(to) = attribute {
            return match to {
                RouteAddress::Inet(v4) => IpNet::new((*v4).into(), length).ok(),
                RouteAddress::Inet6(v6) => IpNet::new((*v6).into(), length).ok(),
                _ => None,
            };
        }
    }
    (length == 0).then(|| family.everything())
}

/// Strips a route of its destination and of what the kernel adds, and puts the attributes in the
/// order of their numbers: a copy is compared by what is left.
pub(crate) fn normal(route: &RouteMessage) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.kind = route.header.kind;
    message.header.scope = route.header.scope;
    message.header.flags = route.header.flags & RouteFlags::Onlink;
    message.attributes = route
        .attributes
        .iter()
        .filter(|attribute| {
            matches!(
                attribute,
                RouteAttribute::Gateway(_)
                    | RouteAttribute::Via(_)
                    | RouteAttribute::Oif(_)
                    | RouteAttribute::PrefSource(_)
                    | RouteAttribute::Metrics(_)
                    | RouteAttribute::MultiPath(_)
                    | RouteAttribute::EncapType(_)
                    | RouteAttribute::Encap(_)
            )
        })
        .cloned()
        .collect();
    for attribute in &mut message.attributes {
        if let RouteAttribute::Metrics(metrics) = attribute {
            metrics.sort_by_key(|metric| metric.kind());
        }
    }
    message.attributes.sort_by_key(|attribute| attribute.kind());
    message
}

/// Reads the number of the table that a route is in.
pub(super) fn route_table(route: &RouteMessage) -> RouteTable {
    let table = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
    RouteTable(table.unwrap_or(u32::from(route.header.table)))
}
