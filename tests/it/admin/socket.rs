//! The admin socket of the real daemon: who may open it, what it answers and does, what is
//! left of it, and that nobody who misuses it disturbs the relay.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use pepd_testbed::{Family, Pepd, Stage, Via, World, require, run, wait_until};
use rstest::rstest;

use super::place::{GROUP, Place, curl};
use crate::harness::{LIMIT, PEPD, many_descriptors};

/// Somebody who is not root and is in no group of note.
const NOBODY: u32 = 65_534;

/// `program` as somebody else.
fn as_user(group: u32, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={NOBODY}"))
        .arg(format!("--regid={group}"))
        .args(["--clear-groups", program]);
    command
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

#[test]
fn curl_is_answered_and_the_socket_goes_with_the_daemon() -> Result<()> {
    require!(root, program("curl"));
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let socket = place.socket();
    let made = fs::symlink_metadata(&socket)?;
    assert!(made.file_type().is_socket());
    assert_eq!(made.mode() & 0o777, 0o600);
    stage.world.pair(Family::V4)?.exchange(10_000)?;
    let (status, body) = curl(&socket, "GET", "/v1/status")?;
    assert_eq!(status, "200");
    for said in [
        "\"api\":1",
        "\"node\":\"hb\"",
        "\"state\":\"splitting\"",
        "10.2.0.0/16",
    ] {
        assert!(body.contains(said), "no {said} in {body}");
    }
    assert_eq!(curl(&socket, "GET", "/v1/flows")?.0, "200");
    assert_eq!(curl(&socket, "GET", "/v1/flows?colour=red")?.0, "400");
    assert_eq!(curl(&socket, "GET", "/v2")?.0, "404");
    assert_eq!(curl(&socket, "GET", "/v1/drain")?.0, "405");
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!exists(&socket), "the socket is left behind");
    Ok(())
}

#[test]
fn without_a_word_in_the_file_there_is_the_usual_one() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    let hb = stage.world.hb();
    let usual = hb.runtime_directory().join("admin.sock");
    assert_eq!(fs::symlink_metadata(&usual)?.mode() & 0o777, 0o600);
    let asked = stage.pepd.as_ref().unwrap().subcommand(hb, "status")?;
    assert!(asked.success()?.contains("hb"));
    // Without `-c`, too.
    let asked = run(hb.command(PEPD).arg("status"), LIMIT)?;
    assert!(asked.success()?.contains("hb"));
    let (status, log) = stage.pepd.take().unwrap().stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!exists(&usual), "the socket is left behind");
    Ok(())
}

#[test]
fn there_is_none_if_the_file_says_so() -> Result<()> {
    require!(root);
    let config = format!("{}\n[admin]\nsocket = \"off\"\n", World::config());
    let mut stage = Stage::with_config(PEPD, &config)?;
    stage.world.pair(Family::V4)?.exchange(1000)?;
    let hb = stage.world.hb();
    assert!(!exists(&hb.runtime_directory().join("admin.sock")));
    let asked = stage.pepd.as_ref().unwrap().subcommand(hb, "status")?;
    assert_eq!(asked.status.code(), Some(69), "{asked:?}");
    assert!(asked.stderr.contains("off"), "{asked:?}");
    stage.pepd()?;
    stage.finish()
}

/// Nobody has asked for it: daemons of several network namespaces may share a file system.
#[test]
fn a_daemon_that_cannot_have_the_usual_one_does_without() -> Result<()> {
    require!(root);
    let world = World::standard()?;
    let place = world.hb().runtime_directory().join("admin.sock");
    let _other = UnixListener::bind(&place)?;
    let pepd = Pepd::start(PEPD, world.hb(), &World::config())?;
    assert!(
        pepd.log().contains("a living program listens at"),
        "{}",
        pepd.log()
    );
    world.pair(Family::V4)?.exchange(1000)?;
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(exists(&place), "another's socket is removed");
    Ok(())
}

#[test]
fn only_root_may_open_it() -> Result<()> {
    require!(root, program("curl"), program("setpriv"));
    let place = Place::new()?;
    let _stage = Stage::with_config(PEPD, &place.config())?;
    let mut curl = as_user(NOBODY, "curl");
    curl.args(["-sS", "--unix-socket"]).arg(place.socket());
    let refused = run(curl.arg("http://pepd/v1/status"), LIMIT)?;
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    let mut status = as_user(NOBODY, PEPD);
    let refused = run(
        status.args(["status", "--socket"]).arg(place.socket()),
        LIMIT,
    )?;
    assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    assert!(refused.stderr.contains("root"), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    Ok(())
}

#[test]
fn a_group_may_open_it_if_the_file_says_so() -> Result<()> {
    require!(root, program("setpriv"));
    let place = Place::new()?;
    let _stage = Stage::with_config(PEPD, &place.config_for_group())?;
    let made = fs::symlink_metadata(place.socket())?;
    assert_eq!((made.mode() & 0o777, made.gid()), (0o660, GROUP));
    for (group, wanted) in [(GROUP, 0), (NOBODY, 77)] {
        let mut status = as_user(group, PEPD);
        let asked = run(
            status.args(["status", "--socket"]).arg(place.socket()),
            LIMIT,
        )?;
        assert_eq!(asked.status.code(), Some(wanted), "{asked:?}");
    }
    // Who may ask may not therefore choose what is executed.
    let mut upgrade = as_user(GROUP, PEPD);
    let upgrade = upgrade.args(["upgrade", "--socket"]).arg(place.socket());
    let refused = run(upgrade, LIMIT)?;
    assert_eq!(refused.status.code(), Some(77), "{refused:?}");
    Ok(())
}

#[test]
fn a_group_that_the_host_has_not_is_exit_69() -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let world = World::standard()?;
    let before = world.kernel_state()?;
    let config = place
        .config_for_group()
        .replace(&GROUP.to_string(), "no-such-group");
    let (status, log) = Pepd::builder(PEPD).fails(world.hb(), &config)?;
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(
        log.contains("no-such-group") && log.contains("groupadd"),
        "{log}"
    );
    assert!(!exists(&place.socket()));
    assert_eq!(world.kernel_state()?, before);
    Ok(())
}

/// As the systemd unit runs it: not as root, with three capabilities, in a directory of its own
/// that others may not pass through, and also in the group.
#[test]
fn a_daemon_that_is_not_root_serves_it_to_its_group() -> Result<()> {
    require!(root, program("setpriv"));
    let place = Place::new()?;
    let directory = place.directory();
    chown(directory, Some(NOBODY), Some(NOBODY))?;
    fs::set_permissions(directory, Permissions::from_mode(0o750))?;
    // The configuration's directory is root's own until the daemon is to read it.
    let wrapper = format!(
        "chmod -R a+rwX \"$(dirname \"$4\")\"
         exec env RUNTIME_DIRECTORY='{}' setpriv --reuid={NOBODY} --regid={NOBODY} \
         --groups={GROUP} --inh-caps=-all,+net_admin,+net_bind_service \
         --ambient-caps=-all,+net_admin,+net_bind_service \"$@\"",
        directory.display()
    );
    let world = World::standard()?;
    let pepd = Pepd::builder(PEPD)
        .wrapper(&["sh", "-ec", &wrapper, "sh"])
        .start(world.hb(), &place.config_for_group())?;
    let made = fs::symlink_metadata(place.socket())?;
    assert_eq!(
        (made.uid(), made.gid(), made.mode() & 0o777),
        (NOBODY, GROUP, 0o660)
    );
    let passage = fs::metadata(directory)?;
    assert_eq!((passage.gid(), passage.mode() & 0o777), (GROUP, 0o750));
    let mut status = as_user(GROUP, PEPD);
    status.args(["status", "--socket"]).arg(place.socket());
    run(&mut status, LIMIT)?.success()?;
    let (status, log) = pepd.stop()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!exists(&place.socket()), "{log}");
    Ok(())
}

#[test]
fn reload_and_drain_are_orders() -> Result<()> {
    require!(root, program("curl"));
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let file = stage.pepd()?.config_file();
    assert!(stage.world.probe(Family::V4)?.1);
    // A rule that is new takes effect.
    let bypass = "\n[[rule]]\nsource = [\"10.1.0.0/24\"]\naction = \"bypass\"\n";
    fs::write(&file, place.config() + bypass)?;
    place.ask(&["reload"])?.success()?;
    assert!(
        !stage.world.probe(Family::V4)?.1,
        "the new rule does not hold"
    );
    // A wrong file is refused in words, and changes nothing.
    for (bad, why) in [
        ("[node\n".to_owned(), "pepd.toml:1"),
        (
            place.config().replace("\"cubic\"", "\"nonesuch\""),
            "nonesuch",
        ),
    ] {
        fs::write(&file, bad)?;
        let refused = place.ask(&["reload"])?;
        assert_eq!(refused.status.code(), Some(78), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
        assert!(!refused.stderr.contains('\u{1b}'), "{refused:?}");
        let (status, body) = curl(&place.socket(), "POST", "/v1/reload")?;
        assert_eq!(status, "422", "{body}");
        assert!(!stage.world.probe(Family::V4)?.1, "something has changed");
    }
    fs::write(&file, place.config())?;
    assert_eq!(curl(&place.socket(), "POST", "/v1/reload")?.0, "200");
    let (live, split) = stage.world.probe(Family::V4)?;
    assert!(split);

    // Answers are kept for a moment, but not beyond an order.
    let status = || place.ask(&["status"])?.success();
    assert!(status()?.contains("splitting"));
    place.ask(&["drain"])?.success()?;
    assert!(status()?.contains("draining"));
    wait_until(LIMIT, "new connections are routed", || {
        !stage.world.probe(Family::V4).unwrap().1
    })?;
    live.exchange(10_000)?;
    // It still answers, takes a second drain for what it is, and no reload.
    assert_eq!(curl(&place.socket(), "GET", "/v1/status")?.0, "200");
    place.ask(&["drain"])?.success()?;
    let refused = place.ask(&["reload"])?;
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    assert!(refused.stderr.contains("draining"), "{refused:?}");
    live.exchange(10_000)?;
    drop(live);
    let (status, log) = stage.pepd.take().unwrap().wait()?;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!exists(&place.socket()));
    Ok(())
}

#[test]
fn the_socket_of_a_killed_daemon_is_replaced() -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    stage.pepd.take().unwrap().kill()?;
    assert!(exists(&place.socket()), "nobody was there to remove it");
    let asked = place.ask(&["status"])?;
    assert_eq!(asked.status.code(), Some(69), "{asked:?}");
    let hb = stage.world.hb();
    stage.pepd = Some(Pepd::start(PEPD, hb, &place.config())?);
    place.ask(&["status"])?.success()?;
    stage.world.pair(Family::V4)?.exchange(1000)?;
    stage.finish()
}

/// Daemons of two namespaces on one file system.
#[test]
fn the_socket_of_a_living_daemon_is_left_alone() -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let mut first = Stage::with_config(PEPD, &place.config())?;
    let second = World::standard()?;
    let refused = || -> Result<()> {
        let (status, log) = Pepd::builder(PEPD).fails(second.hb(), &place.config())?;
        assert_eq!(status.code(), Some(69), "{log}");
        assert!(
            log.contains("admin.sock") && log.contains("another"),
            "{log}"
        );
        Ok(())
    };
    refused()?;
    place.ask(&["status"])?.success()?;
    // Nor is that of a daemon that is paused and answers nobody.
    first.pepd()?.pause()?;
    refused()?;
    first.pepd()?.resume()?;
    place.ask(&["status"])?.success()?;
    first.world.pair(Family::V4)?.exchange(1000)?;
    first.finish()
}

#[rstest]
#[case::a_file(false)]
#[case::somebody_elses_socket(true)]
fn what_is_not_pepds_is_left_alone(#[case] socket: bool) -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let _listener = if socket {
        Some(UnixListener::bind(place.socket())?)
    } else {
        fs::write(place.socket(), "precious")?;
        None
    };
    let before = fs::symlink_metadata(place.socket())?.ino();
    let world = World::standard()?;
    let (status, log) = Pepd::builder(PEPD).fails(world.hb(), &place.config())?;
    assert_eq!(status.code(), Some(69), "{log}");
    assert!(log.contains("admin.sock"), "{log}");
    assert_eq!(fs::symlink_metadata(place.socket())?.ino(), before);
    Ok(())
}

/// The body is refused before it has come, and takes no memory.
#[test]
fn a_request_of_100_megabytes_is_refused() -> Result<()> {
    const MEGABYTES: usize = 100;
    require!(root);
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let pair = stage.world.pair(Family::V4)?;
    let before = stage.pepd()?.resident_bytes()?;
    let mut stream = UnixStream::connect(place.socket())?;
    let length = MEGABYTES << 20;
    write!(
        stream,
        "POST /v1/drain HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
    )?;
    let megabyte = vec![b'x'; 1 << 20];
    let taken = (0..MEGABYTES).find(|_| stream.write_all(&megabyte).is_err());
    assert!(taken.is_some(), "the daemon has read it all");
    let mut answer = Vec::new();
    // After the answer there is only the error that the body was not read.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{answer:?}");
    let grown = stage.pepd()?.resident_bytes()?.saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    pair.exchange(100_000)?;
    assert!(stage.world.probe(Family::V4)?.1, "it was drained");
    stage.finish()
}

/// A thousand who say nothing, half a request, or who do not read their answers: traffic goes
/// on, an operator is answered, and afterwards nothing is left of them.
#[rstest]
#[case::silent(b"")]
#[case::half(b"GET /v1/status HTTP/1.1\r\nhost:")]
#[case::not_reading(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")]
fn a_thousand_at_once_disturb_nobody(#[case] says: &[u8]) -> Result<()> {
    const CLIENTS: usize = 1000;
    require!(root);
    let _turn = many_descriptors()?;
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let pair = stage.world.pair(Family::V4)?;
    pair.exchange(10_000)?;
    let before = stage.pepd()?.descriptors()?;
    std::thread::scope(|scope| -> Result<()> {
        let socket = place.socket();
        let crowd = scope.spawn(move || -> Result<Vec<UnixStream>> {
            (0..CLIENTS)
                .map(|_| {
                    let mut stream = UnixStream::connect(&socket)?;
                    // It may have been closed again by then.
                    let _ = stream.write_all(says);
                    Ok(stream)
                })
                .collect()
        });
        while !crowd.is_finished() {
            pair.exchange(10_000)?;
        }
        let crowd = crowd.join().unwrap()?;
        place.ask(&["status"])?.success()?;
        let (new, split) = stage.world.probe(Family::V6)?;
        assert!(split);
        new.exchange(100_000)?;
        let most = stage.pepd()?.descriptors()?;
        assert!(most < before + 100, "{most} descriptors, {before} before");
        drop(crowd);
        Ok(())
    })?;
    drop(pair);
    // The listener alone; what is accepted, or waits for it, has the same name (proc_net(5)).
    let open = format!("grep -c ' {}$' /proc/net/unix", place.socket().display());
    wait_until(LIMIT, "their connections are gone", || {
        stage.world.hb().sh(&open).unwrap().trim() == "1"
    })?;
    stage.finish()
}
