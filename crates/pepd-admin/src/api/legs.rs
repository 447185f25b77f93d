//! Answers about legs: all of them, and the history of one.

use std::sync::Arc;

use axum::extract::State;

use super::cache::CachedView;
use super::response::{ApiResult, Json, NoQuery, PathParam, StrictQuery};
use crate::wire::{LegHistory, LegHistoryQuery, LegList, Problem};

pub(super) async fn list(
    State(view): State<Arc<CachedView>>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<LegList> {
    let legs = view.status().legs.clone();
    Ok(Json(LegList { legs }))
}

pub(super) async fn history(
    State(view): State<Arc<CachedView>>,
    PathParam(leg): PathParam<String>,
    StrictQuery(query): StrictQuery<LegHistoryQuery>,
) -> ApiResult<LegHistory> {
    let step = query.step.unwrap_or_default();
    view.leg_history(&leg, step, query.since.unwrap_or(0.0))
        .map(Json)
        .ok_or_else(|| Problem::no_such_leg(&leg))
}
