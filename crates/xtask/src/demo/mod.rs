//! `cargo xtask demo`: a helper box splits real traffic, and what that gains on a long and lossy
//! path, on this machine, in about a minute.

pub mod build;
mod console;
mod gain;
mod interrupt;
mod meter;
mod path;
mod transfer;

use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::{Family, Netns, Nginx, Pepd, Requirement, World, missing, wait_until};

use crate::packages;
use console::Console;
use interrupt::{Interrupt, Interrupted};

/// Two hosts and a helper box in namespaces, real programs, and what each of them sees; then the
/// same over an emulated long and lossy path, without pepd and with it.
#[derive(clap::Args)]
pub struct Args {
    /// What curl downloads, in MiB
    #[arg(long, value_name = "MIB", default_value = "64")]
    size: usize,
}

/// A time that nothing here takes unless something is wrong.
const LIMIT: Duration = Duration::from_secs(60);

/// Slow enough to look at the connection while it lasts.
const RATE: &str = "64M";

/// EX_UNAVAILABLE: the kernel lacks something.
const UNAVAILABLE: u8 = 69;
/// EX_NOPERM.
const NOT_PERMITTED: u8 = 77;
/// 128 + SIGINT, as a shell has it.
const INTERRUPTED: u8 = 130;

/// Runs it, messages included.
pub fn run(args: &Args) -> ExitCode {
    match tell(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("\nInterrupted. The namespaces and everything in them are gone.");
            INTERRUPTED.into()
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            let status = error.downcast_ref().map(|lacking: &Lacking| lacking.status);
            status.map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// This machine cannot show it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Lacking {
    status: u8,
    message: String,
}

fn tell(args: &Args) -> Result<()> {
    require(Requirement::Root, NOT_PERMITTED)?;
    println!("{PLAN}");
    packages::provide(packages::NETWORK)?;
    load("tun");
    load("tcp_bbr");
    require(Requirement::Device("/dev/net/tun"), UNAVAILABLE)?;
    require(Requirement::Congestion("bbr"), UNAVAILABLE)?;
    let pepd = build::quickly()?;
    // Until here everything ends by itself at a signal, and nothing is left.
    let interrupt = Interrupt::watch()?;
    let mut console = Console::new();
    console.introduce(INTRODUCTION);
    split(args, &mut console, &pepd, &interrupt)?;
    gain::show(&mut console, &pepd, &interrupt)?;
    console.end();
    Ok(())
}

fn require(requirement: Requirement, status: u8) -> Result<(), Lacking> {
    missing(requirement).map_or(Ok(()), |why| {
        let message = format!("the demo makes namespaces and emulated links: {why}");
        Err(Lacking { status, message })
    })
}

/// Loads a module. Where it is built in there is none; what is missing is reported afterwards.
fn load(module: &str) {
    let _ = Command::new("modprobe").args(["--quiet", module]).status();
}

/// Shows the first part: what the hosts and the helper box see of a connection that is split.
fn split(args: &Args, console: &mut Console, pepd: &Path, interrupt: &Interrupt) -> Result<()> {
    console.step("Two hosts and a router between them, each a network namespace of this machine:");
    let world = World::standard()?;
    console.picture(PICTURE);
    let before = world.kernel_state()?;
    let nginx = Nginx::start(world.server())?;
    let content = noise(args.size << 20);
    nginx.put_file("file", &content)?;
    let sum = checksum(&nginx.files().join("file"))?;
    console.fact(
        "server",
        &format!(
            "nginx has a file of {} MiB, sha256 {}",
            args.size,
            short(&sum)
        ),
    );

    console.step("The helper box's configuration, and the daemon:");
    console.quote(CONFIG);
    let daemon = Pepd::start(pepd, world.hb(), CONFIG)?;
    console.fact("hb", "pepd run -c pepd.toml: ready");

    for family in Family::BOTH {
        interrupt.check()?;
        console.step(&format!(
            "curl downloads the file from nginx, over {family}:"
        ));
        download(console, &world, &nginx, family, &sum)?;
    }

    interrupt.check()?;
    console.step("The daemon is killed (SIGKILL), as if it had crashed:");
    daemon.kill()?;
    let (pair, split) = world.probe(Family::V4)?;
    pair.exchange(10_000)?;
    ensure!(!split, "a connection was split by a daemon that is dead");
    console.fact(
        "client",
        "the next connection comes about all the same: it is routed, unsplit",
    );

    console.step("The daemon is started again, and ended properly (SIGTERM):");
    let daemon = Pepd::start(pepd, world.hb(), CONFIG)?;
    let (pair, split) = world.probe(Family::V4)?;
    ensure!(split, "the new daemon splits nothing");
    console.fact(
        "hb",
        "it takes over what the dead one had left, and splits new connections",
    );
    drop(pair);
    let (status, log) = daemon.stop()?;
    ensure!(status.success(), "{status}: {log}");
    ensure!(
        world.kernel_state()? == before,
        "something is left of pepd's kernel state"
    );
    console.fact(
        "hb",
        "nft ruleset, policy rules and routes are exactly as before pepd",
    );
    interrupt.check()?;
    Ok(())
}

const PLAN: &str = "\
The demo: programs that are missing are installed, pepd is built, and then two hosts and a
helper box carry real traffic for about a minute.";

const INTRODUCTION: &str = "\
pepd runs on a router. It splits each TCP connection that crosses the router into
two, one to either side, and each has a congestion control of its own. The hosts do
not notice. Here the router and the hosts are namespaces of this machine; nothing
outside them is touched, and nothing is left.";

const PICTURE: &str = "\
client             hb, the helper box             server
10.1.0.2  ──────── 10.1.0.1 │ 10.2.0.1 ────────  10.2.0.2
fd00:a::2          campus a │ campus b          fd00:b::2";

const CONFIG: &str = r#"[node]
name = "hb"

[capture]
handshake = "early"

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16", "fd00:a::/48"]
leg = "near"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16", "fd00:b::/48"]
leg = "far"

[leg.near]
congestion = "reno"

[leg.far]
congestion = "cubic"
"#;

fn download(
    console: &mut Console,
    world: &World,
    nginx: &Nginx,
    family: Family,
    sum: &str,
) -> Result<()> {
    let (client, server) = (World::client_address(family), World::server_address(family));
    let directory = tempfile::TempDir::new()?;
    let file = directory.path().join("file");
    let output = tempfile::NamedTempFile::new()?;
    let name = format!("file?{family}");
    let mut curl = world.client().command("curl");
    curl.args([
        "-sSgf",
        "--limit-rate",
        RATE,
        "-w",
        "%{local_port} %{size_download}",
    ]);
    curl.arg("-o").arg(&file).arg(nginx.url(server, &name));
    curl.stdout(Stdio::from(output.reopen()?))
        .stdin(Stdio::null());
    let mut curl = curl.spawn().context("cannot start curl")?;
    let mut legs = Vec::new();
    let seen = wait_until(LIMIT, "both legs on the helper box", || {
        legs = sockets(world.hb()).unwrap_or_default();
        legs.len() >= 2
    });
    let status = curl.wait()?;
    ensure!(status.success(), "curl: {status}");
    seen?;

    let output = std::fs::read_to_string(output.path())?;
    let (port, size) = output
        .split_once(' ')
        .context("curl has not said its port")?;
    let same = checksum(&file)? == sum;
    ensure!(same, "the file that curl has is not the one that nginx has");
    console.fact(
        "curl",
        &format!("from {client} port {port}: {size} bytes, the same sha256"),
    );
    let line = nginx.logged(&name)?;
    let mut words = line.split_whitespace();
    let (who, from) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    console.fact(
        "nginx",
        &format!("logged the request as from {who} port {from}"),
    );
    ensure!(
        who == client.to_string() && from == port,
        "nginx saw somebody else"
    );
    legs.sort_by_key(Leg::is_upstream);
    for leg in legs {
        console.fact("ss", &leg.to_string());
    }
    Ok(())
}

/// A TCP socket of the helper box, as `ss` shows it.
#[derive(Debug)]
struct Leg {
    local: String,
    peer: String,
    congestion: String,
    rtt: String,
}

impl Leg {
    /// Returns whether this is the leg to the server, which is nginx.
    fn is_upstream(&self) -> bool {
        self.peer.ends_with(":80")
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            local,
            peer,
            congestion,
            rtt,
        } = self;
        let end = if self.is_upstream() {
            "server"
        } else {
            "client"
        };
        write!(
            f,
            "leg to the {end}: {congestion}, rtt {rtt} ms, {local} → {peer}"
        )
    }
}

/// Returns the established connections of the helper box `hb`.
fn sockets(hb: &Netns) -> Result<Vec<Leg>> {
    let table = hb.sh("ss -tinOH state established")?;
    Ok(table.lines().filter_map(leg).collect())
}

/// Reads a line of `ss`: `0 0 LOCAL PEER cubic wscale:… rtt:0.05/0.02 … cwnd:10 …`
fn leg(line: &str) -> Option<Leg> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    Some(Leg {
        local: (*words.get(2)?).to_owned(),
        peer: (*words.get(3)?).to_owned(),
        congestion: (*words.get(4)?).to_owned(),
        rtt: value("rtt:")?.split('/').next()?.to_owned(),
    })
}

fn checksum(file: &Path) -> Result<String> {
    let output = pepd_testbed::run(Command::new("sha256sum").arg(file), LIMIT)?.success()?;
    Ok(output
        .split_whitespace()
        .next()
        .context("sha256sum has said nothing")?
        .to_owned())
}

fn short(sum: &str) -> String {
    format!("{}…", &sum[..sum.len().min(12)])
}

/// Returns the bytes that do not repeat.
fn noise(length: usize) -> Vec<u8> {
    let mut rng = pepd_testbed::traffic::Rng::new(1);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.bits().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::leg;

    #[test]
    fn a_line_of_ss_is_understood() {
        let line = "0      0      [fd00:b::2]:80 [fd00:a::2]:40000 cubic wscale:10,10 rto:201 \
                    rtt:0.143/0.052 ato:40 mss:1428 cwnd:20 bytes_acked:1";
        let leg = leg(line).unwrap();
        assert_eq!(
            (leg.local.as_str(), leg.congestion.as_str()),
            ("[fd00:b::2]:80", "cubic")
        );
        assert_eq!(leg.rtt, "0.143");
    }
}
