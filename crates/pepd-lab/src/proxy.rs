//! What splits connections at the box in the middle.

use std::fs;
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pepd_testbed::{Netns, Pepd, Process, accepted, wait_until};
use tempfile::TempDir;

use crate::paper::{Point, ProxyKind, Variant};
use crate::path::MTU;

/// How long HAProxy may take to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A proxy at work, ended when dropped; or none: then the box routes.
#[derive(Debug)]
pub struct Proxy {
    kind: ProxyKind,
    pepd: Option<Pepd>,
    haproxy: Option<Haproxy>,
}

impl Proxy {
    /// Starts what `variant` asks for in `hb`. `pepd` is the daemon's binary.
    ///
    /// # Errors
    /// When it does not start; the message has its log.
    pub fn start(variant: &Variant, point: &Point, hb: &Netns, pepd: &FilePath) -> Result<Self> {
        let mut proxy = Self {
            kind: variant.proxy,
            pepd: None,
            haproxy: None,
        };
        match variant.proxy {
            ProxyKind::None => {}
            ProxyKind::Pepd => {
                if let Some(segments) = variant.initial_window {
                    hb.sh(&format!(
                        "ip route replace 10.2.0.0/24 dev far src 10.2.0.1 initcwnd {segments}"
                    ))?;
                }
                proxy.pepd = Some(Pepd::start(pepd, hb, &pepd_config(variant, point))?);
            }
            ProxyKind::Haproxy => proxy.haproxy = Some(Haproxy::start(variant, hb)?),
        }
        Ok(proxy)
    }

    /// Makes sure, after the traffic, that it has split something, if it is there to do so, and
    /// is still there.
    ///
    /// # Errors
    /// When that is not so: the numbers are about something else then.
    pub fn check(&mut self, hb: &Netns) -> Result<()> {
        let accepted = accepted(hb)?;
        ensure!(
            (accepted > 0) == (self.kind != ProxyKind::None),
            "{accepted} connections were split"
        );
        if let Some(pepd) = &mut self.pepd {
            ensure!(pepd.runs(), "pepd has ended:\n{}", pepd.log());
        }
        if let Some(haproxy) = &mut self.haproxy {
            let log = haproxy.process.log();
            ensure!(
                haproxy.process.try_wait()?.is_none(),
                "HAProxy has ended:\n{log}"
            );
        }
        Ok(())
    }
}

/// The least that `buffer` of a leg may be.
const LEAST_BUFFER: u32 = 4096;

/// Both campuses; each leg's congestion control is that towards its own campus. A proxy buffer
/// of so many packets is what the near leg may receive, and what may wait on the far leg that
/// was not sent yet.
#[must_use]
pub fn pepd_config(variant: &Variant, point: &Point) -> String {
    let bytes = |packets: u32| (packets * u32::from(MTU.bytes())).max(LEAST_BUFFER);
    let line = |key: &str, packets: Option<u32>| {
        packets
            .map(|packets| format!("{key} = \"{}B\"\n", bytes(packets)))
            .unwrap_or_default()
    };
    let near = line(
        "buffer",
        point.buffer.map(|packets| packets + variant.allowance),
    );
    let far = line("notsent_lowat", point.buffer.or(point.unsent));
    let forward = variant.forward.as_ref().unwrap_or(&variant.sender);
    format!(
        r#"[node]
name = "lab"
drain = "0s"

[capture]
handshake = "early"

[[campus]]
name = "sender"
prefixes = ["10.1.0.0/16"]
leg = "near"

[[campus]]
name = "receiver"
prefixes = ["10.2.0.0/16"]
leg = "far"

[leg.near]
congestion = "{sender}"
thin = {thin}
{near}
[leg.far]
congestion = "{forward}"
thin = {thin}
{far}"#,
        sender = variant.sender,
        thin = variant.thin,
    )
}

/// HAProxy, with what it takes to make it transparent.
#[derive(Debug)]
pub struct Haproxy {
    process: Process,
    _directory: TempDir,
}

/// Its port.
const PORT: u16 = 7400;

impl Haproxy {
    fn start(variant: &Variant, hb: &Netns) -> Result<Self> {
        let directory = TempDir::with_prefix("pepd-lab-haproxy-")?;
        let file = directory.path().join("haproxy.cfg");
        fs::write(&file, HAPROXY)?;
        hb.sh(&format!("nft -f - <<'END'\n{CAPTURE}END\n"))?;
        hb.sh("ip rule add fwmark 0x70 lookup 100; ip route add local default dev lo table 100")?;
        if let Some(forward) = &variant.forward {
            // The route's, since HAProxy of this age cannot set it on its sockets.
            hb.sh(&format!(
                "ip route replace 10.2.0.0/24 dev far src 10.2.0.1 congctl lock {forward}"
            ))?;
        }
        let process = Process::spawn(hb.command("haproxy").arg("-db").arg("-f").arg(&file))?;
        wait_until(LIMIT, "HAProxy listens", || {
            hb.sh("ss -Hltn")
                .is_ok_and(|out| out.contains(&format!(":{PORT}")))
        })
        .with_context(|| process.log())?;
        Ok(Self {
            process,
            _directory: directory,
        })
    }
}

const HAPROXY: &str = "
global
    nbthread 1
    maxconn 500
defaults
    mode tcp
    option splice-auto
    timeout connect 2m
    timeout client 1h
    timeout server 1h
listen split
    bind 0.0.0.0:7400 transparent
    source 0.0.0.0 usesrc clientip
    server original 0.0.0.0
";

const CAPTURE: &str = "
table inet haproxy {
    chain prerouting {
        type filter hook prerouting priority mangle
        meta l4proto { tcp, icmp } socket transparent 1 meta mark set 0x70 accept
        ip saddr 10.1.0.0/16 ip daddr 10.2.0.0/16 tcp flags & (fin|syn|rst|ack) == syn tproxy ip to :7400 meta mark set 0x70
        ip saddr 10.2.0.0/16 ip daddr 10.1.0.0/16 tcp flags & (fin|syn|rst|ack) == syn tproxy ip to :7400 meta mark set 0x70
    }
}
";
