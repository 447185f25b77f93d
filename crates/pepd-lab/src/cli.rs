//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Repeats the experiments of the papers behind pepd, and sets its numbers beside theirs.
#[derive(Debug, Parser)]
#[command(name = "pepd-lab", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the experiments
    List,
    /// Run experiments, and report
    ///
    /// In a Debian kernel under QEMU whose clock counts instructions, so that the numbers do
    /// not depend on how fast or how busy this machine is.
    Run(Run),
    /// Report what was run before
    Report(Report),
    /// Run experiments on this kernel and print records
    #[command(hide = true)]
    Measure(Measure),
}

/// Which experiments, and how thoroughly.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// The experiments, as `list` names them; `all` for all
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Fewer points and repeats, shorter windows
    #[arg(long)]
    pub quick: bool,
    /// Repeat each measurement so often, each time with other losses
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: Option<u32>,
    /// Let the flows run for so long before a measurement, such as `5s`
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub warm_up: Option<Duration>,
    /// Measure for so long
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub window: Option<Duration>,
    /// Only at these places of the axis
    #[arg(long, value_name = "X", value_delimiter = ',')]
    pub at: Vec<f64>,
    /// Only variants whose name contains this; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub variant: Vec<String>,
    /// Tell what bulk flows reached over time, and what pepd says of its flows at the end
    #[arg(long)]
    pub flows: bool,
}

impl Selection {
    /// The same as arguments, for the same program in a guest.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut words = self.names.clone();
        if self.quick {
            words.push("--quick".to_owned());
        }
        if let Some(repeats) = self.repeats {
            words.push(format!("--repeats={repeats}"));
        }
        let mut time = |name: &str, time: Option<Duration>| {
            let text = |time| format!("--{name}={}", humantime::format_duration(time));
            words.extend(time.map(text));
        };
        time("warm-up", self.warm_up);
        time("window", self.window);
        words.extend(self.at.iter().map(|x| format!("--at={x}")));
        if self.flows {
            words.push("--flows".to_owned());
        }
        words.extend(self.variant.iter().map(|text| format!("--variant={text}")));
        words
    }
}

/// `pepd-lab run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub selection: Selection,
    /// Run on this kernel, in real time: a smoke test, not a measurement
    #[arg(long)]
    pub native: bool,
    /// The daemon's binary [default: built from this source tree]
    #[arg(long, value_name = "FILE", env = "PEPD_LAB_PEPD")]
    pub pepd: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// Where reports go.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// The folder of results, figures and the page
    #[arg(long, value_name = "FOLDER", default_value = "target/lab")]
    pub folder: PathBuf,
    /// Write the records to this file too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `pepd-lab report`.
#[derive(Clone, Debug, Args)]
pub struct Report {
    /// Only these experiments
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub output: Output,
}

/// `pepd-lab measure`.
#[derive(Clone, Debug, Args)]
pub struct Measure {
    #[command(flatten)]
    pub selection: Selection,
    /// The daemon's binary
    #[arg(long)]
    pub pepd: PathBuf,
    /// The clock counts instructions
    #[arg(long)]
    pub virtual_time: bool,
}
