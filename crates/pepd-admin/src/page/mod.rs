//! The dashboard, `/metrics` and `/ready`: what a browser, Prometheus and a load balancer get.
//!
//! The page is static and part of the binary: a network without internet sees all of it. Its
//! figures come from the `/v1` addresses beside it, which answer questions only.

mod host;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::api::CachedView;
use crate::metrics::Exposition;
use crate::wire::ReadyQuery;
pub use host::Names;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const ICON: &str = "image/svg+xml";

/// The files of the page: address, type, content.
#[rustfmt::skip] // one line each
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("index.html")),
    ("/style.css", CSS, include_str!("style.css")),
    ("/icon.svg", ICON, include_str!("icon.svg")),
    ("/ask.js", SCRIPT, include_str!("ask.js")),
    ("/chart.js", SCRIPT, include_str!("chart.js")),
    ("/flow.js", SCRIPT, include_str!("flow.js")),
    ("/flows.js", SCRIPT, include_str!("flows.js")),
    ("/legs.js", SCRIPT, include_str!("legs.js")),
    ("/main.js", SCRIPT, include_str!("main.js")),
    ("/map.js", SCRIPT, include_str!("map.js")),
    ("/pairs.js", SCRIPT, include_str!("pairs.js")),
    ("/moves.js", SCRIPT, include_str!("moves.js")),
    ("/worth.js", SCRIPT, include_str!("worth.js")),
    ("/show.js", SCRIPT, include_str!("show.js")),
];

/// The headers that restrict what the page may do in the browser.
const HEADERS: &[(&str, &str)] = &[
    // Nothing from elsewhere, nothing inline, nowhere to send anything, in nobody's frame.
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    // The next version of the daemon has another page, and figures are of the moment.
    ("cache-control", "no-store"),
];

/// Serves the page, `/metrics`, `/ready`, and the answers of `questions` beside them, for those who ask for
/// one of `names`.
pub fn router(view: Arc<CachedView>, questions: Router, names: Names) -> Router {
    let mut router = Router::new()
        .route("/metrics", get(metrics))
        .route("/ready", get(ready))
        .with_state(view);
    for (path, kind, content) in FILES {
        let answer = move || async move { ([(header::CONTENT_TYPE, *kind)], *content) };
        router = router.route(path, get(answer));
    }
    router
        .merge(questions)
        .layer(middleware::from_fn_with_state(Arc::new(names), guard))
}

async fn metrics(State(view): State<Arc<CachedView>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok()).unwrap_or("");
    let exposition = Exposition::for_accept(accept);
    match view.metrics(exposition) {
        Ok(metrics) => {
            let kind = [(header::CONTENT_TYPE, exposition.content_type())];
            (kind, metrics).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Says in a line whether connections are best led here, and by the status: 200 or 503.
async fn ready(
    State(view): State<Arc<CachedView>>,
    query: Result<Query<ReadyQuery>, QueryRejection>,
) -> Response {
    let answer = match query {
        Ok(Query(query)) => view.readiness().answer(&query),
        Err(rejection) => return (StatusCode::BAD_REQUEST, rejection.body_text()).into_response(),
    };
    match answer {
        Ok(answer) => {
            let status = match answer.fit {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, format!("{}\n", answer.line)).into_response()
        }
        Err(unknown) => (StatusCode::NOT_FOUND, format!("{unknown}\n")).into_response(),
    }
}

/// Answers only those who ask for a name of ours, and sets the headers.
async fn guard(State(names): State<Arc<Names>>, request: Request, next: Next) -> Response {
    let mut response = match names.check(request.headers().get(header::HOST)) {
        Ok(()) => next.run(request).await,
        Err(refusal) => (StatusCode::MISDIRECTED_REQUEST, refusal.to_string()).into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    response
}
