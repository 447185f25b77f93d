//! An installed plan, as the daemon holds it.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::error::{InstallError, RemoveError, VerifyError};
use super::remove::{end_sockets, remove};
use super::stale::drop_stale;
use super::transaction;
use super::verify::verify;
use crate::counters::Counts;
use crate::nft::listing::Listing;
use crate::plan::Plan;
use crate::preflight::warning::Warning;
use crate::preflight::{firewall, host};
use crate::route::error::RouteError;
use crate::route::follow::{self, Changes};
use crate::route::item::Item;
use crate::route::netlink::Routing;
use crate::validate::validate;

/// Puts a plan into the kernel and verifies it.
///
/// Rules and routes come first and do nothing without the table, which follows in one
/// batch. The gate is closed: nothing is split until [`Gate::renew`](crate::Gate::renew).
/// What a crashed daemon left is adopted or, where the plan differs, removed. On failure
/// everything that this call made is undone in reverse.
///
/// # Errors
///
/// See [`InstallError`]; its [`exit_code`](crate::Classify::exit_code) says what the daemon ends
/// with.
pub async fn install(plan: &Plan) -> Result<Installed, InstallError> {
    let (plan, mut warnings) = fit(plan).await?;
    warnings.extend(firewall::survey(plan.mark).await.warnings());
    let routing = Routing::open()?;
    let installed = Installed::put(&routing, plan, warnings, None).await?;
    drop_stale(&routing, &installed.plan).await;
    Ok(installed)
}

/// Fits a plan to this host, and checks it.
async fn fit(plan: &Plan) -> Result<(Plan, Vec<Warning>), InstallError> {
    let (mut plan, warnings) = host::fit(plan)?;
    validate(&plan)?;
    plan.translates = firewall::translates_addresses().await?;
    Ok((plan, warnings))
}

/// A plan that is in the kernel.
///
/// Dropping it leaves the kernel as it is (so does a crash); call [`Installed::remove`].
#[derive(Debug)]
#[must_use = "dropping it removes nothing from the kernel"]
pub struct Installed {
    plan: Plan,
    warnings: Vec<Warning>,
    fingerprint: Listing,
    /// The changes of the host's routes, where there are copies of them.
    changes: Option<Changes>,
}

impl Installed {
    /// Gives what an operator should know about the host.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Changes the kernel to another plan.
    ///
    /// The nft table changes in one step; the gate, the sources that are shut out and the
    /// counters live on in the new one. A packet sees the old plan or the new one.
    ///
    /// # Errors
    ///
    /// See [`InstallError`]. The old plan stays, whole.
    pub async fn replace(&mut self, plan: &Plan) -> Result<(), InstallError> {
        let (plan, warnings) = fit(plan).await?;
        let routing = Routing::open()?;
        *self = Installed::put(&routing, plan, warnings, Some(&self.plan)).await?;
        drop_stale(&routing, &self.plan).await;
        Ok(())
    }

    /// Takes everything back, but for the tunnels that are to be kept, with their routes and
    /// their guards.
    ///
    /// # Errors
    ///
    /// See [`RemoveError`]. It goes on after a failure and reports the first.
    pub async fn remove(self) -> Result<(), RemoveError> {
        if let Some(kept) = self.plan.kept() {
            let routing = Routing::open()?;
            end_sockets(self.plan.mark).await;
            let kept = Installed::put(&routing, kept, Vec::new(), Some(&self.plan)).await?;
            drop_stale(&routing, &kept.plan).await;
            end_sockets(self.plan.mark).await;
            return Ok(());
        }
        remove(self.plan.table, self.plan.mark).await.map(|_| ())
    }

    /// Waits until the host's routes change, where that matters: then call [`Installed::follow`].
    /// Where it does not, it waits for ever.
    pub async fn routes_changed(&self) {
        match &self.changes {
            Some(changes) => changes.next().await,
            None => std::future::pending().await,
        }
    }

    /// Follows the host's routes with the copies that have an initcwnd.
    ///
    /// # Errors
    ///
    /// See [`RouteError`].
    pub async fn follow(&self) -> Result<(), RouteError> {
        follow::sync(&Routing::open()?, &self.plan)
            .await
            .map(|_| ())
    }

    /// Gives routes to networks within campuses the initial windows that were learned of them: these, and no
    /// others.
    ///
    /// # Errors
    ///
    /// See [`RouteError`]. What was changed by then is set right by the next call, or by [`Installed::replace`].
    pub async fn set_windows(&mut self, windows: BTreeMap<IpNet, u32>) -> Result<(), RouteError> {
        if self.plan.request.windows == windows {
            return Ok(());
        }
        let plan = self.plan.with_windows(windows);
        let routing = Routing::open()?;
        let is_replaced = |item: &Item| plan.next_hop.iter().any(|it| it.is_in_place_of(item));
        routing.make(&plan.next_hop).await?;
        for item in self.plan.next_hop.iter().filter(|item| !is_replaced(item)) {
            routing.delete(item).await?;
        }
        self.plan = plan;
        follow::sync(&routing, &self.plan).await.map(|_| ())
    }

    /// Gives the tunnels whose MTU the file leaves to their paths what those carry now, with what
    /// path-MTU discovery has taught this host.
    ///
    /// A packet that may be fragmented is not refused for its size, nor is its sender told; and the
    /// kernel goes by the device, not by what it has learned, in fragmenting what it forwards
    /// (ip_dst_mtu_maybe_forward, include/net/ip.h). Over IPv4 the outer packets would be lost.
    ///
    /// # Errors
    ///
    /// See [`InstallError`]. All stays as it was.
    pub async fn follow_paths(&mut self) -> Result<(), InstallError> {
        if self.plan.tunnels.is_empty() {
            return Ok(());
        }
        let routing = Routing::open()?;
        if routing.tunnels().paths_differ(&self.plan.tunnels).await? {
            let (plan, warnings) = (self.plan.clone(), self.warnings.clone());
            *self = Installed::put(&routing, plan, warnings, Some(&self.plan)).await?;
        }
        Ok(())
    }

    /// Checks that everything is in the kernel as it was installed, and reads what the kernel has
    /// counted.
    ///
    /// # Errors
    ///
    /// [`VerifyError::Drift`] if it is not; others if it cannot be read.
    pub async fn verify(&self) -> Result<Counts, VerifyError> {
        let listing = verify(&self.plan, &self.fingerprint).await?;
        Ok(Counts::new(&listing.counters()))
    }

    /// Puts `plan` in the place of `old`, or of whatever a crash left, and listens to the host's
    /// routes where it has copies of them.
    async fn put(
        routing: &Routing,
        plan: Plan,
        mut warnings: Vec<Warning>,
        old: Option<&Plan>,
    ) -> Result<Installed, InstallError> {
        let (plan, fingerprint) = transaction::put(routing, plan, old).await?;
        Ok(Installed {
            changes: follow_routes(routing, &plan, &mut warnings).await,
            plan,
            warnings,
            fingerprint,
        })
    }
}

/// Copies the host's routes where the plan asks for it, and listens to their changes. If it cannot,
/// that costs the initial windows, no more.
async fn follow_routes(
    routing: &Routing,
    plan: &Plan,
    warnings: &mut Vec<Warning>,
) -> Option<Changes> {
    plan.request.route_tables().initcwnd()?;
    // First: no change is to be missed.
    let changes = Changes::listen();
    let reason = match follow::sync(routing, plan).await {
        Ok(reason) => reason,
        Err(error) => Some(format!(
            "`initial_window` has no effect everywhere: {error}"
        )),
    };
    warnings.extend(reason.map(|text| Warning {
        text,
        cure: "set `initcwnd` on the host's own routes (ip-route(8))".to_owned(),
    }));
    changes
        .inspect_err(|error| tracing::warn!(%error, "initial windows do not follow"))
        .ok()
}
