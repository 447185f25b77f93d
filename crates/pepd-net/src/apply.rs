//! Applying a plan, and taking it back.

use std::fmt;

use crate::counters::Counts;
use crate::error::Error;
use crate::iptables::{self, Line};
use crate::nft::carried::Carried;
use crate::nft::listing::Listing;
use crate::nft::names::TABLE;
use crate::nft::{process as nft, ruleset};
use crate::plan::Plan;
use crate::preflight::firewall;
use crate::preflight::host::{self, Warning};
use crate::request::Mark;
use crate::route::Item;
use crate::route::initcwnd::{self as windows, Changes};
use crate::route::netlink::Routing;
use crate::tunnel::Made;

/// Puts a plan into the kernel and verifies it.
///
/// Rules and routes come first and do nothing without the table, which follows in one
/// batch. The gate is closed: nothing is split until [`Gate::renew`](crate::Gate::renew).
/// What a crashed daemon left is adopted or, where the plan differs, removed. On failure
/// everything that this call made is undone in reverse.
///
/// # Errors
///
/// See [`Error`]; [`Error::exit_code`] says which exit code it means.
pub async fn install(plan: &Plan) -> Result<Installed, Error> {
    let (plan, mut warnings) = host::fit(plan)?;
    check_request(&plan)?;
    warnings.extend(firewall::look(plan.mark).await.warnings());
    let routing = Routing::open()?;
    let installed = apply(&routing, plan, warnings, None).await?;
    drop_stale(&routing, &installed.plan).await;
    Ok(installed)
}

/// Removes whatever pepd state there is, made by whichever process: the nft table, the
/// iptables rules with pepd's comment, every routing rule that carries pepd's protocol number, its
/// routes in `table` and in the tables that these rules look into, and the tunnels with pepd's
/// alias, those that were to be kept included. Goes on after a failure and reports the first.
///
/// The mark is not needed: a rule with another mark that an earlier daemon left is pepd's
/// all the same.
///
/// # Errors
///
/// See [`Error`]. That nothing is there is not an error.
pub async fn remove(table: u32, _mark: Mark) -> Result<Removed, Error> {
    let mut removed = Removed::default();
    let mut failure = None;
    // The table first: from here on nothing is captured.
    match nft::delete().await {
        Ok(true) => removed.items.push(format!("nft table inet {TABLE}")),
        Ok(false) => {}
        Err(error) => failure = Some(error),
    }
    match iptables::remove(&[]).await {
        Ok(lines) => {
            let lines = lines.iter().map(ToString::to_string);
            removed
                .items
                .extend(lines.map(|line| line.replacen(" -A ", " ", 1)));
        }
        Err(error) => failure = failure.or(Some(error)),
    }
    let routing = Routing::open()?;
    for item in routing.own(&routing.own_tables(table).await?).await? {
        match routing.delete(&item).await {
            Ok(true) => removed
                .items
                .push(item.to_string().replacen(" add ", " ", 1)),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    for device in routing.tunnels().own().await? {
        match routing.tunnels().delete(&device).await {
            Ok(true) => removed.items.push(format!("ip link {device}")),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(removed), Err)
}

/// A plan that is in the kernel.
///
/// Dropping it leaves the kernel as it is (a crash does no more either); call
/// [`Installed::remove`].
#[derive(Debug)]
#[must_use = "dropping it removes nothing from the kernel"]
pub struct Installed {
    plan: Plan,
    warnings: Vec<Warning>,
    fingerprint: Listing,
    /// Of the host's routes, where there are copies of them.
    changes: Option<Changes>,
}

impl Installed {
    /// What an operator should know about the host.
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
    /// See [`Error`]. The old plan stays, whole.
    pub async fn replace(&mut self, plan: &Plan) -> Result<(), Error> {
        let (plan, warnings) = host::fit(plan)?;
        check_request(&plan)?;
        let routing = Routing::open()?;
        *self = apply(&routing, plan, warnings, Some(&self.plan)).await?;
        drop_stale(&routing, &self.plan).await;
        Ok(())
    }

    /// Takes everything back, but for the tunnels that are to be kept, with their routes and
    /// their guards.
    ///
    /// # Errors
    ///
    /// See [`Error`]. It goes on after a failure and reports the first.
    pub async fn remove(self) -> Result<(), Error> {
        if let Some(kept) = self.plan.kept() {
            let routing = Routing::open()?;
            let kept = apply(&routing, kept, Vec::new(), Some(&self.plan)).await?;
            drop_stale(&routing, &kept.plan).await;
            return Ok(());
        }
        remove(self.plan.table, self.plan.mark).await.map(|_| ())
    }

    /// Waits until the host's routes change, where it matters: then call
    /// [`Installed::follow`]. Where it does not it waits for ever.
    pub async fn routes_changed(&self) {
        match &self.changes {
            Some(changes) => changes.next().await,
            None => std::future::pending().await,
        }
    }

    /// Follows the host's routes with those that have an initial window.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn follow(&self) -> Result<(), Error> {
        windows::sync(&Routing::open()?, &self.plan)
            .await
            .map(|_| ())
    }

    /// Gives the tunnels, where the file leaves it to them, the MTU of their paths as they are
    /// now, with what path-MTU discovery has taught this host.
    ///
    /// A packet that may be fragmented is not refused for its size, nor its sender told; and the
    /// kernel goes by the device, not by what it has learned, in fragmenting what it forwards
    /// (ip_dst_mtu_maybe_forward, include/net/ip.h). Over IPv4 the outer packets would be lost.
    ///
    /// # Errors
    ///
    /// See [`Error`]. All stays as it was.
    pub async fn follow_paths(&mut self) -> Result<(), Error> {
        if self.plan.tunnels.is_empty() {
            return Ok(());
        }
        let routing = Routing::open()?;
        if routing.tunnels().paths_differ(&self.plan.tunnels).await? {
            let (plan, warnings) = (self.plan.clone(), self.warnings.clone());
            *self = apply(&routing, plan, warnings, Some(&self.plan)).await?;
        }
        Ok(())
    }

    /// Checks that everything is in the kernel as it was installed, and reads what the kernel has
    /// counted.
    ///
    /// # Errors
    ///
    /// [`Error::Drift`] if it is not; others if it cannot be looked at.
    pub async fn verify(&self) -> Result<Counts, Error> {
        let listing = nft::list().await?.ok_or_else(table_is_gone)?;
        // The counts name what differs; the fingerprint sees every difference.
        listing.check(&ruleset::write(&self.plan, &Carried::default()))?;
        if listing.fingerprint() != self.fingerprint {
            return Err(Error::Drift {
                what: format!("nft table inet {TABLE} is not as it was installed"),
            });
        }
        iptables::verify(&self.plan.iptables()).await?;
        verify_routing(&Routing::open()?, &self.plan).await?;
        Ok(Counts::new(&listing.carried()))
    }
}

/// What [`remove`] removed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Removed {
    /// One line for each thing, named as an operator would.
    pub items: Vec<String>,
}

impl Removed {
    /// True if there was nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            writeln!(f, "removed {item}")?;
        }
        Ok(())
    }
}

/// Puts `plan` in the place of `old`, or of whatever a crash left; undoes it on failure.
async fn apply(
    routing: &Routing,
    mut plan: Plan,
    mut warnings: Vec<Warning>,
    old: Option<&Plan>,
) -> Result<Installed, Error> {
    routing.refuse_foreign(plan.mark, &plan.tables()).await?;
    routing.tunnels().refuse_foreign(&plan.tunnels).await?;
    let mut made = Undo::default();
    match apply_all(routing, &mut plan, old, &mut made).await {
        Ok(fingerprint) => Ok(Installed {
            changes: follow(routing, &plan, &mut warnings).await,
            plan,
            warnings,
            fingerprint,
        }),
        Err(error) => {
            made.undo(routing, old).await;
            Err(error)
        }
    }
}

/// Copies the host's routes where the plan asks for it, and listens to their changes. That it
/// cannot costs the windows, no more.
async fn follow(routing: &Routing, plan: &Plan, warnings: &mut Vec<Warning>) -> Option<Changes> {
    windows::table(&plan.request)?;
    // First: no change is to be missed.
    let changes = Changes::listen();
    let reason = match windows::sync(routing, plan).await {
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

/// What an attempt has made so far.
#[derive(Default)]
struct Undo {
    items: Vec<Item>,
    tunnels: Made,
    lines: Vec<Line>,
    table: bool,
}

impl Undo {
    async fn undo(self, routing: &Routing, old: Option<&Plan>) {
        if self.table {
            undo_table(old).await;
        }
        iptables::undo(&self.lines).await;
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

async fn restore(routing: &Routing, old: &Plan) -> Result<(), Error> {
    routing.tunnels().make(&old.tunnels).await?;
    routing.tunnels().up(&old.tunnels).await?;
    routing.make(&old.next).await.map(|_| ())
}

async fn apply_all(
    routing: &Routing,
    plan: &mut Plan,
    old: Option<&Plan>,
    made: &mut Undo,
) -> Result<Listing, Error> {
    made.items = routing.make(&plan.items()).await?;
    made.tunnels = routing.tunnels().make(&plan.tunnels).await?;
    routing.tunnels().note_mtus(&mut plan.tunnels).await?;
    // They hold nothing before the table marks something for them.
    made.lines = iptables::make(&plan.iptables()).await?;
    verify_items(routing, plan, &plan.items()).await?;
    let fingerprint = apply_table(plan, old).await?;
    made.table = true;
    // The guards are there.
    routing.tunnels().up(&plan.tunnels).await?;
    made.items.extend(routing.make(&plan.next).await?);
    verify_routing(routing, plan).await?;
    Ok(fingerprint)
}

async fn apply_table(plan: &Plan, old: Option<&Plan>) -> Result<Listing, Error> {
    let there = nft::list().await;
    let carried = match old {
        // The gate that a crash left may still be open, and nobody listens yet. A table that cannot
        // be read cannot be replaced either, and then it is said why.
        None => there
            .ok()
            .flatten()
            .map_or_else(Carried::default, |listing| {
                listing.carried().of_any_daemon()
            }),
        Some(_) => there?.map_or_else(Carried::default, |listing| listing.carried()),
    };
    let ruleset = ruleset::write(plan, &carried);
    nft::apply(ruleset.text.clone()).await?;
    let verified = match nft::list().await {
        Ok(Some(listing)) => listing.check(&ruleset).map(|()| listing.fingerprint()),
        Ok(None) => Err(table_is_gone()),
        Err(error) => Err(error),
    };
    if verified.is_err() {
        undo_table(old).await;
    }
    verified
}

/// Puts the old plan's table back, or none. Of what the new one counted meanwhile and of its
/// dynamic sets as much goes over as can be read.
async fn undo_table(old: Option<&Plan>) {
    let carried = match nft::list().await {
        Ok(Some(listing)) => listing.carried(),
        _ => Carried::default(),
    };
    let undone = match old {
        Some(old) => nft::apply(ruleset::write(old, &carried).text).await,
        None => nft::delete().await.map(|_| ()),
    };
    if let Err(error) = undone {
        tracing::warn!(%error, "cannot undo");
    }
}

async fn verify_routing(routing: &Routing, plan: &Plan) -> Result<(), Error> {
    routing.tunnels().verify(&plan.tunnels).await?;
    let items = [plan.items(), plan.next.clone()].concat();
    verify_items(routing, plan, &items).await
}

async fn verify_items(routing: &Routing, plan: &Plan, items: &[Item]) -> Result<(), Error> {
    let found = routing.own(&plan.tables()).await?;
    match items.iter().find(|item| !found.contains(item)) {
        Some(item) => Err(Error::Drift {
            what: format!("this is not there: `{item}`"),
        }),
        None => Ok(()),
    }
}

/// Removes rules and routes of pepd's that the plan does not have: those of an earlier plan
/// or of a daemon that crashed. Only after the table, which may still use them. A failure
/// is no reason to go back: they do nothing without their marks.
async fn drop_stale(routing: &Routing, plan: &Plan) {
    if let Err(error) = iptables::remove(&plan.iptables()).await {
        tracing::warn!(%error, "cannot remove what an earlier plan left");
    }
    let stale = match routing.own(&plan.tables()).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "cannot look for rules and routes of an earlier plan");
            return;
        }
    };
    let wanted = [plan.items(), plan.next.clone()].concat();
    let copies = windows::table(&plan.request);
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

async fn drop_stale_tunnels(routing: &Routing, plan: &Plan) -> Result<(), Error> {
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

pub(crate) fn check_request(plan: &Plan) -> Result<(), Error> {
    if !plan.mark.fits() {
        return Err(Error::Request {
            what: format!(
                "the mark {} does not fit: its value must be other than 0 and within its mask",
                plan.mark
            ),
        });
    }
    if plan.holds() && plan.verdict_marks().is_none() {
        return Err(Error::Request {
            what: format!(
                "the mark {} has fewer than three bits in its mask: the end-to-end handshake needs \
                 three, as in 0x70000000/0x70000000",
                plan.mark
            ),
        });
    }
    // Unspecified, and the kernel's own: compat, default, main and local (rtnetlink.h).
    let tables = plan.tables();
    if let Some(table) = tables.iter().find(|table| matches!(table, 0 | 252..=255)) {
        return Err(Error::Request {
            what: format!(
                "the routing table {table} is the kernel's own: use another number, such as 7300{}",
                if tables.len() > 1 {
                    " (the next-box table has the numbers after it, one and one for each [[peer]])"
                } else {
                    ""
                }
            ),
        });
    }
    Ok(())
}

fn table_is_gone() -> Error {
    Error::Drift {
        what: format!("nft table inet {TABLE} is not there"),
    }
}
