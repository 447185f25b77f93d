//! The paths at which a daemon answers (docs/admin.md).

use std::time::Duration;

use pepd_admin::wire::{DrainQuery, FlowQuery, LinkQuery, LinkReport, MoveQuery};
use serde::Serialize;

/// Tells how the daemon is as a whole.
pub const STATUS: &str = "/v1/status";

/// Tells whether connections are best led to its box.
pub const READY: &str = "/v1/ready";

/// The address that has the daemon read its configuration again.
pub const RELOAD: &str = "/v1/reload";

/// Has the daemon drain.
pub fn drain(query: &DrainQuery) -> String {
    with_query("/v1/drain", query)
}

/// Lists the live connections that `query` asks for.
pub fn flows(query: &FlowQuery) -> String {
    with_query("/v1/flows", query)
}

/// Tells everything about one live connection.
pub fn flow(id: u64) -> String {
    format!("/v1/flows/{id}")
}

/// Tells what one live connection did second by second.
pub fn history(id: u64) -> String {
    format!("/v1/flows/{id}/history")
}

/// Moves connections to another box.
pub fn move_away(query: &MoveQuery) -> String {
    with_query("/v1/move", query)
}

/// Takes what is known of the link under a leg, and for how long it will be gone.
pub fn link(leg: &str, report: LinkReport, time: Option<Duration>) -> String {
    let query = LinkQuery {
        leg: leg.to_owned(),
        seconds: time.map(|time| time.as_secs_f64()),
    };
    with_query(&format!("/v1/link/{}", report.name()), &query)
}

fn with_query(path: &str, query: &impl Serialize) -> String {
    #[allow(clippy::expect_used, reason = "a struct of strings and numbers")]
    let query = serde_urlencoded::to_string(query).expect("a query has a text");
    match query.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{query}"),
    }
}
