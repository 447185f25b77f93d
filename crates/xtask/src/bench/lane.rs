//! A client, a box and a server in namespaces of their own, and one contender on the box.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ipnet::Ipv4Net;
use nix::unistd::{SysconfVar, sysconf};
use pepd_testbed::traffic::{accept, connect, listen};
use pepd_testbed::{Family, Link, Netns, Pepd, Topology, World, accepted};

use super::contender::{Contender, Proxy};
use super::cores::Cores;

/// The same congestion control for every socket, by the routes: HAProxy 2.6 cannot choose one,
/// and outside the first namespace the sysctl takes only what
/// `tcp_allowed_congestion_control` lists.
const CUBIC: &str = "ip -4 route show | while read -r route; do
    ip route replace $route congctl cubic
done";

/// One contender, ready to be measured. Everything is gone when it is dropped.
#[derive(Debug)]
pub struct Lane {
    /// The contender.
    pub contender: Contender,
    // Dropped, and so ended, before the namespace that it runs in.
    proxy: Option<Proxy>,
    world: World,
}

impl Lane {
    /// Builds the namespaces and starts the contender.
    ///
    /// # Errors
    /// Without root, or when the contender does not start.
    pub fn open(contender: Contender, pepd: &Path, offloads: bool, cores: &Cores) -> Result<Self> {
        let world = World::custom(topology(offloads)?);
        for netns in [world.client(), world.hb(), world.server()] {
            netns.sh(CUBIC)?;
        }
        cores.steer_host(world.client())?;
        cores.steer_box(world.hb())?;
        cores.steer_host(world.server())?;
        // Enough ports for thousands of short connections per second to one server port.
        world
            .client()
            .sysctl("net.ipv4.ip_local_port_range", "10000 65000")?;
        let proxy = Proxy::start(contender, pepd, world.hb(), cores)
            .with_context(|| format!("start {}", contender.title()))?;
        Ok(Self {
            contender,
            proxy,
            world,
        })
    }

    /// Returns the client's namespace.
    pub fn client(&self) -> &Netns {
        self.world.client()
    }

    /// Returns the admin socket of its daemon.
    ///
    /// # Errors
    /// When it has none.
    pub fn admin_socket(&self) -> Result<PathBuf> {
        let proxy = self.proxy.as_ref();
        proxy
            .and_then(Proxy::admin_socket)
            .context("no admin socket on this lane")
    }

    /// Returns its daemon.
    ///
    /// # Errors
    /// When it has none.
    pub fn pepd(&mut self) -> Result<&mut Pepd> {
        match &mut self.proxy {
            Some(Proxy::Pepd { pepd, .. }) => Ok(pepd),
            _ => bail!("no daemon on this lane"),
        }
    }

    /// Has its daemon replaced by the program that is there, which is the same.
    ///
    /// # Errors
    /// When it is not.
    pub fn upgrade(&self) -> Result<()> {
        match &self.proxy {
            Some(Proxy::Pepd { pepd, .. }) => {
                pepd.subcommand(self.world.hb(), "upgrade")?.success()?;
                Ok(())
            }
            _ => bail!("no daemon on this lane"),
        }
    }

    /// Opens a listener on the server, on any port.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn listen(&self) -> Result<TcpListener> {
        let address = World::server_address(Family::V4);
        listen(self.world.server(), SocketAddr::new(address, 0))
    }

    /// Opens a connection from the client to `listener`: the client's end and the server's.
    ///
    /// # Errors
    /// When it is not established.
    pub fn connect(&self, listener: &TcpListener) -> Result<(TcpStream, TcpStream)> {
        let client = connect(self.client(), listener.local_addr()?)?;
        let (server, _) = accept(listener)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok((client, server))
    }

    /// Returns the CPU time that all threads of the proxy have used so far, in seconds (`utime` and
    /// `stime` of proc_pid_stat(5)); `None` without a proxy.
    ///
    /// # Errors
    /// When the proxy has ended.
    pub fn cpu_seconds(&self) -> Result<Option<f64>> {
        let Some(proxy) = &self.proxy else {
            return Ok(None);
        };
        let stat = fs::read_to_string(format!("/proc/{}/stat", proxy.pid()))
            .with_context(|| format!("the proxy has ended:\n{}", proxy.log()))?;
        let ticks = cpu_ticks(&stat).context("no utime and stime in /proc/PID/stat")?;
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no _SC_CLK_TCK")?;
        Ok(Some(ticks / f64::from(i32::try_from(per_second)?)))
    }

    /// Returns the proxy's resident memory in bytes (`VmRSS` of proc_pid_status(5)); `None` without
    /// a proxy.
    ///
    /// # Errors
    /// When the proxy has ended.
    pub fn resident_bytes(&self) -> Result<Option<f64>> {
        let Some(proxy) = &self.proxy else {
            return Ok(None);
        };
        let status = fs::read_to_string(format!("/proc/{}/status", proxy.pid()))
            .with_context(|| format!("the proxy has ended:\n{}", proxy.log()))?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next())
            .context("no VmRSS")?;
        Ok(Some(kib.parse::<f64>()? * 1024.0))
    }

    /// Runs `work`, which also says how many connections it has made, and makes sure that they
    /// were split, or, without a proxy, not: every contender here fails open one way or another,
    /// and a proxy that nothing goes through would look fast.
    ///
    /// # Errors
    /// Those of `work`, or that not all connections were split.
    pub fn checked<T>(&self, work: impl FnOnce() -> Result<(T, u64)>) -> Result<T> {
        let before = accepted(self.world.hb())?;
        let (result, connections) = work()?;
        let split = accepted(self.world.hb())? - before;
        let wanted = if self.proxy.is_some() { connections } else { 0 };
        ensure!(
            split >= wanted && (wanted > 0 || split == 0),
            "{} connections through {} were split, not {wanted}: this is no measurement of it{}",
            split,
            self.contender.title(),
            self.proxy
                .as_ref()
                .map_or_else(String::new, |proxy| format!("\n{}", proxy.log()))
        );
        Ok(result)
    }
}

/// Fields 14 and 15 of proc_pid_stat(5), in clock ticks. The name in field 2 may hold spaces
/// and parentheses, so they are counted from the last one.
fn cpu_ticks(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn topology(offloads: bool) -> Result<Topology> {
    let mut description = Topology::describe()
        .host("client")
        .router("hb")
        .host("server");
    for (host, family) in [
        ("client", World::client_address(Family::V4)),
        ("server", World::server_address(Family::V4)),
    ] {
        let IpAddr::V4(address) = family else {
            continue;
        };
        let [a, b, c, _] = address.octets();
        let gateway = Ipv4Net::new([a, b, c, 1].into(), 24)?;
        let mut link = Link::between(host, "hb").v4(Ipv4Net::new(address, 24)?, gateway);
        if !offloads {
            link = link.without_offloads();
        }
        description = description.link(link).route(host, "default", "hb");
    }
    description.build()
}

#[cfg(test)]
mod tests {
    use super::cpu_ticks;

    #[test]
    fn cpu_time_is_found_behind_an_odd_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 0 0 20 0 3 0 1 2 3";
        assert_eq!(cpu_ticks(stat), Some(42.0));
        assert_eq!(cpu_ticks("7 (x) S 1"), None);
    }
}
