//! What connections may begin with, where `initial_window` is "auto": it is looked at what becomes of what
//! they send first and what they carry, by the network that they lead to. What follows from that
//! [`pepd_model::first_window`] decides, and routes have it ([`Observer::windows`](crate::Observer::windows)).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use pepd_model::first_window::{FirstFlight, Learned, Look, Seen, Why, Windows};
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::Socket;

use crate::connection::leg_socket::LegSocket;
use crate::settings::{Leg, Settings};

/// The prefix lengths by which addresses are taken for one network, where their campus is not smaller: what
/// is routed by itself on the Internet at the least (RFC 7454, section 6.1.3).
const NETWORK: [u8; 2] = [24, 48];

/// The time in which a connection has to send its first window to be looked at.
const PATIENCE: Duration = Duration::from_secs(10);

/// The legs of one worker whose first window is watched at once; others say nothing of theirs.
const MOST: usize = 1024;

/// A network, and the leg that leads to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    leg: Arc<str>,
    network: IpNet,
}

impl Place {
    /// Returns those of both ends of a connection.
    pub(crate) fn of_both(
        ends: [SocketAddr; 2],
        legs: [&Leg; 2],
        settings: &Settings,
    ) -> [Option<Self>; 2] {
        let [client, server] = ends;
        let [to_client, to_server] = legs;
        [
            Self::of(client.ip(), to_client, settings),
            Self::of(server.ip(), to_server, settings),
        ]
    }

    /// Returns that of a connection's end, if it is learned what the leg to it may begin with.
    fn of(end: IpAddr, leg: &Leg, settings: &Settings) -> Option<Self> {
        if !leg.learns_window {
            return None;
        }
        let (prefix, _) = settings.prefix_of(end)?;
        let [v4, v6] = NETWORK;
        let most = if end.is_ipv4() { v4 } else { v6 };
        let network = IpNet::new(end, most.max(prefix.prefix_len())).ok()?;
        Some(Self {
            leg: Arc::clone(&leg.name),
            network: network.trunc(),
        })
    }
}

/// What connections to a network may begin with.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedWindow {
    /// The leg's name.
    pub leg: Arc<str>,
    /// The network.
    pub network: IpNet,
    /// The window, in segments.
    pub segments: u32,
    /// Why it is so large.
    pub why: Why,
    /// The segments that a connection there has under way in full swing, as was measured; 0 where nothing
    /// was.
    pub carried: f64,
    /// The share of first windows that was lost.
    pub loss: f64,
    /// The time since it was of use last.
    pub unused: Duration,
}

/// What was learned, by all workers together.
#[derive(Debug, Default)]
pub(crate) struct Learner(Mutex<Windows<Place>>);

impl Learner {
    /// Returns what is known of networks that such legs lead to by the `settings` in force.
    pub(crate) fn windows(&self, settings: &Settings, now: Instant) -> Vec<LearnedWindow> {
        let mut windows = self.lock();
        windows.forget(now);
        let is_in_force = |place: &Place| {
            let leg = settings.leg_towards(place.network.addr());
            leg.is_some_and(|leg| leg.learns_window && leg.name == place.leg)
        };
        let known = windows.iter().filter(|(place, _)| is_in_force(place));
        let window = |(place, learned): (&Place, &Learned)| LearnedWindow {
            leg: Arc::clone(&place.leg),
            network: place.network,
            segments: learned.window(),
            why: learned.why(),
            carried: learned.carried(),
            loss: learned.loss(),
            unused: now.saturating_duration_since(learned.used()),
        };
        known.map(window).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Windows<Place>> {
        // A panic while the lock is held leaves at worst a window that is off.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A leg that is looked at for what it carries.
#[derive(Clone, Debug)]
pub(crate) struct Carrying {
    place: Place,
    /// The bytes that it had sent at the last look: the kernel's figures are those of the last transfer.
    sent: u64,
}

impl Carrying {
    /// Begins with a leg to such a place.
    pub(crate) fn new(place: Place) -> Self {
        Self { place, sent: 0 }
    }

    /// Takes what the kernel tells of it.
    pub(crate) fn look(&mut self, info: &TcpInfo, learner: &Learner, now: Instant) {
        let sent = info.sent_bytes.unwrap_or(0);
        if std::mem::replace(&mut self.sent, sent) != sent {
            let look = look(info);
            learner.lock().take_rate(self.place.clone(), now, &look);
        }
    }
}

/// The legs of one worker whose first window is under way.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<Vec<UnderWay>>);

#[derive(Debug)]
struct UnderWay {
    place: Place,
    socket: Weak<Socket>,
    flight: FirstFlight,
    until: Instant,
}

impl Flights {
    /// Takes both legs in of a connection that has just been established, if they lead to such places and have
    /// sent nothing, or what went out with a SYN.
    pub(crate) fn enter(
        &self,
        places: &[Option<Place>; 2],
        sockets: [&LegSocket; 2],
        now: Instant,
    ) {
        for (place, socket) in places.iter().zip(sockets) {
            let Some(place) = place else { continue };
            let mut flights = self.lock();
            if flights.len() >= MOST {
                return;
            }
            // Where it cannot be asked it is closed.
            if let Ok(info) = tcp_info(socket.as_fd())
                && info.data_segments_sent.is_some_and(|sent| sent <= 1)
            {
                flights.push(UnderWay {
                    place: place.clone(),
                    socket: socket.watch(),
                    flight: FirstFlight::new(info.cwnd),
                    until: now + PATIENCE,
                });
            }
        }
    }

    /// Looks at all of them, and tells what has become of them. For the worker's own thread.
    pub(crate) fn look(&self, learner: &Learner, now: Instant) {
        self.lock().retain(|it| it.is_under_way(learner, now));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<UnderWay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    fn is_under_way(&self, learner: &Learner, now: Instant) -> bool {
        let info = self.socket.upgrade().map(|it| tcp_info(it.as_fd()));
        let Some(Ok(info)) = info else { return false };
        match self.flight.look(&look(&info)) {
            Seen::UnderWay => now < self.until,
            Seen::Missed => false,
            Seen::Landed(flight) => {
                learner.lock().take_flight(self.place.clone(), now, flight);
                false
            }
        }
    }
}

/// Returns what matters here of what the kernel tells; where it is too old to tell everything nothing has
/// arrived, and nothing is learned.
fn look(info: &TcpInfo) -> Look {
    Look {
        sent: info.data_segments_sent.unwrap_or(0),
        // Without the SYN.
        arrived: info.delivered_segments.unwrap_or(0).saturating_sub(1),
        repeated: info.retransmitted_segments,
        lost: info.lost,
        rate: info.delivery_rate.map(|rate| rate as f64),
        is_limited: info.rate_is_limited,
        rtt: info.min_rtt,
        mss: info.mss,
        busy: info.busy.unwrap_or(Duration::ZERO),
    }
}
