//! The admin API: what a daemon tells about itself, and takes, over HTTP.
//!
//! [`read_only`] answers questions only; [`with_control`] also takes control requests. [`serve()`]
//! serves either on a Unix or a TCP socket such that no client can do harm. `docs/admin.md` has
//! every address with an example.
//!
//! The files in the order in which a request passes through them: `serve` accepts it, within the
//! `cpu_quota`; a handler here, in `flows` or in `control` takes it; it reads the view through the
//! `cache`, and its answer or problem is a `response`. Their contents are [`crate::wire`]'s.

mod cache;
mod control;
mod cpu_quota;
mod flows;
mod legs;
#[cfg(feature = "schema")]
pub mod openapi;
mod response;
mod serve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::routing::{get, post};

use crate::wire::{
    API_VERSION, CounterList, Index, LimitList, PeerList, Problem, Readiness, Status,
};
pub use cache::CachedView;
pub use control::{ControlRequest, ControlSender, LinkOrder, MoveOrder, NotMoved};
pub use cpu_quota::CpuQuota;
use response::{ApiResult, Json, NoQuery, StrictQuery};
pub use serve::{Limits, Listen, serve};

const GET: &[&str] = &[
    "/v1/status",
    "/v1/ready",
    "/v1/flows",
    "/v1/flows/{id}",
    "/v1/flows/{id}/history",
    "/v1/legs",
    "/v1/legs/{leg}/history",
    "/v1/peers",
    "/v1/limits",
    "/v1/counters",
];

const POST: &[&str] = &["/v1/reload", "/v1/drain", "/v1/link/{state}", "/v1/move"];

/// Answers questions, and takes no control requests.
pub fn read_only(view: Arc<CachedView>) -> Router {
    closed(questions(&[]).with_state(view))
}

/// Answers questions and takes control requests.
pub fn with_control(view: Arc<CachedView>, control: ControlSender) -> Router {
    let taking = Router::new()
        .route("/v1/reload", post(control::reload))
        .route("/v1/drain", post(control::drain))
        .route("/v1/link/{state}", post(control::link))
        .route("/v1/move", post(control::move_away))
        .with_state((control, Arc::clone(&view)));
    closed(questions(POST).with_state(view).merge(taking))
}

fn questions(post: &'static [&'static str]) -> Router<Arc<CachedView>> {
    let index = move |_: StrictQuery<NoQuery>| async move { Json(index(post)) };
    Router::new()
        .route("/v1", get(index))
        .route("/v1/status", get(status))
        .route("/v1/ready", get(ready))
        .route("/v1/flows", get(flows::list))
        .route("/v1/flows/{id}", get(flows::one))
        .route("/v1/flows/{id}/history", get(flows::history))
        .route("/v1/legs", get(legs::list))
        .route("/v1/legs/{leg}/history", get(legs::history))
        .route("/v1/peers", get(peers))
        .route("/v1/limits", get(limits))
        .route("/v1/counters", get(counters))
}

/// Adds an answer to everything else.
fn closed(router: Router) -> Router {
    router
        .fallback(|uri: Uri| async move { Problem::no_such_address(uri.path()) })
        .method_not_allowed_fallback(
            |uri: Uri| async move { Problem::method_not_allowed(uri.path()) },
        )
}

fn index(post: &[&str]) -> Index {
    let owned = |list: &[&str]| list.iter().map(|&path| path.to_owned()).collect();
    Index {
        api: API_VERSION,
        get: owned(GET),
        post: owned(post),
    }
}

async fn status(State(view): State<Arc<CachedView>>, _: StrictQuery<NoQuery>) -> ApiResult<Status> {
    Ok(Json((*view.status()).clone()))
}

async fn ready(
    State(view): State<Arc<CachedView>>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<Readiness> {
    Ok(Json(view.readiness()))
}

async fn peers(
    State(view): State<Arc<CachedView>>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<PeerList> {
    let peers = view.status().peers.clone();
    Ok(Json(PeerList { peers }))
}

async fn limits(
    State(view): State<Arc<CachedView>>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<LimitList> {
    let limits = view.status().limits.clone();
    Ok(Json(LimitList { limits }))
}

async fn counters(
    State(view): State<Arc<CachedView>>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<CounterList> {
    let status = view.status();
    let counters = [&status.counters[..], &status.routed[..]].concat();
    Ok(Json(CounterList { counters }))
}
