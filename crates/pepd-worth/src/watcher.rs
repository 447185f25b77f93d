//! Connections that are watched from the headers of what passes.
//!
//! Not every segment is seen: of a fast connection some in a second, and all with SYN, FIN or RST.
//! Sequence numbers tell how much has come all the same.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pepd_packet::segment::flag;
use pepd_packet::{FourTuple, Passing};

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
    most: usize,
}

impl Watcher {
    /// Makes one that watches so many connections at once; what begins beyond is not.
    pub fn new(most: usize) -> Self {
        Self {
            flows: HashMap::new(),
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
        let has_room = self.flows.len() < self.most;
        match self.flows.get_mut(&syn.four_tuple) {
            // It was sent again: the client waits since the first.
            Some(known) if known.number == syn.sequence => known.seen = now,
            Some(known) => *known = flow,
            None if has_room => {
                self.flows.insert(syn.four_tuple, flow);
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
            self.flows.remove(&key);
            // What is reset amid a transfer says nothing of how long that takes.
            return flow.ended(key).filter(|_| flow.is_complete());
        }
        is_over.then(|| self.flows.remove(&key));
        flow.ended(key).filter(|_| is_over)
    }

    /// Lets go the connections that were not answered, or have said nothing for long.
    pub fn expire(&mut self, now: Instant) {
        self.flows.retain(|_, flow| {
            let patience = match flow.answer {
                Some(_) => IDLE,
                None => ANSWERED,
            };
            now.saturating_duration_since(flow.seen) < patience
        });
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

/// Returns whether a number comes after another one (RFC 9293, section 3.4).
fn is_after(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) < 1 << 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pepd_packet::Segment;

    const CLIENT: &str = "10.1.0.2:4000";
    const SERVER: &str = "10.2.0.2:80";

    /// A connection, and its clock.
    struct Watched {
        watcher: Watcher,
        now: Instant,
        place: [Place; 2],
    }

    impl Watched {
        fn begin(arm: Arm) -> Self {
            let mut watched = Self {
                watcher: Watcher::new(10),
                now: Instant::now(),
                place: match arm {
                    Arm::Unsplit => [Place::Forwarded; 2],
                    Arm::Split => [Place::Received, Place::Sent],
                },
            };
            let packet = packet(CLIENT, SERVER, flag::SYN, 999, 0, 0);
            let syn = Passing::read(&packet).unwrap();
            watched.watcher.begin(arm, &syn, watched.now);
            watched
        }

        fn after(&mut self, milliseconds: u64) -> &mut Self {
            self.now += Duration::from_millis(milliseconds);
            self
        }

        /// The client says nothing, and acknowledges.
        fn client(&mut self, flags: u8, acknowledgement: u32) -> Option<Ended> {
            let packet = packet(CLIENT, SERVER, flags | flag::ACK, 1000, acknowledgement, 0);
            self.take(self.place[0], &packet)
        }

        fn server(&mut self, flags: u8, sequence: u32, bytes: usize) -> Option<Ended> {
            let packet = packet(SERVER, CLIENT, flags | flag::ACK, sequence, 1000, bytes);
            self.take(self.place[1], &packet)
        }

        fn take(&mut self, place: Place, packet: &[u8]) -> Option<Ended> {
            let segment = Passing::read(packet).unwrap();
            self.watcher.segment(place, &segment, self.now)
        }
    }

    fn packet(from: &str, to: &str, flags: u8, sequence: u32, ack: u32, bytes: usize) -> Vec<u8> {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let segment = Segment {
            acknowledgement: ack,
            payload: vec![7; bytes],
            ..Segment::new(flags, from, to, sequence)
        };
        segment.packet().unwrap()
    }

    #[test]
    fn a_download_is_timed_from_its_syn_to_the_last_acknowledgement() {
        for arm in [Arm::Split, Arm::Unsplit] {
            // Its numbers begin again at 0 on the way.
            let first = u32::MAX - 500;
            let mut watched = Watched::begin(arm);
            assert_eq!(
                watched
                    .after(10)
                    .server(flag::SYN, first.wrapping_sub(1), 0),
                None
            );
            assert_eq!(watched.client(0, first), None);
            assert_eq!(watched.after(10).server(0, first, 1000), None);
            // Segments and acknowledgements that nobody saw are between these.
            assert_eq!(
                watched.after(30).client(0, first.wrapping_add(50_000)),
                None
            );
            // What came earlier and is seen later changes nothing.
            assert_eq!(
                watched.after(30).client(0, first.wrapping_add(40_000)),
                None
            );
            let last = first.wrapping_add(60_000);
            assert_eq!(watched.after(20).client(0, last), None);
            assert_eq!(watched.after(5000).server(flag::FIN, last, 0), None);
            let ended = watched.client(flag::FIN, last.wrapping_add(1)).unwrap();
            assert_eq!((ended.arm, ended.bytes), (arm, 60_000));
            assert_eq!(ended.first_byte, Duration::from_millis(20));
            // The time in which nothing was to be said is not counted.
            assert_eq!(ended.whole, Duration::from_millis(100));
            assert_eq!(
                (ended.client.to_string(), ended.server.to_string()),
                (CLIENT.to_owned(), SERVER.to_owned())
            );
            assert!(watched.watcher.is_empty());
        }
    }

    #[test]
    fn what_is_on_the_other_side_of_the_box_is_not_taken_for_it() {
        let mut watched = Watched::begin(Arm::Split);
        watched.server(flag::SYN, 0, 0);
        // The server's segments as they come to the box, and what the box says to it.
        watched.place = [Place::Sent, Place::Received];
        assert_eq!(watched.server(flag::FIN, 1, 1000), None);
        assert_eq!(watched.client(0, 1002), None);
        watched.place = [Place::Forwarded; 2];
        assert_eq!(watched.server(flag::FIN, 1, 1000), None);
        assert_eq!(watched.client(0, 1002), None);
        watched.place = [Place::Received, Place::Sent];
        assert_eq!(watched.after(7).server(flag::FIN, 1, 500), None);
        assert_eq!(watched.client(0, 502).unwrap().bytes, 500);
    }

    #[test]
    fn one_that_is_refused_or_cut_off_says_nothing() {
        for data in [0_u16, 1000] {
            let next = 1 + u32::from(data);
            let mut watched = Watched::begin(Arm::Unsplit);
            watched.server(flag::SYN, 0, 0);
            watched.server(0, 1, data.into());
            watched.client(0, next);
            assert_eq!(watched.server(flag::RST, next, 0), None);
            assert!(watched.watcher.is_empty());
        }
        // One that is reset when it has all is one that has ended.
        let mut watched = Watched::begin(Arm::Unsplit);
        watched.server(flag::SYN, 0, 0);
        watched.server(flag::FIN, 1, 1000);
        assert_eq!(watched.client(flag::RST, 1001).unwrap().bytes, 1000);
    }

    #[test]
    fn a_syn_that_is_repeated_waits_since_the_first() {
        let mut watched = Watched::begin(Arm::Unsplit);
        watched.after(1000);
        let syn = packet(CLIENT, SERVER, flag::SYN, 999, 0, 0);
        let syn = Passing::read(&syn).unwrap();
        watched.watcher.begin(Arm::Unsplit, &syn, watched.now);
        watched.server(flag::SYN, 0, 0);
        watched.after(10).server(flag::FIN, 1, 5);
        let ended = watched.client(0, 7).unwrap();
        assert_eq!(ended.first_byte, Duration::from_millis(1010));
        // An answer to another SYN is none to this one.
        let mut watched = Watched::begin(Arm::Unsplit);
        let other = packet(SERVER, CLIENT, flag::SYN | flag::ACK, 0, 77, 0);
        watched.take(Place::Forwarded, &other);
        watched.server(flag::FIN, 1, 5);
        assert_eq!(watched.client(0, 7), None);
    }

    #[test]
    fn what_nobody_answers_or_says_nothing_makes_room() {
        let mut watched = Watched::begin(Arm::Split);
        for port in 1..100 {
            let client = format!("10.1.0.2:{port}");
            let syn = packet(&client, SERVER, flag::SYN, 1, 0, 0);
            let syn = Passing::read(&syn).unwrap();
            watched.watcher.begin(Arm::Split, &syn, watched.now);
        }
        assert_eq!(watched.watcher.len(), 10);
        watched.server(flag::SYN, 0, 0);
        watched.after(61_000);
        watched.watcher.expire(watched.now);
        assert_eq!(watched.watcher.len(), 1);
        watched.after(301_000);
        watched.watcher.expire(watched.now);
        assert!(watched.watcher.is_empty());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_survived(
            segments in prop::collection::vec(
                (0usize..3, any::<bool>(), any::<u8>(), any::<u32>(), any::<u32>(), 0usize..100, 0u64..100),
                0..50,
            ),
        ) {
            let mut watched = Watched::begin(Arm::Split);
            watched.server(flag::SYN, 0, 0);
            for (place, is_client, flags, sequence, ack, bytes, wait) in segments {
                let (from, to) = if is_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
                let place = [Place::Forwarded, Place::Received, Place::Sent][place];
                watched.after(wait);
                if let Some(ended) = watched.take(place, &packet(from, to, flags, sequence, ack, bytes)) {
                    prop_assert!(ended.bytes > 0);
                    prop_assert!(watched.watcher.is_empty());
                }
            }
        }
    }
}
