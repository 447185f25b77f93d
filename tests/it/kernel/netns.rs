//! Network namespaces for the tests of the kernel state alone.
//!
//! A namespace lives as long as its `Netns`; nothing has a name outside the process, so that
//! nothing can be left behind, whatever panics.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use pepd_net::{
    Action, Campus, Handshake, InstallError, Installed, Listener, Mark, Plan, QueueBackend, Queues,
    Request, RouteTable, Rule, Via, install,
};
use pepd_packet::{MarkMask, MarkValue, QueueNumber, SourcePrefix};
use pepd_testbed::wait_until;

use crate::harness::LIMIT;

pub struct Netns {
    file: File,
}

impl Netns {
    /// Makes a new namespace, its loopback device up.
    pub fn new() -> Netns {
        let file = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("unshare");
            File::open("/proc/thread-self/ns/net").expect("namespace")
        })
        .join()
        .expect("namespace thread");
        let netns = Netns { file };
        netns.ip("link set lo up");
        netns
    }

    /// Runs `work` on a thread within the namespace; children inherit it.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).expect("setns");
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs async `work` within the namespace, on a runtime of its own.
    pub fn block_on<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send) -> T {
        self.run(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("runtime")
                .block_on(work())
        })
    }

    /// Installs it, and checks that it is there then, and that nothing of it is once it is removed.
    pub fn leaves_no_trace(&self, request: &Request) {
        let before = self.state();
        let installed = self.install(request).unwrap();
        self.block_on(|| installed.verify()).unwrap();
        self.block_on(|| installed.remove()).unwrap();
        assert_eq!(self.state(), before);
    }

    pub fn install(&self, request: &Request) -> Result<Installed, InstallError> {
        let plan = Plan::new(request);
        self.block_on(|| install(&plan))
    }

    pub fn replace(
        &self,
        installed: &mut Installed,
        request: &Request,
    ) -> Result<(), InstallError> {
        let plan = Plan::new(request);
        self.block_on(|| installed.replace(&plan))
    }

    /// Returns the output of a command, which must succeed.
    pub fn output(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(|| Command::new(program).args(args).output());
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(
            output.status.success(),
            "{program} {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub fn ip(&self, args: &str) -> String {
        self.output("ip", &args.split_whitespace().collect::<Vec<_>>())
    }

    pub fn nft(&self, script: &str) -> String {
        match script.split_once(' ') {
            Some((option, rest)) if option.starts_with('-') => self.output("nft", &[option, rest]),
            _ => self.output("nft", &[script]),
        }
    }

    pub fn sysctl(&self, key: &str, value: &str) {
        self.run(|| fs::write(format!("/proc/sys/{key}"), value))
            .unwrap_or_else(|error| panic!("{key}: {error}"));
    }

    /// For `ip link … netns PATH`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Returns all that pepd could have changed.
    pub fn state(&self) -> String {
        [
            in_any_order(&self.nft("list ruleset")),
            self.ip("-4 rule show"),
            self.ip("-6 rule show"),
            self.ip("-4 route show table all"),
            self.ip("-6 route show table all"),
        ]
        .join("--\n")
    }
}

/// Sorts the chains and sets of a ruleset, each with its lines: those that stay come before those that are made anew.
fn in_any_order(ruleset: &str) -> String {
    let mut objects: Vec<String> = Vec::new();
    for line in ruleset.lines() {
        let is_inside = line.starts_with("\t\t") || line == "\t}";
        match objects.last_mut() {
            Some(object) if is_inside => *object += &format!("\n{line}"),
            _ => objects.push(line.to_owned()),
        }
    }
    objects.sort();
    objects.join("\n")
}

/// Joins two namespaces with a veth pair.
pub fn veth(a: (&Netns, &str), b: (&Netns, &str)) {
    a.0.ip(&format!(
        "link add {} type veth peer name {} netns {}",
        a.1,
        b.1,
        b.0.path()
    ));
    for (netns, name) in [a, b] {
        // Otherwise addresses are tentative for a second or two.
        netns.sysctl(&format!("net/ipv6/conf/{name}/accept_dad"), "0");
        netns.ip(&format!("link set {name} up"));
    }
    for (netns, name) in [a, b] {
        // A link's carrier is noticed a moment later, all the more where other tests make links.
        wait_until(LIMIT, "the link is up", || {
            netns
                .ip(&format!("link show dev {name}"))
                .contains("state UP")
        })
        .unwrap();
    }
}

/// Waits until the kernel takes what is sent to an IPv6 address: its route comes after it.
pub fn wait_for_address(netns: &Netns, address: &str) {
    wait_until(LIMIT, "the address has its route", || {
        netns
            .ip("-6 route show table local")
            .contains(&format!("local {address} "))
    })
    .unwrap();
}

/// Returns a namespace with an operator's own firewall, policy routing and forwarding.
pub fn operated() -> Netns {
    let netns = Netns::new();
    let far = Netns::new();
    veth((&netns, "east"), (&far, "west"));
    netns.sysctl("net/ipv4/ip_forward", "1");
    netns.sysctl("net/ipv6/conf/all/forwarding", "1");
    netns.ip("addr add 10.1.0.1/16 dev east");
    netns.ip("addr add fd00:a::1/48 dev east nodad");
    wait_for_address(&netns, "fd00:a::1");
    netns.ip("rule add preference 50 fwmark 0x1/0xff lookup 100");
    netns.ip("route add 192.0.2.0/24 dev east table 100");
    netns.ip("-6 rule add preference 90 from fd00:a:9::/64 lookup 100");
    netns.ip("-6 route add 2001:db8::/32 dev east table 100");
    netns.nft(
        "table inet operator { set s { type ipv4_addr; flags interval; elements = { 10.9.0.0/16 }; }; \
         chain c { type filter hook prerouting priority raw; ip saddr @s meta mark set 0x1; }; }",
    );
    // Its state is what the far end's appearance has made of it, once that has settled.
    wait_until(
        LIMIT,
        "the link-local address is no longer tentative",
        || {
            let addresses = netns.ip("-6 addr show dev east scope link");
            addresses.contains("fe80") && !addresses.contains("tentative")
        },
    )
    .unwrap();
    // The pair must live as long as the test: keep the far end alive with this one.
    std::mem::forget(far);
    netns
}

pub const MARK: Mark = Mark {
    value: MarkValue(0x7000_0000),
    mask: MarkMask(0x7000_0000),
};
pub const TABLE: RouteTable = RouteTable(7300);
pub const PORT: u16 = 7300;

/// Four queues.
pub fn queues(backend: QueueBackend) -> Option<Queues> {
    Some(Queues {
        first: QueueNumber(7300),
        count: 4,
        backend,
    })
}

/// Campus a (10.1.0.0/16, fd00:a::/48) and campus b (10.2.0.0/16, fd00:b::/48).
pub fn request() -> Request {
    Request {
        node: "hb-test".to_owned(),
        mark: MARK,
        table: TABLE,
        port: PORT,
        source_prefix: SourcePrefix::NETWORK,
        campuses: vec![
            campus("a", &["10.1.0.0/16", "fd00:a::/48"], 1),
            campus("b", &["10.2.0.0/16", "fd00:b::/48"], 2),
        ],
        handshake: Handshake::Early,
        queues: None,
        hold_acks: None,
        hold_coming: None,
        measure: None,
        neighbors: Vec::new(),
        rules: Vec::new(),
        peers: Vec::new(),
        windows: Default::default(),
    }
}

pub fn campus(name: &str, prefixes: &[&str], listener: u8) -> Campus {
    Campus {
        name: name.to_owned(),
        prefixes: prefixes.iter().map(|net| net.parse().expect(net)).collect(),
        listener: Listener {
            v4: [127, 73, 0, listener].into(),
            v6: [0x100, 0, 0, 0, 0, 0x73, 0, u16::from(listener)].into(),
        },
        via: Via::Local,
        initial_window: None,
    }
}

pub fn rule(
    source: &[&str],
    destination: &[&str],
    ports: &[std::ops::RangeInclusive<u16>],
    action: Action,
) -> Rule {
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().expect(net)).collect();
    Rule {
        source: nets(source),
        destination: nets(destination),
        destination_port: ports.to_vec(),
        action,
        handshake: None,
    }
}
