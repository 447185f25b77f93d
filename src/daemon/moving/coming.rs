//! What comes for connections that come from other boxes: it is held until they are served here.
//!
//! Dropped, it would come again only when the timer of whoever has sent it is over, 200 ms later at least: longer than
//! a move takes. The kernel passes it to a queue ([`pepd_net::Moving::expect`]), which keeps it as it came; a process that
//! dies meanwhile takes it along.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pepd_packet::{FourTuple, MarkMask, MarkValue, PacketMark, Passing};
use pepd_sys::nfqueue::{self, Kind, Queue, Recipient, Room, Verdict};
use pepd_sys::reactor;
use pepd_telemetry::Throttle;
use tokio::io::Interest;
use tokio::sync::Notify;

use super::packets::either;
use crate::daemon::wiring::COMING_QUEUE;

/// The longest headers are all that is read of a packet.
const ROOM: Room = Room {
    copied: 128,
    packets: 16_384,
    buffer: 8 << 20,
    kind: Kind::Merged,
};

/// The data that is held at most.
const MOST_BYTES: usize = 64 << 20;

/// The packets of one connection that are held at most, so that nobody's leave the others no room.
const MOST_OF_EACH: usize = 1024;

/// For how long what has been passed to the queue already is let in: it is there to be read at once.
const OPEN: Duration = Duration::from_secs(1);

/// Packets read in a row before others have their turn.
const PACKETS_PER_TURN: usize = 256;

/// In which as many are read as the kernel holds.
const TURNS: usize = ROOM.packets as usize / PACKETS_PER_TURN;

/// What is held, each connection as [`either`] has it.
#[derive(Debug)]
pub(super) struct Coming {
    mask: MarkMask,
    queue: RefCell<Option<Arc<Queue>>>,
    /// Somebody has opened the queue.
    opened: Notify,
    held: RefCell<Held>,
    buffer: RefCell<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Held {
    flows: BTreeMap<FourTuple, Flow>,
    /// Those that are served here, since when: what is still in the queue is theirs.
    open: BTreeMap<FourTuple, Instant>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Flow {
    /// How many moves expect it.
    moves: usize,
    packets: Vec<(u32, PacketMark)>,
    bytes: usize,
}

impl Coming {
    /// Holds nothing yet. The bits of the mark are pepd's.
    pub(super) fn new(mask: MarkMask) -> Self {
        Self {
            mask,
            queue: RefCell::default(),
            opened: Notify::new(),
            held: RefCell::default(),
            buffer: RefCell::new(vec![0; nfqueue::MESSAGE_BYTES]),
        }
    }

    /// Holds what comes for these from now on, for this move, too.
    pub(super) fn expect(&self, flows: &[FourTuple]) {
        self.open_queue();
        let mut held = self.held.borrow_mut();
        for flow in flows {
            held.expect(either(flow));
        }
    }

    /// Lets in what has come for these, which are served here, and what still comes.
    pub(super) fn let_in(&self, flows: &[FourTuple]) {
        self.read_all();
        let mut held = self.held.borrow_mut();
        let now = Instant::now();
        for flow in flows {
            let flow = either(flow);
            held.open.insert(flow, now);
            for (packet, mark) in held.take(&flow) {
                self.decide(packet, self.accepted(mark));
            }
        }
    }

    /// Drops what has come for these, for whatever this move expected it; gives those that no other one expects, and that
    /// no other one has let in since.
    pub(super) fn dismiss(&self, flows: &[FourTuple]) -> Vec<FourTuple> {
        let mut held = self.held.borrow_mut();
        let is_free = |flow: &&FourTuple| {
            let flow = either(flow);
            match held.flows.get_mut(&flow) {
                None => false,
                Some(it) if it.moves > 1 => {
                    it.moves -= 1;
                    false
                }
                Some(_) => {
                    for (packet, _) in held.take(&flow) {
                        self.decide(packet, Verdict::Drop);
                    }
                    true
                }
            }
        };
        flows.iter().filter(is_free).copied().collect()
    }

    /// Reads what there is, and not for ever where more comes all the while.
    pub(super) fn read_all(&self) {
        for _ in 0..TURNS {
            if self.read() {
                return;
            }
        }
    }

    /// Does what is due, and forgets what was served long ago, but for those that the kernel goes on passing to the queue.
    pub(super) fn tend(&self, now: Instant, unpaid: &BTreeSet<FourTuple>) {
        if let Some(queue) = &*self.queue.borrow() {
            queue.retry();
        }
        let mut held = self.held.borrow_mut();
        held.open
            .retain(|flow, since| now.duration_since(*since) < OPEN || unpaid.contains(flow));
    }

    /// Reads for ever, once there is a queue.
    pub(super) async fn run(&self) {
        let queue = loop {
            if let Some(queue) = &*self.queue.borrow() {
                break Arc::clone(queue);
            }
            self.opened.notified().await;
        };
        let socket = queue.as_fd().try_clone_to_owned();
        let socket = socket.and_then(|fd| Ok(reactor::register(fd, Interest::READABLE)?));
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(%error, "what comes for connections on their way here is dropped");
                *self.queue.borrow_mut() = None;
                return;
            }
        };
        loop {
            if let Ok(mut guard) = socket.readable().await
                && self.read()
            {
                guard.clear_ready();
            }
            tokio::task::yield_now().await;
        }
    }

    fn open_queue(&self) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
        if self.queue.borrow().is_some() {
            return;
        }
        match Queue::open(COMING_QUEUE, ROOM) {
            Ok(queue) => {
                *self.queue.borrow_mut() = Some(Arc::new(queue));
                self.opened.notify_one();
            }
            Err(error) => {
                if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                    tracing::warn!(%error, held_back,
                        "NFQUEUE {COMING_QUEUE}: what comes for connections on their way here is dropped, and comes again \
                         after 200 ms or more");
                }
            }
        }
    }

    /// Reads some packets; returns whether there are no more.
    pub(super) fn read(&self) -> bool {
        let queue = self.queue.borrow();
        let Some(queue) = &*queue else {
            return true;
        };
        let mut buffer = self.buffer.borrow_mut();
        for _ in 0..PACKETS_PER_TURN {
            let Ok(length) = queue.receive(&mut buffer) else {
                return true;
            };
            for packet in nfqueue::packets(buffer.get(..length).unwrap_or_default()) {
                let segment = Passing::read(packet.payload);
                let segment = segment.map(|it| (either(&it.four_tuple), it.length as usize));
                let came = (packet.id, packet.mark);
                match self.held.borrow_mut().take_note(segment, came) {
                    Fate::Held => {}
                    Fate::Served => self.decide(packet.id, self.accepted(packet.mark)),
                    Fate::Nobodys => self.decide(packet.id, Verdict::Drop),
                }
            }
        }
        false
    }

    /// Without the mark by which it came to the queue.
    fn accepted(&self, mark: PacketMark) -> Verdict {
        Verdict::Accept(mark.with(MarkValue::NONE, self.mask))
    }

    fn decide(&self, packet: u32, verdict: Verdict) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
        let queue = self.queue.borrow();
        let decided = queue
            .as_ref()
            .map(|queue| queue.decide(packet, verdict, Recipient::Reader));
        if let Some(Err(error)) = decided
            && let Some(held_back) = THROTTLE.admit(Instant::now())
        {
            tracing::error!(%error, held_back, "no verdict on what came for a connection on its way here");
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Held,
    Served,
    Nobodys,
}

impl Held {
    fn expect(&mut self, flow: FourTuple) {
        // It may have come before, and gone again.
        self.open.remove(&flow);
        self.flows.entry(flow).or_default().moves += 1;
    }

    /// Holds a packet, of which this is the connection and the data, if it is one of those that are expected.
    fn take_note(
        &mut self,
        segment: Option<(FourTuple, usize)>,
        packet: (u32, PacketMark),
    ) -> Fate {
        let Some((flow, bytes)) = segment else {
            return Fate::Nobodys;
        };
        if self.open.contains_key(&flow) {
            return Fate::Served;
        }
        match self.flows.get_mut(&flow) {
            Some(held) if self.bytes + bytes <= MOST_BYTES && held.packets.len() < MOST_OF_EACH => {
                held.packets.push(packet);
                held.bytes += bytes;
                self.bytes += bytes;
                Fate::Held
            }
            _ => Fate::Nobodys,
        }
    }

    /// Takes what is held of a connection, in the order in which it came.
    fn take(&mut self, flow: &FourTuple) -> Vec<(u32, PacketMark)> {
        let Flow { packets, bytes, .. } = self.flows.remove(flow).unwrap_or_default();
        self.bytes = self.bytes.saturating_sub(bytes);
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> FourTuple {
        FourTuple {
            client: ([10, 1, 0, 2], port).into(),
            server: ([10, 2, 0, 2], 80).into(),
        }
    }

    #[test]
    fn what_is_expected_is_held_and_nothing_else_is() {
        let (mark, mut held) = (PacketMark(0), Held::default());
        held.open.insert(flow(1), Instant::now());
        held.expect(flow(1));
        assert_eq!(held.take_note(None, (1, mark)), Fate::Nobodys);
        let fate = held.take_note(Some((flow(2), 100)), (2, mark));
        assert_eq!(fate, Fate::Nobodys);
        for packet in [3, 4] {
            let fate = held.take_note(Some((flow(1), 100)), (packet, mark));
            assert_eq!(fate, Fate::Held);
        }
        assert_eq!(held.bytes, 200);
        assert_eq!(held.take(&flow(1)), [(3, mark), (4, mark)]);
        assert_eq!(held.bytes, 0);
        held.open.insert(flow(1), Instant::now());
        let fate = held.take_note(Some((flow(1), 100)), (5, mark));
        assert_eq!(fate, Fate::Served);
    }

    #[test]
    fn there_is_a_bound() {
        let (mark, mut held) = (PacketMark(0), Held::default());
        held.expect(flow(1));
        let fate = held.take_note(Some((flow(1), MOST_BYTES)), (1, mark));
        assert_eq!(fate, Fate::Held);
        let fate = held.take_note(Some((flow(1), 1)), (2, mark));
        assert_eq!(fate, Fate::Nobodys);
        held.take(&flow(1));
        assert_eq!(held.bytes, 0);
    }

    #[test]
    fn what_two_moves_expect_is_held_until_neither_does() {
        let coming = Coming::new(MarkMask(0));
        for _ in 0..2 {
            coming.held.borrow_mut().expect(flow(1));
        }
        assert!(coming.dismiss(&[flow(1)]).is_empty());
        assert_eq!(coming.dismiss(&[flow(1)]), [flow(1)]);
        // One of them may have it served, and the other one end only then.
        for _ in 0..2 {
            coming.held.borrow_mut().expect(flow(1));
        }
        coming.let_in(&[flow(1)]);
        assert!(coming.dismiss(&[flow(1)]).is_empty());
    }
}
