//! Which of many numbered packets a path loses, as its two ends see it.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};

use super::path::{Path, SERVER};

/// Once nothing has come for so long after the last packet was sent, nothing will.
const SILENCE: Duration = Duration::from_secs(2);
/// Room for what arrives before it is read: the socket itself must lose nothing.
const ROOM: usize = 256 << 20;
/// The bytes of a packet's payload.
const PAYLOAD: usize = 100;
/// Packets are sent in steps of this.
const STEP: Duration = Duration::from_millis(1);

/// The fates of packets 0, 1, 2 and so on.
#[derive(Clone, Debug)]
pub struct Fates {
    /// The packets that were lost.
    pub lost: Vec<bool>,
    /// The time at which each was sent, in seconds since the first.
    sent: Vec<f64>,
}

impl Fates {
    /// Sends `packets` packets from the client to the server, `per_second` of them a second.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn observe(path: &Path, packets: u32, per_second: f64) -> Result<Self> {
        let sink = path
            .server()
            .run(|| Ok(UdpSocket::bind(SocketAddr::new(SERVER, 0))?))?;
        setsockopt(&sink, sockopt::RcvBufForce, &ROOM)?;
        sink.set_read_timeout(Some(SILENCE))?;
        let address = sink.local_addr()?;
        let source = path.client().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(address)?;
            Ok(socket)
        })?;
        let sent = send(&source, packets, per_second)?;
        let mut lost = vec![true; sent.len()];
        let mut buffer = [0; PAYLOAD];
        while let Ok(length) = sink.recv(&mut buffer) {
            let number = buffer[..length].first_chunk().copied();
            let number = u32::from_be_bytes(number.context("a packet of somebody else's")?);
            let fate = lost.get_mut(usize::try_from(number)?);
            *fate.context("a number that was not sent")? = false;
        }
        Ok(Self { lost, sent })
    }

    /// Returns the times between a loss and the next, in seconds.
    pub fn gaps(&self) -> Vec<f64> {
        let times = self.sent.iter().zip(&self.lost);
        let times: Vec<f64> = times
            .filter(|(_, lost)| **lost)
            .map(|(sent, _)| *sent)
            .collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Sends numbered packets and says when each one left.
fn send(source: &UdpSocket, packets: u32, per_second: f64) -> Result<Vec<f64>> {
    let start = Instant::now();
    let mut times = Vec::new();
    let mut packet = [0; PAYLOAD];
    for number in 0..packets {
        while f64::from(number) > start.elapsed().as_secs_f64() * per_second {
            // Not a wait for an event: this is the packets' pace.
            let flags = ClockNanosleepFlags::empty();
            let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, flags, &STEP.into());
        }
        packet[..4].copy_from_slice(&number.to_be_bytes());
        times.push(start.elapsed().as_secs_f64());
        source.send(&packet)?;
    }
    Ok(times)
}
