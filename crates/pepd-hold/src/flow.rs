//! One connection of which something is held.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_model::hold_acks::linux::{self, Sender, Sent};
use pepd_model::hold_acks::split;
use pepd_packet::segment::flag;
use pepd_packet::{FourTuple, Passing, Segment};

use crate::{Act, PacketId};

/// The round trip that is assumed until one is known: by a satellite.
const UNKNOWN_RTT: Duration = Duration::from_millis(600);

/// The largest segment on nearly all paths, so that as many bytes of an ACK are never less than one
/// segment (RFC 894: Ethernet's 1500 bytes, without headers).
const LARGEST_SEGMENT: u32 = 1460;

/// The ACKs from which on more hardly keep a sender longer: twelve do for a minute and a half.
const ENOUGH: usize = 16;

/// The longest time between two ACKs once the link is back, in seconds.
const LONGEST_GAP: f64 = 0.005;

/// The time after which no ACK waits any more once the link is back, in seconds.
const LONGEST_FLUSH: f64 = 1.0;

/// What an ACK acknowledges at most that others were not told: as much as its receiver has room for
/// (net.ipv4.tcp_rmem).
const MOST_UNDER_WAY: u32 = 6 << 20;

/// The ACKs that have gone on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// Packets.
    pub(crate) acks: usize,
    /// Parts of them.
    pub(crate) parts: usize,
}

/// An ACK that is held, or a part of one.
#[derive(Debug)]
struct Ack {
    /// The packet; none if it is a part that comes before it.
    id: Option<PacketId>,
    /// What it acknowledges.
    number: u32,
    /// When it came, in seconds.
    at: f64,
    /// Who sends it, and the rest of its header.
    header: Arc<Header>,
}

/// What an ACK has besides its number, which its parts have, too.
#[derive(Debug)]
struct Header {
    four_tuple: FourTuple,
    sequence: u32,
    window: u16,
    options: Vec<u8>,
    /// What the receiver's clock said.
    clock: Option<u32>,
    /// Nobody else can make one like it.
    is_signed: bool,
}

/// A packet that is kept.
#[derive(Debug)]
struct Kept {
    id: PacketId,
    /// Where its data begins, and how much that is.
    data: (u32, u32),
    bytes: usize,
}

/// A connection, the end whose link is away taken for the client.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The leg of that end.
    pub(crate) leg: Arc<str>,
    acks: VecDeque<Ack>,
    /// The highest number that it has acknowledged.
    highest: Option<u32>,
    /// Where it goes on sending.
    sequence: Option<u32>,
    /// The highest that its sender has been told.
    told: u32,
    /// The last window that it has named, and the largest.
    windows: (u16, u16),
    sender: Sender,
    rtt: Duration,
    /// What its clock said in the last ACK that was released, and when that was.
    asked: Option<(u32, Instant)>,
    largest_segment: u32,
    kept: VecDeque<Kept>,
    kept_data: HashSet<(u32, u32)>,
    pub(crate) kept_bytes: usize,
    /// Its host was heard although its link is gone: that carries what is this connection's.
    pub(crate) is_live: bool,
    /// When the next ACK is due, by the number of its timer.
    pub(crate) timer: Option<(Instant, u64)>,
}

/// Returns whether a number comes after another (RFC 9293, section 3.4).
fn is_after(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) < 1 << 31
}

impl Flow {
    pub(crate) fn new(leg: Arc<str>) -> Self {
        Self {
            leg,
            acks: VecDeque::new(),
            highest: None,
            sequence: None,
            told: 0,
            windows: (0, 0),
            sender: Sender::new(UNKNOWN_RTT),
            rtt: UNKNOWN_RTT,
            asked: None,
            largest_segment: LARGEST_SEGMENT,
            kept: VecDeque::new(),
            kept_data: HashSet::new(),
            kept_bytes: 0,
            is_live: false,
            timer: None,
        }
    }

    /// Returns whether nothing is held of it.
    pub(crate) fn is_idle(&self) -> bool {
        self.acks.is_empty() && self.kept.is_empty()
    }

    pub(crate) fn acks(&self) -> usize {
        self.acks.len()
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Takes note of a segment from the end that is away; returns whether it may be held: an ACK of
    /// something new, and nothing else. Nothing that tells of a loss, ends anything or lets a sender go on
    /// that had no room waits. Nor does what its receiver would not believe: an ACK that is damaged, or of
    /// more than can be under way.
    pub(crate) fn may_hold(&mut self, segment: &Passing<'_>) -> bool {
        let ahead = |highest| segment.acknowledgement.wrapping_sub(highest);
        let is_beyond = |highest| (MOST_UNDER_WAY..1 << 31).contains(&ahead(highest));
        if segment.flags & flag::ACK == 0
            || segment.length == 0 && !segment.is_intact
            || self.highest.is_some_and(is_beyond)
        {
            return false;
        }
        let is_new = self
            .highest
            .is_some_and(|highest| is_after(segment.acknowledgement, highest));
        if is_new || self.highest.is_none() {
            self.highest = Some(segment.acknowledgement);
        }
        let (last, largest) = self.windows;
        self.windows = (segment.window, largest.max(segment.window));
        let had_room = last >= largest / 4 || last >= segment.window;
        let is_plain = segment.flags & !flag::PSH == flag::ACK && segment.length == 0;
        // Who makes one up knows less well where its host goes on.
        let goes_on = self
            .sequence
            .replace(segment.sequence.wrapping_add(segment.length));
        let is_in_order = goes_on == Some(segment.sequence);
        is_new && had_room && is_plain && is_in_order && !segment.has_sack()
    }

    /// Holds an ACK.
    pub(crate) fn hold(&mut self, id: PacketId, segment: &Passing<'_>, at: f64) {
        self.acks.push_back(Ack {
            id: Some(id),
            number: segment.acknowledgement,
            at,
            header: Arc::new(Header {
                four_tuple: segment.four_tuple,
                sequence: segment.sequence,
                window: segment.window,
                options: segment.options.to_vec(),
                clock: segment.timestamps().map(|timestamps| timestamps.value),
                is_signed: segment.is_signed(),
            }),
        });
    }

    /// Notes that what it acknowledged last has gone on.
    pub(crate) fn passed(&mut self) {
        self.told = self.highest.unwrap_or(self.told);
    }

    /// Makes several of the first ACK, where there are few; returns how many more there are.
    pub(crate) fn split(&mut self) -> usize {
        let is_whole = |first: &&Ack| first.id.is_some() && !first.header.is_signed;
        let Some(first) = self.acks.front().filter(is_whole) else {
            return 0;
        };
        let bytes = first.number.wrapping_sub(self.told);
        let wanted = ENOUGH.saturating_sub(self.acks.len());
        let pieces = split::pieces(bytes, self.largest_segment) as usize;
        let (at, header) = (first.at, Arc::clone(&first.header));
        let parts = wanted.min(pieces - 1);
        for part in (1..=parts).rev() {
            // There are no more than ENOUGH.
            let offset = u32::try_from(part).unwrap_or_default() * self.largest_segment;
            self.acks.push_front(Ack {
                id: None,
                number: self.told.wrapping_add(offset),
                at,
                header: Arc::clone(&header),
            });
        }
        parts
    }

    /// Returns when the next ACK is to be released, in seconds; `until` is when the link is expected to
    /// be back.
    pub(crate) fn next_release(&self, now: f64, until: Option<f64>) -> Option<f64> {
        let ahead = self.acks.iter().take(linux::AHEAD);
        let sent: Vec<Sent> = ahead.map(|ack| self.sent(ack.at)).collect();
        let until = until.map(|until| until + self.rtt.as_secs_f64());
        (!sent.is_empty()).then(|| self.sender.next(now, &sent, until))
    }

    /// Returns when what an ACK acknowledges was sent that came at this time.
    fn sent(&self, at: f64) -> Sent {
        // What the sender was taken to know when the first ACK came, which drops out.
        let sent = at - UNKNOWN_RTT.as_secs_f64();
        Sent {
            earliest: sent,
            latest: sent,
        }
    }

    /// Releases the first ACK.
    pub(crate) fn release(&mut self, now: Instant, seconds: f64, acts: &mut Vec<Act>) -> Released {
        let Some(ack) = self.acks.pop_front() else {
            return Released::default();
        };
        let parts = usize::from(ack.id.is_none());
        self.sender.acknowledged(seconds, self.sent(ack.at));
        self.asked = ack.header.clock.map(|clock| (clock, now));
        self.told = ack.number;
        acts.push(match ack.id {
            Some(id) => Act::Release(id),
            None => Act::Send(ack.segment()),
        });
        Released {
            acks: 1 - parts,
            parts,
        }
    }

    /// Returns for how long the first ACK waits now that the link is back, since `back` and for so many
    /// seconds, at so many bytes a second: what it lets its sender send is not to come in one burst. Those
    /// that came later do not wait, nor any for long.
    pub(crate) fn wait_when_back(&self, pace: f64, back: f64, seconds: f64) -> Option<Duration> {
        let first = self.acks.front()?;
        if first.at >= back || seconds >= back + LONGEST_FLUSH {
            return Some(Duration::ZERO);
        }
        let bytes = first.number.wrapping_sub(self.told);
        let at_pace = f64::from(bytes) / pace.max(1.0);
        Some(Duration::from_secs_f64(at_pace.min(LONGEST_GAP)))
    }

    /// Releases all ACKs; their parts need not be sent any more.
    pub(crate) fn release_all(&mut self, acts: &mut Vec<Act>) -> Released {
        let all = std::mem::take(&mut self.acks);
        self.told = all.back().map_or(self.told, |ack| ack.number);
        // From here on its sender's samples are as usual, and so is its patience, soon.
        self.sender = Sender::new(UNKNOWN_RTT);
        let before = acts.len();
        acts.extend(all.iter().filter_map(|ack| ack.id.map(Act::Release)));
        let acks = acts.len() - before;
        Released {
            acks,
            parts: all.len() - acks,
        }
    }

    /// Returns whether the end that is away has this already, or something that is kept says the same.
    pub(crate) fn is_known(&self, segment: &Passing<'_>) -> bool {
        if segment.length == 0 || segment.flags & flag::FIN != 0 {
            return false;
        }
        let end = segment.sequence.wrapping_add(segment.length);
        let arrived = self.highest.is_some_and(|highest| !is_after(end, highest));
        arrived || self.is_kept(segment)
    }

    /// Returns whether something that is kept says the same.
    pub(crate) fn is_kept(&self, segment: &Passing<'_>) -> bool {
        self.kept_data.contains(&(segment.sequence, segment.length))
    }

    /// Takes note of a segment for the end that is away: what answers an ACK tells the round trip.
    pub(crate) fn measure(&mut self, segment: &Passing<'_>, now: Instant) {
        self.largest_segment = self.largest_segment.max(segment.length);
        let Some((clock, asked)) = self.asked else {
            return;
        };
        if segment
            .timestamps()
            .is_some_and(|timestamps| timestamps.echo == clock)
        {
            self.asked = None;
            // The link's own part is not known: it is taken to be as much again.
            self.rtt = (2 * now.saturating_duration_since(asked)).min(UNKNOWN_RTT);
        }
    }

    /// Keeps a packet of so many bytes.
    pub(crate) fn keep(&mut self, id: PacketId, segment: &Passing<'_>, bytes: usize) {
        let data = (segment.sequence, segment.length);
        self.kept_data.insert(data);
        self.kept_bytes += bytes;
        self.kept.push_back(Kept { id, data, bytes });
    }

    /// Gives the first packet that is kept, and its bytes.
    pub(crate) fn go_on(&mut self) -> Option<(PacketId, usize)> {
        let Kept { id, data, bytes } = self.kept.pop_front()?;
        self.kept_data.remove(&data);
        self.kept_bytes -= bytes;
        Some((id, bytes))
    }
}

impl Ack {
    /// Makes the segment of a part.
    fn segment(&self) -> Segment {
        let Header {
            four_tuple,
            sequence,
            window,
            ref options,
            ..
        } = *self.header;
        Segment {
            acknowledgement: self.number,
            window,
            options: options.clone(),
            ..Segment::new(flag::ACK, four_tuple.client, four_tuple.server, sequence)
        }
    }
}
