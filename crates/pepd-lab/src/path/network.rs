//! The path of every experiment: a sender, a box in the middle, a receiver, and two emulated
//! links.

use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context as _, Result};
use pepd_testbed::Netns;
use pepd_testbed::link::{Endpoint, Link, Mtu, Report, Seed};

use crate::paper::{Boxes, Leg, Policer};

/// The sending host.
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// The receiving host.
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);
/// The MTU of both links.
pub const MTU: Mtu = Mtu::ETHERNET;
/// Headers of IPv4 (20 bytes) and TCP (20), and the latter's timestamps (12; RFC 7323).
pub const HEADERS: u16 = 52;
/// A tunnel's own header, of IPv4.
pub const TUNNEL: u16 = 20;

/// The addresses of the first and the middle box of three at their leg's ends.
pub const A_TO_I: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// Those of the middle and the last one.
pub const I_TO_B: [&str; 2] = ["198.51.100.1", "198.51.100.2"];

/// `sender ── near ── hb ── far ── receiver`, removed when dropped. With three boxes there is
/// one more at the outer end of either leg, and a local network between it and its host.
#[derive(Debug)]
pub struct Path {
    // The links come first: they end before their namespaces do.
    near: Link,
    far: Link,
    requests: Cell<Option<u64>>,
    /// The sending host's namespace.
    pub sender: Netns,
    /// The box in the middle.
    pub hb: Netns,
    /// The receiving host's namespace.
    pub receiver: Netns,
    /// The boxes at the outer ends of the legs, where there are three.
    pub ends: Option<[Netns; 2]>,
}

impl Path {
    /// Makes the namespaces and the links between them.
    ///
    /// # Errors
    /// Without root or TUN.
    pub fn open([near, far]: &[Leg; 2], boxes: Boxes, seed: u64) -> Result<Self> {
        let [sender, hb, receiver] = [host("sender")?, router("hb")?, host("receiver")?];
        let ends = match boxes {
            Boxes::One => None,
            Boxes::Three => Some([router("hb-a")?, router("hb-b")?]),
        };
        let outer = ends
            .as_ref()
            .map_or([&sender, &receiver], |ends| ends.each_ref());
        let join = |left: &Netns, right: &Netns, leg: &Leg, name: &str, seed: u64| {
            let end = |netns: &Netns| Endpoint::named(netns.name(), name);
            let shapes = (leg.forward(), leg.backward());
            Link::connect(&end(left), &end(right), shapes.0, shapes.1, Seed(seed), MTU)
        };
        let path = Self {
            near: join(outer[0], &hb, near, "near", 2 * seed)?,
            far: join(&hb, outer[1], far, "far", 2 * seed + 1)?,
            requests: Cell::new(None),
            sender,
            hb,
            receiver,
            ends,
        };
        prioritise_link_threads();
        match &path.ends {
            None => path.address_one()?,
            Some(ends) => path.address_three(ends)?,
        }
        Ok(path)
    }

    fn address_one(&self) -> Result<()> {
        self.sender
            .sh("ip address add 10.1.0.2/24 dev near; ip route add default via 10.1.0.1")?;
        self.hb
            .sh("ip address add 10.1.0.1/24 dev near; ip address add 10.2.0.1/24 dev far")?;
        self.receiver
            .sh("ip address add 10.2.0.2/24 dev far; ip route add default via 10.2.0.1")?;
        Ok(())
    }

    /// Has the boxes route between the campuses: that is the path without a proxy.
    fn address_three(&self, [a, b]: &[Netns; 2]) -> Result<()> {
        let hosts = [(&self.sender, a, 1), (&self.receiver, b, 2)];
        for (host, gateway, campus) in hosts {
            host.sh(&format!(
                "ip link add lan type veth peer name lan netns {}
                 ip link set lan up; ip address add 10.{campus}.0.2/24 dev lan
                 ip -n {0} link set lan up; ip -n {0} address add 10.{campus}.0.1/24 dev lan
                 ip route add default via 10.{campus}.0.1",
                gateway.name()
            ))?;
        }
        let [[a_out, i_in], [i_out, b_in]] = [A_TO_I, I_TO_B];
        a.sh(&format!(
            "ip address add {a_out}/24 dev near; ip route add default via {i_in}"
        ))?;
        self.hb.sh(&format!(
            "ip address add {i_in}/24 dev near; ip address add {i_out}/24 dev far
             ip route add 10.1.0.0/16 via {a_out}; ip route add 10.2.0.0/16 via {b_in}"
        ))?;
        b.sh(&format!(
            "ip address add {b_in}/24 dev far; ip route add default via {i_out}"
        ))?;
        Ok(())
    }

    /// Returns the boxes, from the sender to the receiver.
    #[must_use]
    pub fn boxes(&self) -> Vec<&Netns> {
        match &self.ends {
            None => vec![&self.hb],
            Some([a, b]) => vec![a, &self.hb, b],
        }
    }

    /// Makes all TCP of hosts and boxes do without window scaling (RFC 7323): at most 64 KiB
    /// under way.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forbid_window_scaling(&self) -> Result<()> {
        for netns in self
            .boxes()
            .into_iter()
            .chain([&self.sender, &self.receiver])
        {
            netns.sysctl("net.ipv4.tcp_window_scaling", "0")?;
        }
        Ok(())
    }

    /// Gives both hosts receive windows of no more than `bytes`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit_windows(&self, bytes: u64) -> Result<()> {
        // Half of a buffer is the window (net.ipv4.tcp_adv_win_scale = 1).
        let memory = format!("4096 {0} {0}", 2 * bytes);
        for host in [&self.sender, &self.receiver] {
            host.sysctl("net.ipv4.tcp_rmem", &memory)?;
        }
        Ok(())
    }

    /// Has the receiver's end of the far leg drop what comes at more than a policer's rate.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn police(&self, policer: Policer) -> Result<()> {
        let rate = policer.rate.as_bits_per_second() / 8;
        self.receiver.sh(&format!(
            "nft -f - <<'END'
table netdev policer {{
    chain far {{
        type filter hook ingress device far priority 0
        limit rate over {rate} bytes/second burst {} bytes drop
    }}
}}
END
",
            policer.burst
        ))?;
        Ok(())
    }

    /// Returns the sender's address with `port`.
    #[must_use]
    pub fn sender_address(port: u16) -> SocketAddr {
        (SENDER, port).into()
    }

    /// Returns the receiver's address with `port`.
    #[must_use]
    pub fn receiver_address(port: u16) -> SocketAddr {
        (RECEIVER, port).into()
    }

    /// Starts both links' losses, outages and counters anew.
    ///
    /// # Errors
    /// When a link has ended.
    pub fn restart(&self) -> Result<()> {
        self.requests.set(host_requests());
        self.near.restart().context("near leg")?;
        self.far.restart().context("far leg")
    }

    /// Returns how often a guest has waited for its host's files since the last restart; `None`
    /// outside a guest.
    #[must_use]
    pub fn host_requests(&self) -> Option<u64> {
        Some(host_requests()?.saturating_sub(self.requests.get()?))
    }

    /// Returns what the links did since the last restart: near, far.
    ///
    /// # Errors
    /// When a link has ended.
    pub fn report(&self) -> Result<[Report; 2]> {
        Ok([
            self.near.report().context("near leg")?,
            self.far.report().context("far leg")?,
        ])
    }
}

fn host(name: &str) -> Result<Netns> {
    let netns = Netns::new(name)?;
    // Router solicitations would use up the losses of a seed at arbitrary times.
    netns.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
    Ok(netns)
}

fn router(name: &str) -> Result<Netns> {
    let netns = host(name)?;
    netns.sysctl("net.ipv4.conf.all.forwarding", "1")?;
    Ok(netns)
}

/// Lets the links' threads run before all others: on one processor they would otherwise wait
/// for whoever runs, and the path's delay with them. The far link, which was made last, goes
/// before the near one: the legs next to receivers are the short ones. Where this is not
/// permitted the links' reports say whether they kept up.
fn prioritise_link_threads() {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let links = tasks.filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "link")
    });
    let mut ids: Vec<u32> = links
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    for (id, priority) in ids.into_iter().zip(10_u8..) {
        let mut chrt = Command::new("chrt");
        let _ = chrt
            .args(["--fifo", "--pid", &priority.to_string(), &id.to_string()])
            .output();
    }
}

/// Returns the guest's own count of what goes over 9p: events in its trace buffer.
fn host_requests() -> Option<u64> {
    let stats = "/sys/kernel/tracing/instances/pepd-guest/per_cpu/cpu0/stats";
    let text = fs::read_to_string(stats).ok()?;
    let counts = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        ["entries", "overrun"]
            .contains(&name)
            .then(|| value.trim().parse::<u64>().ok())?
    });
    Some(counts.sum())
}
