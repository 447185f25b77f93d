//! Connections that are watched from the headers of what passes.
//!
//! Not every segment is seen: of a fast connection some in a second, and all with SYN, FIN or RST.
//! Sequence numbers tell how much has come all the same.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pepd_packet::segment::flag;
use pepd_packet::{FourTuple, Passing};

use crate::sample::Client;

/// The time in which a SYN is answered, or it is not watched any longer.
const ANSWERED: Duration = Duration::from_secs(60);

/// The time after which a connection that says nothing is not watched any longer.
const IDLE: Duration = Duration::from_secs(300);

/// Whether a connection is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// It is.
    Split,
    /// It is routed.
    Unsplit,
}

/// Where a segment was seen on its way through the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It was routed.
    Forwarded,
    /// It was for a socket of the box.
    Received,
    /// A socket of the box sent it.
    Sent,
}

/// A connection that has ended, as its client saw it from behind the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// Whether it was split.
    pub arm: Arm,
    /// The time from the SYN to the server's first byte.
    pub first_byte: Duration,
    /// The time from the SYN until the client had acknowledged the last byte.
    pub whole: Duration,
    /// The bytes from the server.
    pub bytes: u64,
}

/// What the server says, and what the client has acknowledged of it.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// The number of the next byte that the client has not acknowledged.
    next: u32,
    /// The bytes that it has.
    bytes: u64,
    /// The number of the server's FIN.
    fin: Option<u32>,
    first_byte: Option<Instant>,
    /// When something was acknowledged for the first time, last.
    last_byte: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    arm: Arm,
    /// The number of the SYN.
    number: u32,
    begun: Instant,
    seen: Instant,
    answer: Option<Answer>,
}

/// The connections that are watched.
#[derive(Debug)]
pub struct Watcher {
    flows: HashMap<FourTuple, Flow>,
    /// How many each client has of them, which is one at least.
    counts: HashMap<Client, usize>,
    most: usize,
}

impl Watcher {
    /// Makes one that watches so many connections at once, half of them one client's at most; what begins beyond is not.
    pub fn new(most: usize) -> Self {
        Self {
            flows: HashMap::new(),
            counts: HashMap::new(),
            most,
        }
    }

    /// Returns how many are watched.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether none is.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Takes a connection's first SYN, and what has become of it.
    pub fn begin(&mut self, arm: Arm, syn: &Passing<'_>, now: Instant) {
        let flow = Flow {
            arm,
            number: syn.sequence,
            begun: now,
            seen: now,
            answer: None,
        };
        let client = Client::of(syn.four_tuple.client);
        let of_client = self.counts.get(&client).copied().unwrap_or(0);
        let has_room = self.flows.len() < self.most && 2 * of_client < self.most;
        match self.flows.get_mut(&syn.four_tuple) {
            // It was sent again: the client waits since the first.
            Some(known) if known.number == syn.sequence => known.seen = now,
            Some(known) => *known = flow,
            None if has_room => {
                self.flows.insert(syn.four_tuple, flow);
                *self.counts.entry(client).or_default() += 1;
            }
            None => {}
        }
    }

    /// Takes a segment, and gives the connection if that has ended with it.
    pub fn segment(&mut self, place: Place, segment: &Passing<'_>, now: Instant) -> Option<Ended> {
        let sent = segment.four_tuple;
        let key = match self.flows.contains_key(&sent) {
            true => sent,
            false => sent.reversed(),
        };
        let is_client = key == sent;
        let flow = self.flows.get_mut(&key)?;
        let is_seen_here = match (flow.arm, is_client) {
            (Arm::Unsplit, _) => Place::Forwarded,
            // Between the client and the box: what is between that and the server has the same addresses.
            (Arm::Split, true) => Place::Received,
            (Arm::Split, false) => Place::Sent,
        };
        if place != is_seen_here {
            return None;
        }
        flow.seen = now;
        let is_over = match is_client {
            true => flow.hear_client(segment, now),
            false => flow.hear_server(segment, now),
        };
        let flow = *flow;
        if segment.flags & flag::RST != 0 {
            self.remove(&key);
            // What is reset amid a transfer says nothing of how long that takes.
            return flow.ended(key).filter(|_| flow.is_complete());
        }
        if is_over {
            self.remove(&key);
        }
        flow.ended(key).filter(|_| is_over)
    }

    /// Lets go the connections that were not answered, or have said nothing for long.
    pub fn expire(&mut self, now: Instant) {
        let counts = &mut self.counts;
        self.flows.retain(|of, flow| {
            let patience = match flow.answer {
                Some(_) => IDLE,
                None => ANSWERED,
            };
            let stays = now.saturating_duration_since(flow.seen) < patience;
            if !stays {
                discount(counts, of);
            }
            stays
        });
    }

    fn remove(&mut self, of: &FourTuple) {
        if self.flows.remove(of).is_some() {
            discount(&mut self.counts, of);
        }
    }
}

impl Flow {
    /// Hears the client; returns whether it has all now.
    fn hear_client(&mut self, segment: &Passing<'_>, now: Instant) -> bool {
        if segment.flags & flag::ACK == 0 {
            return false;
        }
        let Some(answer) = &mut self.answer else {
            return false;
        };
        // Data ends where the FIN is.
        let has = match answer.fin {
            Some(fin) if is_after(segment.acknowledgement, fin) => fin,
            _ => segment.acknowledgement,
        };
        if is_after(has, answer.next) {
            answer.bytes += u64::from(has.wrapping_sub(answer.next));
            answer.next = has;
            answer.last_byte = now;
        }
        answer
            .fin
            .is_some_and(|fin| is_after(segment.acknowledgement, fin))
    }

    /// Hears the server; returns whether the client has all now.
    fn hear_server(&mut self, segment: &Passing<'_>, now: Instant) -> bool {
        let is_answer = segment.flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK;
        if is_answer && segment.acknowledgement == self.number.wrapping_add(1) {
            self.answer.get_or_insert(Answer {
                next: segment.sequence.wrapping_add(1),
                bytes: 0,
                fin: None,
                first_byte: None,
                last_byte: now,
            });
        }
        let Some(answer) = &mut self.answer else {
            return false;
        };
        if segment.length > 0 {
            answer.first_byte.get_or_insert(now);
        }
        if segment.flags & flag::FIN != 0 {
            answer.fin = Some(segment.sequence.wrapping_add(segment.length));
        }
        false
    }

    /// Returns whether the client has all data.
    fn is_complete(&self) -> bool {
        let has_all = |answer: &Answer| answer.fin == Some(answer.next);
        self.answer.as_ref().is_some_and(has_all)
    }

    fn ended(&self, of: FourTuple) -> Option<Ended> {
        let answer = self.answer.filter(|answer| answer.bytes > 0)?;
        Some(Ended {
            client: of.client,
            server: of.server,
            arm: self.arm,
            first_byte: answer.first_byte?.saturating_duration_since(self.begun),
            whole: answer.last_byte.saturating_duration_since(self.begun),
            bytes: answer.bytes,
        })
    }
}

fn discount(counts: &mut HashMap<Client, usize>, of: &FourTuple) {
    let client = Client::of(of.client);
    if let Some(count) = counts.get_mut(&client) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&client);
        }
    }
}

/// Returns whether a number comes after another one (RFC 9293, section 3.4).
fn is_after(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) < 1 << 31
}

#[cfg(test)]
mod tests;
