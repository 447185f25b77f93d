//! Whether connections could be captured: nft, the held SYNs, the firewall, the port.

use std::collections::BTreeSet;
use std::fs;

use pepd_config::Config;
use pepd_net::{
    InstallError, NftError, Plan, Preflight, QueueBackend, QueueBackendError, RouteError, Warning,
};
use pepd_packet::QueueNumber;

use super::finding::Finding;
use crate::daemon::controls::Controls;
use crate::daemon::lock;
use crate::daemon::resources;
use crate::daemon::wiring::{self, COMING_QUEUE};

/// The obstacles in the way of the capture.
#[derive(Debug)]
pub struct Capture {
    /// Whether a pepd runs here already: port and queues are then its own.
    pub runs: bool,
    /// Ports on which somebody listens at all addresses or at pepd's.
    pub listening: BTreeSet<u16>,
    /// NFQUEUEs that have a reader.
    pub queues: BTreeSet<QueueNumber>,
    /// The backend that would hold the SYNs and ACKs, and what comes for connections of other boxes, or why nothing can; none
    /// where none are held.
    pub backend: Option<Result<QueueBackend, QueueBackendError>>,
    /// The findings of the preflight of `pepd run`.
    pub preflight: Preflight,
}

impl Capture {
    /// Goes through all that `pepd run` does before it changes the kernel.
    pub async fn gather(config: &Config) -> Self {
        let backend = if resources::holds(config) || config.moves.may_take() {
            Some(pepd_net::find_queue_backend().await)
        } else {
            None
        };
        // Where nothing can hold what has to be, the preflight is of what would be installed if nft could.
        let assumed = match &backend {
            Some(Err(_)) if resources::holds(config) => Some(QueueBackend::Nft),
            Some(found) => found.as_ref().ok().copied(),
            None => None,
        };
        let addresses =
            pepd_relay::listener_addresses(&wiring::settings(config, &Controls::default()));
        let request = wiring::request(
            config,
            &addresses.unwrap_or_default(),
            resources::workers(config),
            assumed,
        );
        Self {
            runs: lock::is_locked(),
            listening: listening(),
            queues: queues(),
            backend,
            preflight: pepd_net::preflight(&Plan::new(&request)).await,
        }
    }
}

/// Judges everything that would stop the capture, or that it stops.
pub fn judge(capture: Capture, config: &Config) -> Vec<Finding> {
    let mut findings = vec![port(&capture, config)];
    if resources::holds(config) {
        findings.extend(backend(&capture, config));
    }
    if config.moves.may_take() {
        findings.extend(coming(&capture));
    }
    let Preflight {
        obstacles,
        firewall,
    } = capture.preflight;
    if obstacles.is_empty() {
        findings.push(Finding::ok("nft", "the kernel takes pepd's table"));
    }
    let no_queue = matches!(capture.backend, Some(Err(_)));
    for found in obstacles
        .iter()
        .filter_map(|error| obstacle(error, no_queue))
    {
        // Each of the kernel's tables meets the same one.
        if !findings.contains(&found) {
            findings.push(found);
        }
    }
    let nothing = firewall.drops.is_empty()
        && firewall.keeps_back.is_empty()
        && firewall.translates.is_empty()
        && firewall.late.is_empty();
    if nothing {
        findings.push(Finding::ok("firewall", "nothing of yours is in the way"));
    }
    findings.extend(proxies(&firewall.proxies));
    findings.extend(firewall.drops.into_iter().map(drops));
    findings.extend(firewall.keeps_back.into_iter().map(keeps_back));
    findings.extend(firewall.translates.into_iter().map(translates));
    findings.extend(firewall.late.into_iter().map(late));
    findings
}

fn port(capture: &Capture, config: &Config) -> Finding {
    const ID: &str = "port";
    let port = config.capture.port;
    if capture.runs {
        Finding::ok(ID, format!("a pepd runs here, on port {port} or another"))
    } else if capture.listening.contains(&port) {
        Finding::stop(ID, format!("another program listens on port {port}"))
            .because("`pepd run` cannot listen there, and ends")
            .advice(format!(
                "see who it is (ss -ltnp 'sport = :{port}'), or choose another [capture] port"
            ))
    } else {
        Finding::ok(ID, format!("port {port} is free"))
    }
}

fn backend(capture: &Capture, config: &Config) -> Vec<Finding> {
    const ID: &str = "hold";
    let mut findings = Vec::new();
    let (held, needs, otherwise) = match config.holds_syns() {
        true => (
            "the SYNs",
            "handshake = \"end-to-end\"",
            "write handshake = \"early\" under [capture]",
        ),
        false => (
            "the ACKs",
            "action = \"hold-acks\"",
            "write action = \"bypass\" in that [[rule]]",
        ),
    };
    match &capture.backend {
        None => {}
        Some(Ok(QueueBackend::Nft)) => findings.push(Finding::ok(ID, format!("nft holds {held}"))),
        Some(Ok(QueueBackend::Iptables)) => findings.push(
            Finding::note(
                ID,
                format!("iptables' NFQUEUE holds {held}: nft has no queue here"),
            )
            .because(
                "it works as well; the rules are in the tables raw and security instead of in \
                 pepd's",
            ),
        ),
        // The finding `nft` says so, with the cure.
        Some(Err(QueueBackendError::Nft(
            NftError::NotPermitted { .. } | NftError::Missing { .. },
        ))) => {}
        Some(Err(error)) => findings.push(
            Finding::stop(ID, error.to_string())
                .because(format!("{needs} needs it, and `pepd run` ends without"))
                .cure("modprobe nft_queue")
                .otherwise(format!(
                    "have an iptables with xt_NFQUEUE (apt-get install iptables), which holds them as well, or \
                     {otherwise}"
                )),
        ),
    }
    let taken: Vec<_> = wiring::queues(config)
        .filter(|queue| capture.queues.contains(queue) && !capture.runs)
        .map(|queue| queue.to_string())
        .collect();
    if !taken.is_empty() {
        findings.push(
            Finding::stop(
                "hold.queue",
                format!("another program reads NFQUEUE {}", taken.join(", ")),
            )
            .because("a queue has one reader; `pepd run` ends")
            .advice("see /proc/net/netfilter/nfnetlink_queue: its second column is the reader"),
        );
    }
    findings
}

/// Judges whether what comes for connections on their way here can be held.
fn coming(capture: &Capture) -> Option<Finding> {
    const ID: &str = "hold.coming";
    const BECAUSE: &str = "what comes for a connection while it moves here is dropped: an end that has sent something \
                           sends it again after 200 ms or more";
    let is_taken = capture.queues.contains(&COMING_QUEUE) && !capture.runs;
    match &capture.backend {
        Some(Err(QueueBackendError::None { .. })) => {
            let none = Finding::note(
                ID,
                "nothing here can hold packets (nft's `queue`, or iptables' NFQUEUE)",
            );
            Some(none.because(BECAUSE).cure("modprobe nft_queue"))
        }
        _ if is_taken => {
            let taken = Finding::note(ID, format!("another program reads NFQUEUE {COMING_QUEUE}"));
            Some(
                taken.because(BECAUSE).advice(
                    "see /proc/net/netfilter/nfnetlink_queue: its second column is the reader",
                ),
            )
        }
        _ => None,
    }
}

/// Judges an error of the preflight, but for those that other findings are about.
fn obstacle(error: &InstallError, no_queue: bool) -> Option<Finding> {
    let text = error.to_string();
    match error {
        InstallError::Host(_) => None,
        InstallError::Nft(error) if no_queue && error.is_about_queues() => None,
        InstallError::Nft(NftError::NotPermitted { .. }) => Some(
            Finding::stop("nft", "could not be looked at without CAP_NET_ADMIN")
                .because("whether the kernel takes pepd's table is not known")
                .advice("run the doctor as root"),
        ),
        InstallError::Nft(NftError::Missing { .. }) => Some(
            Finding::stop("nft", "the program nft is missing")
                .because("pepd installs its table by it; `pepd run` ends")
                .cure("apt-get install nftables"),
        ),
        InstallError::Nft(NftError::NoFeature {
            feature, module, ..
        }) => Some(
            Finding::stop("nft", format!("the kernel has no {feature}"))
                .because("`pepd run` ends without it")
                .cure(format!("modprobe {module}")),
        ),
        InstallError::Route(RouteError::ForeignRoutes { .. } | RouteError::ForeignRule { .. }) => {
            Some(Finding::stop("routing", text).because("`pepd run` touches nothing of yours"))
        }
        _ => Some(Finding::stop("nft", text).because("`pepd run` would end with this")),
    }
}

fn proxies(chains: &[String]) -> Option<Finding> {
    (!chains.is_empty()).then(|| {
        Finding::note(
            "firewall.proxy",
            format!("another transparent proxy has chain {}", chains.join(", ")),
        )
        .because(
            "pepd looks at a connection where it would be forwarded: what another proxy takes \
             before is the other's",
        )
        .advice("exempt what the other one is to have by a [[rule]] with action = \"bypass\"")
    })
}

fn drops(warning: Warning) -> Finding {
    Finding::stop("firewall.input", warning.text)
        .because("what is captured is delivered to this host: split connections hang")
        .cure(warning.cure)
}

fn keeps_back(warning: Warning) -> Finding {
    Finding::stop("firewall.output", warning.text)
        .because("both legs of a split connection are sockets of this host")
        .cure(warning.cure)
}

fn translates(warning: Warning) -> Finding {
    Finding::slow("firewall.nat", warning.text)
        .because(
            "where the far side cannot answer the client's own address, split connections come \
             to nothing",
        )
        .advice(warning.cure)
}

fn late(warning: Warning) -> Finding {
    Finding::slow("firewall.forward", warning.text)
        .because("new connections are split where the filters before that let them through")
        .advice(warning.cure)
}

/// Reads the ports of listening sockets at the wildcard or at addresses of pepd's kind, from
/// /proc/net/tcp and tcp6: local address and port in hexadecimal, and state 0A.
fn listening() -> BTreeSet<u16> {
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .flat_map(|path| parse_listening(&fs::read_to_string(path).unwrap_or_default()))
        .collect()
}

fn parse_listening(table: &str) -> Vec<u16> {
    const LISTEN: &str = "0A";
    let line = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (address, port) = fields.next()?.split_once(':')?;
        let state = fields.nth(1)?;
        // 127.73.x.y in the byte order of a little-endian host; anything else is in nobody's way.
        let in_the_way = address.bytes().all(|byte| byte == b'0') || address.ends_with("497F");
        let listens = state == LISTEN && in_the_way;
        u16::from_str_radix(port, 16).ok().filter(|_| listens)
    };
    table.lines().skip(1).filter_map(line).collect()
}

/// Reads the queues that have a reader: the first column.
fn queues() -> BTreeSet<QueueNumber> {
    let table = fs::read_to_string("/proc/self/net/netfilter/nfnetlink_queue");
    let table = table.unwrap_or_default();
    let first = |line: &str| Some(QueueNumber(line.split_whitespace().next()?.parse().ok()?));
    table.lines().filter_map(first).collect()
}

#[cfg(test)]
mod tests {
    use pepd_net::{Family, RouteTable, SourceValidMark};
    use rstest::rstest;

    use super::*;
    use crate::doctor::finding::Level;
    use crate::doctor::fixture::{config, level};

    fn capture() -> Capture {
        Capture {
            runs: false,
            listening: BTreeSet::new(),
            queues: BTreeSet::new(),
            backend: Some(Ok(QueueBackend::Nft)),
            preflight: Preflight {
                obstacles: Vec::new(),
                firewall: pepd_net::Firewall::default(),
            },
        }
    }

    #[test]
    fn a_host_that_is_right() {
        let findings = judge(capture(), &config(""));
        for id in ["port", "hold", "nft", "firewall"] {
            assert_eq!(level(&findings, id), Some(Level::Ok), "{id}");
        }
    }

    #[rstest]
    #[case::taken(false, Level::Stop)]
    #[case::ours(true, Level::Ok)]
    fn a_port_and_a_queue_in_use(#[case] runs: bool, #[case] expected: Level) {
        let mut capture = capture();
        capture.runs = runs;
        capture.listening.insert(7300);
        capture.queues.insert(QueueNumber(7300));
        let findings = judge(capture, &config(""));
        assert_eq!(level(&findings, "port"), Some(expected));
        let queue = level(&findings, "hold.queue");
        assert_eq!(queue, (!runs).then_some(Level::Stop));
    }

    /// A rule that holds ACKs needs its own queue, and none of the workers'.
    #[rstest]
    #[case::its_own(7299, Some(Level::Stop))]
    #[case::a_workers(7300, None)]
    fn the_queue_of_held_acks(#[case] queue: u16, #[case] expected: Option<Level>) {
        let mut capture = capture();
        capture.queues.insert(QueueNumber(queue));
        let early = "[capture]\nhandshake = \"early\"\n[[rule]]\naction = \"hold-acks\"\n";
        let findings = judge(capture, &config(early));
        assert_eq!(level(&findings, "hold.queue"), expected);
    }

    /// What comes for connections that move here is dropped where nothing holds it, and `pepd run` begins all the same.
    #[rstest]
    #[case::held(true, 7300, None)]
    #[case::anothers(true, 7298, Some(Level::Note))]
    #[case::nothing(false, 7300, Some(Level::Note))]
    fn what_comes_for_connections_on_their_way_here(
        #[case] is_held: bool,
        #[case] queue: u16,
        #[case] expected: Option<Level>,
    ) {
        let mut capture = capture();
        if !is_held {
            capture.backend = Some(Err(QueueBackendError::None {
                iptables: String::new(),
                stderr: String::new(),
            }));
        }
        capture.queues.insert(QueueNumber(queue));
        let early = "[capture]\nhandshake = \"early\"\n[move]\nlisten = \"10.9.0.1:7310\"\n[[neighbor]]\n\
                     name = \"hb-b\"\naddress = \"10.9.0.2:7310\"\nkey = \"/k\"\n";
        let findings = judge(capture, &config(early));
        assert_eq!(level(&findings, "hold.coming"), expected);
        assert_eq!(level(&findings, "hold"), None);
    }

    #[test]
    fn what_every_table_meets_is_said_once() {
        let mut capture = capture();
        let denied = || NftError::NotPermitted {
            stderr: String::new(),
        };
        capture.preflight.obstacles = vec![denied().into(), denied().into()];
        let findings = judge(capture, &config(""));
        let said = findings.iter().filter(|finding| finding.id == "nft");
        assert_eq!(said.count(), 1);
    }

    #[rstest]
    #[case::no_program(
        NftError::Missing { source: std::io::ErrorKind::NotFound.into() }.into(),
        Some(("nft", Some("apt-get install nftables"))))]
    #[case::no_expression(
        NftError::NoFeature { feature: "tproxy expression", module: "nft_tproxy", stderr: String::new() }.into(),
        Some(("nft", Some("modprobe nft_tproxy"))))]
    #[case::told_elsewhere(SourceValidMark { interface: "all".into() }.into(), None)]
    #[case::somebody_elses_routes(
        RouteError::ForeignRoutes { table: RouteTable(7300), family: Family::V4, count: 1 }.into(),
        Some(("routing", None)))]
    fn obstacles(#[case] error: InstallError, #[case] expected: Option<(&str, Option<&str>)>) {
        let finding = obstacle(&error, false);
        let found = finding.as_ref().map(|f| (f.id, f.cure.as_deref()));
        assert_eq!(found, expected);
    }

    #[test]
    fn listeners_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
            0: 00000000:1C84 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:1C85 00000000:0000 0A 00000000:00000000\n\
            2: 0101497F:1C86 00000000:0000 0A 00000000:00000000\n\
            3: 00000000:1C87 00000000:0000 01 00000000:00000000\n";
        assert_eq!(parse_listening(table), [7300, 7302]);
    }
}
