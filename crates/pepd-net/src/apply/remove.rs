//! Removing whatever there is of pepd's.

use std::fmt;

use super::error::RemoveError;
use crate::iptables::rules as iptables;
use crate::nft::names::TABLE;
use crate::nft::process as nft;
use crate::request::Mark;
use crate::route::ids::RouteTable;
use crate::route::netlink::Routing;

/// Removes whatever pepd state there is, made by whichever process: the nft tables, the
/// iptables rules with pepd's comment, every routing rule that carries pepd's protocol number, its
/// routes in `table` and in the tables that these rules look into, and the tunnels with pepd's
/// alias, those that were to be kept included. Goes on after a failure and reports the first.
///
/// The mark is not needed: a rule with another mark that an earlier daemon left is pepd's
/// all the same.
///
/// # Errors
///
/// See [`RemoveError`]. It is not an error if nothing is there.
pub async fn remove(table: RouteTable, _mark: Mark) -> Result<Removed, RemoveError> {
    let mut removed = Removed::default();
    let mut failure: Option<RemoveError> = None;
    // The table first: from here on nothing is captured.
    match nft::delete().await {
        Ok(families) => {
            let tables = families
                .iter()
                .map(|family| format!("nft table {family} {TABLE}"));
            removed.items.extend(tables);
        }
        Err(error) => failure = Some(error.into()),
    }
    match iptables::remove(&[]).await {
        Ok(lines) => {
            let lines = lines.iter().map(ToString::to_string);
            removed
                .items
                .extend(lines.map(|line| line.replacen(" -A ", " ", 1)));
        }
        Err(error) => failure = failure.or(Some(error.into())),
    }
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
    failure.map_or(Ok(removed), Err)
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
