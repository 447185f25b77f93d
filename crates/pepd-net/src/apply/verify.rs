//! Whether everything is in the kernel as it was installed.

use super::error::VerifyError;
use crate::error::Drift;
use crate::iptables::rules as iptables;
use crate::nft::carried::Earlier;
use crate::nft::listing::Listing;
use crate::nft::names::TABLE;
use crate::nft::{process as nft, ruleset};
use crate::plan::Plan;
use crate::preflight::firewall;
use crate::route::item::Item;
use crate::route::netlink::Routing;

/// Compares all that is in the kernel with a plan and with the table as it was installed; gives
/// the table as it is.
pub(super) async fn verify(plan: &Plan, fingerprint: &Listing) -> Result<Listing, VerifyError> {
    let looked = nft::look().await?;
    let listing = looked.ours.ok_or_else(table_is_gone)?;
    // The counts name what differs; the fingerprint sees every difference.
    listing.check(&ruleset::write(plan, Earlier::Discarded))?;
    if plan.captures && firewall::translates(looked.has_nat_chain) != plan.translates {
        let what = "this host's address translation is not as nft table inet pepd knows it";
        return Err(Drift::new(what.to_owned()).into());
    }
    if listing.fingerprint() != *fingerprint {
        let what = format!("nft table inet {TABLE} is not as it was installed");
        return Err(Drift::new(what).into());
    }
    if let Some(drift) = iptables::verify(&iptables::rules(plan)).await? {
        return Err(drift.into());
    }
    verify_routing(&Routing::open()?, plan).await?;
    Ok(listing)
}

/// Checks the tunnels, rules and routes of a plan.
pub(super) async fn verify_routing(routing: &Routing, plan: &Plan) -> Result<(), VerifyError> {
    routing.tunnels().verify(&plan.tunnels).await?;
    let items = [plan.items(), plan.next_hop.clone()].concat();
    verify_items(routing, plan, &items).await
}

/// Checks some of the rules and routes of a plan.
pub(super) async fn verify_items(
    routing: &Routing,
    plan: &Plan,
    items: &[Item],
) -> Result<(), VerifyError> {
    let found = routing.own(&plan.tables()).await?;
    match items.iter().find(|item| !found.contains(item)) {
        Some(item) => Err(Drift::new(format!("this is not there: `{item}`")).into()),
        None => Ok(()),
    }
}

pub(super) fn table_is_gone() -> Drift {
    Drift::new(format!("nft table inet {TABLE} is not there"))
}
