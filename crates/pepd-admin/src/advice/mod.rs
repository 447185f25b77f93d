//! What the figures say about what could be better: which leg limits the connections between two
//! campuses, and which key of the configuration to turn.

use crate::wire::{FlowSnapshot, LegSnapshot, PairDirection, PairLeg, PairSnapshot};

/// The configuration of a leg, as far as advice is about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegFacts {
    /// `[leg.NAME]`.
    pub name: String,
    /// Its congestion control, where one is configured.
    pub congestion: Option<String>,
    /// Bytes that each direction may hold, where configured.
    pub buffer: Option<u64>,
    /// The pacing ceiling in bits per second, where configured.
    pub rate: Option<u64>,
}

/// Less than this, in the last ten seconds, supports nothing: connection-seconds with something
/// to carry, and bytes.
const ENOUGH_SECONDS: f64 = 3.0;
const ENOUGH_BYTES: f64 = 1e6;

/// A leg that limits for so much of the time is the bottleneck.
const MOSTLY: f64 = 0.5;

/// The share of bytes sent again from which on a leg is lossy. The losses by which a loss-based
/// control finds the end of a clean link are fewer.
const LOSSY: f64 = 0.01;

/// The same share from which on bbr falls behind: it takes a path that loses more than 50/256 of what it
/// delivers for one with a policer (`bbr_lt_loss_thresh`, net/ipv4/tcp_bbr.c), and losses come in clusters.
const TOO_LOSSY_FOR_BBR: f64 = 0.1;

/// Below this a leg loses nothing worth recovering.
const LOSSLESS: f64 = 0.001;

/// The round trip, in seconds, below which recovering a loss takes no time that anybody notices.
const SHORT: f64 = 0.002;

/// The share of a sender's busy time limited by its send buffer from which on that is too small.
const BUFFER_LIMITS: f64 = 0.3;

/// A connection that has so much of what a buffer allows per round trip is limited by it.
const OF_BUFFER: f64 = 0.6;

/// Controls that take every loss for congestion; their rate falls with the square root of the
/// loss, or faster (Mathis et al., CCR 1997).
const LOSS_BASED: [&str; 8] = [
    "bic",
    "cubic",
    "highspeed",
    "htcp",
    "hybla",
    "illinois",
    "reno",
    "scalable",
];

/// Sentences for an operator, the most important first; none where the figures support none.
pub fn advise(pairs: &[PairSnapshot], flows: &[FlowSnapshot], legs: &[LegFacts]) -> Vec<String> {
    let mut findings: Vec<_> = pairs
        .iter()
        .flat_map(|pair| {
            [Way::Down, Way::Up]
                .into_iter()
                .filter_map(|way| Direction::new(pair, way, flows, legs).finding())
                .chain(no_gain(pair))
        })
        .collect();
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    findings.into_iter().map(|finding| finding.text).collect()
}

#[derive(Debug)]
struct Finding {
    /// The goodput that it is about, in bits per second: advice on what carries most comes first.
    weight: f64,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The direction from the servers to the clients.
    Down,
    /// The direction from the clients to the servers.
    Up,
}

/// One direction of a pair, with what is needed to judge it.
#[derive(Debug)]
struct Direction<'a> {
    from: &'a str,
    to: &'a str,
    figures: &'a PairDirection,
    incoming: &'a PairLeg,
    outgoing: &'a PairLeg,
    /// The pair's connections: goodput in this direction, and both legs.
    flows: Vec<(f64, &'a LegSnapshot, &'a LegSnapshot)>,
    legs: &'a [LegFacts],
}

impl<'a> Direction<'a> {
    fn new(
        pair: &'a PairSnapshot,
        way: Way,
        flows: &'a [FlowSnapshot],
        legs: &'a [LegFacts],
    ) -> Self {
        let of_pair = flows.iter().filter(|flow| {
            flow.client_campus == pair.client_campus && flow.server_campus == pair.server_campus
        });
        let (client, server) = (&*pair.client_campus, &*pair.server_campus);
        match way {
            Way::Down => Self {
                from: server,
                to: client,
                figures: &pair.down,
                incoming: &pair.upstream_leg,
                outgoing: &pair.client_leg,
                flows: of_pair
                    .map(|flow| {
                        let goodput = flow.down.goodput.last_ten_seconds;
                        (goodput, &flow.upstream_leg, &flow.client_leg)
                    })
                    .collect(),
                legs,
            },
            Way::Up => Self {
                from: client,
                to: server,
                figures: &pair.up,
                incoming: &pair.client_leg,
                outgoing: &pair.upstream_leg,
                flows: of_pair
                    .map(|flow| {
                        let goodput = flow.up.goodput.last_ten_seconds;
                        (goodput, &flow.client_leg, &flow.upstream_leg)
                    })
                    .collect(),
                legs,
            },
        }
    }

    fn finding(&self) -> Option<Finding> {
        let phases = self.figures.recent_phases;
        let total = phases.total();
        if total < ENOUGH_SECONDS || self.figures.goodput * 10.0 / 8.0 < ENOUGH_BYTES {
            return None;
        }
        let (starved, backpressured) = (phases.starved / total, phases.backpressured / total);
        let (leg, share, why) = if starved >= MOSTLY {
            (self.incoming, starved, self.incoming_key())
        } else if backpressured >= MOSTLY {
            (self.outgoing, backpressured, self.outgoing_key())
        } else {
            return None;
        };
        let (from, to, profile) = (self.from, self.to, &leg.profile);
        let percent = share * 100.0;
        Some(Finding {
            weight: self.figures.goodput,
            text: format!(
                "from {from} to {to}, [leg.{profile}] is the bottleneck: the other leg waits for \
                 it {percent:.0} % of the time; {why}"
            ),
        })
    }

    /// Returns what would help a leg that pepd sends on.
    fn outgoing_key(&self) -> String {
        let name = &self.outgoing.profile;
        let facts = self.facts(name);
        let loss = self.outgoing.retransmitted.unwrap_or(0.0);
        if let Some(buffer) = facts.and_then(|facts| facts.buffer)
            && let Some(text) = self.send_buffer(name, buffer, facts.and_then(|facts| facts.rate))
        {
            return text;
        }
        let control = self
            .flows
            .iter()
            .find_map(|flow| flow.2.congestion.as_deref())
            .or(facts.and_then(|facts| facts.congestion.as_deref()));
        let percent = loss * 100.0;
        match control {
            Some(control) if loss >= LOSSY && LOSS_BASED.contains(&control) => format!(
                "{percent:.1} % of its bytes are sent again, and {control} takes every loss for \
                 congestion: set [leg.{name}] congestion = \"bbr\", or \"find-rate\" where most of \
                 what its narrow place carries is yours"
            ),
            Some("bbr") if loss >= TOO_LOSSY_FOR_BBR => format!(
                "{percent:.1} % of its bytes are sent again, and bbr slows down where so much is lost: \
                 where most of what its narrow place carries is yours, set [leg.{name}] congestion = \
                 \"find-rate\""
            ),
            _ => "no key of its own would help: it carries what its bandwidth allows".to_owned(),
        }
    }

    fn send_buffer(&self, name: &str, buffer: u64, rate: Option<u64>) -> Option<String> {
        let sum = |of: fn(&LegSnapshot) -> Option<f64>| {
            self.flows.iter().filter_map(|flow| of(flow.2)).sum::<f64>()
        };
        let limited = sum(|leg| leg.tcp?.send_buffer_limited);
        let busy = sum(|leg| leg.tcp?.busy);
        let share = if busy > 0.0 { limited / busy } else { 0.0 };
        let have = size(buffer);
        let rtt = self.outgoing.rtt?;
        let product = rate.map(|rate| rate as f64 / 8.0 * rtt);
        if let Some(product) = product.filter(|product| *product > buffer as f64) {
            let need = size(ceil(product));
            return Some(format!(
                "its buffer of {have} is smaller than its rate × RTT: set [leg.{name}] buffer = \
                 \"{need}\" or more"
            ));
        }
        (share >= BUFFER_LIMITS).then(|| {
            let (percent, ms, more) = (share * 100.0, rtt * 1e3, size(buffer * 2));
            format!(
                "its buffer of {have} is used up {percent:.0} % of the time and so smaller than \
                 bandwidth × RTT ({ms:.0} ms): set [leg.{name}] buffer = \"{more}\" or more"
            )
        })
    }

    /// Returns what would help a leg that pepd receives on.
    fn incoming_key(&self) -> String {
        let name = &self.incoming.profile;
        let buffer = self.facts(name).and_then(|facts| facts.buffer);
        let most = self.flows.iter().map(|flow| flow.0).fold(0.0, f64::max);
        if let (Some(buffer), Some(rtt)) = (buffer, self.incoming.rtt)
            && most / 8.0 * rtt >= OF_BUFFER * buffer as f64
        {
            let (have, ms, more) = (size(buffer), rtt * 1e3, size(buffer * 2));
            return format!(
                "a buffer of {have} allows no more at its RTT of {ms:.0} ms: set [leg.{name}] \
                 buffer = \"{more}\" or more"
            );
        }
        "what limits it is its bandwidth or its sender: on a lossy leg, a helper box at its far \
         end would help"
            .to_owned()
    }

    fn facts(&self, name: &str) -> Option<&LegFacts> {
        self.legs.iter().find(|facts| facts.name == name)
    }
}

/// Advises against splitting two legs of no length that lose nothing.
fn no_gain(pair: &PairSnapshot) -> Option<Finding> {
    let goodput = pair.up.goodput + pair.down.goodput;
    if goodput * 10.0 / 8.0 < ENOUGH_BYTES {
        return None;
    }
    let easy = |leg: &PairLeg| {
        leg.rtt.is_some_and(|rtt| rtt < SHORT)
            && leg.retransmitted.is_some_and(|share| share < LOSSLESS)
    };
    (easy(&pair.client_leg) && easy(&pair.upstream_leg)).then(|| Finding {
        // After whatever is said of bottlenecks.
        weight: 0.0,
        text: format!(
            "between {} and {} nothing is gained by splitting: both legs take less than 2 ms and \
             lose nothing; a [[rule]] for them with action = \"bypass\" would save the work",
            pair.client_campus, pair.server_campus
        ),
    })
}

/// Bytes as the configuration writes them: no less than they are.
fn size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    if bytes >= 10 * MIB || (bytes >= MIB && bytes.is_multiple_of(MIB)) {
        format!("{}MiB", bytes.div_ceil(MIB))
    } else {
        format!("{}KiB", bytes.div_ceil(KIB))
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and the product of a rate and a time is not negative"
)]
fn ceil(bytes: f64) -> u64 {
    bytes.ceil() as u64
}

#[cfg(test)]
mod tests;
