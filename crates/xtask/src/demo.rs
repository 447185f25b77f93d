//! `cargo xtask demo`: one helper box splits real traffic, on this machine, in a minute.

pub mod build;
mod story;

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pepd_testbed::{Family, Nginx, Pepd, Requirement, World, missing, wait_until};

use crate::packages;
use story::Story;

/// Two hosts and a helper box in namespaces, real programs, and what each of them sees.
#[derive(clap::Args)]
pub struct Args {
    /// What curl downloads, in MiB
    #[arg(long, value_name = "MIB", default_value = "64")]
    size: usize,
}

/// Nothing here takes this long unless something is wrong.
const LIMIT: Duration = Duration::from_secs(60);

/// Slow enough to look at the connection while it lives.
const RATE: &str = "64M";

/// Runs it.
pub fn run(args: &Args) -> Result<()> {
    if let Some(why) = missing(Requirement::Root) {
        anyhow::bail!("the demo makes network namespaces: {why}");
    }
    packages::provide(packages::NETWORK)?;
    let pepd = build::release()?;
    let mut story = Story::new();

    story.step("Two hosts and a router between them, each a network namespace of this machine:");
    let world = World::standard()?;
    story.picture(PICTURE);
    let before = world.kernel_state()?;
    let nginx = Nginx::start(world.server())?;
    let content = noise(args.size << 20);
    nginx.put_file("file", &content)?;
    let sum = checksum(&nginx.files().join("file"))?;
    story.fact(
        "server",
        &format!(
            "nginx has a file of {} MiB, sha256 {}",
            args.size,
            short(&sum)
        ),
    );

    story.step("The helper box's configuration, and the daemon:");
    story.quote(CONFIG);
    let daemon = Pepd::start(&pepd, world.hb(), CONFIG)?;
    story.fact("hb", "pepd run -c pepd.toml: ready");

    for family in Family::BOTH {
        story.step(&format!(
            "curl downloads the file from nginx, over {family}:"
        ));
        download(&mut story, &world, &nginx, family, &sum)?;
    }

    story.step("The daemon is killed (SIGKILL), as if it had crashed:");
    daemon.kill()?;
    let (pair, split) = world.probe(Family::V4)?;
    pair.exchange(10_000)?;
    ensure!(!split, "a connection was split by a daemon that is dead");
    story.fact(
        "client",
        "the next connection comes about all the same: it is routed, unsplit",
    );

    story.step("The daemon is started again, and ended properly (SIGTERM):");
    let daemon = Pepd::start(&pepd, world.hb(), CONFIG)?;
    let (pair, split) = world.probe(Family::V4)?;
    ensure!(split, "the new daemon splits nothing");
    story.fact(
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
    story.fact(
        "hb",
        "nft ruleset, policy rules and routes are exactly as before pepd",
    );
    story.end();
    Ok(())
}

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
    story: &mut Story,
    world: &World,
    nginx: &Nginx,
    family: Family,
    sum: &str,
) -> Result<()> {
    let (client, server) = (World::client_address(family), World::server_address(family));
    let directory = tempfile::TempDir::new()?;
    let file = directory.path().join("file");
    let said = tempfile::NamedTempFile::new()?;
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
    curl.stdout(Stdio::from(said.reopen()?))
        .stdin(Stdio::null());
    let mut curl = curl.spawn().context("cannot start curl")?;
    let mut legs = Vec::new();
    let seen = wait_until(LIMIT, "both legs on the helper box", || {
        legs = sockets(world).unwrap_or_default();
        legs.len() >= 2
    });
    let status = curl.wait()?;
    ensure!(status.success(), "curl: {status}");
    seen?;

    let said = std::fs::read_to_string(said.path())?;
    let (port, size) = said.split_once(' ').context("curl has not said its port")?;
    let same = checksum(&file)? == sum;
    ensure!(same, "the file that curl has is not the one that nginx has");
    story.fact(
        "curl",
        &format!("from {client} port {port}: {size} bytes, the same sha256"),
    );
    let line = nginx.logged(&name)?;
    let mut words = line.split_whitespace();
    let (who, from) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    story.fact(
        "nginx",
        &format!("logged the request as from {who} port {from}"),
    );
    ensure!(
        who == client.to_string() && from == port,
        "nginx saw somebody else"
    );
    legs.sort_by_key(|leg| !leg.is_towards(port));
    for leg in legs {
        let towards = if leg.is_towards(port) {
            "client"
        } else {
            "server"
        };
        let Leg {
            local,
            peer,
            congestion,
            cwnd,
            rtt,
        } = leg;
        story.fact(
            "ss",
            &format!(
                "leg to the {towards}: {local} → {peer}, {congestion}, cwnd {cwnd}, rtt {rtt} ms"
            ),
        );
    }
    Ok(())
}

/// A TCP socket of the helper box, as `ss` shows it.
#[derive(Debug)]
struct Leg {
    local: String,
    peer: String,
    congestion: String,
    cwnd: String,
    rtt: String,
}

impl Leg {
    fn is_towards(&self, port: &str) -> bool {
        self.peer.rsplit(':').next() == Some(port)
    }
}

fn sockets(world: &World) -> Result<Vec<Leg>> {
    let table = world.hb().sh("ss -tinOH state established")?;
    Ok(table.lines().filter_map(leg).collect())
}

/// `0 0 LOCAL PEER cubic wscale:… rtt:0.05/0.02 … cwnd:10 …`
fn leg(line: &str) -> Option<Leg> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    Some(Leg {
        local: (*words.get(2)?).to_owned(),
        peer: (*words.get(3)?).to_owned(),
        congestion: (*words.get(4)?).to_owned(),
        cwnd: value("cwnd:")?.to_owned(),
        rtt: value("rtt:")?.split('/').next()?.to_owned(),
    })
}

fn checksum(file: &std::path::Path) -> Result<String> {
    let said = pepd_testbed::run(Command::new("sha256sum").arg(file), LIMIT)?.success()?;
    Ok(said
        .split_whitespace()
        .next()
        .context("sha256sum has said nothing")?
        .to_owned())
}

fn short(sum: &str) -> String {
    format!("{}…", &sum[..sum.len().min(12)])
}

/// Bytes that do not repeat.
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
        assert_eq!((leg.cwnd.as_str(), leg.rtt.as_str()), ("20", "0.143"));
    }
}
