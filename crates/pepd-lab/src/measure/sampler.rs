//! Samples the sockets of a namespace while traffic runs, as `ss -i` does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use pepd_testbed::Netns;

use crate::traffic::bulk::sleep_until;

/// The state of one socket at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketSample {
    /// Time since the start.
    pub time: Duration,
    /// The bytes that have arrived and were not read yet.
    pub receive_queue: u32,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// The bytes that were written and never sent yet.
    pub unsent: u32,
}

/// Samples a namespace's sockets to a port, and those accepted on it, at regular intervals.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<[SocketSample; 2]>>>,
}

impl Sampler {
    /// Starts to sample, every `interval`, the established connections of `netns` whose
    /// server is at `port`: index 0 is the server's side of it (the socket's own port), index 1
    /// the client's.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn start(netns: &Netns, port: u16, epoch: Instant, interval: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = netns.spawn(move || {
            let mut socket = Socket::new(NETLINK_SOCK_DIAG).context("netlink for sock_diag")?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            let mut samples = Vec::new();
            let mut next = epoch;
            while !stopped.load(Ordering::Relaxed) {
                next += interval;
                sleep_until(next);
                samples.push(sample(&socket, port, epoch.elapsed())?);
            }
            Ok(samples)
        })?;
        Ok(Self { stop, thread })
    }

    /// Stops the sampling and returns the samples.
    ///
    /// # Errors
    /// When the kernel did not answer.
    pub fn stop(self) -> Result<Vec<[SocketSample; 2]>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the sampler panicked"))?
    }
}

fn sample(socket: &Socket, port: u16, time: Duration) -> Result<[SocketSample; 2]> {
    let mut sides = [SocketSample {
        time,
        ..SocketSample::default()
    }; 2];
    socket.send(&request(), 0).context("ask sock_diag")?;
    loop {
        let (answer, _) = socket.recv_from_full().context("sock_diag answers")?;
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<SockDiagMessage>::deserialize(rest)?;
            let length = usize::try_from(message.header.length)?;
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    note(&response, port, &mut sides);
                }
                NetlinkPayload::Done(_) => return Ok(sides),
                NetlinkPayload::Error(error) => {
                    return Err(anyhow::Error::from(error.to_io())).context("sock_diag");
                }
                _ => {}
            }
            // Messages start at multiples of four bytes (NLMSG_ALIGN).
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn note(response: &InetResponse, port: u16, sides: &mut [SocketSample; 2]) {
    let id = &response.header.socket_id;
    let side = match (id.source_port == port, id.destination_port == port) {
        (true, _) => &mut sides[0],
        (_, true) => &mut sides[1],
        _ => return,
    };
    side.receive_queue = response.header.recv_queue;
    for attribute in &response.nlas {
        if let Nla::TcpInfo(info) = attribute {
            side.cwnd = field(info, SND_CWND);
            side.unsent = field(info, NOTSENT_BYTES);
        }
    }
}

/// The offset of `tcpi_snd_cwnd` in `struct tcp_info` (include/uapi/linux/tcp.h).
const SND_CWND: usize = 80;
/// The offset of `tcpi_notsent_bytes` in it, since Linux 4.6.
const NOTSENT_BYTES: usize = 144;

/// Returns a 32-bit field; zero where an older kernel has none.
fn field(info: &[u8], offset: usize) -> u32 {
    let bytes = info.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.copied().map(u32::from_ne_bytes).unwrap_or_default()
}

fn request() -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family: AF_INET,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::INFO,
        states: StateFlags::ESTABLISHED,
        socket_id: SocketId::new_v4(),
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}
