//! What connections hold in their sockets: counted, and bounded where `buffer` is "auto".
//!
//! Both happen when a connection is sampled, once a second, by its worker. What a buffer should be is
//! decided by [`pepd_model::buffers`].

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pepd_model::buffers::{BEYOND, Holds, Memory, RESERVE, Sample, Step, Tuner, Way, Why};
use pepd_sys::sockopt::{self, FixedBuffers, OptionError};
use pepd_sys::stream;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::{BufferFigures, LegBuffers, SAMPLE_INTERVAL, SizedBy, Socket, Throttle};

use crate::first_window::{Carrying, Learner, Place};
use crate::limits::{Admission, Count};
use crate::moving::asked::Asked;
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
    pub(crate) fn enter(self: &Arc<Self>, id: u64, mut holding: Holding) -> Watch {
        let asked = Arc::new(Asked::nothing(id));
        holding.asked = Some(Arc::clone(&asked));
        self.lock().insert(id, holding);
        Watch {
            watched: Arc::clone(self),
            asked,
        }
    }

    /// Gives what is known of a connection to `see`.
    pub(crate) fn with<T>(&self, id: u64, see: impl FnOnce(&mut Holding) -> T) -> Option<T> {
        self.lock().get_mut(&id).map(see)
    }

    /// Returns what a connection may be asked by.
    pub(crate) fn asked(&self, id: u64) -> Option<Arc<Asked>> {
        self.with(id, |holding| holding.asked.clone()).flatten()
    }

    /// Looks at connections in which nothing has happened for a second, and which are counted with more
    /// than the least: so they give it back.
    pub(crate) fn look_at_idle(&self, admission: &Admission, kernel: KernelBuffers, now: Instant) {
        for holding in self.lock().values_mut() {
            if holding.is_left(now) {
                holding.look_again(&admission.memory(), kernel, now);
            }
        }
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
    asked: Arc<Asked>,
}

impl Watch {
    /// Returns what others ask of the connection.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watched.lock().remove(&self.asked.id());
    }
}

/// What one connection holds, and may.
#[derive(Debug)]
pub(crate) struct Holding {
    count: Count,
    legs: [LegHolding; 2],
    looked_at: Instant,
    /// What others ask of its task.
    asked: Option<Arc<Asked>>,
}

impl Holding {
    /// Takes a connection in with both its legs, client and upstream: what is left to the kernel is so
    /// if there is memory for that.
    pub(crate) fn begin(
        count: Count,
        legs: [(&Leg, Weak<Socket>); 2],
        kernel: KernelBuffers,
        memory: &Memory,
        now: Instant,
    ) -> Self {
        let automatic = legs.iter().any(|(leg, _)| leg.buffer == Some(Buffer::Auto));
        let cost = 2 * (kernel.send + kernel.receive + 2 * BEYOND);
        let free = !automatic
            || (memory.leaves_to_the_kernel(cost)
                && (!memory.promised || count.grow(cost.saturating_sub(RESERVE))));
        let mut holding = Self {
            count,
            legs: legs.map(|(leg, socket)| LegHolding::new(leg, socket, now)),
            looked_at: now,
            asked: None,
        };
        for leg in &mut holding.legs {
            leg.begin(!free, memory, &holding.count);
        }
        holding.settle(kernel);
        holding
    }

    /// Learns what the legs to such places carry, from now on.
    pub(crate) fn learn(&mut self, places: [Option<Place>; 2]) {
        for (leg, place) in self.legs.iter_mut().zip(places) {
            leg.carrying = place.map(Carrying::new);
        }
    }

    /// Tells the learner what they carry.
    pub(crate) fn tell(&mut self, infos: [Option<&TcpInfo>; 2], learner: &Learner, now: Instant) {
        for (leg, info) in self.legs.iter_mut().zip(infos) {
            if let (Some(carrying), Some(info)) = (&mut leg.carrying, info) {
                carrying.look(info, learner, now);
            }
        }
    }

    /// Looks at both sockets, with what the kernel has told of them, and returns what their buffers
    /// have.
    pub(crate) fn look(
        &mut self,
        infos: [Option<&TcpInfo>; 2],
        kernel: KernelBuffers,
        memory: &Memory,
        now: Instant,
    ) -> [Option<LegBuffers>; 2] {
        self.looked_at = now;
        let [client, upstream] = &mut self.legs;
        let [of_client, of_upstream] = infos;
        let look = |leg: &mut LegHolding, info| leg.look(info, kernel, memory, &self.count, now);
        let seen = [look(client, of_client), look(upstream, of_upstream)];
        self.settle(kernel);
        seen
    }

    /// Returns whether nobody has looked at it for a second, though it is counted with more than the
    /// least.
    fn is_left(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.looked_at);
        since > SAMPLE_INTERVAL + SAMPLE_INTERVAL / 2 && self.count.counted() > RESERVE
    }

    fn look_again(&mut self, memory: &Memory, kernel: KernelBuffers, now: Instant) {
        let infos = [0, 1].map(|leg| {
            let socket = self.legs[leg].socket.upgrade()?;
            tcp_info(socket.as_fd()).ok()
        });
        self.look(infos.each_ref().map(Option::as_ref), kernel, memory, now);
    }

    /// Counts what both legs were seen to hold, and may.
    fn settle(&self, kernel: KernelBuffers) {
        let sum = |of: &dyn Fn(&LegHolding) -> u64| self.legs.iter().map(of).sum::<u64>();
        self.count.set(Holds {
            held: sum(&LegHolding::held),
            counted: sum(&|leg| leg.counted(kernel)).max(RESERVE),
        });
    }
}

/// What one leg's socket holds, and may.
#[derive(Debug)]
struct LegHolding {
    given: Option<Buffer>,
    socket: Weak<Socket>,
    send: Tuner,
    receive: Tuner,
    /// The bytes that had come at the last sample, and when that was.
    came: (u64, Instant),
    /// The bytes that had been sent.
    sent: u64,
    sizes: sockopt::Memory,
    carrying: Option<Carrying>,
}

impl LegHolding {
    fn new(leg: &Leg, socket: Weak<Socket>, now: Instant) -> Self {
        Self {
            given: leg.buffer,
            socket,
            send: Tuner::new(Way::Send),
            receive: Tuner::new(Way::Receive),
            came: (0, now),
            sent: 0,
            sizes: sockopt::Memory::default(),
            carrying: None,
        }
    }

    /// Begins with its socket: one that is `bounded` gets a size.
    fn begin(&mut self, bounded: bool, memory: &Memory, count: &Count) {
        let Some(socket) = self.socket.upgrade() else {
            return;
        };
        self.sizes = sockopt::memory(socket.as_fd()).unwrap_or_default();
        if self.given != Some(Buffer::Auto) || !bounded {
            return;
        }
        let least = Memory { most: 0, ..*memory };
        for (way, size) in [
            (Way::Send, self.sizes.send_buffer),
            (Way::Receive, self.sizes.receive_buffer),
        ] {
            let (smallest, _) = Tuner::begin(way, &least, size.into());
            let (first, _) = Tuner::begin(way, memory, size.into());
            let more = first.counted(0, 0).saturating_sub(smallest.counted(0, 0));
            let tuner = match more == 0 || count.grow(more) {
                true => first,
                false => smallest,
            };
            *self.tuner(way) = tuner;
            let step = tuner.set().map_or(Step::Keep, Step::Set);
            self.take(socket.as_fd(), way, step);
        }
    }

    fn tuner(&mut self, way: Way) -> &mut Tuner {
        match way {
            Way::Send => &mut self.send,
            Way::Receive => &mut self.receive,
        }
    }

    /// Returns the bytes in the socket.
    fn held(&self) -> u64 {
        u64::from(self.sizes.received) + u64::from(self.sizes.queued)
    }

    /// Returns the bytes that may be in it; where nothing keeps it small, those that are.
    fn counted(&self, kernel: KernelBuffers) -> u64 {
        let (received, queued) = (self.sizes.received.into(), self.sizes.queued.into());
        match self.given {
            Some(Buffer::Auto) => {
                self.send.counted(queued, kernel.send)
                    + self.receive.counted(received, kernel.receive)
            }
            Some(Buffer::Size(_)) => {
                let may = |size: u32| u64::from(size) + BEYOND;
                queued.max(may(self.sizes.send_buffer))
                    + received.max(may(self.sizes.receive_buffer))
            }
            None => self.held() + 2 * BEYOND,
        }
    }

    /// Looks at the socket, gives its buffers what they should have, and tells what they have.
    fn look(
        &mut self,
        info: Option<&TcpInfo>,
        kernel: KernelBuffers,
        memory: &Memory,
        count: &Count,
        now: Instant,
    ) -> Option<LegBuffers> {
        let socket = self.socket.upgrade()?;
        let fd = socket.as_fd();
        let sizes = sockopt::memory(fd).ok()?;
        self.sizes = sizes;
        if let (Some(Buffer::Auto), Some(info)) = (self.given, info) {
            let rate = self.incoming_rate(info.received_bytes, now);
            let samples = [
                (Way::Send, self.sending(info, &sizes, kernel.send)),
                (
                    Way::Receive,
                    receiving(fd, info, rate, &sizes, kernel.receive),
                ),
            ];
            for (way, sample) in samples {
                self.tune(fd, way, &sample, memory, count);
            }
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

    /// Gives a buffer what it should have. What makes it larger is counted first: where there is no
    /// room for that, it stays as it is.
    fn tune(
        &mut self,
        fd: BorrowedFd<'_>,
        way: Way,
        sample: &Sample,
        memory: &Memory,
        count: &Count,
    ) {
        let before = *self.tuner(way);
        let mut after = before;
        let step = after.sample(sample, memory);
        let counted = |tuner: &Tuner| tuner.counted(sample.held, sample.kernel_most);
        let more = counted(&after).saturating_sub(counted(&before));
        if memory.promised && more > 0 && !count.grow(more) {
            return;
        }
        *self.tuner(way) = after;
        self.take(fd, way, step);
    }

    fn sending(&mut self, info: &TcpInfo, sizes: &sockopt::Memory, kernel_most: u64) -> Sample {
        let sent = info.sent_bytes.unwrap_or(u64::MAX);
        let before = std::mem::replace(&mut self.sent, sent);
        let mut sample = Sample {
            rate: info.delivery_rate.unwrap_or(0) as f64,
            rtt: info.min_rtt.unwrap_or(info.rtt),
            window: u64::from(info.cwnd) * u64::from(info.mss),
            behind: u64::from(info.sacked) * u64::from(info.mss),
            held: sizes.queued.into(),
            size: sizes.send_buffer.into(),
            kernel_most,
            useful: u64::MAX,
        };
        if sent == before && sizes.queued == 0 {
            // The kernel's figures are those of the last transfer.
            sample.rate = 0.0;
            sample.window = 0;
        }
        sample
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

fn receiving(
    fd: BorrowedFd<'_>,
    info: &TcpInfo,
    rate: f64,
    sizes: &sockopt::Memory,
    kernel_most: u64,
) -> Sample {
    // What could be read is the reader's to fetch.
    let behind = match u64::from(sizes.received) / 2 {
        0 => 0,
        held => stream::unread(fd).map_or(0, |unread| held.saturating_sub(unread as u64)),
    };
    Sample {
        rate,
        // A leg that only receives has the handshake's.
        rtt: info.min_rtt.unwrap_or(info.rtt),
        window: 0,
        behind,
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
