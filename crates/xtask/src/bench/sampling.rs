//! What it costs to sample the sockets of live connections once a second.

use std::fmt;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use pepd_telemetry::{
    Activity, FlowInfo, FlowTable, HandshakeMode, Registration, SAMPLE_INTERVAL, Socket, StepReport,
};

use super::interrupt::Interrupt;

/// The name of the setting.
pub const NAME: &str = "sampling";

/// Connections in all of which something happened.
const FLOWS: usize = 3000;

/// Seconds' worth of samples; of these the median counts.
const SECONDS: u32 = 21;

/// The shares in which a worker samples its connections.
const SHARES: usize = 10;

/// The cost of the samples of one second.
#[derive(Clone, Copy, Debug)]
pub struct Cost(Duration);

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_secs_f64() * 1e3;
        let share = self.0.as_secs_f64() * 100.0;
        let each = self.0.as_secs_f64() * 1e6 / FLOWS as f64;
        write!(
            f,
            "{NAME}: {FLOWS} active connections take {ms:.2} ms of CPU time a second, {share:.2} % \
             of one core, {each:.2} µs each"
        )
    }
}

/// Real sockets of a connection's two legs, over loopback, and their far ends.
struct Connection {
    registration: Registration,
    _sockets: [Arc<TcpStream>; 2],
    _far_ends: [TcpStream; 2],
}

/// Samples the sockets as a worker does, and measures the CPU time of this thread.
///
/// # Errors
/// When there are not enough descriptors, or it is interrupted.
pub fn run(interrupt: &Interrupt) -> Result<Cost> {
    pepd_testbed::raise_descriptor_limit()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let start = Instant::now();
    let table = Arc::new(FlowTable::new(Arc::default(), 1, start, 0.0));
    let connections = (0..FLOWS)
        .map(|_| open(&table, &listener))
        .collect::<Result<Vec<_>>>()
        .context("open the connections; each takes four descriptors")?;
    let mut costs = Vec::new();
    for second in 1..=SECONDS {
        interrupt.check()?;
        let now = start + SAMPLE_INTERVAL * second;
        for connection in &connections {
            something_happens(&connection.registration, now, second.into());
        }
        let before = cpu_time()?;
        for share in 0..SHARES {
            table.sample(0, share, SHARES, now, |_, client, upstream, fields| {
                pepd_relay::sample(client, upstream, fields)
            });
        }
        costs.push(cpu_time()?.saturating_sub(before));
    }
    // The first sample of a connection is the most expensive, and comes once in its life.
    costs.remove(0);
    costs.sort();
    Ok(Cost(costs[costs.len() / 2]))
}

fn open(table: &Arc<FlowTable>, listener: &TcpListener) -> Result<Connection> {
    let address = listener.local_addr()?;
    let pair = || -> Result<(Arc<TcpStream>, TcpStream)> {
        let near = TcpStream::connect(address)?;
        Ok((Arc::new(near), listener.accept()?.0))
    };
    let ((client, far_client), (upstream, far_upstream)) = (pair()?, pair()?);
    let name = |name: &str| Arc::<str>::from(name);
    let info = FlowInfo {
        client: client.local_addr()?,
        server: upstream.local_addr()?,
        client_campus: name("a"),
        server_campus: name("b"),
        client_profile: name("lan"),
        upstream_profile: name("wan"),
        handshake: HandshakeMode::EndToEnd,
        accepted: Instant::now(),
        came: None,
    };
    let socket = |socket: &Arc<TcpStream>| {
        let socket: Arc<Socket> = Arc::clone(socket) as Arc<Socket>;
        Arc::downgrade(&socket)
    };
    let (client_socket, upstream_socket) = (socket(&client), socket(&upstream));
    let registration = table.register(0, info, client_socket, upstream_socket, Instant::now());
    Ok(Connection {
        registration,
        _sockets: [client, upstream],
        _far_ends: [far_client, far_upstream],
    })
}

/// Has something happen: downwards it is held back, which takes one more sample than being starved.
fn something_happens(flow: &Registration, now: Instant, bytes: u64) {
    let report = |activity| StepReport {
        bytes,
        pipe: 0,
        unsent_after_wait: 0,
        activity,
    };
    let starved = Activity::AwaitsSource { unsent: 0 };
    flow.report(now, now, report(starved), report(Activity::AwaitsSink));
}

fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}
