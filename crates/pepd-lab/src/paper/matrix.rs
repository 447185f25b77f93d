//! Every congestion control on each leg.

use serde::Deserialize;

use super::variant::{ProxyKind, Variant};

/// Every congestion control that the kernel has: as the sender's without a proxy, as each leg's
/// with pepd, and as both legs' with HAProxy.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Matrix {}

impl Matrix {
    /// Returns the variants for the congestion controls `available`: first without a proxy, then
    /// with HAProxy, then each sender's with all of pepd's.
    #[must_use]
    pub fn variants(available: &[String]) -> Vec<Variant> {
        let mut names = available.to_vec();
        names.sort_unstable();
        let direct = names
            .iter()
            .map(|name| variant(Self::direct(name), ProxyKind::None, name, None));
        let second = names
            .iter()
            .map(|name| variant(Self::haproxy(name), ProxyKind::Haproxy, name, Some(name)));
        let pairs = names
            .iter()
            .flat_map(|sender| names.iter().map(move |forward| (sender, forward)));
        let split = pairs.map(|(sender, forward)| {
            let name = Self::split(sender, forward);
            variant(name, ProxyKind::Pepd, sender, Some(forward))
        });
        direct.chain(second).chain(split).collect()
    }

    /// Returns the name of the variant without a proxy.
    #[must_use]
    pub fn direct(sender: &str) -> String {
        format!("no proxy, {sender}")
    }

    /// Returns the name of the variant with HAProxy: the same congestion control on both legs.
    #[must_use]
    pub fn haproxy(control: &str) -> String {
        format!("HAProxy, {control}")
    }

    /// Returns the name of the variant with pepd.
    #[must_use]
    pub fn split(sender: &str, forward: &str) -> String {
        format!("pepd, {sender} → {forward}")
    }
}

fn variant(name: String, proxy: ProxyKind, sender: &str, forward: Option<&String>) -> Variant {
    Variant {
        name,
        proxy,
        sender: sender.to_owned(),
        forward: forward.cloned(),
        rate: None,
        thin: false,
        told: false,
        hold_acks: None,
        initial_window: None,
        allowance: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_on_each_leg_split_and_not() {
        let available = ["reno", "cubic"].map(str::to_owned);
        let variants = Matrix::variants(&available).into_iter();
        let names: Vec<_> = variants.map(|variant| variant.name).collect();
        assert_eq!(
            names,
            [
                "no proxy, cubic",
                "no proxy, reno",
                "HAProxy, cubic",
                "HAProxy, reno",
                "pepd, cubic → cubic",
                "pepd, cubic → reno",
                "pepd, reno → cubic",
                "pepd, reno → reno",
            ]
        );
    }
}
