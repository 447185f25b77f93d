//! The machine that a result belongs to.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::run;
use serde_json::{Value, json};

/// No program takes this long to print its version.
const LIMIT: Duration = Duration::from_secs(30);

/// What a reader has to know to place a number.
#[derive(Debug)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    /// The load of the last minute before the benchmark: others that run beside it.
    load: String,
    pepd: String,
    haproxy: String,
}

impl Machine {
    /// Inspects this one.
    ///
    /// # Errors
    /// When a program cannot say its version.
    pub fn inspect(pepd: &Path) -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let mut pepd = Command::new(pepd);
        let mut haproxy = Command::new("haproxy");
        Ok(Self {
            cpu: cpu_model(&cpuinfo)
                .unwrap_or(std::env::consts::ARCH)
                .to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: first_word("/proc/sys/kernel/osrelease"),
            load: first_word("/proc/loadavg"),
            pepd: first_line(&run(pepd.arg("--version"), LIMIT)?.success()?),
            haproxy: first_line(&run(haproxy.arg("-v"), LIMIT)?.success()?),
        })
    }

    /// Returns it for the JSON.
    pub fn json(&self) -> Value {
        json!({
            "cpu": self.cpu,
            "cores": self.cores,
            "kernel": self.kernel,
            "load_before": self.load,
            "pepd": self.pepd,
            "haproxy": self.haproxy,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} cores; Linux {}; load before: {}; {}; {}",
            self.cpu, self.cores, self.kernel, self.load, self.pepd, self.haproxy
        )
    }
}

/// Reads the processor's name: x86 calls it `model name`; others have other names, or none.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| matches!(key.trim(), "model name" | "Model" | "cpu"))
        .map(|(_, value)| value.trim())
}

fn first_word(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .next()
        .unwrap_or("unknown")
        .to_owned()
}

/// Returns the first line of a version; HAProxy's goes on with a date and a link.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let short = line.split_whitespace().take(3).collect::<Vec<_>>();
    short.join(" ")
}
