//! The daemon's figures for Prometheus.
//!
//! What `/metrics` says is read from the [`View`] when it is asked; only distributions, which no
//! counter holds, are recorded meanwhile ([`pepd_telemetry::Measurements`]). No label has values
//! that come from traffic: campuses, legs and peers are the configuration's, outcomes and reasons
//! are pepd's, and errnos the kernel's.
//!
//! docs/metrics.md describes every metric.

mod buffers;
mod chosen;
mod collect;
mod families;
mod legs;
mod links;
mod moves;
mod process;
mod rates;
mod ready;
mod survival;
mod text;
mod worth;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

pub use self::process::open_descriptors;
use crate::view::View;

/// A format in which the metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0.0, for those who ask for it.
    OpenMetrics,
    /// Prometheus' text format 0.0.4, which everything reads.
    Text,
}

impl Exposition {
    /// Returns what a client that sends this `Accept` header understands.
    pub fn for_accept(accept: &str) -> Self {
        // RFC 9110, section 12.5.1, in short: Prometheus lists OpenMetrics first where it is
        // willing to read it, and no other client names it.
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// Returns the value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns all metrics of the daemon behind `view`, as they are now.
///
/// # Errors
/// If the encoder refuses a value, which it does for none of ours.
pub fn expose(view: &Arc<dyn View>, exposition: Exposition) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collect::Collect::new(Arc::clone(view))));
    let mut written = String::new();
    encode(&mut written, &registry)?;
    Ok(match exposition {
        Exposition::OpenMetrics => written,
        Exposition::Text => text::from_openmetrics(&written),
    })
}

#[cfg(test)]
mod tests {
    use super::Exposition;

    #[test]
    fn openmetrics_for_those_who_ask() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(Exposition::for_accept(prometheus), Exposition::OpenMetrics);
        for other in ["", "*/*", "text/plain;version=0.0.4"] {
            assert_eq!(Exposition::for_accept(other), Exposition::Text);
        }
    }
}
