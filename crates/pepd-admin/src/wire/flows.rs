//! Lists of flows: which of them are asked for, and in which order.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use pepd_telemetry::{FlowSnapshot, Phase, PhaseSeconds};
use serde::{Deserialize, Serialize};

/// `GET /v1/flows`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowList {
    /// Live connections.
    pub total: usize,
    /// Those of them that match.
    pub matching: usize,
    /// The first of these, in the order that was asked for.
    pub flows: Vec<FlowSnapshot>,
}

/// A query for flows in some order. A flow is given if everything that is asked for holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FlowQuery {
    /// The client or the server is in this campus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub campus: Option<String>,
    /// The client is here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Place>,
    /// The server is here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Place>,
    /// The client or the server is here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Place>,
    /// One of the directions is in this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The order, by what comes first.
    #[serde(default)]
    pub sort: FlowSort,
    /// The number of flows, at most [`FlowQuery::MOST`]; [`FlowQuery::USUAL`] if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl FlowQuery {
    /// The number of flows that are given if nobody says.
    pub const USUAL: usize = 100;

    /// The most that may be asked for.
    pub const MOST: usize = 10_000;

    /// Returns whether `flow` is one that is asked for.
    pub fn matches(&self, flow: &FlowSnapshot) -> bool {
        let in_campus = |name: &String| flow.client_campus == *name || flow.server_campus == *name;
        let in_phase = |phase| flow.up.phase == Some(phase) || flow.down.phase == Some(phase);
        self.campus.as_ref().is_none_or(in_campus)
            && self.client.is_none_or(|place| place.holds(flow.client))
            && self.server.is_none_or(|place| place.holds(flow.server))
            && self
                .end
                .is_none_or(|place| place.holds(flow.client) || place.holds(flow.server))
            && self.phase.is_none_or(in_phase)
    }

    /// Selects those of `flows` that match, sorted and no more than asked for; and counts all that
    /// match.
    pub fn select<'a>(&self, flows: &'a [FlowSnapshot]) -> (usize, Vec<&'a FlowSnapshot>) {
        let mut matching: Vec<_> = flows.iter().filter(|flow| self.matches(flow)).collect();
        let count = matching.len();
        matching.sort_by(|a, b| self.sort.compare(a, b));
        matching.truncate(self.limit.unwrap_or(Self::USUAL));
        (count, matching)
    }
}

/// The order of a list of flows; the id decides between equals, so that a list that is
/// asked for again and again stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FlowSort {
    /// The most goodput over the last ten seconds, both directions together.
    #[default]
    Goodput,
    /// The most bytes.
    Bytes,
    /// The oldest.
    Age,
    /// The youngest.
    Newest,
    /// The longest round-trip time, both legs together.
    Rtt,
    /// The most retransmitted segments, both legs together.
    Retransmitted,
    /// The most bytes waiting in this box.
    Queue,
    /// The largest share of its time starved, pauses aside, in the direction with more of it.
    Starved,
    /// The largest share of its time backpressured, pauses aside, in the direction with more of it.
    Backpressured,
    /// The least client address and port.
    Client,
    /// The least server address and port.
    Server,
}

impl FlowSort {
    /// All of them, with the names that the API and the commands use.
    pub const ALL: [(Self, &str); 11] = [
        (Self::Goodput, "goodput"),
        (Self::Bytes, "bytes"),
        (Self::Age, "age"),
        (Self::Newest, "newest"),
        (Self::Rtt, "rtt"),
        (Self::Retransmitted, "retransmitted"),
        (Self::Queue, "queue"),
        (Self::Starved, "starved"),
        (Self::Backpressured, "backpressured"),
        (Self::Client, "client"),
        (Self::Server, "server"),
    ];

    /// Gives its name.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(sort, _)| *sort == self)
            .map_or("", |(_, name)| name)
    }

    /// Says which of two flows comes first.
    pub fn compare(self, a: &FlowSnapshot, b: &FlowSnapshot) -> std::cmp::Ordering {
        let order = match self {
            Self::Client => a.client.cmp(&b.client),
            Self::Server => a.server.cmp(&b.server),
            Self::Newest => a.age.total_cmp(&b.age),
            _ => self.measure(b).total_cmp(&self.measure(a)),
        };
        order.then(a.id.cmp(&b.id))
    }

    /// Gives the figure that is to be the largest.
    fn measure(self, flow: &FlowSnapshot) -> f64 {
        let directions = [&flow.up, &flow.down];
        let legs = [&flow.client_leg, &flow.upstream_leg];
        let tcp = || legs.into_iter().filter_map(|leg| leg.tcp.as_ref());
        let share = |of: fn(&PhaseSeconds) -> f64| {
            let shares = directions.iter().map(|direction| {
                let phases = direction.carrying();
                let all = phases.total();
                if all > 0.0 { of(&phases) / all } else { 0.0 }
            });
            shares.fold(0.0, f64::max)
        };
        match self {
            Self::Goodput => directions.iter().map(|d| d.goodput.last_ten_seconds).sum(),
            Self::Bytes => directions.iter().map(|d| number(d.bytes)).sum(),
            Self::Age => flow.age,
            Self::Rtt => tcp().map(|tcp| tcp.rtt).sum(),
            Self::Retransmitted => tcp().map(|t| f64::from(t.retransmitted_segments)).sum(),
            Self::Queue => directions.iter().map(|d| number(d.queue.total())).sum(),
            Self::Starved => share(|phases| phases.starved),
            Self::Backpressured => share(|phases| phases.backpressured),
            Self::Newest | Self::Client | Self::Server => 0.0,
        }
    }
}

impl FromStr for FlowSort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(sort, _)| *sort)
            .ok_or_else(|| format!("one of {}", names.join(", ")))
    }
}

/// An address, a prefix, or an address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// Any of these addresses.
    Prefix(IpNet),
    /// This address and port.
    Socket(SocketAddr),
}

impl Place {
    /// Returns whether `address` is one of its addresses.
    pub fn holds(self, address: SocketAddr) -> bool {
        match self {
            Self::Prefix(prefix) => prefix.contains(&address.ip()),
            Self::Socket(socket) => socket == address,
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = || text.parse::<IpNet>().ok();
        let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
        let socket = || text.parse::<SocketAddr>().ok();
        prefix()
            .or_else(address)
            .map(Self::Prefix)
            .or_else(|| socket().map(Self::Socket))
            .ok_or_else(|| {
                format!(
                    "`{text}` is no address; write one as 192.0.2.1, 192.0.2.0/24, 192.0.2.1:443 \
                     or [2001:db8::1]:443"
                )
            })
    }
}

impl TryFrom<String> for Place {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::Socket(socket) => socket.fmt(f),
        }
    }
}

/// Bytes as a number to compare and divide.
#[allow(
    clippy::cast_precision_loss,
    reason = "exact up to 8 PiB, and nothing hangs on the last byte beyond"
)]
fn number(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use pepd_telemetry::QueueBytes;

    use super::*;
    use crate::fixture;

    /// The most, and the least, of what each order is about.
    #[test]
    fn each_order_puts_first_what_its_name_says() {
        let mut flows: Vec<_> = (1..=4).map(fixture::flow).collect();
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (at, flow) in flows.iter_mut().enumerate() {
            let n = [2.0, 4.0, 1.0, 3.0][at];
            let count = [2_u32, 4, 1, 3][at];
            flow.age = n;
            flow.up.goodput.last_ten_seconds = n;
            flow.down.goodput.last_ten_seconds = 0.0;
            flow.up.bytes = u64::from(count);
            flow.down.bytes = 0;
            flow.up.queue.pipe = u64::from(count);
            flow.down.queue = QueueBytes::default();
            flow.up.phases = PhaseSeconds {
                free: 100.0 - 2.0 * n,
                starved: n,
                backpressured: n,
            };
            flow.down.phases = PhaseSeconds::default();
            flow.client_leg.tcp = None;
            if let Some(tcp) = &mut flow.upstream_leg.tcp {
                tcp.rtt = n;
                tcp.retransmitted_segments = count;
            }
            flow.client = address(&format!("10.0.0.{count}:1"));
            flow.server = address(&format!("10.0.1.{count}:1"));
        }
        for (sort, name) in FlowSort::ALL {
            let query = FlowQuery {
                sort,
                ..FlowQuery::default()
            };
            let ids: Vec<_> = query.select(&flows).1.iter().map(|flow| flow.id).collect();
            let rising = matches!(name, "newest" | "client" | "server");
            let wanted = if rising { [3, 1, 4, 2] } else { [2, 4, 1, 3] };
            assert_eq!(ids, wanted, "{name}");
            assert_eq!(name.parse(), Ok(sort));
        }
    }

    #[test]
    fn a_query_goes_there_and_back() {
        let query = FlowQuery {
            campus: Some("a".to_owned()),
            client: "10.0.0.0/8".parse().ok(),
            server: "[::1]:443".parse().ok(),
            end: "::/0".parse().ok(),
            phase: Some(Phase::Backpressured),
            sort: FlowSort::Rtt,
            limit: Some(7),
        };
        let text = serde_json::to_string(&query).unwrap();
        assert_eq!(serde_json::from_str::<FlowQuery>(&text).unwrap(), query);
    }
}
