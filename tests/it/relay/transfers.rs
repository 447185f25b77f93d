//! Real programs move files: what arrives is what was sent, byte for byte.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Result;
use pepd_testbed::traffic::Rng;
use pepd_testbed::{Family, Iperf3, Nginx, Process, Sshd, Stage, Via, World, require, run};
use rstest::rstest;
use tempfile::TempDir;

use crate::harness::PEPD;

/// Generous: a gigabyte on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

const GIB: u64 = 1 << 30;

#[rstest]
fn curl_downloads_from_nginx_what_is_there(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nginx"), program("curl"));
    let stage = Stage::open(via, PEPD)?;
    let nginx = Nginx::start(stage.world.server())?;
    for size in [1, 1000, 65_536, 1_000_003, 50_000_000] {
        make_file(&nginx.files().join("file"), size)?;
        download(&stage.world, &nginx, family)?;
    }
    stage.finish()
}

#[rstest]
fn curl_uploads_to_nginx_what_it_has(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("nginx"), program("curl"));
    let stage = Stage::open(via, PEPD)?;
    let nginx = Nginx::start(stage.world.server())?;
    for size in [1, 1000, 65_536, 1_000_003, 50_000_000] {
        upload(&stage.world, &nginx, family, size)?;
    }
    stage.finish()
}

/// One gigabyte each way. Sparse, but for a block of its own every 64 KiB, so that making and
/// keeping it costs little and a piece that is lost, doubled or out of place is still seen.
#[rstest]
fn a_gigabyte_down_and_up(#[values(Family::V4, Family::V6)] family: Family) -> Result<()> {
    require!(root, program("nginx"), program("curl"));
    let stage = Stage::open(Via::Pepd, PEPD)?;
    let nginx = Nginx::start(stage.world.server())?;
    make_file(&nginx.files().join("file"), GIB)?;
    download(&stage.world, &nginx, family)?;
    fs::remove_file(nginx.files().join("file"))?;
    upload(&stage.world, &nginx, family, GIB)?;
    stage.finish()
}

/// Behind the helper box, one hop takes packets of 1300 bytes only. Path-MTU discovery must
/// work on the leg that the box opened in the client's name.
#[rstest]
fn a_narrow_hop_behind_the_box(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("ethtool"));
    const SIZE: u64 = 20_000_000;
    let stage = Stage::in_world(World::narrow()?, via, PEPD, &World::config())?;
    stage.world.pair(family)?.stream(SIZE)?;
    stage.finish()
}

#[rstest]
fn ssh_and_scp_go_through(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("sshd"), program("ssh"), program("scp"));
    let stage = Stage::open(via, PEPD)?;
    let sshd = Sshd::start(stage.world.server())?;
    let server = World::server_address(family);
    let client = World::client_address(family);

    let mut ssh = stage.world.client().command("ssh");
    ssh.args(sshd.client_options())
        .arg(format!("root@{server}"))
        .arg("echo $SSH_CONNECTION");
    let said = run(&mut ssh, LIMIT)?.success()?;
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words[0], client.to_string(), "{said}");
    assert_eq!(words[2..], [server.to_string().as_str(), "22"], "{said}");

    let directory = TempDir::new()?;
    let [there, back] = ["there", "back"].map(|name| directory.path().join(name));
    let original = directory.path().join("original");
    make_file(&original, 30_000_000)?;
    let remote = format!("root@[{server}]:{}", there.display());
    for (from, to) in [
        (original.display().to_string(), remote.clone()),
        (remote, back.display().to_string()),
    ] {
        let mut scp = stage.world.client().command("scp");
        run(
            scp.args(sshd.client_options()).args(["-q", &from, &to]),
            LIMIT,
        )?
        .success()?;
    }
    assert_same(&original, &there)?;
    assert_same(&original, &back)?;
    stage.finish()
}

#[rstest]
fn iperf3_runs_both_ways_with_several_streams(
    #[values(Via::Routing, Via::Pepd)] via: Via,
    #[values(Family::V4, Family::V6)] family: Family,
) -> Result<()> {
    require!(root, program("iperf3"));
    let stage = Stage::open(via, PEPD)?;
    let server = World::server_address(family).to_string();
    for direction in ["--bidir", "-R"] {
        let _server = Iperf3::start(stage.world.server())?;
        let mut iperf3 = stage.world.client().command("iperf3");
        iperf3.args(["-c", &server, "-n", "20M", "-P", "4", direction]);
        run(&mut iperf3, LIMIT)?.success()?;
    }
    stage.finish()
}

fn download(world: &World, nginx: &Nginx, family: Family) -> Result<()> {
    let file = nginx.files().join("file");
    let mut curl = world.client().command("curl");
    curl.args(["-sSgf", &nginx.url(World::server_address(family), "file")]);
    // Compared on the way, so that no copy has to be kept.
    let mut curl = curl.stdout(Stdio::piped()).spawn()?;
    let output = curl.stdout.take().unwrap();
    let mut compare = std::process::Command::new("cmp");
    let mut compare = Process::spawn_with_stdin(compare.stdin(output).arg("-").arg(&file))?;
    let compared = compare.wait(LIMIT)?;
    assert!(compared.success(), "{family}: {}", compare.log());
    assert!(curl.wait()?.success());
    Ok(())
}

fn upload(world: &World, nginx: &Nginx, family: Family, size: u64) -> Result<()> {
    let directory = TempDir::new()?;
    let original = directory.path().join("original");
    make_file(&original, size)?;
    let mut curl = world.client().command("curl");
    curl.args(["-sSgf", "-T"]).arg(&original);
    run(
        curl.arg(nginx.url(World::server_address(family), "up")),
        LIMIT,
    )?
    .success()?;
    assert_same(&original, &nginx.files().join("up"))?;
    Ok(fs::remove_file(nginx.files().join("up"))?)
}

fn assert_same(one: &Path, other: &Path) -> Result<()> {
    let compared = run(std::process::Command::new("cmp").args([one, other]), LIMIT)?;
    assert!(
        compared.status.success(),
        "{}{}",
        compared.stdout,
        compared.stderr
    );
    Ok(())
}

/// Small files are all random; large ones are so for a page in every 64 KiB.
fn make_file(path: &Path, size: u64) -> Result<()> {
    let stride = if size > 100_000_000 { 65_536 } else { 4096 };
    let mut file = BufWriter::new(File::create(path)?);
    let mut rng = Rng::new(size);
    for start in (0..size).step_by(stride) {
        file.seek(SeekFrom::Start(start))?;
        for _ in 0..512 {
            file.write_all(&rng.bits().to_le_bytes())?;
        }
    }
    Ok(file.into_inner()?.set_len(size)?)
}
