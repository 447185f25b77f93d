//! Where a chain is called, as pepd writes it and as nft lists it.

use serde_json::Value;

/// The priorities that have names, in the families of pepd's tables (nft(8), "standard priority names").
const NAMED: [(&str, i64); 6] = [
    ("raw", -300),
    ("mangle", -150),
    ("dstnat", -100),
    ("filter", 0),
    ("security", 50),
    ("srcnat", 100),
];

/// The hook of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hook {
    kind: String,
    hook: String,
    priority: i64,
    policy: String,
}

impl Hook {
    /// Reads the first line of a chain: `type filter hook input priority raw - 1; policy accept;`.
    pub(super) fn written(line: &str) -> Option<Self> {
        let (hook, policy) = line.strip_prefix("type ")?.split_once("; policy ")?;
        let (kind, hook) = hook.split_once(" hook ")?;
        let (hook, place) = hook.split_once(" priority ")?;
        Some(Self {
            kind: kind.to_owned(),
            hook: hook.to_owned(),
            priority: priority(place)?,
            policy: policy.strip_suffix(';')?.to_owned(),
        })
    }

    /// Reads a chain of a listing; none if nothing calls it but other chains.
    pub(super) fn listed(chain: &Value) -> Option<Self> {
        let text = |field: &str| chain.get(field)?.as_str().map(str::to_owned);
        Some(Self {
            kind: text("type")?,
            hook: text("hook")?,
            priority: chain.get("prio")?.as_i64()?,
            policy: text("policy")?,
        })
    }
}

/// Reads a number, or a name that something may be added to or taken from.
fn priority(text: &str) -> Option<i64> {
    let named = |name: &str| NAMED.iter().find(|it| it.0 == name).map(|it| it.1);
    let mut words = text.split(' ');
    let base = words.next()?;
    let base = named(base).or_else(|| base.parse().ok())?;
    let by = |words: &mut std::str::Split<'_, char>| words.next()?.parse::<i64>().ok();
    match words.next() {
        None => Some(base),
        Some("+") => Some(base + by(&mut words)?),
        Some("-") => Some(base - by(&mut words)?),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_nft_lists() {
        for (written, number) in [("raw - 4", -304), ("dstnat + 5", -95), ("162", 162)] {
            let line = format!("type filter hook forward priority {written}; policy accept;");
            let listed = serde_json::json!({
                "family": "inet", "table": "pepd", "name": "x", "handle": 3,
                "type": "filter", "hook": "forward", "prio": number, "policy": "accept",
            });
            assert_eq!(
                Hook::written(&line).unwrap(),
                Hook::listed(&listed).unwrap()
            );
        }
        assert_eq!(Hook::written("meta l4proto tcp accept"), None);
        assert_eq!(
            Hook::written("type filter hook input priority soon; policy accept;"),
            None
        );
    }
}
