//! Writing metric families: a name, what it means, and a value for each set of labels.

use std::fmt;

use pepd_telemetry::HistogramSnapshot;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Label names and values.
pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A family's name and meaning. The encoder appends the unit to the name, and to a counter's
/// samples `_total`.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    /// A sentence.
    pub(super) help: &'static str,
}

impl Family {
    /// Creates a family of something that is counted.
    pub(super) const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            unit: None,
            help,
        }
    }

    /// Creates a family in seconds.
    pub(super) const fn seconds(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            unit: Some(Unit::Seconds),
            help,
        }
    }

    /// Creates a family in bytes.
    pub(super) const fn bytes(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            unit: Some(Unit::Bytes),
            help,
        }
    }
}

/// Writes families into an exposition.
pub(super) struct Families<'a>(pub(super) DescriptorEncoder<'a>);

impl Families<'_> {
    /// Counts of something.
    pub(super) fn counts<'l>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        self.write(family, MetricType::Counter, samples, |mut encoder, n| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&n, None)
        })
    }

    /// Sums of something that is not counted but measured, seconds say.
    pub(super) fn sums<'l>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        self.write(family, MetricType::Counter, samples, |mut encoder, sum| {
            encoder.encode_counter::<NoLabelSet, _, u64>(&sum, None)
        })
    }

    /// Adds gauges: what there is at the moment.
    pub(super) fn gauges<'l>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        self.write(family, MetricType::Gauge, samples, |mut encoder, value| {
            encoder.encode_gauge(&value)
        })
    }

    /// Adds histograms.
    pub(super) fn histograms<'l>(
        &mut self,
        family: &Family,
        samples: impl IntoIterator<Item = (Labels<'l>, HistogramSnapshot)>,
    ) -> fmt::Result {
        self.write(
            family,
            MetricType::Histogram,
            samples,
            |mut encoder,
             HistogramSnapshot {
                 sum,
                 count,
                 buckets,
             }| { encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None) },
        )
    }

    fn write<'l, T>(
        &mut self,
        family: &Family,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels<'l>, T)>,
        encode: impl Fn(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        let Some((labels, _)) = samples.peek() else {
            return Ok(());
        };
        let alone = labels.is_empty();
        let unit = family.unit.as_ref();
        let mut encoder = self
            .0
            .encode_descriptor(family.name, family.help, unit, kind)?;
        for (labels, value) in samples {
            if alone {
                return encode(encoder, value);
            }
            encode(encoder.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}
