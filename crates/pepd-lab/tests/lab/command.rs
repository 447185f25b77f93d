//! The program as a user meets it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pepd_testbed::{Finished, Process, require, run, wait_until};
use procfs::FromRead as _;
use procfs::net::Snmp;

const LAB: &str = env!("CARGO_BIN_EXE_pepd-lab");
/// A build of the daemon on a busy machine, and a measurement.
const LIMIT: Duration = Duration::from_secs(3600);

#[test]
fn it_lists_what_it_can_run() {
    let output = lab(&["list"]);
    assert!(output.status.success());
    let list = text(&output.stdout);
    for name in [
        "jain-ott-fig4",
        "jain-ott-fig8",
        "baccelli-table1",
        "farkas-fig7c",
        "joshi-satellite",
        "bhutani-table1",
        "bhutani-fig8",
    ] {
        assert!(list.contains(name), "{list}");
    }
}

/// Without a guest and without programs: there are none in its PATH.
#[test]
fn what_is_computed_is_there_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(LAB)
        .args(["run", "bhutani-fig2", "--folder"])
        .arg(folder.path())
        .env("PATH", folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = text(&output.stdout);
    assert!(
        table.contains("every n") && table.contains("68.8"),
        "{table}"
    );
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("id=\"bhutani-fig2\""), "{page}");
    assert!(folder.path().join("bhutani-fig2.svg").exists());
}

#[test]
fn an_unknown_experiment_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(&["run", "fig99", "--folder", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(64));
    let message = text(&output.stderr);
    assert!(message.contains("pepd-lab list"), "{message}");
}

#[test]
fn a_report_of_nothing_says_how_to_get_something() {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(&["report", "--folder", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(64));
    let message = text(&output.stderr);
    assert!(message.contains("pepd-lab run"), "{message}");
}

#[test]
fn without_root_nothing_is_run_natively() -> Result<()> {
    require!(root, program("setpriv"));
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    // Where the build is nobody else may look. By a program of its own: a descriptor to write by
    // would be inherited by what other tests start meanwhile, and the copy be busy (ETXTBSY).
    let copy = folder.path().join("pepd-lab");
    let copied = run(Command::new("cp").arg(LAB).arg(&copy), LIMIT)?;
    assert!(copied.status.success(), "{copied:?}");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .arg(&copy)
        .args(["run", "jain-ott-fig4", "--native", "--folder"])
        .arg(folder.path().join("results"));
    let finished = run(&mut command, LIMIT)?;
    assert_eq!(finished.status.code(), Some(77), "{finished:?}");
    assert!(!folder.path().join("results").exists(), "{finished:?}");
    assert!(finished.stderr.contains("root"), "{finished:?}");
    Ok(())
}

#[test]
fn without_tun_nothing_is_run_natively() -> Result<()> {
    require!(root, program("unshare"));
    let folder = tempfile::tempdir()?;
    let script = r#"mkdir -p /dev/net && mount -t tmpfs none /dev/net && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", LAB]);
    command.args(["run", "jain-ott-fig4", "--native", "--folder"]);
    command.arg(folder.path());
    let finished = run(&mut command, LIMIT)?;
    assert_eq!(finished.status.code(), Some(69), "{finished:?}");
    assert!(finished.stderr.contains("/dev/net/tun"), "{finished:?}");
    assert_eq!(fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}

/// Where the choice leaves nothing that is an error, and not a success without a word.
#[test]
fn nothing_to_measure_is_a_usage_error() -> Result<()> {
    require!(root, device("/dev/net/tun"), program("ip"), program("nft"));
    for choice in ["--variant=nobody", "--at=99"] {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(LAB);
        command.args(["run", "jain-ott-fig4", "--native", "--quick", choice]);
        command.arg("--folder").arg(folder.path());
        let Finished { status, stderr, .. } = run(&mut command, LIMIT)?;
        assert_eq!(status.code(), Some(64), "{stderr}");
        assert!(stderr.contains("nothing is left to measure"), "{stderr}");
    }
    Ok(())
}

/// One point of one experiment on this kernel: every part works together. What it measures is
/// the machine's affair.
#[test]
fn a_quick_experiment_runs_natively() -> Result<()> {
    require!(
        root,
        device("/dev/net/tun"),
        program("ip"),
        program("nft"),
        congestion("bbr"),
        congestion("cubic"),
    );
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("records.json");
    let mut command = Command::new(LAB);
    command.args([
        "run",
        "jain-ott-fig4",
        "--native",
        "--quick",
        "--repeats=1",
        "--at=5",
    ]);
    command
        .args(["--variant=pepd, bbr", "--folder"])
        .arg(folder.path())
        .arg("--json")
        .arg(&json);
    let Finished {
        status,
        stdout,
        stderr,
        ..
    } = run(&mut command, LIMIT)?;
    assert!(status.success(), "{stderr}");
    assert!(stdout.contains("pepd, bbr"), "{stdout}");
    assert!(stdout.contains("REAL TIME"), "{stdout}");

    let results: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let records = results["experiments"]["jain-ott-fig4"]["records"]
        .as_array()
        .unwrap();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(results["schema"], 1);
    assert!(records[0]["value"].as_f64().unwrap() > 0.0, "{records:?}");
    assert!(
        records[0]["far_loss"].as_f64().unwrap() > 0.0,
        "{records:?}"
    );
    for file in ["jain-ott-fig4.svg", "report.html", "results.json"] {
        assert!(folder.path().join(file).metadata()?.len() > 0, "{file}");
    }
    Ok(())
}

/// The other workloads, for a moment each, over real TUN links and through the real daemon.
#[test]
fn every_workload_runs_natively() -> Result<()> {
    require!(
        root,
        device("/dev/net/tun"),
        program("ip"),
        program("nft"),
        congestion("reno"),
        congestion("cubic"),
    );
    // The experiment, where, a variant, for how long, and what comes of it.
    let cases = [
        ("jain-ott-keystrokes", "10", "thin", "3s", "round-trip50"),
        ("jain-ott-fig4-2006", "5", "pepd, reno", "2s", "goodput"),
        ("baccelli-fs", "20", "pepd", "3s", "packets"),
        ("baccelli-table1", "10", "beside", "2s", "packets"),
        ("farkas-fig4", "2", "pepd, cubic", "2s", "per-flow"),
        ("farkas-fig7a", "0", "initial window", "2s", "page-time"),
        ("farkas-fig8a", "0", "pepd", "3s", "buffering"),
        ("joshi-wireless", "1", "reno → cubic", "2s", "goodput"),
    ];
    for (name, at, variant, window, metric) in cases {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(LAB);
        command.args(["run", name, "--native", "--quick", "--repeats=1"]);
        command.args(["--warm-up=500ms", "--window", window, "--at", at]);
        command.args(["--variant", variant, "--folder"]);
        command.arg(folder.path());
        let finished = run(&mut command, LIMIT)?;
        assert!(finished.status.success(), "{name}: {finished:?}");
        let records = records(&folder.path().join("results.json"), name)?;
        let record = records.iter().find(|record| record["metric"] == metric);
        let record = record.unwrap_or_else(|| panic!("{name}: {records:?}"));
        assert!(record["value"].as_f64().unwrap() > 0.0, "{name}: {record}");
        let figures = fs::read_dir(folder.path())?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|file| file.ends_with(".svg"));
        assert!(figures.count() > 0, "{name}: no figure");
    }
    Ok(())
}

/// The daemon of the second of four measurements is killed amid a transfer. The third and fourth
/// are of another experiment.
#[test]
fn a_measurement_that_fails_is_named_and_the_rest_goes_on() -> Result<()> {
    require!(
        root,
        device("/dev/net/tun"),
        program("ip"),
        program("nft"),
        congestion("bbr"),
        congestion("cubic"),
    );
    let folder = tempfile::tempdir()?;
    let [first, second] = ["jain-ott-fig4", "jain-ott-fig4-controls"];
    let mut command = Command::new(LAB);
    command.args(["run", first, second, "--native", "--quick", "--repeats=2"]);
    command.args(["--at=10", "--variant=pepd, bbr"]);
    command.args(["--warm-up=500ms", "--window=4s", "--folder"]);
    command.arg(folder.path());
    let mut lab = Process::spawn(&mut command)?;

    let begun = format!("{first} 2/2");
    let mut daemon = None;
    wait_until(LIMIT, "a transfer through the second daemon", || {
        let ended = !matches!(lab.try_wait(), Ok(None));
        if lab.log().contains(&begun) {
            daemon = transferring(lab.pid());
        }
        daemon.is_some() || ended
    })?;
    let Some(daemon) = daemon else {
        panic!("there was none:\n{}", lab.log());
    };
    kill(daemon, Signal::SIGKILL)?;

    let status = lab.wait(LIMIT)?;
    let log = lab.log();
    assert_eq!(status.code(), Some(70), "{log}");
    let named = format!("FAILED: {first} at 10%, pepd, bbr, seed 3001: pepd has ended");
    assert!(log.contains(&named), "{log}");
    assert!(
        log.contains("pepd-lab: 1 of 4 measurements failed"),
        "{log}"
    );
    let results = folder.path().join("results.json");
    let repeats = |experiment| -> Result<Vec<u64>> {
        let records = records(&results, experiment)?;
        let repeat = |record: &serde_json::Value| record["repeat"].as_u64().unwrap();
        Ok(records.iter().map(repeat).collect())
    };
    assert_eq!(repeats(first)?, [0], "{log}");
    assert_eq!(repeats(second)?, [0, 1], "{log}");
    assert!(folder.path().join("report.html").exists(), "{log}");
    Ok(())
}

/// Returns the daemon that `lab` has started, once so much is sent in its namespace that a transfer
/// must be under way: the handshakes take a few segments.
fn transferring(lab: Pid) -> Option<Pid> {
    let lab = procfs::process::Process::new(lab.as_raw()).ok()?;
    let tasks = lab.tasks().ok()?;
    let children = tasks.filter_map(|task| task.ok()?.children().ok());
    let is_it = |id: i32| -> Option<Pid> {
        let name = procfs::process::Process::new(id).ok()?.stat().ok()?.comm;
        let sent = Snmp::from_file(format!("/proc/{id}/net/snmp")).ok()?;
        (name == "pepd" && sent.tcp_out_segs > 100).then(|| Pid::from_raw(id))
    };
    children
        .flatten()
        .find_map(|id| is_it(i32::try_from(id).ok()?))
}

fn records(file: &Path, experiment: &str) -> Result<Vec<serde_json::Value>> {
    let results: serde_json::Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let records = results["experiments"][experiment]["records"].as_array();
    Ok(records.unwrap().clone())
}

fn lab(arguments: &[&str]) -> Output {
    Command::new(LAB).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
