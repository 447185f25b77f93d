//! The thread that moves packets between the two devices, as the model says.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError},
    },
    time::Instant,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{eventfd::EventFd, prctl},
};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use super::{
    device::{Device, DeviceError},
    direction::{Direction, Fate},
    report::{Amount, Delays, DirectionReport, Report},
    units::Time,
};

/// A command of a link's owner to its thread.
pub(super) enum Command {
    /// Say what you have done.
    Report(Sender<Result<Report, DeviceError>>),
    /// Begin again: [`Direction::restart`] for both.
    Restart(Sender<Result<(), DeviceError>>),
    /// Say what you have done, and end.
    Stop,
}

/// The number of packets that are read from one device before others get their turn: deliveries
/// that are due wait for no more than some tens of microseconds.
const BATCH: usize = 32;

/// The longest IP packet. A device's MTU may be raised behind our back, and a packet cut short
/// would be another packet.
const LONGEST_PACKET: usize = 65_535;

/// A link at work. Everything it does, it does on one thread.
pub(super) struct Engine {
    origin: Instant,
    since: Time,
    a: Device,
    b: Device,
    a_to_b: Transit,
    b_to_a: Transit,
    wake: Arc<EventFd>,
    commands: Receiver<Command>,
    buffer: Box<[u8]>,
    spare: Vec<Vec<u8>>,
}

/// What is under way in one direction, and what has arrived.
struct Transit {
    model: Direction,
    flying: VecDeque<(Time, Vec<u8>)>,
    delivered: Amount,
    refused: Amount,
    lag: Delays,
    /// Under way when the count began: sent before, to be counted as neither.
    carried_over: usize,
    overruns_before: u64,
}

impl Engine {
    /// Creates an engine for these devices and models, which have [`Time::ZERO`] for the present.
    pub(super) fn new(
        (a, b): (Device, Device),
        (a_to_b, b_to_a): (Direction, Direction),
        wake: Arc<EventFd>,
        commands: Receiver<Command>,
    ) -> Self {
        Self {
            origin: Instant::now(),
            since: Time::ZERO,
            a,
            b,
            a_to_b: Transit::new(a_to_b),
            b_to_a: Transit::new(b_to_a),
            wake,
            commands,
            buffer: vec![0; LONGEST_PACKET].into_boxed_slice(),
            spare: Vec::new(),
        }
    }

    /// Works until it is told to stop, or its owner or a device is gone.
    pub(super) fn run(mut self) -> Result<Report, DeviceError> {
        // The kernel rounds a thread's timeouts up by 50 µs unless it is told not to.
        let _ = prctl::set_timerslack(1);
        hurry();
        loop {
            let next = self.deliver();
            let ready = self.wait(next)?;
            if ready.command && self.obey()? {
                return self.report();
            }
            let now = self.now();
            if ready.a {
                self.a_to_b
                    .take(&self.a, now, &mut self.buffer, &mut self.spare)?;
            }
            if ready.b {
                self.b_to_a
                    .take(&self.b, now, &mut self.buffer, &mut self.spare)?;
            }
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    /// Hands over all that is due, and says when there is more.
    fn deliver(&mut self) -> Time {
        let now = self.now();
        let to_b = self.a_to_b.give(&self.b, now, &mut self.spare);
        let to_a = self.b_to_a.give(&self.a, now, &mut self.spare);
        to_a.min(to_b)
    }

    /// Sleeps until a packet or a command comes, or the time `next`.
    fn wait(&self, next: Time) -> Result<Ready, DeviceError> {
        let timeout = (next != Time::NEVER).then(|| next.since(self.now()).into());
        let mut fds = [
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.a.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.b.as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut fds, timeout, None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::default()),
            Err(_) => return Err(self.a.gone()),
        }
        let [command, a, b] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        let failed = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        for (device, events) in [(&self.a, a), (&self.b, b)] {
            if events.intersects(failed) {
                return Err(device.gone());
            }
        }
        Ok(Ready {
            command: !command.is_empty(),
            a: !a.is_empty(),
            b: !b.is_empty(),
        })
    }

    /// Does what it is told; true if that is to stop.
    fn obey(&mut self) -> Result<bool, DeviceError> {
        let _ = self.wake.read();
        loop {
            // Nobody waits for an answer any more if it cannot be sent.
            match self.commands.try_recv() {
                Ok(Command::Report(answer)) => drop(answer.send(self.report())),
                Ok(Command::Restart(answer)) => drop(answer.send(self.restart())),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(true),
                Err(TryRecvError::Empty) => return Ok(false),
            }
        }
    }

    fn restart(&mut self) -> Result<(), DeviceError> {
        let (at_a, at_b) = (self.a.overruns()?, self.b.overruns()?);
        self.since = self.now();
        self.a_to_b.restart(self.since, at_a);
        self.b_to_a.restart(self.since, at_b);
        Ok(())
    }

    fn report(&self) -> Result<Report, DeviceError> {
        Ok(Report {
            elapsed: self.now().since(self.since),
            a_to_b: self.a_to_b.report(self.a.overruns()?),
            b_to_a: self.b_to_a.report(self.b.overruns()?),
        })
    }
}

/// Puts the calling thread before all ordinary ones (sched(7), SCHED_FIFO). On a machine, or a
/// guest, with one processor the link would otherwise wait for the rest of its neighbours' time
/// slices: more than a millisecond for one packet in a hundred at 100 Mbit/s. Without
/// CAP_SYS_NICE it does, and the report says so.
fn hurry() {
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
}

/// The next thing that the thread has to do.
#[derive(Default)]
struct Ready {
    command: bool,
    a: bool,
    b: bool,
}

impl Transit {
    fn new(model: Direction) -> Self {
        Self {
            model,
            flying: VecDeque::new(),
            delivered: Amount::default(),
            refused: Amount::default(),
            lag: Delays::default(),
            carried_over: 0,
            overruns_before: 0,
        }
    }

    /// Reads what has come to `device`, up to a batch.
    fn take(
        &mut self,
        device: &Device,
        now: Time,
        buffer: &mut [u8],
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<(), DeviceError> {
        for _ in 0..BATCH {
            let Some(bytes) = device.read(buffer)? else {
                break;
            };
            if let Fate::Arrives(due) = self.model.offer(now, bytes) {
                let mut packet = spare.pop().unwrap_or_default();
                packet.clear();
                packet.extend_from_slice(&buffer[..bytes]);
                self.flying.push_back((due, packet));
            }
        }
        Ok(())
    }

    /// Gives `device` what is due, and says when the next packet is.
    fn give(&mut self, device: &Device, now: Time, spare: &mut Vec<Vec<u8>>) -> Time {
        while let Some((due, packet)) = self.flying.pop_front_if(|(due, _)| *due <= now) {
            let taken = device.write(&packet);
            if self.carried_over > 0 {
                self.carried_over -= 1;
            } else {
                self.lag.record(now.since(due));
                let count = if taken {
                    &mut self.delivered
                } else {
                    &mut self.refused
                };
                count.add(packet.len());
            }
            spare.push(packet);
        }
        self.flying.front().map_or(Time::NEVER, |(due, _)| *due)
    }

    fn restart(&mut self, now: Time, overruns: u64) {
        self.model.restart(now);
        self.delivered = Amount::default();
        self.refused = Amount::default();
        self.lag = Delays::default();
        self.carried_over = self.flying.len();
        self.overruns_before = overruns;
    }

    fn report(&self, overruns: u64) -> DirectionReport {
        let counters = self.model.counters();
        let lag = self.lag.quantiles();
        let overruns = overruns.saturating_sub(self.overruns_before);
        let mut pending = counters.stranded;
        for (_, packet) in self.flying.iter().skip(self.carried_over) {
            pending.add(packet.len());
        }
        DirectionReport {
            offered: counters.offered,
            dropped: counters.dropped,
            sent: counters.sent,
            lost: counters.lost,
            cut: counters.cut,
            delivered: self.delivered,
            refused: self.refused,
            pending,
            largest: counters.largest,
            queue_delay: counters.queue_delay.quantiles(),
            lag,
            overruns,
            fell_behind: DirectionReport::is_behind(&lag, overruns),
        }
    }
}
