//! What is simulated.

/// Values from a time in seconds on.
pub type Steps = Vec<(f64, f64)>;

/// A link and its users.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it carries, in bytes of IP packets a second.
    pub rate: Steps,
    /// The round trip without a queue, in seconds.
    pub rtt: Steps,
    /// The bytes that may wait for it.
    pub buffer: f64,
    /// The share of packets that is lost behind it, and of acknowledgements.
    pub loss: [f64; 2],
    /// The mean number of packets, or acknowledgements, that are lost in a row; 1 where each is lost by itself.
    pub burst: f64,
    /// From when to when all is lost both ways, in seconds.
    pub gone: Vec<(f64, f64)>,
    /// The bytes that a policer lets through at once, which drops what comes at more than the rate; none
    /// where a queue is there instead.
    pub policer: Option<f64>,
    /// The controllers, each with so many connections that share its rate.
    pub legs: Vec<usize>,
    /// When the first of them begins, in seconds.
    pub begins: f64,
    /// By how much each begins later than the one before, in seconds.
    pub apart: f64,
    /// So much as in so many seconds at its rate is sent at once, and at least a packet (`tcp_tso_autosize`,
    /// net/ipv4/tcp_output.c); and so many packets at the start, in seconds and packets.
    pub at_once: (f64, u32),
    /// The share of acknowledgements that the sender's machine takes late, and all since with them, and by how much at
    /// most, in seconds.
    pub late: (f64, f64),
    /// For how long a receiver waits for a second packet before it acknowledges the first, in seconds (`TCP_DELACK_MIN`,
    /// include/net/tcp.h; RFC 1122, section 4.2.3.2); what comes behind one that is missing is acknowledged at once.
    pub delayed: f64,
    /// The links that the first connections of each leg have of their own behind it, each of so many bytes a
    /// second with room for so many bytes.
    pub own_links: Vec<(f64, f64)>,
    /// Whether it is looked for such.
    pub finds_own_links: bool,
    /// By how much the round trips of the first connections of each leg are longer, in seconds.
    pub farther: Vec<f64>,
    /// By how much more theirs are from a time on, in seconds: their paths behind the leg become longer.
    pub moves: Steps,
    /// What each connection has to send, in bytes a second; without bounds if infinite.
    pub demand: f64,
    /// How many of each controller's connections have something to send, from a time on; all if there is no
    /// step.
    pub active: Steps,
    /// For how long a connection lives, in seconds: then another begins in its place. They begin one after the other.
    pub lives: f64,
    /// Connections of others, with cubic.
    pub foreign: usize,
    /// What others send whatever becomes of it, as UDP of a constant rate, in bytes a second from times on.
    pub constant: Steps,
    /// The length of it, in seconds.
    pub seconds: f64,
    /// What random numbers come from.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            rate: vec![(0.0, 40e6 / 8.0)],
            rtt: vec![(0.0, 0.01)],
            buffer: f64::INFINITY,
            loss: [0.0; 2],
            burst: 1.0,
            gone: Vec::new(),
            policer: None,
            legs: vec![1],
            begins: 0.0,
            apart: 0.0,
            at_once: (0.0, 1),
            late: (0.0, 0.0),
            delayed: 0.0,
            own_links: Vec::new(),
            finds_own_links: false,
            farther: Vec::new(),
            moves: Vec::new(),
            demand: f64::INFINITY,
            active: Vec::new(),
            lives: f64::INFINITY,
            foreign: 0,
            constant: Vec::new(),
            seconds: 30.0,
            seed: 1,
        }
    }
}
