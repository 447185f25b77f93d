//! Finding out, without changing anything, whether a plan could be installed.

pub(crate) mod firewall;
pub(crate) mod host;

use self::host::Warning;
use crate::apply::check_request;
use crate::error::Error;
use crate::nft::carried::Carried;
use crate::nft::{process, ruleset};
use crate::plan::Plan;
use crate::route::netlink::Routing;

/// What stands in the way of a plan, and what an operator should know about the host.
#[derive(Debug)]
pub struct Rehearsal {
    /// What [`install`](crate::install()) would fail with: the host's settings, the marks and
    /// tables of others, and what the kernel says to the script.
    pub obstacles: Vec<Error>,
    /// What the operator's own firewall means for split connections.
    pub firewall: Firewall,
}

/// What the operator's own firewall means for split connections.
#[derive(Debug, Default)]
pub struct Firewall {
    /// Chains of `input` that drop captured packets: split connections hang.
    pub drops: Vec<Warning>,
    /// Chains that translate addresses, which do not apply to split connections because the mark
    /// is too narrow.
    pub translates: Vec<Warning>,
    /// Chains of other transparent proxies.
    pub proxies: Vec<String>,
}

/// Goes through everything that [`install`](crate::install()) would do, up to the point at which
/// the kernel would change.
///
/// The script goes to the kernel in a batch that is never committed (`nft --check`), so that
/// what the kernel lacks shows; it may load modules of its own for it, as it will when pepd
/// starts.
pub async fn rehearse(plan: &Plan) -> Rehearsal {
    let mut obstacles = Vec::new();
    let fitted = match host::fit(plan) {
        Ok((fitted, _)) => fitted,
        Err(error) => {
            obstacles.push(error);
            plan.clone()
        }
    };
    obstacles.extend(check_request(&fitted).err());
    match Routing::open() {
        Ok(routing) => {
            let foreign = routing.refuse_foreign(fitted.mark, &fitted.tables()).await;
            obstacles.extend(foreign.err());
            let foreign = routing.tunnels().refuse_foreign(&fitted.tunnels).await;
            obstacles.extend(foreign.err());
        }
        Err(error) => obstacles.push(error),
    }
    let ruleset = ruleset::write(&fitted, &Carried::default()).text;
    obstacles.extend(process::check(ruleset).await.err());
    let mut firewall = firewall::look(fitted.mark).await;
    firewall.proxies = firewall::proxies().await;
    Rehearsal {
        obstacles,
        firewall,
    }
}
