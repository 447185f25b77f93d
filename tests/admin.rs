//! The admin socket of the real daemon: who may open it, what it answers and does, what is
//! left of it, and that nobody who misuses it disturbs the relay; and the commands that ask
//! there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use pepd_testbed::{Family, Finished, Pepd, Process, Stage, Via, World, require, run, wait_until};
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

const PEPD: &str = env!("CARGO_BIN_EXE_pepd");
const LIMIT: Duration = Duration::from_secs(120);

/// A group that no host has by name.
const GROUP: u32 = 54_321;

/// Somebody who is not root and in no group of note.
const NOBODY: u32 = 65_534;

/// Where a daemon listens.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-admin-")?;
        // What keeps others out must be the socket, not the directory.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        Ok(Self { directory })
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }

    fn config(&self) -> String {
        let socket = self.socket();
        format!(
            "{}\n[admin]\nsocket = \"{}\"\n",
            World::config(),
            socket.display()
        )
    }

    /// The same for the group as well.
    fn config_for_group(&self) -> String {
        format!("{}group = \"{GROUP}\"\n", self.config())
    }

    /// `pepd COMMAND --socket …`
    fn ask(&self, words: &[&str]) -> Result<Finished> {
        let mut command = Command::new(PEPD);
        run(
            command.args(words).arg("--socket").arg(self.socket()),
            LIMIT,
        )
    }
}

/// What curl gets from `address`: the status and the body.
fn curl(socket: &Path, method: &str, address: &str) -> Result<(String, String)> {
    let mut command = Command::new("curl");
    command
        .args(["-sS", "-g", "-X", method, "-w", "\n%{http_code}"])
        .arg("--unix-socket")
        .arg(socket)
        .arg(format!("http://pepd{address}"));
    let said = run(&mut command, LIMIT)?.success()?;
    let (body, status) = said.rsplit_once('\n').context("no status")?;
    Ok((status.to_owned(), body.to_owned()))
}

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
fn without_a_socket_in_the_file_there_is_none() -> Result<()> {
    require!(root);
    let mut stage = Stage::open(Via::Pepd, PEPD)?;
    stage.world.pair(Family::V4)?.exchange(1000)?;
    let hb = stage.world.hb();
    let asked = stage.pepd.as_ref().unwrap().subcommand(hb, "status")?;
    assert_eq!(asked.status.code(), Some(69), "{asked:?}");
    assert!(asked.stderr.contains("[admin] socket"), "{asked:?}");
    stage.pepd()?;
    stage.finish()
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
/// that others may not pass through, and in the group besides.
#[test]
fn a_daemon_that_is_not_root_serves_it_to_its_group() -> Result<()> {
    require!(root, program("setpriv"));
    let place = Place::new()?;
    let directory = place.directory.path();
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

    place.ask(&["drain"])?.success()?;
    wait_until(LIMIT, "new connections are routed", || {
        !stage.world.probe(Family::V4).unwrap().1
    })?;
    live.exchange(10_000)?;
    // It still answers, takes a second drain for what it is, and no reload.
    assert_eq!(curl(&place.socket(), "GET", "/v1/status")?.0, "200");
    place.ask(&["drain"])?.success()?;
    let refused = place.ask(&["reload"])?;
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
    // Nor is that of one that is paused, and answers nobody.
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

#[rstest]
#[case::status(&["status"])]
#[case::flows(&["flows"])]
#[case::flow(&["flow", "1"])]
#[case::reload(&["reload"])]
#[case::drain(&["drain"])]
fn without_a_daemon_it_is_exit_69_and_one_line(#[case] words: &[&str]) -> Result<()> {
    let place = Place::new()?;
    let asked = place.ask(words)?;
    assert_eq!(asked.status.code(), Some(69), "{asked:?}");
    assert_eq!(asked.stdout, "");
    assert_eq!(asked.stderr.lines().count(), 1, "{asked:?}");
    for said in [&*place.socket().display().to_string(), "--socket"] {
        assert!(asked.stderr.contains(said), "{asked:?}");
    }
    Ok(())
}

/// A program that is not pepd, or one that hangs up.
#[test]
fn what_does_not_answer_as_pepd_does_is_exit_69() -> Result<()> {
    let place = Place::new()?;
    let listener = UnixListener::bind(place.socket())?;
    let answers: &[&[u8]] = &[
        b"",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"api\":",
    ];
    for answer in answers {
        let asked = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(answer);
            });
            place.ask(&["status"])
        })?;
        assert_eq!(asked.status.code(), Some(69), "{asked:?}");
        assert_eq!(asked.stderr.lines().count(), 1, "{asked:?}");
    }
    Ok(())
}

#[test]
fn the_commands_say_how_it_stands() -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let file = stage.pepd()?.config_file();
    stage.world.pair(Family::V6)?.exchange(10_000)?;
    // The file names the socket as well.
    let status = run(Command::new(PEPD).args(["status", "-c"]).arg(&file), LIMIT)?.success()?;
    assert!(
        status.starts_with("hb: splitting new connections"),
        "{status}"
    );
    let json = place.ask(&["status", "--json"])?.success()?;
    assert!(json.starts_with('{') && json.ends_with("}\n"), "{json}");
    for words in [&["flows"][..], &["flows", "--sort", "rtt", "--campus", "a"]] {
        place.ask(words)?.success()?;
    }
    let json = place.ask(&["flows", "--json", "--limit", "3"])?.success()?;
    assert!(json.contains("\"total\":"), "{json}");
    let unknown = place.ask(&["flow", "999999"])?;
    assert_eq!(unknown.status.code(), Some(69), "{unknown:?}");
    assert!(unknown.stderr.contains("999999"), "{unknown:?}");
    for wrong in [
        &["flows", "--sort", "colour"][..],
        &["flows", "--limit", "0"],
        &["flows", "--client", "10.1"],
        &["flow"],
        &["status", "-c", "x"],
    ] {
        assert_eq!(place.ask(wrong)?.status.code(), Some(64), "{wrong:?}");
    }
    stage.finish()
}

/// One connection by its own address, in the list, and in words; and that its end is noticed.
#[rstest]
fn a_live_connection_is_shown_until_it_ends(
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    const BYTES: u64 = 300_000;
    require!(root);
    let place = Place::new()?;
    let stage = Stage::with_config(PEPD, &place.config())?;
    let other = stage.world.pair(family)?;
    let pair = stage.world.pair(family)?;
    // By then the daemon has both; another worker's may come later.
    other.exchange(1000)?;
    pair.exchange(BYTES)?;
    let client = pair.client.local_addr()?;
    let server = pair.client.peer_addr()?;
    let address = format!("/v1/flows?client={client}&campus=b");
    let mut flow = Value::Null;
    // The legs' figures come with the next look at the sockets.
    wait_until(LIMIT, "the bytes are counted, the legs looked at", || {
        let (_, body) = curl(&place.socket(), "GET", &address).unwrap();
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&list["total"], &list["matching"]), (&json!(2), &json!(1)));
        flow = list["flows"][0].clone();
        let [up, down] = [&flow["up"], &flow["down"]].map(|direction| &direction["bytes"]);
        *up == json!(BYTES) && *down == json!(BYTES) && flow["upstream_leg"]["tcp"].is_object()
    })?;
    assert_eq!(flow["client"], json!(client));
    assert_eq!(flow["server"], json!(server));
    assert_eq!(flow["client_leg"]["congestion"], json!("reno"));
    assert_eq!(flow["upstream_leg"]["congestion"], json!("cubic"));
    assert!(flow["upstream_leg"]["tcp"]["rtt"].as_f64().unwrap() > 0.0);

    let id = flow["id"].to_string();
    let said = place.ask(&["flow", &id])?.success()?;
    for word in [
        &client.to_string(),
        &server.to_string(),
        "[leg.wan]",
        "reno",
        "293 KiB",
    ] {
        assert!(said.contains(word), "no {word} in\n{said}");
    }
    let (status, history) = curl(&place.socket(), "GET", &format!("/v1/flows/{id}/history"))?;
    assert_eq!(status, "200", "{history}");
    let listed = place.ask(&["flows", "--client", &client.ip().to_string()])?;
    assert!(listed.success()?.contains(&client.to_string()));

    let mut watch = Command::new(PEPD);
    watch.args(["flow", &id, "--watch", "--json", "--socket"]);
    let mut watching = Process::spawn(watch.arg(place.socket()))?;
    wait_until(LIMIT, "it is watched", || {
        watching.log().contains("\"id\":")
    })?;
    drop(pair);
    assert!(watching.wait(LIMIT)?.success(), "{}", watching.log());
    let said = watching.log();
    assert!(
        said.ends_with(&format!("connection {id} has ended\n")),
        "{said}"
    );
    assert_eq!(place.ask(&["flow", &id])?.status.code(), Some(69));
    other.exchange(1000)?;
    stage.finish()
}

/// On a terminal of its own, which it gives back.
#[test]
fn top_takes_a_terminal_and_gives_it_back() -> Result<()> {
    require!(root, program("script"));
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    stage.world.pair(Family::V4)?.exchange(10_000)?;
    let top = format!("{PEPD} top --socket {}", place.socket().display());
    let session = format!("printf q | script -qec '{top}' /dev/null");
    let said = run(Command::new("sh").args(["-c", &session]), LIMIT)?.success()?;
    let (entered, left) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
    assert!(said.contains(entered) && said.contains(left), "{said}");
    let refused = place.ask(&["top"])?;
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    assert!(refused.stderr.contains("terminal"), "{refused:?}");
    stage.pepd()?;
    stage.finish()
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
    pepd_testbed::raise_descriptor_limit()?;
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
