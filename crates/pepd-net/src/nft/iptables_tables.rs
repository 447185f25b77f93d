//! The tables and chains of iptables-nft's that are there for pepd's rules: iptables makes them with
//! the first rule, and has no command that deletes them.
//!
//! What pepd has made says so in a comment, so that what the operator has made stays, be it empty.

use super::error::NftError;
use super::expr::ip;
use super::process::{LIST_TEXT, apply, block, run};
use crate::iptables::{IptablesChain, IptablesTable};
use crate::prefix::Family;

/// The comment of what would not be there without pepd.
const MADE: &str = "made by pepd";

/// The place of a rule of pepd's.
pub(crate) type Place = (Family, IptablesTable, IptablesChain);

/// Makes the chains that rules of pepd's are to be in, and their tables, where there are none. A
/// kernel that keeps no such comments (before 5.10) refuses; then iptables makes them, and they stay.
pub(crate) async fn make(places: &[Place]) -> Result<(), NftError> {
    let text = match run(LIST_TEXT, String::new()).await {
        Ok(text) => text,
        // It could have made them, so iptables must not: nobody would delete them.
        Err(error) if error.leaves_doubt() => return Err(error),
        Err(_) => return Ok(()),
    };
    let batch = missing(&text, places);
    if batch.is_empty() {
        return Ok(());
    }
    match apply(batch).await {
        Err(error @ NftError::NotPermitted { .. }) => Err(error),
        Err(error) if error.leaves_doubt() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Gives the commands that make the tables and chains that are not in a listing.
fn missing(text: &str, places: &[Place]) -> String {
    let mut batch = String::new();
    for &(family, table, chain) in places {
        let IptablesChain {
            name,
            hook,
            priority,
        } = chain;
        let place = format!("{} {table}", ip(family));
        let listing = block(text, &format!("table {place}"), 0);
        let create = format!("create table {place} {{ comment \"{MADE}\" ; }}\n");
        if listing.is_none() && !batch.contains(&create) {
            batch.push_str(&create);
        }
        let is_there = listing.and_then(|listing| block(listing, &format!("chain {name}"), 1));
        let create = format!(
            "create chain {place} {name} {{ type filter hook {hook} priority {priority} ; \
             policy accept ; comment \"{MADE}\" ; }}\n"
        );
        if is_there.is_none() && !batch.contains(&create) {
            batch.push_str(&create);
        }
    }
    batch
}

/// Deletes what [`make`] made in these tables, as far as it holds nothing: neither a rule nor a policy
/// of the operator's.
pub(crate) async fn delete_empty(
    tables: impl Iterator<Item = (Family, IptablesTable)>,
) -> Result<(), NftError> {
    let text = match run(LIST_TEXT, String::new()).await {
        Ok(text) => text,
        Err(error) if error.leaves_doubt() => return Err(error),
        // Without nft there is none of pepd's.
        Err(_) => return Ok(()),
    };
    let batch: String = tables
        .filter_map(|(family, table)| {
            let place = format!("{} {table}", ip(family));
            let listing = block(&text, &format!("table {place}"), 0)?;
            Some(empty(listing, &place))
        })
        .collect();
    if batch.is_empty() {
        return Ok(());
    }
    apply(batch).await
}

/// Gives the commands that delete what is pepd's and empty in the listing of a table.
fn empty(listing: &str, place: &str) -> String {
    let comment = format!("comment \"{MADE}\"");
    let mut batch = String::new();
    let mut keeps = false;
    let mut is_own = false;
    for line in listing.lines().filter(|line| !line.trim().is_empty()) {
        match line.strip_prefix('\t') {
            Some(line) if line == comment => is_own = true,
            // Of a chain, which has been looked at, or its end.
            Some(line) if line.starts_with('\t') || line == "}" => {}
            Some(line) => {
                let chain = line
                    .strip_prefix("chain ")
                    .and_then(|rest| rest.strip_suffix(" {"));
                let Some(chain) = chain else {
                    keeps = true;
                    continue;
                };
                let body = block(listing, &format!("chain {chain}"), 1).unwrap_or_default();
                if is_empty_chain(body, &comment) {
                    batch.push_str(&format!("delete chain {place} {chain}\n"));
                } else {
                    keeps = true;
                }
            }
            None => keeps = true,
        }
    }
    if is_own && !keeps {
        batch.push_str(&format!("delete table {place}\n"));
    }
    batch
}

/// Returns whether a chain is pepd's and has nothing but its hook.
fn is_empty_chain(body: &str, comment: &str) -> bool {
    let mut is_own = false;
    let others = body.lines().map(str::trim).filter(|line| {
        is_own |= *line == comment;
        let is_hook = line.starts_with("type filter hook ") && line.ends_with("policy accept;");
        !(line.is_empty() || *line == comment || is_hook)
    });
    others.count() == 0 && is_own
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOK: &str = "\t\ttype filter hook output priority raw; policy accept;\n";
    const OWN: &str = "comment \"made by pepd\"\n";

    #[test]
    fn what_is_there_is_not_made() {
        let text = "table ip raw {\n\tchain OUTPUT {\n\t}\n}\n";
        let place = |family, chain| (family, IptablesTable::Raw, chain);
        let places = [
            place(Family::V4, IptablesChain::OUTPUT),
            place(Family::V4, IptablesChain::PREROUTING),
            place(Family::V6, IptablesChain::OUTPUT),
            place(Family::V6, IptablesChain::PREROUTING),
        ];
        let batch = missing(text, &places);
        let made: Vec<String> = batch
            .lines()
            .map(|line| {
                line.split_whitespace()
                    .take(5)
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        assert_eq!(
            made,
            [
                "create chain ip raw PREROUTING",
                "create table ip6 raw {",
                "create chain ip6 raw OUTPUT",
                "create chain ip6 raw PREROUTING",
            ]
        );
    }

    #[test]
    fn only_what_is_pepds_and_empty_is_deleted() {
        let chain = |name, of: &str| format!("\tchain {name} {{\n{of}\t}}\n\n");
        let own = chain("OUTPUT", &format!("\t\t{OWN}{HOOK}"));
        let others = chain("PREROUTING", HOOK);
        let used = chain("OUTPUT", &format!("\t\t{OWN}{HOOK}\t\tmeta mark 1 drop\n"));
        let policy = own.replace("policy accept", "policy drop");
        let delete_chain = "delete chain ip raw OUTPUT\n";
        let all = format!("{delete_chain}delete table ip raw\n");
        for (listing, expected) in [
            (format!("\t{OWN}{own}"), all.as_str()),
            (format!("\t{OWN}"), "delete table ip raw\n"),
            (format!("\t{OWN}{own}{others}"), delete_chain),
            (own.clone(), delete_chain),
            (others, ""),
            (format!("\t{OWN}{used}"), ""),
            (format!("\t{OWN}{policy}"), ""),
            (
                format!("\t{OWN}\tset s {{\n\t\ttype inet_service\n\t}}\n"),
                "",
            ),
        ] {
            assert_eq!(empty(&listing, "ip raw"), expected, "{listing}");
        }
    }
}
