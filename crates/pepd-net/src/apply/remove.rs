//! Removing whatever there is of pepd's.

use std::fmt;
use std::sync::Once;
use std::time::Duration;

use tokio::time::timeout;

use super::error::RemoveError;
use crate::diag::{Ended, end_closing};
use crate::iptables::rules as iptables;
use crate::nft::names::TABLE;
use crate::nft::process as nft;
use crate::request::Mark;
use crate::route::ids::RouteTable;
use crate::route::netlink::Routing;

/// The time that a part of the removal may take: a busy kernel waits for as much as ten seconds until no packet sees what goes
/// (synchronize_rcu).
const PART_LIMIT: Duration = Duration::from_secs(20);

/// Removes whatever pepd state there is, made by whichever process: the nft tables, the
/// iptables rules with pepd's comment, every routing rule that carries pepd's protocol number, its
/// routes in `table` and in the tables that these rules look into, and the tunnels with pepd's
/// alias, those that were to be kept included. Goes on after a failure and reports the first. No
/// part of it takes longer than some seconds, whatever hangs.
///
/// The mark says which sockets the relay has left; a rule with another mark that an earlier daemon
/// left is pepd's all the same.
///
/// # Errors
///
/// See [`RemoveError`]. It is not an error if nothing is there.
pub async fn remove(table: RouteTable, mark: Mark) -> Result<Removed, RemoveError> {
    let mut removed = Removed::default();
    let mut failure: Option<RemoveError> = None;
    // Before the table: what it does for them ends with it.
    let sockets = end_sockets(mark).await;
    // The table first: from here on nothing is captured.
    match within("the tables of pepd", nft::delete()).await {
        Ok(families) => {
            let tables = families
                .iter()
                .map(|family| format!("nft table {family} {TABLE}"));
            removed.items.extend(tables);
        }
        Err(error) => failure = Some(error),
    }
    match within("pepd's rules of iptables", iptables::remove(&[])).await {
        Ok(lines) => {
            let lines = lines.iter().map(ToString::to_string);
            removed
                .items
                .extend(lines.map(|line| line.replacen(" -A ", " ", 1)));
        }
        Err(error) => failure = failure.or(Some(error)),
    }
    let what = "pepd's rules, routes and tunnels";
    if let Err(error) = within(what, remove_routing(table, &mut removed)).await {
        failure = failure.or(Some(error));
    }
    let sockets = sockets + end_sockets(mark).await;
    if sockets > 0 {
        let text = format!("{sockets} sockets of closed connections");
        removed.items.push(text);
    }
    failure.map_or(Ok(removed), Err)
}

/// Removes the routing rules, the routes and the tunnels. Goes on after a failure and reports the
/// first.
async fn remove_routing(table: RouteTable, removed: &mut Removed) -> Result<(), RemoveError> {
    let mut failure: Option<RemoveError> = None;
    let routing = Routing::open()?;
    for item in routing.own(&routing.own_tables(table).await?).await? {
        match routing.delete(&item).await {
            Ok(true) => removed
                .items
                .push(item.to_string().replacen(" add ", " ", 1)),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error.into())),
        }
    }
    for device in routing.tunnels().own().await? {
        match routing.tunnels().delete(&device).await {
            Ok(true) => removed.items.push(format!("ip link {device}")),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error.into())),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Does a part of the removal, within a time that leaves room for the others.
async fn within<T, E: Into<RemoveError>>(
    what: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, RemoveError> {
    match timeout(PART_LIMIT, work).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(RemoveError::TimedOut {
            what,
            seconds: PART_LIMIT.as_secs(),
        }),
    }
}

/// Ends the sockets of closed connections that the kernel still keeps, and gives how many there
/// were. Where it cannot, a connection from the same port as one of them waits for a minute, which
/// is no reason to fail.
pub(super) async fn end_sockets(mark: Mark) -> usize {
    match end_closing(mark).await {
        Ok(Ended::All(count)) => count,
        Ok(Ended::Unmarked) => {
            explain("[capture] mark has one bit, by which they are not known");
            0
        }
        Ok(Ended::Unsupported) => {
            explain("the kernel has no SOCK_DESTROY (CONFIG_INET_DIAG_DESTROY)");
            0
        }
        Err(error) => {
            explain(&error.to_string());
            0
        }
    }
}

/// Says once what sockets that stay mean.
fn explain(why: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            why,
            "connections that have just ended leave sockets in TIME_WAIT: for a minute, a new one \
             with the same addresses and ports may not get through"
        );
    });
}

/// The kernel state that [`remove`] removed.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Removed {
    /// One line for each thing, named as an operator would.
    pub items: Vec<String>,
}

impl Removed {
    /// Returns true if there was nothing to remove.
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
