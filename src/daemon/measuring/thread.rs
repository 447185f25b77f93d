//! The thread that reads the group.

use std::io;
use std::os::fd::AsFd as _;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pepd_admin::wire::{Compared, GainInterval, Measured, PairWorth, Worth as WireWorth};
use pepd_config::{Config, PerMyriad};
use pepd_net::{Plan, WATCHED_ROUTED, WATCHED_SPLIT};
use pepd_packet::Passing;
use pepd_relay::runtime_thread;
use pepd_sys::nflog::{self, Log, Logged, MESSAGE_BYTES, Way};
use pepd_sys::reactor;
use pepd_worth::{Arm, FEWEST, Finding, Gain, Place, Summary, Watcher, Worth};
use tokio::io::Interest;
use tokio::sync::mpsc::UnboundedReceiver;

use super::chooser::{Chooser, Pair, RENEWAL};
use super::{Opened, Order, WorthFigures};
use crate::daemon::ticks;

/// The connections that are watched at once.
const MOST: usize = 16_384;

/// The interval at which is compared what there is: it takes a millisecond for each pair of campuses.
const COMPARED: Duration = Duration::from_secs(2);

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
        plan: &Plan,
        inbox: UnboundedReceiver<Order>,
        figures: WorthFigures,
    ) -> io::Result<Self> {
        let Opened { log, choices } = opened;
        let work = Work {
            watcher: Watcher::new(MOST),
            worth: Worth::default(),
            is_new: true,
            chooser: Chooser::new(choices, config, plan),
            config: config.clone(),
            log,
            figures,
            buffer: vec![0; MESSAGE_BYTES],
        };
        let thread = runtime_thread::spawn("measurer".to_owned(), move || work.run(inbox))?;
        Ok(Self(thread))
    }

    /// Returns whether it has not ended.
    pub(super) fn runs(&self) -> bool {
        !self.0.is_finished()
    }

    /// Waits for its end.
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the thread that measures what splitting is worth had panicked");
        }
    }
}

struct Work {
    watcher: Watcher,
    /// By the names of campuses, which outlive a reload.
    worth: Worth<String>,
    /// Whether a connection has ended since it was compared last.
    is_new: bool,
    chooser: Chooser,
    config: Config,
    log: Log,
    figures: WorthFigures,
    buffer: Vec<u8>,
}

impl Work {
    async fn run(mut self, mut inbox: UnboundedReceiver<Order>) {
        let socket = self.log.as_fd().try_clone_to_owned();
        let registered = socket.and_then(|fd| Ok(reactor::register(fd, Interest::READABLE)?));
        let socket = match registered {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(%error, "it is not measured what splitting is worth");
                return;
            }
        };
        let mut compared = ticks::interval(COMPARED);
        let mut renewal = ticks::interval(RENEWAL);
        loop {
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(Order::Follow(config, plan)) => {
                        self.chooser.follow(&config, &plan, Instant::now());
                        self.config = *config;
                        self.is_new = true;
                    }
                    Some(Order::End) | None => return,
                },
                guard = socket.readable() => {
                    if let Ok(mut guard) = guard && self.read() {
                        guard.clear_ready();
                    }
                }
                _ = renewal.tick() => self.chooser.tick(Instant::now()),
                _ = compared.tick() => {
                    self.watcher.expire(Instant::now());
                    self.compare();
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reads some packets; returns whether there are no more.
    fn read(&mut self) -> bool {
        for _ in 0..PACKETS_PER_TURN {
            let Ok(length) = self.log.receive(&mut self.buffer) else {
                return true;
            };
            let now = Instant::now();
            let buffer = std::mem::take(&mut self.buffer);
            for packet in nflog::packets(buffer.get(..length).unwrap_or_default()) {
                self.take(packet, now);
            }
            self.buffer = buffer;
        }
        false
    }

    fn take(&mut self, packet: Logged<'_>, now: Instant) {
        let Some(segment) = Passing::read(packet.payload) else {
            return;
        };
        let begins = [(WATCHED_ROUTED, Arm::Unsplit), (WATCHED_SPLIT, Arm::Split)];
        let arm = begins
            .into_iter()
            .find(|(prefix, _)| prefix.as_bytes() == packet.prefix);
        if let Some((_, arm)) = arm {
            self.watcher.begin(arm, &segment, now);
            return;
        }
        let place = match packet.way {
            Way::Through => Place::Forwarded,
            Way::In => Place::Received,
            Way::Out => Place::Sent,
        };
        let Some(ended) = self.watcher.segment(place, &segment, now) else {
            return;
        };
        let campus = |address| {
            let id = self.config.campus_of(address)?;
            Some(self.config.campuses.get(id.0)?.name.clone())
        };
        if let (Some(from), Some(to)) = (campus(ended.client.ip()), campus(ended.server.ip())) {
            let pair = (from, to);
            if self.chooser.add(&pair, &ended, now) {
                self.worth.forget(&pair);
            }
            self.worth.add(pair, &ended, now);
            self.is_new = true;
        }
    }

    /// Compares what there is, if there is anything new, and shows it.
    fn compare(&mut self) {
        if !std::mem::take(&mut self.is_new) {
            return;
        }
        let unsplit = self.config.measured().unwrap_or(PerMyriad(0));
        let pairs = self.worth.findings(Instant::now()).into_iter();
        let pairs = pairs.map(|pair| {
            let ends: Pair = (pair.from, pair.to);
            PairWorth {
                choice: self.chooser.shown(&ends),
                client_campus: ends.0,
                server_campus: ends.1,
                compared: pair.findings.iter().map(compared).collect(),
            }
        });
        self.figures.set(Some(WireWorth {
            unsplit: f64::from(unsplit.0) / f64::from(PerMyriad::WHOLE.0),
            fewest: FEWEST as u64,
            pairs: pairs.collect(),
        }));
    }
}

fn compared(finding: &Finding) -> Compared {
    let measured = |of: Summary| Measured {
        connections: of.connections as u64,
        median: of.median,
    };
    Compared {
        quantity: finding.quantity.name().to_owned(),
        split: measured(finding.arms.split),
        unsplit: measured(finding.arms.unsplit),
        gain: finding
            .gain
            .map(|Gain { factor, low, high }| GainInterval { factor, low, high }),
    }
}
