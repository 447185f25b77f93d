//! Who does not have the key neither gives nor takes nor learns anything, and what cannot move stays.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::{Family, Finished, require, wait_until};
use serde_json::Value;

use super::ground::{Ground, KEY};
use crate::harness::LIMIT;

/// Checks that a command failed so.
pub(super) fn fails(moved: &Finished, code: i32, words: &str) -> Result<()> {
    let said = format!("{}{}", moved.stdout, moved.stderr);
    ensure!(
        moved.status.code() == Some(code) && said.contains(words),
        "{code} {words}: {moved:?}"
    );
    Ok(())
}

fn refused(ground: &Ground, at: usize) -> Result<u64> {
    let status = pepd_testbed::ask(&ground.socket(at), "GET /v1/status")?;
    let status: Value = serde_json::from_str(&status)?;
    status["moves"]["refused"].as_u64().context("a count")
}

/// Gives a configuration with another file for the first key in it.
fn key_replaced(config: &str, key: &Path) -> Result<String> {
    let (before, rest) = config.split_once("key = \"").context("a key")?;
    let (_, after) = rest.split_once('"').context("its end")?;
    Ok(format!("{before}key = \"{}\"{after}", key.display()))
}

/// The box that gives says why it does not, and so does the one that takes.
#[test]
fn another_version_is_told_to_both() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let hello = |name: &str| {
        let length = u8::try_from(name.len())?;
        Ok::<_, anyhow::Error>([&b"pepd-move"[..], &[0, 3, 0, 9, length], name.as_bytes()].concat())
    };
    let (to_two, to_one) = (hello("one")?, hello("two")?);
    ground.listens()?;
    let mut stream = ground
        .node("one")
        .run(|| Ok(TcpStream::connect("10.9.0.1:7310")?))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&to_two)?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    ensure!(heard.starts_with(b"pepd-move\0\x02\0\x02"), "{heard:?}");
    let words = "it speaks versions 3 to 9, this box 2 to 2";
    wait_until(LIMIT, "it is logged", || ground.logs().contains(words))?;
    let pair = ground.pair()?;
    ground.daemons[1].take().context("a daemon")?.stop()?;
    let listener = ground
        .node("two")
        .run(|| Ok(TcpListener::bind("10.9.0.1:7310")?))?;
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&to_one)?;
        stream.read_to_end(&mut Vec::new())
    });
    fails(&ground.moves(0, &[])?, 69, words)?;
    answering.join().unwrap()?;
    pair.exchange(1000)
}

#[test]
fn strangers_get_nowhere() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    // Another key.
    let other = KEY.replace('5', "6");
    let place = tempfile::NamedTempFile::new()?;
    fs::write(&place, other)?;
    ground.daemons[0].take().context("a daemon")?.stop()?;
    let config = key_replaced(&ground.config(0), place.path())?;
    let started = pepd_testbed::Pepd::start(crate::harness::PEPD, ground.node("one"), &config)?;
    ground.daemons[0] = Some(started);
    let pair = ground.pair()?;
    let before = refused(&ground, 1)?;
    fails(&ground.moves(0, &[])?, 69, "")?;
    wait_until(LIMIT, "it is counted", || {
        refused(&ground, 1).is_ok_and(|count| count > before)
    })?;
    // Noise, and silence: it hears nothing, and the box goes on taking what others have.
    let target = "10.9.0.1:7310";
    let mut streams: Vec<TcpStream> = ground.node("one").run(|| {
        let streams = (0..40).map(|_| TcpStream::connect(target));
        Ok(streams.collect::<Result<_, _>>()?)
    })?;
    for (index, stream) in streams.iter_mut().enumerate() {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        if index % 2 == 0 {
            // Whoever was one too many is gone already.
            let _ = stream.write_all(&[0x55; 2000]);
        }
        let mut heard = Vec::new();
        // It ends, with or without a RST, and nothing has been said.
        let _ = stream.read_to_end(&mut heard);
        ensure!(heard.is_empty(), "{heard:?}");
    }
    wait_until(LIMIT, "they are counted", || {
        refused(&ground, 1).is_ok_and(|count| count >= before + 40)
    })?;
    pair.exchange(1000)?;
    drop(pair);
    ground.daemons[0].take().context("a daemon")?.stop()?;
    ground.start(0, "")?;
    let pair = ground.pair()?;
    ground.all_move(0, 1)?;
    pair.exchange(1000)
}

/// Those of other addresses are in each other's way alone.
#[test]
fn strangers_that_say_nothing_do_not_keep_a_neighbor_out() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, ["", ""])?;
    let pair = ground.pair()?;
    let left = ground.node("left");
    left.sh("ip route add 10.9.0.1 via 10.21.0.2")?;
    let connect = || TcpStream::connect("10.9.0.1:7310");
    let silent = left.run(|| {
        // It listens a moment after it splits.
        wait_until(LIMIT, "it listens", || connect().is_ok())?;
        let streams = (0..40).map(|_| connect());
        Ok(streams.collect::<Result<Vec<_>, _>>()?)
    })?;
    ground.all_move(0, 1)?;
    drop(silent);
    pair.exchange(1000)
}

/// `pepd doctor` and `pepd check` before anything moves.
#[test]
fn what_is_wrong_with_a_neighbor_is_found_before() -> Result<()> {
    require!(root, program("nft"));
    let mut ground = Ground::open(Family::V4, ["", ""])?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, ground.config(0))?;
    let path = file.path().display().to_string();
    let pepd = crate::harness::PEPD;
    let levels = |ground: &Ground| {
        // It may find more, and tells by its status.
        let said = ground
            .node("one")
            .sh(&format!("{pepd} doctor -c {path} --json || true"))?;
        let report: Value = serde_json::from_str(&said)?;
        let found = report["findings"]
            .as_array()
            .with_context(|| said.clone())?;
        let found = found.iter().filter(|it| it["subject"] == "two");
        let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
        Ok::<_, anyhow::Error>(
            found
                .map(|it| [text(it, "id"), text(it, "level")])
                .collect::<Vec<_>>(),
        )
    };
    let all_well = levels(&ground)?;
    ensure!(all_well == [["neighbor", "ok"]], "{all_well:?}");
    ensure!(refused(&ground, 1)? == 0, "it looks, and is not refused");
    let key = file.path().with_extension("key");
    fs::write(&key, KEY.replace('5', "6"))?;
    fs::set_permissions(&key, Permissions::from_mode(0o600))?;
    let with_key = key_replaced(&ground.config(0), &key)?;
    fs::write(&file, with_key)?;
    let of_another = levels(&ground)?;
    ensure!(
        of_another == [["neighbor.answer", "note"]],
        "{of_another:?}"
    );
    fs::write(&file, ground.config(0))?;
    ground
        .node("one")
        .sh("for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 > $f; done")?;
    ground.daemons[1].take().context("a daemon")?.stop()?;
    let found = levels(&ground)?;
    let expected = [["neighbor.way", "stop"], ["neighbor.answer", "note"]];
    ensure!(found == expected, "{found:?}");
    let said = ground.node("one").sh(&format!("{pepd} check -c {path}"))?;
    ensure!(
        said.contains("connections of theirs are taken at 10.9.0.2:7310"),
        "{said}"
    );
    Ok(())
}

#[test]
fn what_cannot_move_stays_and_is_named() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, ["", "[limits]\nconnections = 2\n"])?;
    fails(&ground.moves(0, &[])?, 0, "no such connection")?;
    let pairs: Vec<_> = (0..4).map(|_| ground.pair()).collect::<Result<_>>()?;
    let nobody = ground.tells(0, &["move", "--to", "three"])?;
    fails(
        &nobody,
        69,
        "no [[neighbor]] is named three; there are: two",
    )?;
    let asked = ground.moves(0, &["--dry-run"])?;
    fails(&asked, 70, "two would take 2 connections")?;
    fails(&asked, 70, "2 of 4 would stay here")?;
    fails(
        &ground.moves(0, &["--source", "10.9.9.0/24"])?,
        0,
        "no such connection",
    )?;
    fails(
        &ground.moves(0, &["--campus", "a:b", "--dry-run"])?,
        70,
        "would take",
    )?;
    fails(
        &ground.moves(0, &["--campus", "c"])?,
        69,
        "no campus of that name; it has: a, b",
    )?;
    let moved = ground.moves(0, &[])?;
    fails(&moved, 70, "2 of 4 stay here")?;
    fails(&moved, 70, "stays: the other box is full")?;
    ensure!(ground.flows(0)?.len() == 2);
    for pair in &pairs {
        pair.exchange(5000)?;
    }
    ground.no_resets()
}

/// What is sent on comes from hosts that are elsewhere for it: its kernel would drop that, and the connection hang.
#[test]
fn what_the_other_boxs_kernel_would_drop_stays() -> Result<()> {
    require!(root, program("nft"));
    let ground = Ground::open(Family::V4, ["", ""])?;
    let two = ground.node("two");
    let devices = two.sh("ls /proc/sys/net/ipv4/conf")?;
    for device in devices.split_whitespace() {
        two.sh(&format!("sysctl -qw net.ipv4.conf.{device}.rp_filter=1"))?;
    }
    let pair = ground.pair()?;
    pair.exchange(1)?;
    let moved = ground.moves(0, &[])?;
    fails(
        &moved,
        70,
        "stays: the other box's kernel would drop what is sent on to it (rp_filter)",
    )?;
    pair.exchange(5000)?;
    ground.no_resets()
}
