//! What splits connections at the box in the middle.

use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pepd_testbed::{Netns, Pepd, Process, accepted, wait_until};
use tempfile::TempDir;

use super::config;
use super::network::Path;
use crate::paper::{Point, ProxyKind, Variant};

/// The time that HAProxy may take to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// A running proxy, ended when dropped; or none: then the box routes.
#[derive(Debug)]
pub struct Proxy {
    kind: ProxyKind,
    pepd: Vec<Pepd>,
    sockets: TempDir,
    told: bool,
    hold_acks: Option<f64>,
    haproxy: Option<Haproxy>,
}

impl Proxy {
    /// Starts the proxy that `variant` asks for on the boxes of `path`. `pepd` is the daemon's
    /// binary.
    ///
    /// # Errors
    /// When it does not start; the message has its log.
    pub fn start(variant: &Variant, point: &Point, path: &Path, pepd: &FilePath) -> Result<Self> {
        let sockets = TempDir::with_prefix("pepd-lab-")?;
        let at = sockets.path().to_owned();
        let mut proxy = Self {
            kind: variant.proxy,
            pepd: Vec::new(),
            sockets,
            told: variant.told,
            hold_acks: variant.hold_acks,
            haproxy: None,
        };
        let hb = &path.hb;
        match variant.proxy {
            ProxyKind::None => {}
            ProxyKind::Pepd => {
                if let Some(segments) = variant.initial_window {
                    hb.sh(&format!(
                        "ip route replace 10.2.0.0/24 dev far src 10.2.0.1 initcwnd {segments}"
                    ))?;
                }
                let configs = if path.ends.is_some() {
                    config::chain(variant, &at).to_vec()
                } else {
                    vec![config::alone(variant, point, &at)]
                };
                for (hb, config) in path.boxes().into_iter().zip(configs) {
                    proxy.pepd.push(Pepd::start(pepd, hb, &config)?);
                }
            }
            ProxyKind::Haproxy if path.ends.is_some() => bail!("HAProxy runs on one box only"),
            ProxyKind::Haproxy => proxy.haproxy = Some(Haproxy::start(variant, hb)?),
        }
        Ok(proxy)
    }

    /// Returns the admin socket of the only box if it is to be told of outages.
    #[must_use]
    pub fn is_told(&self) -> Option<PathBuf> {
        self.told.then(|| self.sockets.path().join("lab.sock"))
    }

    /// Returns how many times as long an outage is said to be as it is, if it is said beforehand.
    #[must_use]
    pub fn expects(&self) -> Option<f64> {
        self.hold_acks
    }

    /// Returns what each pepd says of its flows and its legs (`pepd flows`, `pepd status`).
    #[must_use]
    pub fn flows(&self, path: &Path) -> Vec<String> {
        let boxes = path.boxes().into_iter().zip(&self.pepd);
        let asked = boxes.flat_map(|(hb, pepd)| {
            ["flows", "status"].map(|name| match pepd.subcommand(hb, name) {
                Ok(finished) => finished.stdout + &finished.stderr,
                Err(error) => format!("{error:#}"),
            })
        });
        asked.collect()
    }

    /// Makes sure, after the traffic, that it has split something, if it is there to do so, and
    /// is still there.
    ///
    /// # Errors
    /// When that is not so: the numbers are then about something else.
    pub fn check(&mut self, path: &Path) -> Result<()> {
        for hb in path.boxes() {
            let accepted = accepted(hb)?;
            ensure!(
                (accepted > 0) == (self.kind != ProxyKind::None && self.hold_acks.is_none()),
                "{accepted} connections were split on {}",
                hb.name()
            );
        }
        for pepd in &mut self.pepd {
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

/// HAProxy, with what it takes to make it transparent.
#[derive(Debug)]
pub struct Haproxy {
    process: Process,
    _directory: TempDir,
}

/// The port that HAProxy listens on.
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
