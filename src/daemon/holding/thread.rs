//! The thread that reads the queue.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pepd_config::Config;
use pepd_hold::{Act, Holder, Limits, PacketId};
use pepd_net::Away;
use pepd_packet::{MarkValue, PacketMark, Passing};
use pepd_relay::{Injector, runtime_thread};
use pepd_sys::nfqueue::{self, MESSAGE_BYTES, Queue, Recipient, Verdict};
use pepd_sys::reactor;
use pepd_telemetry::Throttle;
use tokio::io::Interest;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep_until;

use super::{HeldFigures, HoldTeller, Opened, Order, held};
use crate::daemon::ticks;

/// Gives what is held at most. A receiver has room for 6 MiB if its host's limits are Linux's own
/// (net.ipv4.tcp_rmem).
fn limits(makes_parts: bool) -> Limits {
    Limits {
        flows: 16_384,
        packets: 8_192,
        bytes: 64 << 20,
        bytes_of_one: 6 << 20,
        makes_parts,
    }
}

/// The interval at which the capture is told that packets are held, and the time for which it believes
/// that.
const RENEWAL: Duration = Duration::from_secs(1);
const AWAY_TTL: Duration = Duration::from_secs(5);

/// The least time between two looks at all that is held, for whoever asks.
const SHOWN: Duration = Duration::from_millis(50);

/// Packets read in a row before what is due has its turn.
const PACKETS_PER_TURN: usize = 256;

/// The thread.
#[derive(Debug)]
pub(super) struct Thread(JoinHandle<()>);

impl Thread {
    /// Starts it.
    pub(super) fn start(
        opened: Opened,
        config: &Config,
        inbox: UnboundedReceiver<Order>,
        (teller, figures): (HoldTeller, HeldFigures),
        injector: Option<Arc<Injector>>,
    ) -> io::Result<Self> {
        let Opened { queue, away } = opened;
        let work = Work {
            holder: Holder::new(limits(injector.is_some()), Instant::now()),
            campuses: Campuses::of(config),
            queue,
            away,
            is_away: false,
            injector,
            teller,
            figures,
            acts: Vec::new(),
            buffer: vec![0; MESSAGE_BYTES],
        };
        let thread = runtime_thread::spawn("holder".to_owned(), move || work.run(inbox))?;
        Ok(Self(thread))
    }

    /// Returns whether it has not ended.
    pub(super) fn runs(&self) -> bool {
        !self.0.is_finished()
    }

    /// Waits for its end.
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the thread that holds packets had panicked");
        }
    }
}

struct Work {
    holder: Holder,
    campuses: Campuses,
    queue: Queue,
    away: Away,
    /// Whether the capture was told to pass packets on to the queue.
    is_away: bool,
    injector: Option<Arc<Injector>>,
    /// Whose news it takes.
    teller: HoldTeller,
    figures: HeldFigures,
    acts: Vec<Act>,
    buffer: Vec<u8>,
}

impl Work {
    async fn run(mut self, mut inbox: UnboundedReceiver<Order>) {
        let socket = self.queue.as_fd().try_clone_to_owned();
        let registered = socket.and_then(|fd| Ok(reactor::register(fd, Interest::READABLE)?));
        let socket = match registered {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(%error, "no packet is held while links are gone");
                return;
            }
        };
        let mut renewal = ticks::interval(RENEWAL);
        let mut shown = Instant::now();
        self.show();
        loop {
            if shown.elapsed() >= SHOWN {
                shown = Instant::now();
                self.show();
            }
            let deadline = self.holder.deadline();
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Hear(leg)) => self.hear(&leg),
                    Some(Order::Follow(config)) => self.campuses = Campuses::of(&config),
                    Some(Order::End) | None => break,
                },
                guard = socket.readable() => {
                    if let Ok(mut guard) = guard && self.read() {
                        guard.clear_ready();
                    }
                }
                () = at(deadline) => {}
                _ = renewal.tick() => {
                    // Told again below.
                    self.is_away &= !self.holder.is_needed();
                    self.queue.retry();
                }
            }
            self.holder.tick(Instant::now(), &mut self.acts);
            self.act();
            self.tell();
            tokio::task::yield_now().await;
        }
        self.holder.end(&mut self.acts);
        self.tell();
        // What had come and was not read yet goes on as well.
        while !self.read() {
            self.act();
        }
        self.act();
    }

    fn hear(&mut self, leg: &Arc<str>) {
        if let Some(report) = self.teller.take(leg) {
            self.holder.hear(leg, report, Instant::now());
        }
    }

    fn show(&self) {
        self.figures.set(Some(held(self.holder.figures())));
    }

    /// Reads some packets; returns whether there are no more.
    fn read(&mut self) -> bool {
        for _ in 0..PACKETS_PER_TURN {
            let Ok(length) = self.queue.receive(&mut self.buffer) else {
                return true;
            };
            let now = Instant::now();
            for packet in nfqueue::packets(self.buffer.get(..length).unwrap_or_default()) {
                let id = PacketId(u64::from(packet.mark.0) << 32 | u64::from(packet.id));
                let ends = Passing::read(packet.payload).map(|segment| segment.four_tuple);
                let leg = |address| self.campuses.leg(address);
                let legs = ends.map_or((None, None), |ends| {
                    (leg(ends.client.ip()), leg(ends.server.ip()))
                });
                self.holder
                    .packet(id, packet.payload, legs, now, &mut self.acts);
            }
        }
        false
    }

    /// Does what is to be done.
    fn act(&mut self) {
        for act in std::mem::take(&mut self.acts) {
            match act {
                Act::Release(id) => {
                    let (packet, mark) = split(id);
                    let mark = mark.with(MarkValue::NONE, self.campuses.config.capture.mark.mask);
                    self.decide(packet, Verdict::Accept(mark));
                }
                Act::Drop(id) => self.decide(split(id).0, Verdict::Drop),
                Act::Send(segment) => {
                    let (Some(injector), Some(packet)) = (&self.injector, segment.packet()) else {
                        continue;
                    };
                    if let Err(error) = injector.send(&packet, MarkValue::NONE) {
                        tracing::debug!(%error, "send a part of an ACK");
                    }
                }
            }
        }
    }

    fn decide(&self, packet: u32, verdict: Verdict) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
        let decided = self.queue.decide(packet, verdict, Recipient::Anybody);
        if let Err(error) = decided
            && let Some(held_back) = THROTTLE.admit(Instant::now())
        {
            tracing::error!(%error, held_back, "no verdict on a held packet: it waits until pepd ends");
        }
    }

    /// Tells the capture whether packets are to come.
    fn tell(&mut self) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
        let is_needed = self.holder.is_needed();
        if is_needed == self.is_away {
            return;
        }
        let told = match is_needed {
            true => self.away.hold(AWAY_TTL),
            false => self.away.pass(),
        };
        match told {
            Ok(()) => self.is_away = is_needed,
            Err(error) => {
                if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                    tracing::warn!(%error, held_back, "no packet is held while the link is gone");
                }
            }
        }
    }
}

/// Which leg an address is behind.
struct Campuses {
    config: Config,
    /// The legs' names, in their order.
    legs: Vec<Arc<str>>,
}

impl Campuses {
    fn of(config: &Config) -> Self {
        let legs = config.legs.iter().map(|leg| leg.name.as_str().into());
        Self {
            config: config.clone(),
            legs: legs.collect(),
        }
    }

    fn leg(&self, address: IpAddr) -> Option<&Arc<str>> {
        let campus = self.config.campus_of(address)?;
        self.legs.get(self.config.campuses.get(campus.0)?.leg.0)
    }
}

/// Gives a packet's number, and the mark with which it came.
fn split(PacketId(id): PacketId) -> (u32, PacketMark) {
    let halves = [id & u64::from(u32::MAX), id >> 32];
    // Halves of 64 bits.
    let [packet, mark] = halves.map(|half| u32::try_from(half).unwrap_or_default());
    (packet, PacketMark(mark))
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
