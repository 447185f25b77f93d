//! How much of a core an emulated link takes, and how late it is.
//!
//!     cargo run --release -p pepd-testbed --example link_rate [MBIT [SECONDS]]
//!
//! UDP packets of 1500 bytes go through one link of MBIT Mbit/s (200), 20 ms and 1 % loss, a
//! little faster than the link can carry them, for SECONDS (5). Needs root and TUN.

use std::{
    fs::{self, File},
    net::UdpSocket,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{setsockopt, sockopt},
    time::{ClockId, ClockNanosleepFlags, clock_nanosleep},
};
use pepd_testbed::link::{Endpoint, Link, Loss, Mtu, Rate, Report, Seed, Shape};

const PAYLOAD: usize = 1472;
const PACKET_BITS: u64 = 1500 * 8;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mbit: u64 = arguments
        .next()
        .map_or(Ok(200), |text| text.parse())
        .context("MBIT")?;
    let seconds: u64 = arguments
        .next()
        .map_or(Ok(5), |text| text.parse())
        .context("SECONDS")?;
    let pair = Pair::new()?;
    let forward = Shape {
        loss: Loss::independent(0.01),
        ..Shape::new(Duration::from_millis(20), Rate::mbit(mbit))
    };
    let back = Shape::new(Duration::from_millis(20), Rate::mbit(mbit));
    let ends = (
        Endpoint::named(&pair.a, "eth0"),
        Endpoint::named(&pair.b, "eth0"),
    );
    let link = Link::connect(&ends.0, &ends.1, forward, back, Seed(1), Mtu::ETHERNET)?;
    ip(&[
        "-n",
        &pair.a,
        "address",
        "add",
        "10.99.0.1/30",
        "dev",
        "eth0",
    ])?;
    ip(&[
        "-n",
        &pair.b,
        "address",
        "add",
        "10.99.0.2/30",
        "dev",
        "eth0",
    ])?;
    let sink = pair.inside(&pair.b, || Ok(UdpSocket::bind("10.99.0.2:4000")?))?;
    setsockopt(&sink, sockopt::RcvBufForce, &(32 << 20))?;
    let source = pair.inside(&pair.a, || Ok(UdpSocket::bind("10.99.0.1:0")?))?;

    let before = link_cpu()?;
    let offered = blast(
        &source,
        Rate::mbit(mbit * 102 / 100),
        Duration::from_secs(seconds),
    )?;
    let report = link.report()?;
    let cpu = link_cpu()?.saturating_sub(before);
    print(&report, cpu, offered);
    Ok(())
}

fn print(report: &Report, cpu: Duration, offered: u64) {
    let (way, seconds) = (&report.a_to_b, report.elapsed.as_secs_f64());
    let mbit = |bytes: u64| bytes as f64 * 8.0 / seconds / 1e6;
    println!(
        "offered    {:8.1} Mbit/s, {offered} packets",
        mbit(way.offered.bytes)
    );
    println!("sent       {:8.1} Mbit/s", mbit(way.sent.bytes));
    println!("delivered  {:8.1} Mbit/s", mbit(way.delivered.bytes));
    println!(
        "CPU        {:8.1} % of a core",
        100.0 * cpu.as_secs_f64() / seconds
    );
    println!(
        "lag        p50 {:?}  p99 {:?}  max {:?}",
        way.lag.p50, way.lag.p99, way.lag.max
    );
    println!("overruns   {}", way.overruns);
    println!(
        "fell behind: {}",
        if report.fell_behind() { "yes" } else { "no" }
    );
}

/// Sends at `rate`, in steps of a millisecond, without spinning; says how many packets.
fn blast(source: &UdpSocket, rate: Rate, span: Duration) -> anyhow::Result<u64> {
    let start = Instant::now();
    let mut sent = 0;
    let payload = [0; PAYLOAD];
    while start.elapsed() < span {
        let nanos = u64::try_from(start.elapsed().as_nanos())?;
        let due = u128::from(nanos) * u128::from(rate.as_bits_per_second())
            / (u128::from(PACKET_BITS) * 1_000_000_000);
        while u128::from(sent) < due {
            source.send_to(&payload, "10.99.0.2:4000")?;
            sent += 1;
        }
        let pause = Duration::from_millis(1).into();
        let _ = clock_nanosleep(
            ClockId::CLOCK_MONOTONIC,
            ClockNanosleepFlags::empty(),
            &pause,
        );
    }
    Ok(sent)
}

/// Returns the CPU time that the link's thread has used.
fn link_cpu() -> anyhow::Result<Duration> {
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == "link" {
            let text = fs::read_to_string(task.join("schedstat"))?;
            let nanos = text
                .split_whitespace()
                .next()
                .context("an empty schedstat")?;
            return Ok(Duration::from_nanos(nanos.parse()?));
        }
    }
    anyhow::bail!("the link's thread is not there")
}

/// Two namespaces, removed at the end.
struct Pair {
    a: String,
    b: String,
}

impl Pair {
    fn new() -> anyhow::Result<Self> {
        let name = |end| format!("rate{}{end}", std::process::id());
        let pair = Self {
            a: name("a"),
            b: name("b"),
        };
        ip(&["netns", "add", &pair.a])?;
        ip(&["netns", "add", &pair.b])?;
        Ok(pair)
    }

    fn inside<T: Send>(
        &self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let namespace = File::open(Path::new("/run/netns").join(name))?;
        let entered = || {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            work()
        };
        std::thread::scope(|scope| scope.spawn(entered).join())
            .unwrap_or_else(|_| anyhow::bail!("a panic inside {name}"))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in [&self.a, &self.b] {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .context("the program ip")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ip {}: {error}",
        arguments.join(" ")
    );
    Ok(())
}
