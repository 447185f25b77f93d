//! What the figures say about what could be better: which leg limits the connections between two
//! campuses, and which key of the configuration to turn.

mod held_back;
mod load;
mod model;
mod no_gain;
mod sizes;

use self::model::{Enough, Measured};
use self::sizes::{ceil, more, size};
use crate::wire::{
    FlowSnapshot, LegSnapshot, LegState, PairDirection, PairLeg, PairSnapshot, SizedBy,
};

/// The configuration of a leg, as far as advice is about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegFacts {
    /// `[leg.NAME]`.
    pub name: String,
    /// Its congestion control, where one is configured.
    pub congestion: Option<String>,
    /// Bytes that each direction may hold, where configured.
    pub buffer: Option<u64>,
    /// Whether that is `"auto"` instead.
    pub automatic: bool,
    /// The pacing ceiling in bits per second, where configured.
    pub rate: Option<u64>,
}

/// Less than this, in the last ten seconds, supports nothing: connection-seconds with something
/// to carry; and bytes, where it is not waiting that counts: what a slow leg holds back is few bytes.
const ENOUGH_SECONDS: f64 = 3.0;
const ENOUGH_BYTES: f64 = 1e6;

/// A leg that limits for so much of the time is the bottleneck.
const MOSTLY: f64 = 0.5;

/// The share of bytes sent again from which on a leg is lossy: what one that loses one in a hundred shows in
/// a bad moment. The losses by which a loss-based control finds the end of a clean link are fewer.
const LOSSY: f64 = 0.008;

/// The same share from which on bbr falls behind: it takes a path that loses more than 50/256 of what it
/// delivers for one with a policer (`bbr_lt_loss_thresh`, net/ipv4/tcp_bbr.c), and losses come in clusters.
const TOO_LOSSY_FOR_BBR: f64 = 0.1;

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

/// Sentences for an operator, the most important first; none where the figures support none. `away` are the legs
/// whose link was gone in the last ten seconds: of these, what waited says nothing.
pub fn advise(
    pairs: &[PairSnapshot],
    flows: &[FlowSnapshot],
    legs: &[LegFacts],
    states: &[LegState],
    away: &[String],
) -> Vec<String> {
    let seen = Seen {
        flows,
        legs,
        states,
    };
    let is_there = |pair: &&PairSnapshot| {
        let legs = [&pair.client_leg, &pair.upstream_leg];
        !legs.iter().any(|leg| away.contains(&leg.profile))
    };
    let mut findings: Vec<_> = pairs
        .iter()
        .filter(is_there)
        .flat_map(|pair| {
            [Way::Down, Way::Up]
                .into_iter()
                .filter_map(|way| Direction::new(pair, way, seen).finding())
                .chain(no_gain::finding(pair))
        })
        .collect();
    let named = |state: &&LegState| {
        let leg = Some(&*state.leg);
        findings.iter().any(|finding| finding.loaded == leg)
    };
    let others = states.iter().filter(|state| !named(state));
    let others: Vec<_> = others.filter_map(|state| seen.loaded(state)).collect();
    findings.extend(others);
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    findings.into_iter().map(|finding| finding.text).collect()
}

/// What is seen beside the pairs.
#[derive(Clone, Copy, Debug)]
struct Seen<'a> {
    flows: &'a [FlowSnapshot],
    legs: &'a [LegFacts],
    states: &'a [LegState],
}

impl<'a> Seen<'a> {
    fn facts(&self, name: &str) -> Option<&'a LegFacts> {
        self.legs.iter().find(|facts| facts.name == name)
    }

    /// Returns what its sockets have as a leg's congestion control, or its configuration.
    fn control(&self, name: &str) -> Option<&'a str> {
        let both = |flow: &'a FlowSnapshot| [&flow.client_leg, &flow.upstream_leg];
        let mut sockets = self.flows.iter().flat_map(both);
        let of_leg =
            sockets.find_map(|leg| (leg.profile == name).then_some(leg.congestion.as_deref())?);
        of_leg.or_else(|| self.facts(name)?.congestion.as_deref())
    }

    /// Returns the goodput of the connection that sends most over a leg, in bits a second.
    fn most(&self, name: &str) -> f64 {
        let of = |flow: &FlowSnapshot| {
            let ways = [
                (&flow.client_leg, &flow.down),
                (&flow.upstream_leg, &flow.up),
            ];
            let sent = ways.into_iter().filter(|(leg, _)| leg.profile == name);
            let goodput = sent.map(|(_, direction)| direction.goodput.last_ten_seconds);
            goodput.sum::<f64>()
        };
        self.flows.iter().map(of).fold(0.0, f64::max)
    }

    /// Returns what is to be said of a leg's round trips under load.
    fn under_load(&self, state: &LegState) -> Option<String> {
        let name = &state.leg;
        load::finding(state, self.facts(name), self.control(name), self.most(name))
    }

    /// The same as a sentence of its own.
    fn loaded(&self, state: &'a LegState) -> Option<Finding<'a>> {
        let text = self.under_load(state)?;
        Some(Finding {
            weight: state.sent,
            loaded: Some(&state.leg),
            text: format!("[leg.{}]: {text}", state.leg),
        })
    }
}

#[derive(Debug)]
struct Finding<'a> {
    /// The goodput that it is about, in bits per second: advice on what carries most comes first.
    weight: f64,
    /// The leg of which it says that round trips are long under load.
    loaded: Option<&'a str>,
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
    seen: Seen<'a>,
}

impl<'a> Direction<'a> {
    fn new(pair: &'a PairSnapshot, way: Way, seen: Seen<'a>) -> Self {
        let of_pair = seen.flows.iter().filter(|flow| {
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
                seen,
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
                seen,
            },
        }
    }

    fn finding(&self) -> Option<Finding<'a>> {
        let phases = self.figures.recent_phases;
        let total = phases.total();
        if total < ENOUGH_SECONDS || self.figures.goodput <= 0.0 {
            return None;
        }
        let (starved, backpressured) = (phases.starved / total, phases.backpressured / total);
        let (leg, share, loaded, why) = if starved >= MOSTLY {
            // Somebody who types starves a direction, too.
            if self.figures.goodput * 10.0 / 8.0 < ENOUGH_BYTES {
                return None;
            }
            (self.incoming, starved, None, self.incoming_key())
        } else if backpressured >= MOSTLY {
            let load = self.state().and_then(|state| self.seen.under_load(state));
            let loaded = load.is_some().then_some(&*self.outgoing.profile);
            let why = load.unwrap_or_else(|| self.outgoing_key());
            (self.outgoing, backpressured, loaded, why)
        } else {
            return None;
        };
        let (from, to, profile) = (self.from, self.to, &leg.profile);
        let percent = share * 100.0;
        Some(Finding {
            weight: self.figures.goodput,
            loaded,
            text: format!(
                "from {from} to {to}, [leg.{profile}] is the bottleneck: the other leg waits for \
                 it {percent:.0} % of the time; {why}"
            ),
        })
    }

    /// What is seen of the leg that pepd sends on.
    fn state(&self) -> Option<&'a LegState> {
        let states = self.seen.states.iter();
        states
            .into_iter()
            .find(|it| it.leg == self.outgoing.profile)
    }

    /// Returns what would help a leg that pepd sends on.
    fn outgoing_key(&self) -> String {
        let name = &self.outgoing.profile;
        let facts = self.seen.facts(name);
        let legs = self.flows.iter().map(|flow| flow.2);
        let hosts = held_back::by_hosts(legs, self.outgoing.rtt);
        if let Some(text) = hosts.or_else(|| self.send_buffer(name, facts)) {
            return text;
        }
        let lately = self.state().and_then(|state| state.resent).unwrap_or(0.0);
        let loss = self.outgoing.retransmitted.unwrap_or(0.0).max(lately);
        if loss < LOSSY {
            let (most, state) = (self.most(), self.state());
            let rate = held_back::by_rate(name, facts, self.control(), most, state);
            let allowed = "no key of its own would help: it carries what its bandwidth allows";
            return rate.unwrap_or_else(|| allowed.to_owned());
        }
        let again = format!("{:.1} % of its bytes are sent again", loss * 100.0);
        let is_chosen = facts.is_some_and(|facts| facts.congestion.as_deref() == Some("auto"));
        match self.control() {
            Some(control) if is_chosen => format!(
                "{again} by {control}: what congestion = \"auto\" makes of that is told with the leg's control"
            ),
            Some(control) if LOSS_BASED.contains(&control) => format!(
                "{again}, and {control} takes every loss for congestion{}: set [leg.{name}] congestion = \
                 \"bbr\", or \"find-rate\" where most of what its narrow place carries is yours",
                self.by_law()
            ),
            Some("bbr") if loss >= TOO_LOSSY_FOR_BBR => format!(
                "{again}, and bbr slows down where so much is lost: where most of what its narrow place \
                 carries is yours, set [leg.{name}] congestion = \"find-rate\""
            ),
            Some("find-rate") => format!(
                "{again}, since its path loses them at any rate, and it is full all the same: what would help is a \
                 link that loses less or carries more, or a helper box behind its lossy part"
            ),
            Some("fixed-rate") => format!(
                "{again}: if that becomes less with a lower [leg.{name}] rate, its link carries less than \
                 the rate, and congestion = \"find-rate\" finds how much; if not, its path loses them at \
                 any rate"
            ),
            Some(_) | None => format!(
                "{again}: where most of what its narrow place carries is yours, set [leg.{name}] congestion \
                 = \"find-rate\", which neither slows down for what is lost nor loses by sending too much"
            ),
        }
    }

    /// Returns what its sockets have as the congestion control of the leg that pepd sends on, or its
    /// configuration.
    fn control(&self) -> Option<&'a str> {
        let mut sockets = self.flows.iter();
        let of_socket = sockets.find_map(|flow| flow.2.congestion.as_deref());
        let facts = self.seen.facts(&self.outgoing.profile);
        of_socket.or(facts.and_then(|facts| facts.congestion.as_deref()))
    }

    /// Gives the leg that pepd sends on as far as theory needs it.
    fn measured(&self) -> Option<Measured<'a>> {
        let most = self.most();
        let is_busy = |flow: &&(f64, &LegSnapshot, &LegSnapshot)| flow.0 >= most / 10.0;
        Some(Measured {
            control: self.control(),
            facts: self.seen.facts(&self.outgoing.profile)?,
            state: self.state()?,
            rtt: self.outgoing.rtt?,
            most,
            busy: self.flows.iter().filter(is_busy).count(),
        })
    }

    /// Adds what the law of its control says of a leg's losses, where it is to be trusted.
    fn by_law(&self) -> String {
        let law = self.measured().and_then(Measured::law);
        law.map_or_else(String::new, |law| format!(" ({law})"))
    }

    /// Says that what may be under way is too little, if it is.
    fn send_buffer(&self, name: &str, facts: Option<&LegFacts>) -> Option<String> {
        let sum = |of: fn(&LegSnapshot) -> Option<f64>| {
            self.flows.iter().filter_map(|flow| of(flow.2)).sum::<f64>()
        };
        let limited = sum(|leg| leg.tcp?.send_buffer_limited);
        let busy = sum(|leg| leg.tcp?.busy);
        let share = if busy > 0.0 { limited / busy } else { 0.0 };
        let (percent, rtt) = (share * 100.0, self.outgoing.rtt?);
        let (ms, flight) = (rtt * 1e3, self.most() / 8.0 * rtt);
        let Some(buffer) = facts.and_then(|facts| facts.buffer) else {
            if facts.is_some_and(|facts| facts.automatic) {
                let short = self.flows.iter().any(|flow| {
                    let buffers = flow.2.buffers.map(|both| both.send.why);
                    buffers == Some(SizedBy::Memory)
                });
                return (short && share >= BUFFER_LIMITS).then(|| {
                    format!(
                        "its buffers have no more than their part of what is left of [limits] memory, and use \
                         it up {percent:.0} % of the time: raise [limits] memory"
                    )
                });
            }
            let more = size(ceil(2.0 * flight).max(1 << 20));
            return (share >= BUFFER_LIMITS).then(|| {
                format!(
                    "what the kernel lets its sockets hold (net.ipv4.tcp_wmem) is used up {percent:.0} % of the \
                     time and so smaller than bandwidth × RTT ({ms:.0} ms): set [leg.{name}] buffer = \
                     \"auto\", or \"{more}\" or more"
                )
            });
        };
        let (have, bytes) = (size(buffer), buffer as f64);
        let rate = facts.and_then(|facts| facts.rate);
        let product = rate.map(|rate| rate as f64 / 8.0 * rtt);
        let (why, least) = if let Some(product) = product.filter(|product| *product > bytes) {
            let why = format!("its buffer of {have} is smaller than its rate × RTT");
            (why, Some(ceil(product)))
        } else if share >= BUFFER_LIMITS {
            let why = format!(
                "its buffer of {have} is used up {percent:.0} % of the time and so smaller than \
                 bandwidth × RTT ({ms:.0} ms)"
            );
            (why, None)
        } else if flight >= OF_BUFFER * bytes {
            let under_way = size(ceil(flight));
            let why = format!(
                "a connection has {under_way} under way of the {have} that its buffer allows at its RTT of \
                 {ms:.0} ms"
            );
            (why, None)
        } else {
            return None;
        };
        Some(self.enough(&why, name, buffer, least))
    }

    /// Says why more is to be under way than `have` bytes, and how much: what the model says, or `least` bytes.
    fn enough(&self, why: &str, name: &str, have: u64, least: Option<u64>) -> String {
        match (self.measured().and_then(Measured::enough), least) {
            (Some(Enough { buffer, gives }), _) => {
                let enough = size(buffer);
                format!("{why}: set [leg.{name}] buffer = \"{enough}\", {gives}")
            }
            (None, Some(least)) => {
                let more = size(least);
                format!("{why}: set [leg.{name}] buffer = \"{more}\" or more")
            }
            (None, None) => format!("{why}: {}", more(name, have)),
        }
    }

    /// Returns the goodput of the connection that has most, in bits a second.
    fn most(&self) -> f64 {
        self.flows.iter().map(|flow| flow.0).fold(0.0, f64::max)
    }

    /// Returns what would help a leg that pepd receives on.
    fn incoming_key(&self) -> String {
        let name = &self.incoming.profile;
        let buffer = self.seen.facts(name).and_then(|facts| facts.buffer);
        if let (Some(buffer), Some(rtt)) = (buffer, self.incoming.rtt)
            && self.most() / 8.0 * rtt >= OF_BUFFER * buffer as f64
        {
            let (have, ms, more) = (size(buffer), rtt * 1e3, more(name, buffer));
            return format!("a buffer of {have} allows no more at its RTT of {ms:.0} ms: {more}");
        }
        "what limits it is its bandwidth or its sender: on a lossy leg, a helper box at its far \
         end would help"
            .to_owned()
    }
}

#[cfg(test)]
mod tests;
