//! Every congestion control on each leg.

use serde::Deserialize;

use super::{ProxyKind, Variant};

/// Every congestion control that the kernel has: as the sender's without a proxy, and as each
/// leg's with pepd.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Matrix {
    /// Those that the quick form is about.
    pub quick: Vec<String>,
}

impl Matrix {
    /// The variants for the congestion controls `available`, or for those of the quick form:
    /// first without a proxy, then each sender's with all of the proxy's.
    #[must_use]
    pub fn variants(&self, available: &[String], quick: bool) -> Vec<Variant> {
        let mut names: Vec<_> = if quick {
            self.quick.clone()
        } else {
            available.to_vec()
        };
        names.sort_unstable();
        let direct = names.iter().map(|sender| variant(sender, None));
        let pairs = names
            .iter()
            .flat_map(|sender| names.iter().map(move |forward| (sender, forward)));
        let split = pairs.map(|(sender, forward)| variant(sender, Some(forward)));
        direct.chain(split).collect()
    }

    /// What reports call the variant without a proxy.
    #[must_use]
    pub fn direct(sender: &str) -> String {
        format!("no proxy, {sender}")
    }

    /// What reports call the variant with pepd.
    #[must_use]
    pub fn split(sender: &str, forward: &str) -> String {
        format!("pepd, {sender} → {forward}")
    }
}

fn variant(sender: &str, forward: Option<&String>) -> Variant {
    let name = match forward {
        None => Matrix::direct(sender),
        Some(forward) => Matrix::split(sender, forward),
    };
    let proxy = match forward {
        None => ProxyKind::None,
        Some(_) => ProxyKind::Pepd,
    };
    Variant {
        name,
        proxy,
        sender: sender.to_owned(),
        forward: forward.cloned(),
        thin: false,
        initial_window: None,
        allowance: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_on_each_leg_split_and_not() {
        let matrix = Matrix {
            quick: vec!["reno".to_owned()],
        };
        let available = ["reno", "cubic", "bbr"].map(str::to_owned);
        let names = |quick| -> Vec<_> {
            let variants = matrix.variants(&available, quick);
            variants.into_iter().map(|variant| variant.name).collect()
        };
        assert_eq!(names(true), ["no proxy, reno", "pepd, reno → reno"]);
        let all = names(false);
        assert_eq!(all.len(), 3 + 3 * 3);
        assert!(all.contains(&Matrix::split("cubic", "bbr")), "{all:?}");
    }
}
