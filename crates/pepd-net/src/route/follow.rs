//! Following the host's routes: the copies with an initcwnd are what `main` makes of them.
//!
//! pepd copies no more than [`MOST`] routes of a family, and none where the operator has policy
//! routing of their own, which might want something else.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::RouteProtocol;
use tokio::sync::Notify;

use super::codec::route_table;
use super::error::RouteError;
use super::ids::{PROTOCOL, RouteTable};
use super::initcwnd;
use super::item::Item;
use super::netlink::Routing;
use crate::netlink::NetlinkError;
use crate::netlink::socket::RouteSocket;
use crate::plan::Plan;

/// The most routes of a family that are copied. A router with more of them to a campus has campuses
/// that are the whole world.
const MOST: usize = 1024;

/// The time after one change of the host's routes until the next is acted on.
const PAUSE: Duration = Duration::from_secs(1);

/// Makes the copies what they should be now, and tells whether there is a reason not to copy.
pub(crate) async fn sync(routing: &Routing, plan: &Plan) -> Result<Option<String>, RouteError> {
    let Some(table) = plan.request.route_tables().initcwnd() else {
        return Ok(None);
    };
    let mut wanted = Vec::new();
    let mut reason = None;
    if routing.has_foreign_rules().await? {
        reason = Some(
            "this host has policy routing of its own, which pepd does not copy: `initial_window` \
             has no effect towards campuses that are not behind a peer"
                .to_owned(),
        );
    } else {
        for &family in &plan.families {
            let host = routing.routes(family, RouteTable::MAIN).await?;
            let copies = initcwnd::copies(&plan.request, family, table, &host);
            if copies.len() > MOST {
                reason = Some(format!(
                    "this host has {} routes to campuses with an `initial_window`, and pepd copies \
                     {MOST} at most: it has no effect towards campuses that are not behind a peer",
                    copies.len()
                ));
            } else {
                wanted.extend(copies.into_iter().map(Item::Route));
            }
        }
    }
    let mut there = routing.own(&[table]).await?;
    there.retain(|item| item.is_route_in(table));
    for item in there.iter().filter(|item| !wanted.contains(item)) {
        routing.delete(item).await?;
    }
    routing.make(&wanted).await?;
    Ok(reason)
}

/// A listener to changes of the host's routes, as long as it lives.
#[derive(Debug)]
pub(crate) struct Changes {
    notify: Arc<Notify>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

impl Changes {
    pub(crate) fn listen() -> Result<Changes, NetlinkError> {
        let groups = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (connection, _, mut messages) = rtnetlink::new_multicast_connection_with_socket::<
            RouteSocket,
        >(&groups)
        .map_err(|source| NetlinkError::new("cannot listen to changes of routes", source))?;
        let notify = Arc::new(Notify::new());
        let told = Arc::clone(&notify);
        let follow = async move {
            while let Some((message, _)) = messages.next().await {
                if !is_host_route(&message.payload) {
                    continue;
                }
                told.notify_one();
                tokio::time::sleep(PAUSE).await;
                let mut more = false;
                while let Some(Some((message, _))) = messages.next().now_or_never() {
                    more |= is_host_route(&message.payload);
                }
                if more {
                    told.notify_one();
                }
            }
        };
        Ok(Changes {
            notify,
            tasks: [tokio::spawn(connection), tokio::spawn(follow)],
        })
    }

    pub(crate) async fn next(&self) {
        self.notify.notified().await;
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Returns whether a message is about a route of the host's, or tells that messages were lost: then
/// anything may have changed.
fn is_host_route(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => {
            route_table(route) == RouteTable::MAIN
                && route.header.protocol != RouteProtocol::Other(PROTOCOL)
        }
        NetlinkPayload::Overrun(_) => true,
        _ => false,
    }
}
