//! Finding out, without changing anything, whether a plan could be installed: from the host's
//! settings (`host`), the operator's firewall (`firewall`) and the kernel itself.

mod base_chain;
pub(crate) mod firewall;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod host;
mod judge;
pub(crate) mod warning;

use self::firewall::Firewall;
use crate::apply::error::InstallError;
use crate::nft::carried::Earlier;
use crate::nft::{process as nft, ruleset};
use crate::plan::Plan;
use crate::route::netlink::Routing;
use crate::validate::validate;

/// The outcome of [`preflight()`]: what stands in the way of a plan, and what an operator should
/// know about the host.
#[derive(Debug)]
pub struct Preflight {
    /// The errors that [`install`](crate::install()) would fail with: the host's settings, the
    /// marks and tables of others, and what the kernel says to the ruleset.
    pub obstacles: Vec<InstallError>,
    /// The effect of the operator's own firewall on split connections.
    pub firewall: Firewall,
}

/// Goes through everything that [`install`](crate::install()) would do, up to the point at which
/// the kernel would change.
///
/// The ruleset goes to the kernel in a batch that is never committed (`nft --check`), so that
/// what the kernel lacks shows; it may load modules of its own for it, as it will when pepd
/// starts.
pub async fn preflight(plan: &Plan) -> Preflight {
    let mut obstacles = Vec::new();
    let mut fitted = match host::fit(plan) {
        Ok((fitted, _)) => fitted,
        Err(error) => {
            obstacles.push(error.into());
            plan.clone()
        }
    };
    obstacles.extend(validate(&fitted).err().map(InstallError::from));
    match Routing::open() {
        Ok(routing) => {
            let foreign = routing.refuse_foreign(fitted.mark, &fitted.tables()).await;
            obstacles.extend(foreign.err().map(InstallError::from));
            let foreign = routing.tunnels().refuse_foreign(&fitted.tunnels).await;
            obstacles.extend(foreign.err().map(InstallError::from));
        }
        Err(error) => obstacles.push(error.into()),
    }
    let mut there = None;
    match nft::look().await {
        Ok(looked) => {
            fitted.translates = firewall::translates(looked.has_nat_chain);
            there = looked.ours;
        }
        Err(error) => obstacles.push(error.into()),
    }
    // Beside a daemon's own: with a chain that goes, be it one that was only tried, all that is held would be dropped.
    let earlier = there.as_ref().map_or(Earlier::Discarded, Earlier::Own);
    let ruleset = ruleset::write(&fitted, earlier).text;
    obstacles.extend(nft::check(ruleset).await.err().map(InstallError::from));
    Preflight {
        obstacles,
        firewall: firewall::survey(fitted.mark).await,
    }
}
