//! Answers about flows: the list that is asked for, one of them, and its history.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::cache::CachedView;
use super::response::{self, ApiResult, Json, NoQuery, PathParam, StrictQuery};
use crate::wire::{FlowHistory, FlowQuery, FlowSnapshot, Problem};

/// A [`FlowList`](crate::wire::FlowList) without copies.
#[derive(Serialize)]
struct Selected<'a> {
    total: usize,
    matching: usize,
    flows: Vec<&'a FlowSnapshot>,
}

/// The time for which a list waits until others, which may be large, have been fetched.
const LIST_PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn list(
    State(view): State<Arc<CachedView>>,
    StrictQuery(query): StrictQuery<FlowQuery>,
) -> Result<Response, Problem> {
    if query.limit.is_some_and(|limit| limit > FlowQuery::MOST) {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            format!("`limit` is more than {}", FlowQuery::MOST),
            "ask for fewer; `campus`, `client`, `server` and `phase` choose them",
        ));
    }
    let Ok(permit) = tokio::time::timeout(LIST_PATIENCE, view.list_permit()).await else {
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
    Ok(response::json(Body::new(PermittedBody {
        rest: text.into(),
        _permit: permit,
    })))
}

/// A body that keeps its permit until it has been fetched or given up. It goes in pieces: what has
/// been handed over belongs to the connection.
struct PermittedBody {
    rest: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Bytes at a time.
const PIECE: usize = 64 * 1024;

impl http_body::Body for PermittedBody {
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
    State(view): State<Arc<CachedView>>,
    PathParam(id): PathParam<u64>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<FlowSnapshot> {
    view.flow(id)
        .map(Json)
        .ok_or_else(|| Problem::no_such_flow(id))
}

pub(super) async fn history(
    State(view): State<Arc<CachedView>>,
    PathParam(id): PathParam<u64>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<FlowHistory> {
    view.history(id)
        .map(Json)
        .ok_or_else(|| Problem::no_such_flow(id))
}
