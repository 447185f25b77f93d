//! What a request is read with, and what it is answered with: JSON, whether that is an answer or a
//! problem.

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::wire::{ErrorBody, Problem};

/// The result of a handler.
pub(super) type ApiResult<T> = Result<Json<T>, Problem>;

/// A query string without unknown keys.
pub(super) struct StrictQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for StrictQuery<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(query) = Query::from_request_parts(parts, state).await?;
        Ok(Self(query))
    }
}

/// No query at all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// The part of the path that names something.
pub(super) struct PathParam<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParam<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(name) = Path::from_request_parts(parts, state).await?;
        Ok(Self(name))
    }
}

/// A value as JSON, which nobody stores.
#[derive(Debug)]
pub(super) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut response = axum::Json(self.0).into_response();
        nobody_stores(&mut response);
        response
    }
}

/// Returns a response whose body is JSON already.
pub(super) fn json(body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    nobody_stores(&mut response);
    response
}

fn nobody_stores(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        what: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            cure: cure.into(),
            status: status.as_u16(),
        }
    }

    /// Returns a 404 for an address that does not exist.
    pub(super) fn no_such_address(path: &str) -> Self {
        let what = format!("nothing is at {path}");
        Self::new(StatusCode::NOT_FOUND, what, "GET /v1 lists what there is")
    }

    /// Returns a 405 for an address that takes another method.
    pub(super) fn method_not_allowed(path: &str) -> Self {
        let what = format!("{path} is not asked for with this method");
        let cure = "questions are asked with GET, orders given with POST";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, what, cure)
    }

    /// Returns a 404 for a connection that is not there.
    pub(super) fn no_such_flow(id: u64) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            format!("no connection has the id {id}"),
            "it may have ended; `pepd flows` lists those that there are",
        )
    }

    /// Returns a 404 for a leg of which nothing was seen.
    pub(super) fn no_such_leg(leg: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            format!("no leg `{leg}` had a connection"),
            "`pepd status` lists the legs",
        )
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        // "Failed to deserialize query string: " means nothing to whoever wrote it.
        let text = rejection.body_text();
        let reason = text.split_once(": ").map_or(text.as_str(), |(_, why)| why);
        let what = format!("the query is not understood: {reason}");
        Self::new(
            StatusCode::BAD_REQUEST,
            what,
            "docs/admin.md has every key with an example",
        )
    }
}

impl From<PathRejection> for Problem {
    fn from(_: PathRejection) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "a connection's id is a whole number",
            "`pepd flows` lists the connections with their ids",
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody { error: self })).into_response()
    }
}
