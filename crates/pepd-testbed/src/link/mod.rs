//! Emulated links: what a long, slow or lossy path does to packets, on any machine with TUN.
//!
//! A [`Link`] joins two network namespaces by a TUN device in each. Per direction a packet waits
//! in a queue, is transmitted at a rate, may be lost on the wire, and arrives after a
//! propagation delay: [`Shape`] says how. Losses come from a [`Seed`], so a run can be repeated.
//! Packets are no larger than the MTU: segmentation offload ends at the device.
//!
//! [`Direction`] is the model: pure, without a clock, tested on a virtual one. The rest is thin:
//! one thread per link, which sleeps until a packet comes or is due and never spins, so that a
//! guest whose clock skips idle time can skip it.
//!
//! ```no_run
//! use std::time::Duration;
//! use pepd_testbed::link::{Endpoint, Link, Loss, Mtu, Rate, Seed, Shape};
//!
//! // The namespaces `client` and `server` exist; their addresses are given with `ip` afterwards.
//! let (a, b) = (Endpoint::named("client", "eth0"), Endpoint::named("server", "eth0"));
//! let shape = Shape::new(Duration::from_millis(100), Rate::mbit(100));
//! let lossy = Shape { loss: Loss::independent(0.05), ..shape.clone() };
//! let link = Link::connect(&a, &b, lossy, shape, Seed(1), Mtu::ETHERNET)?;
//! // … traffic …
//! let report = link.stop()?;
//! assert!(!report.fell_behind(), "the machine was too busy for this path");
//! # Ok::<(), pepd_testbed::link::LinkError>(())
//! ```

mod device;
mod direction;
mod engine;
mod loss;
mod report;
mod shape;
mod trace;
mod transmitter;
mod units;

use std::{
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use nix::sys::eventfd::{EfdFlags, EventFd};

pub use device::{DeviceError, Endpoint};
pub use direction::{Counters, Direction, Fate};
pub use report::{Amount, Delays, DirectionReport, LAG_LIMIT, Quantiles, Report};
pub use shape::{Capacity, Loss, Outage, OutageEffect, QueueLimit, REACH, Shape, ShapeError};
pub use trace::{Trace, TraceError};
pub use units::{Mtu, MtuError, Rate, RateError, Seed, Time};

use device::Device;
use engine::{Command, Engine};

/// A link at work. Its devices live as long as it does.
///
/// Dropping it takes the link down without a report.
#[derive(Debug)]
pub struct Link {
    worker: Option<JoinHandle<Result<Report, DeviceError>>>,
    commands: mpsc::Sender<Command>,
    wake: Arc<EventFd>,
}

impl Link {
    /// Makes both devices, up and without addresses, and joins them.
    ///
    /// # Errors
    /// [`LinkError`] if a shape is impossible, a namespace cannot be entered (CAP_SYS_ADMIN) or
    /// a device cannot be made (CAP_NET_ADMIN, `/dev/net/tun`). Nothing is left behind then.
    pub fn connect(
        a: &Endpoint,
        b: &Endpoint,
        a_to_b: Shape,
        b_to_a: Shape,
        seed: Seed,
        mtu: Mtu,
    ) -> Result<Self, LinkError> {
        let [seed_there, seed_back] = seed.split();
        let there = Direction::new(&a_to_b, seed_there, Time::ZERO)?;
        let back = Direction::new(&b_to_a, seed_back, Time::ZERO)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(|errno| LinkError::Start(errno.into()))?;
        let wake = Arc::new(wake);
        let (commands, received) = mpsc::channel();
        let (ready, made) = mpsc::channel();
        let (a, b, awake) = (a.clone(), b.clone(), Arc::clone(&wake));
        // The devices are made on the link's thread: it changes its namespace, and its maker stays
        // in its own.
        let work = move || {
            let ends = Device::make(&a, mtu).and_then(|a| Ok((a, Device::make(&b, mtu)?)));
            let ends = ends?;
            let _ = ready.send(());
            Engine::new(ends, (there, back), awake, received).run()
        };
        let name = "link".to_owned();
        let worker = thread::Builder::new()
            .name(name)
            .spawn(work)
            .map_err(LinkError::Start)?;
        let link = Self {
            worker: Some(worker),
            commands,
            wake,
        };
        match made.recv() {
            Ok(()) => Ok(link),
            // The thread has ended before it was ready, and says why.
            Err(mpsc::RecvError) => Err(link.stop().err().unwrap_or(LinkError::Panicked)),
        }
    }

    /// Returns what the link has done so far.
    ///
    /// # Errors
    /// [`LinkError::Ended`] if the link has come to an end by itself; [`Link::stop`] says why.
    pub fn report(&self) -> Result<Report, LinkError> {
        self.ask(Command::Report)
    }

    /// Begins again, as if the link had been connected now: counters at zero, losses from the
    /// seed, trace and outages from their start. Call it after the warm-up, and what follows
    /// can be repeated. Packets under way arrive as they would have, and are not counted.
    ///
    /// # Errors
    /// As [`Link::report`].
    pub fn restart(&self) -> Result<(), LinkError> {
        self.ask(Command::Restart)
    }

    /// Takes the link down, with its devices, and says what it has done.
    ///
    /// # Errors
    /// [`LinkError`] if the link has come to an end by itself: why.
    pub fn stop(mut self) -> Result<Report, LinkError> {
        match self.end() {
            Some(Ok(outcome)) => Ok(outcome?),
            Some(Err(_)) | None => Err(LinkError::Panicked),
        }
    }

    fn ask<T>(
        &self,
        command: impl FnOnce(mpsc::Sender<Result<T, DeviceError>>) -> Command,
    ) -> Result<T, LinkError> {
        let (answer, answered) = mpsc::channel();
        self.tell(command(answer));
        Ok(answered
            .recv()
            .map_err(|mpsc::RecvError| LinkError::Ended)??)
    }

    fn tell(&self, command: Command) {
        // A thread that has ended reads no commands: that shows when its answer is awaited.
        let _ = self.commands.send(command);
        let _ = self.wake.write(1);
    }

    fn end(&mut self) -> Option<thread::Result<Result<Report, DeviceError>>> {
        self.tell(Command::Stop);
        self.worker.take().map(JoinHandle::join)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.worker.is_some() {
            drop(self.end());
        }
    }
}

/// A link that could not be made, or has come to an end.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There can be no such link.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A device could not be made, or was lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel gave no thread or no event descriptor.
    #[error("cannot start a link's thread: see `ulimit -u` and `ulimit -n`")]
    Start(#[source] io::Error),
    /// The link has come to an end by itself.
    #[error("the link has ended: `stop` says why")]
    Ended,
    /// A fault in the link's thread.
    #[error("the link's thread has panicked: its message is on standard error")]
    Panicked,
}
