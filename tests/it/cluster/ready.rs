//! What makes a box fit or not, one condition after the other, as those see it who ask.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use pepd_testbed::traffic::{Pair, connect};
use pepd_testbed::{
    Family, Netns, Pepd, Stage, Via, World, ask, install, require, run, wait_until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{is_ready, ready};
use crate::harness::{LIMIT, PEPD};

/// Starts the standard world with an admin socket, metrics, and more in the file.
fn open(more: &str) -> Result<(Stage, PathBuf)> {
    let world = World::standard()?;
    let socket = world.admin_socket();
    let config = config(&world, more);
    Ok((Stage::in_world(world, Via::Pepd, PEPD, &config)?, socket))
}

fn config(world: &World, more: &str) -> String {
    let admin = world.admin();
    format!(
        "{}\n{admin}metrics = \"127.0.0.1:9730\"\n{more}",
        World::config()
    )
}

/// Waits until it is fit, or is not; returns what it says.
fn becomes(socket: &Path, words: &[&str], fit: bool) -> Result<String> {
    let mut said = String::new();
    wait_until(LIMIT, &format!("ready {words:?}: {fit}"), || {
        let answer = is_ready(socket, words);
        let Ok((is, line)) = answer else {
            return false;
        };
        said = line;
        is == fit
    })?;
    Ok(said)
}

/// Returns what curl gets at the address of the metrics: the status and the body.
fn page(netns: &Netns, path: &str) -> Result<(String, String)> {
    let mut command = netns.command("curl");
    command
        .args(["-sS", "-w", "\n%{http_code}"])
        .arg(format!("http://127.0.0.1:9730{path}"));
    let said = run(&mut command, LIMIT)?.success()?;
    let (body, status) = said.rsplit_once('\n').context("no status")?;
    Ok((status.to_owned(), body.to_owned()))
}

fn pairs(stage: &Stage, count: usize) -> Result<Vec<Pair>> {
    let pair = |_| {
        let pair = stage.world.pair(Family::V4)?;
        pair.exchange(1)?;
        Ok(pair)
    };
    (0..count).map(pair).collect()
}

#[test]
fn it_says_so_to_everybody_who_asks() -> Result<()> {
    require!(root, program("curl"));
    let (stage, socket) = open("")?;
    let hb = stage.world.hb();
    let asked = ready(&socket, &[])?;
    assert_eq!((asked.status.code(), &*asked.stdout), (Some(0), "ready\n"));
    assert_eq!(page(hb, "/ready")?, ("200".into(), "ready\n".into()));
    let live = "ready for the connections that it has (campus b)\n";
    let asked = ready(&socket, &["--live", "--campus", "b"])?;
    assert_eq!((asked.status.code(), &*asked.stdout), (Some(0), live));
    assert_eq!(
        page(hb, "/ready?campus=b&live=true")?,
        ("200".into(), live.into())
    );
    let both = ready(&socket, &["--campus", "a", "--campus", "b"])?.success()?;
    assert_eq!(both, "ready (campus a); ready (campus b)\n");

    let fit = json!({ "fit": true });
    let campus = |name: &str| json!({ "name": name, "new": fit, "live": fit });
    let expected = json!({ "new": fit, "live": fit, "campuses": [campus("a"), campus("b")] });
    let said: Value = serde_json::from_str(&ready(&socket, &["--json"])?.success()?)?;
    assert_eq!(said, expected);
    let status: Value = serde_json::from_str(&ask(&socket, "GET /v1/status")?)?;
    assert_eq!(status["ready"], expected);
    let (_, metrics) = page(hb, "/metrics")?;
    for line in [
        "pepd_ready{connections=\"new\"} 1",
        "pepd_campus_ready{campus=\"b\",connections=\"live\"} 1",
    ] {
        ensure!(metrics.contains(line), "no {line} in\n{metrics}");
    }

    // What is asked wrongly is not answered with a no.
    let unknown = ready(&socket, &["--campus", "c"])?;
    assert_eq!(unknown.status.code(), Some(69), "{unknown:?}");
    assert!(unknown.stderr.contains("it has: a, b"), "{unknown:?}");
    assert_eq!(page(hb, "/ready?campus=c")?.0, "404");
    assert_eq!(page(hb, "/ready?colour=red")?.0, "400");
    assert_eq!(ready(&socket, &["--campus"])?.status.code(), Some(64));
    stage.world.pair(Family::V4)?.exchange(1)?;
    stage.finish()
}

/// It keeps what it has until that has ended, and then there is nobody who answers.
#[test]
fn one_that_drains_is_ready_for_what_it_has_and_for_nothing_new() -> Result<()> {
    require!(root, program("curl"));
    let world = World::standard()?;
    let socket = world.admin_socket();
    let config = config(&world, "").replace("drain = \"5s\"", "drain = \"1h\"");
    let mut stage = Stage::in_world(world, Via::Pepd, PEPD, &config)?;
    let live = pairs(&stage, 2)?;
    let hb = stage.world.hb();
    let answer = stage
        .pepd
        .as_ref()
        .context("a daemon")?
        .subcommand(hb, "drain")?
        .success()?;
    // The whole of it, or a little less.
    let says = |said: &str| {
        let why = said.split_once("it is ending, when its 2 connections do, in ");
        why.is_some_and(|(_, time)| time.starts_with("59m") || time.starts_with("1h 0m"))
    };
    assert!(says(&answer) && answer.contains("SIGTERM"), "{answer}");
    let (fit, said) = is_ready(&socket, &[])?;
    assert!(
        !fit && said.starts_with("not ready: ") && says(&said),
        "{said}"
    );
    assert!(!is_ready(&socket, &["--campus", "a"])?.0);
    let (status, said) = page(hb, "/ready")?;
    assert!(status == "503" && says(&said), "{status} {said}");
    let (fit, said) = is_ready(&socket, &["--live"])?;
    assert!(fit && says(&said), "{said}");
    for pair in &live {
        pair.exchange(10_000)?;
    }
    drop(live);
    let pepd = stage.pepd.take().context("a daemon")?;
    let (status, log) = pepd.wait()?;
    ensure!(status.success(), "{log}");
    for words in [&[][..], &["--live"]] {
        assert_eq!(ready(&socket, words)?.status.code(), Some(69));
    }
    Ok(())
}

/// At nine tenths of a limit it is not ready, and at less than eight it is again; live connections stay.
/// A process that goes on for another one knows where it stands.
#[test]
fn nearly_full_is_not_ready_until_there_is_room_again() -> Result<()> {
    require!(root);
    let (mut stage, socket) = open("[limits]\nconnections = 10\n")?;
    let mut live = pairs(&stage, 8)?;
    assert_eq!(is_ready(&socket, &[])?, (true, "ready".to_owned()));
    live.extend(pairs(&stage, 1)?);
    let said = becomes(&socket, &[], false)?;
    assert!(said.contains("`[limits] connections`"), "{said}");
    assert!(is_ready(&socket, &["--live"])?.0);
    live.truncate(8);
    let is_counted = |count: u64| {
        let limits = ask(&socket, "GET /v1/limits").unwrap_or_default();
        let limits: Value = serde_json::from_str(&limits).unwrap_or_default();
        limits["limits"][0]["used"] == json!(count)
    };
    wait_until(LIMIT, "it has ended", || is_counted(8))?;
    stage.pepd()?.dies(Signal::SIGKILL)?;
    wait_until(LIMIT, "the next one has them", || is_counted(8))?;
    assert!(!is_ready(&socket, &[])?.0, "it is not known any more");
    live.truncate(7);
    becomes(&socket, &[], true)?;
    for pair in live {
        pair.exchange(1000)?;
    }
    stage.finish()
}

/// Where there are descriptors for few connections new ones are routed, which is no reason to cut those that there are.
#[test]
fn without_descriptors_it_is_not_ready() -> Result<()> {
    require!(root, program("prlimit"));
    let world = World::standard()?;
    let socket = world.admin_socket();
    let config = config(&world, "");
    let mut stage = Stage::in_world(world, Via::Routing, PEPD, &config)?;
    let few = Pepd::builder(PEPD).wrapper(&["prlimit", "--nofile=240:240"]);
    stage.pepd = Some(few.start(stage.world.hb(), &config)?);
    let mut live = pairs(&stage, 1)?;
    let listener = stage.world.listen(Family::V4)?;
    let mut said = String::new();
    wait_until(LIMIT, "there is room for no more", || {
        live.extend(Pair::through(&listener, stage.world.client()).ok());
        let answer = is_ready(&socket, &[]);
        answer.is_ok_and(|(fit, line)| {
            said = line;
            !fit
        })
    })?;
    assert!(said.starts_with("not ready: nine tenths of "), "{said}");
    assert!(is_ready(&socket, &["--live"])?.0);
    for pair in live {
        pair.exchange(1000)?;
    }
    stage.finish()
}

/// A firewall that is loaded while it runs.
#[test]
fn where_split_connections_do_not_come_through_it_is_not_ready() -> Result<()> {
    require!(root);
    let (stage, socket) = open("")?;
    let hb = stage.world.hb();
    stage.world.pair(Family::V4)?.exchange(1)?;
    hb.sh(
        "nft 'add table inet late; add chain inet late input { type filter hook input priority 0; \
           policy drop; }; add rule inet late input iif lo accept'",
    )?;
    // The client that finds out tries again by itself, and is routed then.
    let listener = stage.world.listen(Family::V4)?;
    connect(stage.world.client(), listener.local_addr()?)?;
    for words in [&[][..], &["--live"]] {
        let said = becomes(&socket, words, false)?;
        assert!(said.contains("do not come through this host"), "{said}");
    }
    hb.sh("nft delete table inet late")?;
    becomes(&socket, &[], true)?;
    stage.finish()
}

/// A host that forwards nothing gives pepd no new connections, and those that there are go on.
#[test]
fn where_nothing_is_forwarded_it_is_not_ready_for_new_ones() -> Result<()> {
    require!(root);
    let (stage, socket) = open("")?;
    let hb = stage.world.hb();
    let pair = stage.world.pair(Family::V4)?;
    // One family of two is an alarm, no more.
    hb.sh("sysctl -qw net.ipv6.conf.all.forwarding=0")?;
    wait_until(LIMIT, "it is an alarm", || {
        let status = ask(&socket, "GET /v1/status").unwrap_or_default();
        status.contains("\"cause\":\"forwarding\"")
    })?;
    assert!(is_ready(&socket, &[])?.0);
    hb.sh("sysctl -qw net.ipv4.ip_forward=0")?;
    let said = becomes(&socket, &[], false)?;
    assert!(said.contains("forwarding is off"), "{said}");
    becomes(&socket, &["--live"], true)?;
    pair.exchange(1000)?;
    hb.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    becomes(&socket, &[], true)?;
    stage.finish()
}

/// nft fails: what there is may stay. Then pepd's table is gone, and nft does not put it back.
#[test]
fn without_its_kernel_state_it_is_not_ready() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let socket = world.admin_socket();
    let directory = TempDir::with_prefix("pepd-nft-")?;
    std::fs::set_permissions(
        directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    let [broken, script, nft] = ["broken", "script", "nft"].map(|it| directory.path().join(it));
    let path = std::env::var("PATH")?;
    std::fs::write(
        &script,
        format!(
            "#!/bin/sh\nPATH={path}\n[ -e {} ] && exit 1\nexec nft \"$@\"\n",
            broken.display()
        ),
    )?;
    install(&script, &nft)?;
    let search = format!("PATH={}:{path}", directory.path().display());
    let config = config(&world, "");
    let mut pepd = Pepd::builder(PEPD)
        .wrapper(&["env", &search])
        .start(world.hb(), &config)?;
    becomes(&socket, &[], true)?;
    std::fs::write(&broken, "")?;
    becomes(&socket, &[], false)?;
    becomes(&socket, &["--live"], true)?;
    world.hb().sh("nft delete table inet pepd")?;
    becomes(&socket, &["--live"], false)?;
    std::fs::remove_file(&broken)?;
    becomes(&socket, &[], true)?;
    ensure!(pepd.runs(), "{}", pepd.log());
    Ok(())
}

/// Connections wait for their link, or they do not; new ones are better off elsewhere in both cases.
#[test]
fn a_link_that_is_gone_takes_its_campus_along() -> Result<()> {
    require!(root);
    let (mut stage, socket) = open("")?;
    let tell = |state: &str| -> Result<()> {
        ask(&socket, &format!("POST /v1/link/{state}?leg=wan")).map(drop)
    };
    tell("gone")?;
    let said = becomes(&socket, &[], false)?;
    assert!(
        said.contains("campus b: the link under leg wan is gone"),
        "{said}"
    );
    assert!(is_ready(&socket, &["--live"])?.0, "they wait");
    assert!(is_ready(&socket, &["--campus", "a"])?.0);
    assert!(!is_ready(&socket, &["--campus", "a", "--campus", "b"])?.0);
    // A process that goes on for another one does not think better of it.
    stage.pepd()?.dies(Signal::SIGKILL)?;
    assert!(!is_ready(&socket, &[])?.0);
    let refuse =
        config(&stage.world, "").replace("[leg.wan]\n", "[leg.wan]\nwhile_gone = \"refuse\"\n");
    stage.pepd()?.reload(&refuse)?;
    becomes(&socket, &["--live"], false)?;
    tell("up")?;
    becomes(&socket, &["--live"], true)?;
    becomes(&socket, &[], true)?;
    stage.world.pair(Family::V4)?.exchange(1)?;
    stage.finish()
}

/// Whoever asks while one process goes on for another waits for that, and hears the same as before.
#[test]
fn a_process_that_dies_makes_nobody_lead_connections_away() -> Result<()> {
    require!(root);
    let (mut stage, socket) = open("")?;
    let live = pairs(&stage, 3)?;
    let over = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answers = Vec::new();
            while !over.load(Ordering::Relaxed) {
                answers.push(ready(&socket, &[])?);
            }
            Ok::<_, anyhow::Error>(answers)
        });
        let died = (0..10).try_for_each(|_| stage.pepd()?.dies(Signal::SIGKILL));
        over.store(true, Ordering::Relaxed);
        died?;
        asking.join().unwrap()
    })?;
    // How long a busy machine takes is not what is asked here.
    let is_late = |stderr: &str| stderr.contains("has not answered within");
    let wrong = answers
        .iter()
        .filter(|it| it.stdout != "ready\n" && !is_late(&it.stderr));
    let wrong: Vec<_> = wrong.collect();
    ensure!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        answers.len()
    );
    ensure!(answers.len() > 1, "{} answers", answers.len());
    for pair in live {
        pair.exchange(1000)?;
    }
    stage.finish()
}

/// The keeper gives up with the fifth death within a minute.
#[test]
fn one_that_dies_again_and_again_is_not_ready() -> Result<()> {
    require!(root);
    let (mut stage, socket) = open("")?;
    let live = pairs(&stage, 1)?;
    for _ in 0..2 {
        stage.pepd()?.dies(Signal::SIGABRT)?;
        assert_eq!(is_ready(&socket, &[])?, (true, "ready".to_owned()));
    }
    stage.pepd()?.dies(Signal::SIGABRT)?;
    let said = becomes(&socket, &[], false)?;
    assert!(said.contains("again and again"), "{said}");
    assert!(is_ready(&socket, &["--live"])?.0);
    for pair in live {
        pair.exchange(1000)?;
    }
    stage.finish()
}

#[test]
fn one_that_does_not_answer_is_exit_69() -> Result<()> {
    require!(root);
    let (stage, socket) = open("")?;
    stage.world.pair(Family::V4)?.exchange(1)?;
    let pepd = stage.pepd.as_ref().context("a daemon")?;
    pepd.pause()?;
    let asked = ready(&socket, &[]);
    pepd.resume()?;
    let asked = asked?;
    assert_eq!(asked.status.code(), Some(69), "{asked:?}");
    assert!(
        asked.stderr.contains("has not answered within 2 s"),
        "{asked:?}"
    );
    becomes(&socket, &[], true)?;
    stage.finish()
}

/// A worker that hangs, and with it what it serves; the keeper makes another process after ten seconds.
#[test]
fn with_a_worker_that_does_not_respond_it_is_not_ready() -> Result<()> {
    require!(root);
    let (mut stage, socket) = open("")?;
    let live = pairs(&stage, 1)?;
    let daemon = stage.pepd()?.daemon()?;
    let worker = thread_of(daemon, "worker-0")?;
    ptrace::seize(worker, Options::empty())?;
    ptrace::interrupt(worker)?;
    // Also its end, which is to be reaped by whoever traces it.
    let all = Some(WaitPidFlag::__WALL);
    waitpid(worker, all)?;
    let said = becomes(&socket, &[], false)?;
    // Whoever has become this late may find the next process about to go on.
    assert!(said.contains("a worker does not respond"), "{said}");
    assert!(is_ready(&socket, &["--live"])?.0);
    waitpid(worker, all)?;
    stage.pepd()?.says("READY=1")?;
    assert!(stage.pepd()?.daemon()? != daemon, "it was not replaced");
    becomes(&socket, &[], true)?;
    for pair in live {
        pair.exchange(1000)?;
    }
    stage.finish()
}

/// Returns the thread of this name.
fn thread_of(process: Pid, name: &str) -> Result<Pid> {
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        let own = std::fs::read_to_string(task.path().join("comm"))?;
        if own.trim_end() == name {
            let thread = task.file_name().to_string_lossy().parse()?;
            return Ok(Pid::from_raw(thread));
        }
    }
    anyhow::bail!("no thread is named {name}")
}
