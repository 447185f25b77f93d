//! What connections hold in their sockets: counted, and bounded where `buffer` is "auto".
//!
//! Both happen when a connection is sampled, once a second, by its worker. What a buffer should be is
//! decided by [`pepd_model::buffers`].

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pepd_model::buffers::{Memory, Sample, Step, Tuner, Way, Why};
use pepd_sys::sockopt::{self, FixedBuffers, OptionError};
use pepd_sys::tcp_info::TcpInfo;
use pepd_telemetry::{BufferFigures, LegBuffers, SizedBy, Throttle};

use crate::limits::Count;
use crate::settings::{Buffer, KernelBuffers, Leg};

/// The largest window that the field in the header can say, before it is scaled (RFC 7323).
const LARGEST_WINDOW: u64 = 65_535;

/// Far beyond every window: the buffer bounds it, and nothing else.
const NO_CLAMP: i32 = 1 << 30;

/// The connections of one worker, whose sockets are counted and whose buffers may be looked after, by
/// their ids.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<HashMap<u64, Holding>>);

impl Watched {
    /// Takes a connection in, until what is returned is dropped.
    pub(crate) fn enter(self: &Arc<Self>, id: u64, holding: Holding) -> Watch {
        self.lock().insert(id, holding);
        Watch {
            watched: Arc::clone(self),
            id,
        }
    }

    /// Gives what is known of a connection to `see`.
    pub(crate) fn with<T>(&self, id: u64, see: impl FnOnce(&mut Holding) -> T) -> Option<T> {
        self.lock().get_mut(&id).map(see)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Holding>> {
        // A panic while the lock is held leaves at worst a size that is off.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place among those that are watched.
#[derive(Debug)]
pub(crate) struct Watch {
    watched: Arc<Watched>,
    id: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watched.lock().remove(&self.id);
    }
}

/// What one connection holds, and may.
#[derive(Debug)]
pub(crate) struct Holding {
    count: Count,
    pub(crate) client: LegHolding,
    pub(crate) upstream: LegHolding,
}

impl Holding {
    /// Takes a connection in with both its legs.
    pub(crate) fn new(count: Count, client: LegHolding, upstream: LegHolding) -> Self {
        Self {
            count,
            client,
            upstream,
        }
    }

    /// Counts what both legs were seen to hold.
    pub(crate) fn settle(&self) {
        self.count.set(self.client.held + self.upstream.held);
    }
}

/// What one leg's socket holds, and may.
#[derive(Debug)]
pub(crate) struct LegHolding {
    given: Option<Buffer>,
    send: Tuner,
    receive: Tuner,
    /// The bytes that had come at the last sample, and when that was.
    came: (u64, Instant),
    held: u64,
}

impl LegHolding {
    /// Begins with a leg's socket, which gets no more than it is counted with if memory is short.
    pub(crate) fn begin(
        fd: BorrowedFd<'_>,
        leg: &Leg,
        kernel: KernelBuffers,
        memory: &Memory,
        now: Instant,
    ) -> Self {
        let mut holding = Self {
            given: leg.buffer,
            send: Tuner::new(Way::Send),
            receive: Tuner::new(Way::Receive),
            came: (0, now),
            held: 0,
        };
        let short = memory.first_part() < kernel.send.max(kernel.receive);
        if leg.buffer == Some(Buffer::Auto)
            && short
            && let Ok(sizes) = sockopt::memory(fd)
        {
            let size = sizes.send_buffer.into();
            let (send, step) = Tuner::begin(Way::Send, memory, size, kernel.send);
            holding.send = send;
            holding.take(fd, Way::Send, step);
            let size = sizes.receive_buffer.into();
            let (receive, step) = Tuner::begin(Way::Receive, memory, size, kernel.receive);
            holding.receive = receive;
            holding.take(fd, Way::Receive, step);
        }
        holding
    }

    /// Looks at the socket, gives its buffers what they should have, and tells what they have.
    pub(crate) fn look(
        &mut self,
        fd: BorrowedFd<'_>,
        info: Option<&TcpInfo>,
        kernel: KernelBuffers,
        memory: &Memory,
        now: Instant,
    ) -> Option<LegBuffers> {
        let sizes = sockopt::memory(fd).ok()?;
        self.held = u64::from(sizes.received) + u64::from(sizes.queued);
        if let (Some(Buffer::Auto), Some(info)) = (self.given, info) {
            let step = self
                .send
                .sample(&sending(info, &sizes, kernel.send), memory);
            self.take(fd, Way::Send, step);
            let rate = self.incoming_rate(info.received_bytes, now);
            let step = self
                .receive
                .sample(&receiving(info, rate, &sizes, kernel.receive), memory);
            self.take(fd, Way::Receive, step);
        }
        let figures = |held: u32, size: u32, tuner: &Tuner| BufferFigures {
            held: held.into(),
            size: tuner.set().unwrap_or(size.into()),
            why: self.sized_by(tuner.why()),
        };
        Some(LegBuffers {
            send: figures(sizes.queued, sizes.send_buffer, &self.send),
            receive: figures(sizes.received, sizes.receive_buffer, &self.receive),
        })
    }

    fn incoming_rate(&mut self, came: u64, now: Instant) -> f64 {
        let (before, since) = std::mem::replace(&mut self.came, (came, now));
        let time = now.saturating_duration_since(since);
        came.saturating_sub(before) as f64 / time.max(Duration::from_millis(1)).as_secs_f64()
    }

    fn sized_by(&self, why: Why) -> SizedBy {
        match (self.given, why) {
            (Some(Buffer::Size(_)), _) => SizedBy::File,
            (_, Why::Kernel) => SizedBy::Kernel,
            (_, Why::Path) => SizedBy::Path,
            (_, Why::Memory) => SizedBy::Memory,
        }
    }

    /// Does what was decided. What the kernel refuses stays as it is: connections go on with it.
    fn take(&self, fd: BorrowedFd<'_>, way: Way, step: Step) {
        let done = match step {
            Step::Keep => Ok(()),
            Step::Set(size) => set(fd, way, size),
            Step::GiveBack(size) => set(fd, way, size).and_then(|()| {
                let fixed = FixedBuffers {
                    send: self.send.set().is_some(),
                    receive: self.receive.set().is_some(),
                };
                sockopt::set_buffers_fixed(fd, fixed)
            }),
        };
        if let Err(error) = done {
            report(&error);
        }
    }
}

/// Sets a buffer to `size` bytes as the kernel counts them, which doubles what it is asked for.
fn set(fd: BorrowedFd<'_>, way: Way, size: u64) -> Result<(), OptionError> {
    let half = i32::try_from(size / 2).unwrap_or(i32::MAX);
    match way {
        Way::Send => sockopt::set_send_buffer(fd, half),
        Way::Receive => {
            sockopt::set_receive_buffer(fd, half)?;
            sockopt::set_window_clamp(fd, NO_CLAMP)
        }
    }
}

fn sending(info: &TcpInfo, sizes: &sockopt::Memory, kernel_most: u64) -> Sample {
    Sample {
        rate: info.delivery_rate.unwrap_or(0) as f64,
        rtt: info.rtt,
        window: u64::from(info.cwnd) * u64::from(info.mss),
        held: sizes.queued.into(),
        size: sizes.send_buffer.into(),
        kernel_most,
        useful: u64::MAX,
    }
}

fn receiving(info: &TcpInfo, rate: f64, sizes: &sockopt::Memory, kernel_most: u64) -> Sample {
    Sample {
        rate,
        // A leg that only receives has the handshake's time, and what the kernel makes of timestamps.
        rtt: info
            .rtt
            .max(info.receive_rtt.unwrap_or_default().min(2 * info.rtt)),
        window: 0,
        held: sizes.received.into(),
        size: sizes.receive_buffer.into(),
        kernel_most,
        useful: 2 * (LARGEST_WINDOW << info.receive_scale.min(14)),
    }
}

fn report(error: &OptionError) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
    if let Some(held_back) = THROTTLE.admit(Instant::now()) {
        tracing::warn!(
            %error, held_back,
            "a leg's buffer stays as the kernel has it, in spite of `buffer = \"auto\"`"
        );
    }
}
