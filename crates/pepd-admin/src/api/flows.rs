//! The flows: those that are asked for, in the order that is asked for.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{self, Answer, Asked, Json, Named, Problem};
use super::{Cached, Nothing};
use pepd_telemetry::{FlowHistory, FlowSnapshot, Phase};

/// `GET /v1/flows`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowList {
    /// Live connections.
    pub total: usize,
    /// Those of them that match.
    pub matching: usize,
    /// The first of these, in the order that was asked for.
    pub flows: Vec<FlowSnapshot>,
}

/// The same without copies.
#[derive(Serialize)]
struct Selected<'a> {
    total: usize,
    matching: usize,
    flows: Vec<&'a FlowSnapshot>,
}

/// Which flows, in which order. A flow is given if everything that is asked holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What comes first.
    #[serde(default)]
    pub sort: FlowSort,
    /// How many, at most [`FlowQuery::MOST`]; [`FlowQuery::USUAL`] if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl FlowQuery {
    /// How many flows are given if nobody says.
    pub const USUAL: usize = 100;

    /// The most that may be asked for.
    pub const MOST: usize = 10_000;

    /// Whether `flow` is one that is asked for.
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

    /// Those of `flows` that match, sorted, no more than asked for, and how many match.
    pub fn select<'a>(&self, flows: &'a [FlowSnapshot]) -> (usize, Vec<&'a FlowSnapshot>) {
        let mut matching: Vec<_> = flows.iter().filter(|flow| self.matches(flow)).collect();
        let count = matching.len();
        matching.sort_by(|a, b| self.sort.compare(a, b));
        matching.truncate(self.limit.unwrap_or(Self::USUAL));
        (count, matching)
    }
}

/// What comes first in a list of flows; the id decides between equals, so that a list that is
/// asked for again and again stands still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(sort, _)| *sort == self)
            .map_or("", |(_, name)| name)
    }

    /// Which of two flows comes first.
    pub fn compare(self, a: &FlowSnapshot, b: &FlowSnapshot) -> std::cmp::Ordering {
        let order = match self {
            Self::Client => a.client.cmp(&b.client),
            Self::Server => a.server.cmp(&b.server),
            Self::Newest => a.age.total_cmp(&b.age),
            _ => self.measure(b).total_cmp(&self.measure(a)),
        };
        order.then(a.id.cmp(&b.id))
    }

    /// What there is to be most of.
    fn measure(self, flow: &FlowSnapshot) -> f64 {
        let directions = [&flow.up, &flow.down];
        let legs = [&flow.client_leg, &flow.upstream_leg];
        let tcp = || legs.into_iter().filter_map(|leg| leg.tcp.as_ref());
        let share = |of: fn(&pepd_telemetry::PhaseSeconds) -> f64| {
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
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// Any of these addresses.
    Prefix(IpNet),
    /// This address and port.
    Socket(SocketAddr),
}

impl Place {
    /// Whether `address` is one of it.
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

/// How long a list waits for others, which may be large, to be fetched.
const TURN: Duration = Duration::from_secs(5);

pub(super) async fn list(
    State(view): State<Arc<Cached>>,
    Asked(query): Asked<FlowQuery>,
) -> Result<Response, Problem> {
    if query.limit.is_some_and(|limit| limit > FlowQuery::MOST) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            format!("`limit` is more than {}", FlowQuery::MOST),
            "ask for fewer; `campus`, `client`, `server` and `phase` choose them",
        ));
    }
    let Ok(turn) = tokio::time::timeout(TURN, view.turn()).await else {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "others are fetching lists of flows and take their time",
            "try again in a few seconds",
        ));
    };
    let flows = view.flows();
    let (matching, selected) = query.select(&flows);
    let selected = Selected {
        total: flows.len(),
        matching,
        flows: selected,
    };
    let text = serde_json::to_vec(&selected).map_err(|error| {
        let cure = "this is a mistake of pepd's; report it";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), cure)
    })?;
    Ok(answer::json(Body::new(InTurn {
        rest: text.into(),
        _turn: turn,
    })))
}

/// A body that keeps its turn until it has been fetched or given up. It goes in pieces: what
/// has been handed over is the connection's to keep.
struct InTurn {
    rest: Bytes,
    _turn: Option<OwnedSemaphorePermit>,
}

/// Bytes at a time.
const PIECE: usize = 64 * 1024;

impl http_body::Body for InTurn {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PIECE);
        let piece = (length > 0).then(|| Ok(Frame::data(self.rest.split_to(length))));
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

pub(super) async fn one(
    State(view): State<Arc<Cached>>,
    Named(id): Named<u64>,
    _: Asked<Nothing>,
) -> Answer<FlowSnapshot> {
    view.flow(id)
        .map(Json)
        .ok_or_else(|| Problem::no_such_flow(id))
}

pub(super) async fn history(
    State(view): State<Arc<Cached>>,
    Named(id): Named<u64>,
    _: Asked<Nothing>,
) -> Answer<FlowHistory> {
    view.history(id)
        .map(Json)
        .ok_or_else(|| Problem::no_such_flow(id))
}

/// Bytes as a number to compare and divide.
#[allow(
    clippy::cast_precision_loss,
    reason = "exact up to 8 PiB, and nothing hangs on the last byte beyond"
)]
fn number(bytes: u64) -> f64 {
    bytes as f64
}
