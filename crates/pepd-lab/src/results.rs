//! The results file: versioned, one record per value.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

/// The version of this schema. A reader refuses another one.
pub const SCHEMA: u32 = 1;

/// The results of one or more experiments on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// The version of the file: [`SCHEMA`].
    pub schema: u32,
    /// The outcome of each experiment, by its name.
    pub experiments: BTreeMap<String, Outcome>,
}

/// The outcome of one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The setting in which it ran.
    pub setting: Setting,
    /// The values measured.
    pub records: Vec<Record>,
    /// What happened over time, where the experiment asks for it: its first repeat.
    pub traces: Vec<Trace>,
    /// The variants that were left out, and why.
    pub left_out: Vec<String>,
}

/// Both legs of one split connection over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The point's place on the experiment's axis.
    pub x: f64,
    /// The variant's name.
    pub variant: String,
    /// The samples, in order of time.
    pub samples: Vec<Sample>,
}

/// The state of both legs at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Seconds since the warm-up ended.
    pub time: f64,
    /// Congestion window of the sender, in segments (`tcpi_snd_cwnd`).
    pub near_cwnd: f64,
    /// Congestion window of the proxy towards the receiver, in segments.
    pub far_cwnd: f64,
    /// What has arrived at the proxy and has not been sent on, in packets: the near socket's
    /// receive queue, and of the far one's send queue what was never sent (`tcpi_notsent_bytes`).
    pub buffer: f64,
}

/// The setting in which an experiment ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The kernel's release.
    pub kernel: String,
    /// Whether the clock was that of a guest which counts instructions.
    pub virtual_time: bool,
    /// Whether this was the quick form.
    pub quick: bool,
}

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The point's place on the experiment's axis.
    pub x: f64,
    /// The name of the variant between the hosts.
    pub variant: String,
    /// The number of the repeat, from 0 on.
    pub repeat: u32,
    /// The seed of the links' losses.
    pub seed: u64,
    /// The metric that was measured.
    pub metric: Metric,
    /// The value, in the metric's unit.
    pub value: f64,
    /// The best that is physically possible in this setting, in the same unit.
    pub limit: Option<f64>,
    /// The number that the paper printed for this, in the same unit, and where.
    pub paper: Option<PaperValue>,
    /// The share of packets that the far leg lost on the wire, of those sent to the receiver.
    pub far_loss: f64,
    /// The time by which the slower link was late with one packet in a hundred, in seconds.
    pub link_lag: f64,
    /// The number of times that the guest waited for the host's files meanwhile, which a clock that
    /// skips idle time counts as traffic's time; `None` outside a guest.
    pub host_requests: Option<u64>,
    /// An emulated link did not keep up: the value is not to be trusted.
    pub fell_behind: bool,
}

/// A number in a paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// The number.
    pub value: f64,
    /// Figure, table or section.
    pub source: String,
}

/// A quantity that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Payload delivered to the receiver per time, all flows together, in bit/s.
    Goodput,
    /// The same per flow: the mean.
    PerFlow,
    /// The same in packets of 1448 bytes of payload per second, as ns-2 counts.
    Packets,
    /// Half the keystrokes came back within this, in seconds; the limit is the path's round trip.
    RoundTrip50,
    /// 99 in 100 keystrokes did.
    RoundTrip99,
    /// The time from the first SYN of a page to its last byte: the mean over the pages, in seconds.
    PageTime,
    /// The share of viewers who are satisfied by the rule of Farkas et al., section 4.1.
    Satisfied,
    /// The time that a video is buffered before it plays: the mean over the viewers, in seconds.
    Buffering,
    /// Jain's fairness index of the flows' goodput.
    Fairness,
    /// The time from the first SYN of a page to its last byte: the median over the pages, in seconds.
    PageTime50,
    /// The time that packets to the receiver waited for the far leg's link that 95 in 100 did not
    /// exceed, in seconds.
    Queue95,
    /// What its queue dropped, in bytes, of what a round trip of it holds.
    Dropped,
    /// The time from when the flows began until they had nine tenths of the limit, in seconds.
    Found,
    /// The time until nine tenths of the far leg's link were used, in seconds.
    Used,
    /// What another's connection on the far leg had, of all.
    Foreign,
}

impl Metric {
    /// Returns the name in reports, with the unit that reports use.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Goodput => "goodput, Mbit/s",
            Self::PerFlow => "goodput per flow, Mbit/s",
            Self::Packets => "goodput, packets/s",
            Self::RoundTrip50 => "round trip p50, ms",
            Self::RoundTrip99 => "round trip p99, ms",
            Self::PageTime => "page, s",
            Self::Satisfied => "satisfied, %",
            Self::Buffering => "buffering, s",
            Self::Fairness => "Jain's index",
            Self::PageTime50 => "page p50, s",
            Self::Queue95 => "queue p95, ms",
            Self::Dropped => "dropped, round trips",
            Self::Found => "90 % after, s",
            Self::Used => "90 % used after, s",
            Self::Foreign => "others have, %",
        }
    }

    /// Returns what is appended to a file's name.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::PerFlow => "per-flow",
            Self::Packets => "packets",
            Self::RoundTrip50 => "p50",
            Self::RoundTrip99 => "p99",
            Self::PageTime => "page",
            Self::Satisfied => "satisfied",
            Self::Buffering => "buffering",
            Self::Fairness => "fairness",
            Self::PageTime50 => "page-p50",
            Self::Queue95 => "queue-p95",
            Self::Dropped => "dropped",
            Self::Found => "found",
            Self::Used => "used",
            Self::Foreign => "foreign",
        }
    }

    /// Tells whether the limit is the most that there can be, and not the least.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        !matches!(
            self,
            Self::RoundTrip50
                | Self::RoundTrip99
                | Self::PageTime
                | Self::PageTime50
                | Self::Buffering
                | Self::Queue95
                | Self::Dropped
                | Self::Found
                | Self::Used
        )
    }

    /// Returns how much of the value's own unit the reports' unit is.
    #[must_use]
    pub fn scale(self) -> f64 {
        match self {
            Self::Goodput | Self::PerFlow => 1e6,
            Self::RoundTrip50 | Self::RoundTrip99 | Self::Queue95 => 1e-3,
            Self::Satisfied | Self::Foreign => 1e-2,
            Self::Packets
            | Self::PageTime
            | Self::PageTime50
            | Self::Buffering
            | Self::Fairness
            | Self::Dropped
            | Self::Found
            | Self::Used => 1.0,
        }
    }
}

impl Outcome {
    /// Returns the metrics that there are values of, in the order in which reports show them.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<_> = self.records.iter().map(|record| record.metric).collect();
        metrics.sort_unstable();
        metrics.dedup();
        metrics
    }

    /// Returns the records of one point (its place on the axis), variant and metric: one per
    /// repeat.
    #[must_use]
    pub fn select(&self, x: f64, variant: &str, metric: Metric) -> Vec<&Record> {
        let wanted = |record: &&Record| {
            record.x == x && record.variant == variant && record.metric == metric
        };
        self.records.iter().filter(wanted).collect()
    }

    /// Puts `new` in place of what it measured again: the same variants at the same points, from
    /// the first repeat on; later repeats are put beside those before. What was measured on
    /// another kernel or by another clock is not kept beside it.
    pub fn update(&mut self, new: Self) {
        let same = |setting: &Setting| (setting.kernel.clone(), setting.virtual_time);
        if same(&self.setting) != same(&new.setting) {
            *self = new;
            return;
        }
        let again = |x: f64, variant: &str| {
            let mut first = new.records.iter().filter(|record| record.repeat == 0);
            first.any(|record| record.x == x && record.variant == variant)
        };
        self.records
            .retain(|record| !again(record.x, &record.variant));
        self.traces.retain(|trace| !again(trace.x, &trace.variant));
        self.records.extend(new.records);
        self.traces.extend(new.traces);
        self.setting.quick |= new.setting.quick;
        self.left_out = new.left_out;
    }
}

impl Results {
    /// Returns results with no experiment in them yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            schema: SCHEMA,
            experiments: BTreeMap::new(),
        }
    }

    /// Reads a results file.
    ///
    /// # Errors
    /// When it cannot be read, is not such a file, or is of another version.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let version: Version = serde_json::from_str(text).context("not a file of pepd-lab's")?;
        ensure!(
            version.schema == SCHEMA,
            "schema {} is not {SCHEMA}, which this pepd-lab reads: run the experiments again",
            version.schema
        );
        Ok(serde_json::from_str(text)?)
    }

    /// Writes a results file, in one piece.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let new = path.with_extension("new");
        let say = || format!("cannot write {}", path.display());
        fs::write(&new, serde_json::to_string_pretty(self)?).with_context(say)?;
        fs::rename(&new, path).with_context(say)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns two values of one variant at one point, each with everything that a record can have.
    pub fn example() -> Results {
        let record = |repeat: u32, value: f64| Record {
            x: 5.0,
            variant: "pepd, bbr".to_owned(),
            repeat,
            seed: 1000 + u64::from(repeat),
            metric: Metric::Goodput,
            value,
            limit: Some(91_706_666.7),
            paper: Some(PaperValue {
                value: 9e6,
                source: "Fig. 0".to_owned(),
            }),
            far_loss: 0.0501,
            link_lag: 0.0004,
            host_requests: Some(0),
            fell_behind: false,
        };
        let outcome = Outcome {
            setting: Setting {
                kernel: "6.1.0-test".to_owned(),
                virtual_time: true,
                quick: true,
            },
            records: vec![record(0, 89e6), record(1, 88e6)],
            traces: vec![Trace {
                x: 5.0,
                variant: "pepd, bbr".to_owned(),
                samples: vec![Sample {
                    time: 0.05,
                    near_cwnd: 10.0,
                    far_cwnd: 20.0,
                    buffer: 1.5,
                }],
            }],
            left_out: vec!["HAProxy, bbr: haproxy is not installed".to_owned()],
        };
        let mut results = Results::new();
        results
            .experiments
            .insert("jain-ott-fig4".to_owned(), outcome);
        results
    }

    #[test]
    fn what_is_written_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.json");
        let results = example();
        results.write(&file).unwrap();
        assert_eq!(Results::read(&file).unwrap(), results);
    }

    #[test]
    fn what_is_measured_again_is_replaced_and_the_rest_stays() {
        let old = example().experiments["jain-ott-fig4"].clone();
        let mut new = old.clone();
        new.records.truncate(1);
        new.records[0].value = 1e6;
        let mut elsewhere = new.records[0].clone();
        elsewhere.x = 10.0;

        let mut merged = old.clone();
        merged.records.push(elsewhere.clone());
        merged.update(new.clone());
        assert_eq!(merged.records, [elsewhere, new.records[0].clone()]);
        assert_eq!(merged.traces, new.traces);

        // One measurement at a time, the first repeat replaces and the next is put beside it.
        let alone = |repeat: usize| Outcome {
            records: vec![old.records[repeat].clone()],
            traces: Vec::new(),
            ..old.clone()
        };
        let mut one_by_one = old.clone();
        one_by_one.update(alone(0));
        assert_eq!(one_by_one.records, old.records[..1]);
        one_by_one.update(alone(1));
        assert_eq!(one_by_one.records, old.records);

        let mut on_another_kernel = new.clone();
        on_another_kernel.setting.kernel = "6.12.0-test".to_owned();
        merged.update(on_another_kernel.clone());
        assert_eq!(merged, on_another_kernel);
    }

    #[test]
    fn another_version_is_refused_with_the_cure() {
        let error = Results::parse(r#"{ "schema": 99, "new": [] }"#).unwrap_err();
        assert!(
            error.to_string().contains("run the experiments again"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_file_of_ours_is_refused() {
        let extra = r#"{ "schema": 1, "experiments": {}, "x": 0 }"#;
        for text in ["", "[]", "{}", r#"{ "schema": 1 }"#, extra] {
            assert!(Results::parse(text).is_err(), "{text}");
        }
    }
}
