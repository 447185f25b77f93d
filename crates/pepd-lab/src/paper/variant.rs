//! What is between the hosts of an experiment.

use serde::Deserialize;

/// A variant: what is between the hosts, and how they send.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Variant {
    /// The name in reports.
    pub name: String,
    /// The proxy that splits the connections.
    #[serde(default)]
    pub proxy: ProxyKind,
    /// The sending host's congestion control.
    pub sender: String,
    /// The proxy's, towards the receiver; the sender's if it is not given.
    pub forward: Option<String>,
    /// pepd's key `rate` towards the receiver.
    pub rate: Option<String>,
    /// Whether pepd's legs retransmit at a steady pace (its key `thin`).
    #[serde(default)]
    pub thin: bool,
    /// Whether pepd is told when a leg's outage begins and ends, as a modem would.
    #[serde(default)]
    pub told: bool,
    /// Whether connections stay end to end and pepd holds their ACKs (`action = "hold-acks"`): told of an
    /// outage a second before it begins, and that it lasts so many times as long as it does.
    pub hold_acks: Option<f64>,
    /// The number of segments that pepd's far leg begins with: the route's `initcwnd`.
    pub initial_window: Option<u32>,
    /// What the near leg may have on its way beside the point's `buffer`, in packets of the MTU.
    #[serde(default)]
    pub allowance: u32,
}

/// The proxy that splits the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyKind {
    /// There is no proxy: the box in the middle routes.
    #[default]
    None,
    /// pepd, transparent.
    Pepd,
    /// HAProxy, transparent.
    Haproxy,
}
