//! The paths at which a daemon answers (docs/admin.md).

use pepd_admin::wire::FlowQuery;

/// Tells how the daemon is as a whole.
pub const STATUS: &str = "/v1/status";

/// The address that has the daemon read its configuration again.
pub const RELOAD: &str = "/v1/reload";

/// The address that has the daemon drain.
pub const DRAIN: &str = "/v1/drain";

/// Lists the live connections that `query` asks for.
pub fn flows(query: &FlowQuery) -> String {
    #[allow(clippy::expect_used, reason = "a struct of strings and numbers")]
    let query = serde_urlencoded::to_string(query).expect("a query has a text");
    format!("/v1/flows?{query}")
}

/// Tells everything about one live connection.
pub fn flow(id: u64) -> String {
    format!("/v1/flows/{id}")
}

/// Tells what one live connection did second by second.
pub fn history(id: u64) -> String {
    format!("/v1/flows/{id}/history")
}
