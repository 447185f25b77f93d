//! Who is compared, and how each is set up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::unistd::Pid;
use pepd_testbed::{Netns, Pepd, Process, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cores::Cores;

/// What carries the connections across the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// The kernel's forwarding alone.
    Plain,
    /// The daemon, which answers a client before its destination (`handshake = "early"`), as
    /// HAProxy does.
    Pepd,
    /// The daemon, which answers when the destination has (`handshake = "end-to-end"`). Only
    /// the handshake tells it from the other.
    PepdEndToEnd,
    /// HAProxy, which decides itself when to splice (`option splice-auto`).
    HaproxyAuto,
    /// Plain forwarding, while a crowd asks the daemon of another box on the same cores: what
    /// the crowd costs by itself.
    PlainBesideCrowd,
    /// The daemon of that box, whose admin API nobody asks.
    PepdUnasked,
    /// The same daemon, while a crowd asks its admin API.
    PepdAsked,
    /// HAProxy, told to splice always (`option splice-request`, `option splice-response`).
    HaproxyForced,
    /// Another build of the daemon (`--against`), which answers early.
    Earlier,
    /// The same, which answers when the destination has.
    EarlierEndToEnd,
}

impl Contender {
    /// Returns what the tables call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Plain => "plain forwarding",
            Self::Pepd => "pepd",
            Self::PepdEndToEnd => "pepd, end-to-end",
            Self::PlainBesideCrowd => "plain forwarding, crowd",
            Self::PepdUnasked => "pepd, admin API",
            Self::PepdAsked => "pepd, admin API, crowd",
            Self::HaproxyAuto => "HAProxy, splice-auto",
            Self::HaproxyForced => "HAProxy, forced splice",
            Self::Earlier => "the other build",
            Self::EarlierEndToEnd => "the other build, end-to-end",
        }
    }

    /// Returns what the JSON calls it.
    pub fn key(self) -> Value {
        json!(match self {
            Self::Plain => "plain",
            Self::Pepd => "pepd",
            Self::PepdEndToEnd => "pepd-end-to-end",
            Self::PlainBesideCrowd => "plain-beside-crowd",
            Self::PepdUnasked => "pepd-admin",
            Self::PepdAsked => "pepd-admin-crowd",
            Self::HaproxyAuto => "haproxy-splice-auto",
            Self::HaproxyForced => "haproxy-splice-forced",
            Self::Earlier => "other-build",
            Self::EarlierEndToEnd => "other-build-end-to-end",
        })
    }

    fn haproxy_options(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::PlainBesideCrowd => None,
            Self::Pepd | Self::PepdEndToEnd | Self::PepdUnasked | Self::PepdAsked => None,
            Self::Earlier | Self::EarlierEndToEnd => None,
            Self::HaproxyAuto => Some("option splice-auto"),
            Self::HaproxyForced => Some("option splice-request\n    option splice-response"),
        }
    }
}

/// A running proxy.
#[derive(Debug)]
pub enum Proxy {
    /// The daemon.
    Pepd {
        /// Its process.
        pepd: Pepd,
        /// The folder of its admin socket, removed with it.
        directory: Option<TempDir>,
    },
    /// HAProxy.
    Haproxy {
        /// Its process.
        process: Process,
        /// The folder of its configuration, removed with it.
        _directory: TempDir,
    },
}

impl Proxy {
    /// Starts what `contender` needs on the box, or nothing.
    ///
    /// # Errors
    /// When it does not start; the message has its log.
    pub fn start(
        contender: Contender,
        pepd: &Path,
        hb: &Netns,
        cores: &Cores,
    ) -> Result<Option<Self>> {
        match contender.haproxy_options() {
            Some(options) => start_haproxy(hb, options, cores).map(Some),
            None if matches!(contender, Contender::Plain | Contender::PlainBesideCrowd) => Ok(None),
            None => {
                let wrapper = cores.on_box();
                let wrapper = wrapper.each_ref().map(String::as_str);
                let pepd = Pepd::builder(pepd).log("warn").wrapper(&wrapper);
                let handshake = match contender {
                    Contender::PepdEndToEnd | Contender::EarlierEndToEnd => "end-to-end",
                    _ => "early",
                };
                let mut config = PEPD.replace("HANDSHAKE", handshake);
                let directory = match contender {
                    Contender::PepdUnasked | Contender::PepdAsked => {
                        let directory = TempDir::with_prefix("pepd-bench-")?;
                        let socket = directory.path().join(SOCKET);
                        config += &format!("\n[admin]\nsocket = \"{}\"\n", socket.display());
                        Some(directory)
                    }
                    _ => None,
                };
                let pepd = pepd.start(hb, &config)?;
                Ok(Some(Self::Pepd { pepd, directory }))
            }
        }
    }

    /// Returns its process, which has all its threads.
    pub fn pid(&self) -> Pid {
        match self {
            Self::Pepd { pepd, .. } => pepd.daemon().unwrap_or(pepd.process().pid()),
            Self::Haproxy { process, .. } => process.pid(),
        }
    }

    /// Returns its admin socket, if it has one.
    pub fn admin_socket(&self) -> Option<PathBuf> {
        match self {
            Self::Pepd {
                directory: Some(directory),
                ..
            } => Some(directory.path().join(SOCKET)),
            _ => None,
        }
    }

    /// Returns what it has said.
    pub fn log(&self) -> String {
        match self {
            Self::Pepd { pepd, .. } => pepd.log(),
            Self::Haproxy { process, .. } => process.log(),
        }
    }
}

const SOCKET: &str = "admin.sock";

/// Two workers, as HAProxy has two threads, and the congestion control of the hosts.
const PEPD: &str = r#"
[node]
name = "bench"
workers = 2

[capture]
handshake = "HANDSHAKE"

[limits]
connections = 8000
connections_per_source = 8000

[[campus]]
name = "a"
prefixes = ["10.1.0.0/16"]
leg = "leg"

[[campus]]
name = "b"
prefixes = ["10.2.0.0/16"]
leg = "leg"

[leg.leg]
congestion = "cubic"
"#;

/// `server … 0.0.0.0` is the connection's original destination (HAProxy's `transparent` mode).
/// Everything else is HAProxy's default. `maxconn` is what 20,000 descriptors suffice for.
const HAPROXY: &str = r"
global
    nbthread 2
    maxconn 4000
defaults
    mode tcp
    timeout connect 60s
    timeout client 1h
    timeout server 1h
    OPTIONS
listen bench
    bind 0.0.0.0:7301 transparent
    source 0.0.0.0 usesrc clientip
    server destination 0.0.0.0:0
";

/// What pepd's own table does, by hand: connections between the campuses go to the listener,
/// and what belongs to a transparent socket stays on the box.
const HAPROXY_CAPTURE: &str = r"
nft -f - <<'END'
table ip bench {
    chain capture {
        type filter hook prerouting priority mangle; policy accept;
        meta l4proto { tcp, icmp } socket transparent 1 meta mark set 1 accept
        ip saddr 10.1.0.0/16 ip daddr 10.2.0.0/16 tcp flags & (fin | syn | rst | ack) == syn tproxy to :7301 meta mark set 1 accept
    }
}
END
ip rule add fwmark 1 lookup 100
ip route add local default dev lo table 100
";

/// The time that HAProxy may take to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

fn start_haproxy(hb: &Netns, options: &str, cores: &Cores) -> Result<Proxy> {
    hb.sh(HAPROXY_CAPTURE)?;
    let directory = TempDir::with_prefix("pepd-bench-")?;
    let file = directory.path().join("haproxy.cfg");
    fs::write(&file, HAPROXY.replace("OPTIONS", options))?;
    let [program, words @ ..] = cores.on_box();
    let mut command = hb.command(&program);
    command.args(words);
    let mut process = Process::spawn(command.args(["haproxy", "-db", "-f"]).arg(&file))?;
    wait_until(LIMIT, "HAProxy listens, or ends", || {
        listens(hb) || !matches!(process.try_wait(), Ok(None))
    })?;
    ensure!(listens(hb), "HAProxy has ended:\n{}", process.log());
    Ok(Proxy::Haproxy {
        process,
        _directory: directory,
    })
}

fn listens(hb: &Netns) -> bool {
    hb.sh("ss -Hltn sport = :7301")
        .is_ok_and(|listeners| !listeners.is_empty())
}
