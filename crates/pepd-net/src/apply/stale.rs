//! What an earlier plan left, and the present one does not have.

use crate::iptables::rules as iptables;
use crate::netlink::NetlinkError;
use crate::plan::Plan;
use crate::route::item::Item;
use crate::route::netlink::Routing;

/// Removes rules and routes of pepd's that the plan does not have: those of an earlier plan
/// or of a daemon that crashed. Only after the table, which may still use them. A failure
/// is no reason to go back: they do nothing without their marks.
pub(super) async fn drop_stale(routing: &Routing, plan: &Plan) {
    if let Err(error) = iptables::remove(&iptables::rules(plan)).await {
        tracing::warn!(%error, "cannot remove what an earlier plan left");
    }
    let stale = match routing.own(&plan.tables()).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot look for rules and routes of an earlier plan");
            return;
        }
    };
    let wanted = [plan.items(), plan.next_hop.clone()].concat();
    let copies = plan.request.route_tables().initcwnd();
    let is_copy = |item: &Item| copies.is_some_and(|table| item.is_route_in(table));
    let stale = stale.into_iter().filter(|item| !wanted.contains(item));
    for item in stale.filter(|item| !is_copy(item)) {
        match routing.delete(&item).await {
            Ok(_) => tracing::info!("removed what an earlier plan left: {item}"),
            Err(error) => tracing::warn!(%error, "cannot remove what an earlier plan left"),
        }
    }
    if let Err(error) = drop_stale_tunnels(routing, plan).await {
        tracing::warn!(%error, "cannot remove what an earlier plan left");
    }
}

async fn drop_stale_tunnels(routing: &Routing, plan: &Plan) -> Result<(), NetlinkError> {
    let tunnels = routing.tunnels();
    for device in tunnels.own().await? {
        if !plan.tunnels.iter().any(|tunnel| tunnel.device == device)
            && tunnels.delete(&device).await?
        {
            tracing::info!("removed what an earlier plan left: the tunnel {device}");
        }
    }
    Ok(())
}
