//! The admin API: what a daemon tells about itself, and takes, over HTTP.
//!
//! [`reading`] answers questions only; [`admin`] also takes orders. [`serve()`] serves either on
//! a Unix or a TCP socket such that no client can do harm. `docs/admin.md` has every address
//! with an example.

mod answer;
mod cached;
mod flows;
mod orders;
mod pacer;
mod serve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use crate::{API_VERSION, CountedReason, LimitUse, PeerState, Status};
use answer::{Answer, Asked, Json};
pub use answer::{ErrorBody, Problem};
pub use cached::Cached;
pub use flows::{FlowList, FlowQuery, FlowSort, Place};
pub use orders::{Order, Orders};
pub use pacer::Pacer;
pub use serve::{Limits, Listen, serve};

/// `GET /v1/peers`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerList {
    /// The helper boxes that this one has tunnels to.
    pub peers: Vec<PeerState>,
}

/// `GET /v1/limits`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitList {
    /// What there is of what is limited.
    pub limits: Vec<LimitUse>,
}

/// `GET /v1/counters`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterList {
    /// Everything counted since the start.
    pub counters: Vec<CountedReason>,
}

/// `GET /v1`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// [`API_VERSION`].
    pub api: u32,
    /// What can be asked.
    pub get: Vec<String>,
    /// What can be ordered, where orders are taken.
    pub post: Vec<String>,
}

/// `POST /v1/reload`, `POST /v1/drain`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// What was done.
    pub done: String,
}

const GET: &[&str] = &[
    "/v1/status",
    "/v1/flows",
    "/v1/flows/{id}",
    "/v1/flows/{id}/history",
    "/v1/peers",
    "/v1/limits",
    "/v1/counters",
];

const POST: &[&str] = &["/v1/reload", "/v1/drain"];

/// Answers questions, and takes no orders.
pub fn reading(view: Arc<Cached>) -> Router {
    closed(questions(&[]).with_state(view))
}

/// Answers questions and takes orders.
pub fn admin(view: Arc<Cached>, orders: Orders) -> Router {
    let taking = Router::new()
        .route("/v1/reload", post(orders::reload))
        .route("/v1/drain", post(orders::drain))
        .with_state(orders);
    closed(questions(POST).with_state(view).merge(taking))
}

fn questions(post: &'static [&'static str]) -> Router<Arc<Cached>> {
    let index = move |_: Asked<Nothing>| async move { Json(index(post)) };
    Router::new()
        .route("/v1", get(index))
        .route("/v1/status", get(status))
        .route("/v1/flows", get(flows::list))
        .route("/v1/flows/{id}", get(flows::one))
        .route("/v1/flows/{id}/history", get(flows::history))
        .route("/v1/peers", get(peers))
        .route("/v1/limits", get(limits))
        .route("/v1/counters", get(counters))
}

/// With an answer to everything else.
fn closed(router: Router) -> Router {
    router
        .fallback(|uri: Uri| async move { Problem::no_such_address(uri.path()) })
        .method_not_allowed_fallback(|uri: Uri| async move { Problem::not_that_way(uri.path()) })
}

fn index(post: &[&str]) -> Index {
    let owned = |list: &[&str]| list.iter().map(|&path| path.to_owned()).collect();
    Index {
        api: API_VERSION,
        get: owned(GET),
        post: owned(post),
    }
}

/// No query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn status(State(view): State<Arc<Cached>>, _: Asked<Nothing>) -> Answer<Status> {
    Ok(Json((*view.status()).clone()))
}

async fn peers(State(view): State<Arc<Cached>>, _: Asked<Nothing>) -> Answer<PeerList> {
    let peers = view.status().peers.clone();
    Ok(Json(PeerList { peers }))
}

async fn limits(State(view): State<Arc<Cached>>, _: Asked<Nothing>) -> Answer<LimitList> {
    let limits = view.status().limits.clone();
    Ok(Json(LimitList { limits }))
}

async fn counters(State(view): State<Arc<Cached>>, _: Asked<Nothing>) -> Answer<CounterList> {
    let status = view.status();
    let counters = [&status.counters[..], &status.routed[..]].concat();
    Ok(Json(CounterList { counters }))
}
