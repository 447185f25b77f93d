//! The kernel's rules and routes, under a fuzzer.

use std::collections::BTreeMap;

use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;

use super::codec;
use super::item::Item;
use crate::prefix::Family;
use crate::tunnel;

/// Reads one message. What is taken for pepd's own can be written again.
pub(crate) fn message(bytes: &[u8]) {
    let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) else {
        return;
    };
    let NetlinkPayload::InnerMessage(message) = message.payload else {
        return;
    };
    let names = [(1, "lo"), (2, "pepd-a"), (3, "veth0")];
    let devices = BTreeMap::from(names.map(|(index, name)| (index, name.to_owned())));
    match message {
        RouteNetlinkMessage::NewRoute(route) => {
            for family in Family::ALL {
                let table = codec::route_table(&route);
                if let Some(own) = codec::own_route(family, table, &route, &devices) {
                    let item = Item::Route(own);
                    let _ = codec::message(&item, &devices);
                }
            }
            let stripped = codec::normal(&route);
            assert_eq!(codec::normal(&stripped), stripped);
        }
        RouteNetlinkMessage::NewRule(rule) => {
            let _ = (codec::rule_preference(&rule), codec::rule_mark(&rule));
            for family in Family::ALL {
                if let Some(own) = codec::own_rule(family, &rule) {
                    let item = Item::Rule(own);
                    let _ = codec::message(&item, &devices);
                }
            }
        }
        RouteNetlinkMessage::NewLink(link) => tunnel::fuzzing::link(&link),
        RouteNetlinkMessage::NewAddress(address) => tunnel::fuzzing::address(&address),
        _ => {}
    }
}
