//! Putting a plan into the kernel: all of it, or nothing.

use super::error::{InstallError, VerifyError};
use super::verify::{table_is_gone, verify_items, verify_routing};
use crate::iptables::rules::{self as iptables, QueueRule};
use crate::nft::carried::Earlier;
use crate::nft::listing::Listing;
use crate::nft::text::Ruleset;
use crate::nft::{process as nft, ruleset};
use crate::plan::Plan;
use crate::route::item::Item;
use crate::route::netlink::Routing;
use crate::tunnel::devices::Made;

/// Puts `plan` in the place of `old`, or of whatever a crash left; undoes it on failure.
///
/// Gives the plan with what was found out on the way, and the table as it then was.
pub(super) async fn put(
    routing: &Routing,
    mut plan: Plan,
    old: Option<&Plan>,
) -> Result<(Plan, Listing), InstallError> {
    routing.refuse_foreign(plan.mark, &plan.tables()).await?;
    routing.tunnels().refuse_foreign(&plan.tunnels).await?;
    let mut made = Undo::default();
    match put_all(routing, &mut plan, old, &mut made).await {
        Ok(fingerprint) => Ok((plan, fingerprint)),
        Err(error) => {
            made.undo(routing, old).await;
            Err(error)
        }
    }
}

/// All that an attempt has made so far, for the way back.
#[derive(Default)]
struct Undo {
    items: Vec<Item>,
    tunnels: Made,
    queue_rules: Vec<QueueRule>,
    table: bool,
}

impl Undo {
    async fn undo(self, routing: &Routing, old: Option<&Plan>) {
        let fresh = Routing::reopen();
        let routing = fresh.as_ref().unwrap_or(routing);
        if self.table {
            undo_table(old).await;
        }
        iptables::undo(&self.queue_rules).await;
        routing.undo(&self.items).await;
        routing.tunnels().undo(&self.tunnels).await;
        // What was changed in place, rather than made.
        if let Some(old) = old
            && let Err(error) = restore(routing, old).await
        {
            tracing::warn!(%error, "cannot undo");
        }
    }
}

async fn restore(routing: &Routing, old: &Plan) -> Result<(), InstallError> {
    routing.tunnels().make(&old.tunnels).await?;
    routing.tunnels().up(&old.tunnels).await?;
    routing.make(&old.next_hop).await?;
    Ok(())
}

async fn put_all(
    routing: &Routing,
    plan: &mut Plan,
    old: Option<&Plan>,
    made: &mut Undo,
) -> Result<Listing, InstallError> {
    made.items = routing.make(&plan.items()).await?;
    made.tunnels = routing.tunnels().make(&plan.tunnels).await?;
    routing.tunnels().note_mtus(&mut plan.tunnels).await?;
    // They hold nothing before the table marks something for them.
    made.queue_rules = iptables::make(&iptables::rules(plan)).await?;
    verify_items(routing, plan, &plan.items()).await?;
    let fingerprint = put_table(plan, old).await?;
    made.table = true;
    // The guards are there.
    routing.tunnels().up(&plan.tunnels).await?;
    made.items.extend(routing.make(&plan.next_hop).await?);
    verify_routing(routing, plan).await?;
    Ok(fingerprint)
}

async fn put_table(plan: &Plan, old: Option<&Plan>) -> Result<Listing, InstallError> {
    let there = nft::list().await;
    let there = match old {
        // A table that cannot be read cannot be replaced either, and the error then says why.
        None => there.ok().flatten(),
        Some(_) => there?,
    };
    let earlier = match (&there, old) {
        (None, _) => Earlier::Discarded,
        (Some(listing), None) => Earlier::Left(listing),
        (Some(listing), Some(_)) => Earlier::Own(listing),
    };
    let ruleset = ruleset::write(plan, earlier);
    let mut put = nft::apply(ruleset.text.clone()).await;
    if let (Err(error), Earlier::Left(_)) = (&put, earlier) {
        // What is refused together with what another daemon left may be taken without that.
        tracing::debug!(%error, "the table that is there cannot be gone on with");
        put = nft::apply(ruleset::write(plan, Earlier::Discarded).text).await;
    }
    if let Err(error) = put {
        if error.leaves_doubt() {
            undo_table(old).await;
        }
        return Err(error.into());
    }
    let verified = verify_table(&ruleset).await;
    if verified.is_err() {
        undo_table(old).await;
    }
    Ok(verified?)
}

async fn verify_table(ruleset: &Ruleset) -> Result<Listing, VerifyError> {
    let listing = nft::list().await?.ok_or_else(table_is_gone)?;
    listing.check(ruleset)?;
    Ok(listing.fingerprint())
}

/// Puts the old plan's table back, or none. As much is carried over of what the new one counted
/// meanwhile, and of its dynamic sets, as can be read.
async fn undo_table(old: Option<&Plan>) {
    let there = nft::list().await.ok().flatten();
    let earlier = there.as_ref().map_or(Earlier::Discarded, Earlier::Own);
    let undone = match old {
        Some(old) => nft::apply(ruleset::write(old, earlier).text).await,
        None => nft::delete().await.map(|_| ()),
    };
    if let Err(error) = undone {
        tracing::warn!(%error, "cannot undo");
    }
}
