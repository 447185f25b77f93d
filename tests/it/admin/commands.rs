//! The commands that ask the daemon at its admin socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::{Family, Process, Stage, require, run, wait_until};
use rstest::rstest;
use serde_json::{Value, json};

use super::place::{Place, curl};
use crate::harness::{LIMIT, PEPD};

#[rstest]
#[case::status(&["status"])]
#[case::ready(&["ready"])]
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
    listener.set_nonblocking(true)?;
    for answer in answers {
        let over = AtomicBool::new(false);
        let asked = std::thread::scope(|scope| {
            // Whoever hangs up is asked again, for a while.
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let Ok((mut stream, _)) = listener.accept() else {
                        std::thread::park_timeout(Duration::from_millis(5));
                        continue;
                    };
                    let _ = stream.read(&mut [0; 1000]);
                    let _ = stream.write_all(answer);
                }
            });
            let asked = place.ask(&["status"]);
            over.store(true, Relaxed);
            asked
        })?;
        assert_eq!(asked.status.code(), Some(69), "{asked:?}");
        assert_eq!(asked.stderr.lines().count(), 1, "{asked:?}");
    }
    Ok(())
}

/// What a script tells it is not to be lost for a mistake in the file.
#[test]
fn a_daemon_whose_file_is_broken_can_be_asked_by_its_socket() -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let file = stage.pepd()?.config_file();
    assert!(stage.world.probe(Family::V4)?.1);
    std::fs::write(&file, format!("{}\n[leg", place.config()))?;
    let refused = run(
        Command::new(PEPD)
            .args(["link", "wan", "gone", "-c"])
            .arg(&file),
        LIMIT,
    )?;
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    let how = "without its file: `--socket /run/pepd/admin.sock`";
    assert!(refused.stderr.contains(how), "{refused:?}");
    let said = place.ask(&["link", "wan", "gone"])?.success()?;
    assert_eq!(said, "wan: gone\n");
    stage.finish()
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
    let misspelt = place.ask(&["flows", "--campus", "usres"])?;
    assert_eq!(misspelt.status.code(), Some(69), "{misspelt:?}");
    assert!(misspelt.stderr.contains("it has: a, b"), "{misspelt:?}");
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

/// One connection by its own address, in the list and in words, and its end, which is noticed.
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
    // The legs' figures come with the next sample of the sockets.
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

/// It runs on a terminal of its own, which it gives back.
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

#[test]
fn a_reload_says_what_has_not_changed() -> Result<()> {
    require!(root);
    let place = Place::new()?;
    let mut stage = Stage::with_config(PEPD, &place.config())?;
    let file = stage.pepd()?.config_file();
    assert_eq!(place.ask(&["reload"])?.success()?, "reloaded\n");
    let changed = place.config() + "metrics = \"127.0.0.1:9730\"\n";
    std::fs::write(&file, changed)?;
    let said = place.ask(&["reload"])?.success()?;
    stage.world.pair(Family::V4)?.exchange(1000)?;
    assert_eq!(
        said,
        "reloaded\nnote: [admin] takes effect at the next start\n"
    );
    stage.finish()
}
