//! Runs experiments one after the other, on this kernel or in a guest.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::vm::{self, Clock, Ended, Guest, Kernel, KernelPackage};
use pepd_testbed::{Requirement, missing};
use serde::{Deserialize, Serialize};

use crate::cli::{Measure, Run, Selection};
use crate::failure::Failure;
use crate::measure::{self, Options, Tally};
use crate::paper::{self, Experiment};
use crate::results::Outcome;

/// The time limit of a run of experiments, on the host's clock.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The programs that measurements run; what is not installed is left out by them.
const PROGRAMS: [&str; 6] = ["chrt", "haproxy", "ip", "nft", "sh", "ss"];

/// One line of what `measure` prints: the outcome of one measurement of an experiment.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    name: String,
    outcome: Outcome,
}

/// What is to be run.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// What is measured.
    pub experiments: Vec<Experiment>,
    /// The names of what is computed.
    pub computed: Vec<String>,
}

/// Returns what `names` name.
///
/// # Errors
/// When there is no such experiment.
pub fn select(names: &[String]) -> Result<Chosen> {
    let mut all = Chosen::default();
    for paper in paper::all()? {
        all.experiments.extend(paper.experiments);
        let computed = paper.computed.into_iter();
        all.computed.extend(computed.map(|figure| figure.name));
    }
    if names.iter().any(|name| name == "all") {
        return Ok(all);
    }
    let mut chosen = Chosen::default();
    for name in names {
        let found = all.experiments.iter().find(|it| it.name == *name);
        if let Some(experiment) = found {
            chosen.experiments.push(experiment.clone());
        } else if all.computed.contains(name) {
            chosen.computed.push(name.clone());
        } else {
            let message = format!("no experiment `{name}`: `pepd-lab list` names them");
            return Err(Failure::usage(message).into());
        }
    }
    Ok(chosen)
}

/// Runs experiments, as they are selected, and hands each outcome to `keep` as it comes.
///
/// # Errors
/// When the machine cannot run them ([`Failure`], [`vm::Error`]), and after all of them if a
/// measurement has failed.
pub fn run(
    args: &Run,
    experiments: &[Experiment],
    keep: &mut (dyn FnMut(String, Outcome) -> Result<()> + Send),
) -> Result<()> {
    if args.native {
        require_native()?;
    }
    let pepd = match &args.pepd {
        Some(file) => file
            .canonicalize()
            .with_context(|| file.display().to_string())?,
        None => build()?,
    };
    if args.native {
        return native(experiments, &args.selection, &pepd, false, keep);
    }
    guest(&args.selection, &pepd, keep)
}

/// `pepd-lab measure`: runs on this kernel, and prints a [`Line`] per experiment.
///
/// # Errors
/// As [`run`].
pub fn measure(args: &Measure) -> Result<()> {
    require_native()?;
    let chosen = select(&args.selection.names)?;
    native(
        &chosen.experiments,
        &args.selection,
        &args.pepd,
        args.virtual_time,
        &mut |name, outcome| {
            println!("{}", serde_json::to_string(&Line { name, outcome })?);
            Ok(())
        },
    )
}

fn native(
    experiments: &[Experiment],
    selection: &Selection,
    pepd: &Path,
    virtual_time: bool,
    keep: &mut dyn FnMut(String, Outcome) -> Result<()>,
) -> Result<()> {
    let options = Options {
        pepd,
        selection,
        virtual_time,
    };
    let mut tally = Tally::default();
    for experiment in experiments {
        let keep = &mut |outcome| keep(experiment.name.clone(), outcome);
        let progress = &mut |text: &str| eprintln!("{text}");
        measure::experiment(experiment, options, &mut tally, progress, keep)?;
    }
    let Tally { measured, failed } = tally;
    ensure!(failed == 0, "{failed} of {measured} measurements failed");
    Ok(())
}

fn require_native() -> Result<()> {
    if let Some(why) = missing(Requirement::Root) {
        return Err(
            Failure::not_permitted(format!("--native makes network namespaces: {why}")).into(),
        );
    }
    let needs = [
        Requirement::Device("/dev/net/tun"),
        Requirement::Program("ip"),
        Requirement::Program("nft"),
    ];
    match needs.into_iter().find_map(missing) {
        Some(why) => Err(Failure::unavailable(why).into()),
        None => Ok(()),
    }
}

fn guest(
    selection: &Selection,
    pepd: &Path,
    keep: &mut (dyn FnMut(String, Outcome) -> Result<()> + Send),
) -> Result<()> {
    vm::require_programs()?;
    let kernel = Kernel::prepare(&KernelPackage::default(), &mut |text| eprintln!("{text}"))?;
    let this = env::current_exe()?;
    let mut guest = Guest::new(Path::new("/"))
        .clock(Clock::Virtual)
        .timeout(LIMIT)
        .visible(&this)
        .visible(pepd)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .copy(this.as_os_str())
        .copy(pepd.as_os_str());
    for program in PROGRAMS {
        if missing(Requirement::Program(program)).is_none() {
            guest = guest.copy(OsStr::new(program));
        }
    }
    let mut command: Vec<OsString> = vec![this.into(), "measure".into(), "--virtual-time".into()];
    command.extend(["--pepd".into(), pepd.into()]);
    command.extend(selection.arguments().into_iter().map(OsString::from));

    let results = tempfile::tempdir()?;
    let mut lines = Lines {
        rest: Vec::new(),
        keep,
        error: None,
    };
    let run = guest.run(
        &kernel,
        &command,
        results.path(),
        &mut lines,
        &mut io::stderr(),
    )?;
    if let Some(error) = lines.error {
        return Err(error);
    }
    match run.ended {
        Ended::Exited(0) => Ok(()),
        Ended::Exited(status) => Err(Failure::passed_on(status).into()),
        Ended::Died(console) | Ended::TimedOut(console) => {
            Err(Failure::internal(format!("the guest ended before its command:\n{console}")).into())
        }
    }
}

/// Takes apart the lines that the guest prints.
struct Lines<'a> {
    rest: Vec<u8>,
    keep: &'a mut (dyn FnMut(String, Outcome) -> Result<()> + Send),
    error: Option<anyhow::Error>,
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let kept = serde_json::from_slice(&line)
                .context("the guest printed something else than results")
                .and_then(|Line { name, outcome }| (self.keep)(name, outcome));
            if let Err(error) = kept {
                self.error.get_or_insert(error);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Builds the daemon with the profile that this program was built with.
fn build() -> Result<PathBuf> {
    let this = env::current_exe()?;
    let folder = this.parent().context("this program has no folder")?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "pepd"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.stdin(Stdio::null()).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(Failure::unavailable(
            "cannot build pepd: name a binary with --pepd, or run this from its source tree"
                .to_owned(),
        )
        .into());
    }
    Ok(folder.join("pepd"))
}
