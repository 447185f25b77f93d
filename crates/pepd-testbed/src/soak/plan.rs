//! What the two ends of each connection will do, drawn from a seed.

use std::net::SocketAddr;

use crate::traffic::{Pattern, Rng};
use crate::world::{Family, World};

/// The ports that the server listens on.
pub const PORTS: std::ops::Range<u16> = 5000..5008;
/// A port of the server's that nobody listens on.
pub const CLOSED: u16 = 4999;
/// A port whose packets the server's host drops.
pub const SILENT: u16 = 4998;
/// The client's ports: a four-tuple comes again after as many connections as there are tuples,
/// which takes longer than TIME_WAIT.
const CLIENT_PORTS: std::ops::Range<u16> = 10_000..60_000;

/// The way in which an end finishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It sends a FIN when it has sent everything, and reads to the end.
    Orderly,
    /// It closes when it has sent everything, whatever it has read by then.
    Close,
    /// It closes with a RST when it has sent everything.
    Reset,
    /// It is heard of no more when it has sent everything.
    Vanish,
}

/// What one end of one connection will do.
#[derive(Clone, Debug)]
pub struct Side {
    /// How many bytes it sends.
    pub length: u64,
    /// How it finishes.
    pub finish: Finish,
    /// It sends only once the other side has sent its FIN.
    pub answers: bool,
    /// Its last byte is urgent.
    pub urgent: bool,
    /// It pauses between its reads and writes.
    pub slow: bool,
    /// Which stream it sends, and from where on.
    pub stream: (usize, u64),
    /// What else is drawn as it goes.
    pub seed: u64,
}

/// One connection.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The client's own port.
    pub client_port: u16,
    /// The destination: mostly a listener, and sometimes [`CLOSED`] or [`SILENT`].
    pub to: SocketAddr,
    /// The client's end.
    pub client: Side,
    /// The server's.
    pub server: Side,
}

impl Plan {
    /// Draws the plan of the connection with this number.
    pub fn draw(number: u64, rng: &mut Rng) -> Self {
        let family = Family::BOTH[usize::from(number % 2 == 1)];
        let servers = u64::from(PORTS.end - PORTS.start);
        let clients = u64::from(CLIENT_PORTS.end - CLIENT_PORTS.start);
        let port = |start: u16, offset: u64| start + u16::try_from(offset).unwrap_or_default();
        let server_port = match rng.between(0, 999) {
            0..=9 => CLOSED,
            10..=12 => SILENT,
            _ => port(PORTS.start, number / 2 % servers),
        };
        let (mut client, mut server) = (Side::draw(rng), Side::draw(rng));
        let mut client_port = port(CLIENT_PORTS.start, number / 2 / servers % clients);
        if !PORTS.contains(&server_port) {
            // It stays to hear what becomes of it, and shares its port with nobody who does the same.
            client.finish = Finish::Orderly;
            client_port = port(CLIENT_PORTS.start, number % clients);
        }
        // Both cannot wait for each other; nor for a FIN that does not come.
        server.answers &= !client.answers && client.finish == Finish::Orderly;
        client.answers &= server.finish == Finish::Orderly;
        Self {
            client_port,
            to: SocketAddr::new(World::server_address(family), server_port),
            client,
            server,
        }
    }
}

impl Side {
    fn draw(rng: &mut Rng) -> Self {
        let length = match rng.between(0, 199) {
            0..=9 => 0,
            10..=29 => 1,
            30..=149 => rng.between(2, 2_000),
            150..=189 => rng.between(2_000, 30_000),
            190..=198 => rng.between(30_000, 300_000),
            _ => rng.between(300_000, 2_000_000),
        };
        let finish = match rng.between(0, 999) {
            0..=699 => Finish::Orderly,
            700..=849 => Finish::Close,
            850..=997 => Finish::Reset,
            _ => Finish::Vanish,
        };
        Self {
            length,
            finish,
            answers: rng.between(0, 4) == 0,
            urgent: length > 0 && rng.between(0, 99) == 0,
            slow: rng.between(0, 9) == 0,
            stream: (
                usize::try_from(rng.between(0, Streams::NUMBER - 1)).unwrap_or_default(),
                rng.between(0, 100_000),
            ),
            seed: rng.bits(),
        }
    }
}

/// The streams that are sent: few, since to make one takes longer than to send it, and from
/// different places on.
#[derive(Debug)]
pub struct Streams(Vec<Pattern>);

impl Streams {
    const NUMBER: u64 = 32;

    /// Makes them.
    pub fn new(seed: u64) -> Self {
        Self(
            (0..Self::NUMBER)
                .map(|at| Pattern::new(seed ^ at))
                .collect(),
        )
    }

    /// Returns what `side` sends, and where it begins.
    pub fn of(&self, side: &Side) -> (&Pattern, u64) {
        (&self.0[side.stream.0], side.stream.1)
    }
}
