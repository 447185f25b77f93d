//! Legs and pipes without a system call: what a direction works on in a simulation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use tokio::io::{Interest, Ready};

use super::socket::{Event, SimSocket, byte_at};
use crate::connection::leg::{Failure, Fate, Input, LegIo, LegState, Output, Urgent};
use crate::pipe_pool::{LendPipes, LentPipe};

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Upstream,
}

/// Both sockets, and what is still to happen to them. It happens between any two calls.
#[derive(Debug)]
pub(super) struct World {
    pub(super) client: RefCell<SimSocket>,
    pub(super) upstream: RefCell<SimSocket>,
    upcoming: RefCell<VecDeque<(Side, Event)>>,
    random: Cell<u64>,
    /// How many of every sixteen calls lack memory.
    shortage: u64,
    calls: Cell<u64>,
    /// The instructions after which the process dies, the next death first: calls and notes alike.
    deaths: RefCell<VecDeque<u64>>,
}

/// What a process that dies in the middle of a step leaves instead of a result.
pub(super) struct Died;

/// More calls than any history takes: a step that makes more never ends.
const MOST_CALLS: u64 = 50_000;

impl World {
    pub(super) fn new(
        room: [u64; 2],
        upcoming: VecDeque<(Side, Event)>,
        shortage: u64,
        deaths: VecDeque<u64>,
        seed: u64,
    ) -> Rc<Self> {
        Rc::new(Self {
            client: RefCell::new(SimSocket::new(room[0])),
            upstream: RefCell::new(SimSocket::new(room[1])),
            upcoming: RefCell::new(upcoming),
            random: Cell::new(seed | 1),
            shortage,
            calls: Cell::new(0),
            deaths: RefCell::new(deaths),
        })
    }

    /// Comes before each instruction: it may be that there is none any more.
    pub(super) fn live(&self) {
        let mut deaths = self.deaths.borrow_mut();
        match deaths.front_mut() {
            Some(0) => {
                deaths.pop_front();
                drop(deaths);
                // As a panic, but for what that would print.
                std::panic::resume_unwind(Box::new(Died));
            }
            Some(left) => *left -= 1,
            None => {}
        }
    }

    pub(super) fn socket(&self, side: Side) -> &RefCell<SimSocket> {
        match side {
            Side::Client => &self.client,
            Side::Upstream => &self.upstream,
        }
    }

    /// Returns a number below `bound` (xorshift64; Marsaglia, Journal of Statistical Software 8,
    /// 2003).
    pub(super) fn below(&self, bound: u64) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x >> 11) % bound
    }

    /// Returns a length from 1 to `len`, half the time `len` itself.
    fn share(&self, len: u64) -> u64 {
        match self.below(2) {
            0 => len,
            _ => 1 + self.below(len),
        }
    }

    /// Fails as a call that lacks memory, now and then.
    fn memory(&self) -> io::Result<()> {
        if self.below(16) < self.shortage {
            let errno = [libc::ENOMEM, libc::ENOBUFS, libc::EINTR][length(self.below(3))];
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(())
    }

    /// Has the next event happen; false if there is none left.
    pub(super) fn happen(&self) -> bool {
        let next = self.upcoming.borrow_mut().pop_front();
        if let Some((side, event)) = next {
            self.socket(side).borrow_mut().apply(event);
        }
        next.is_some()
    }
}

/// A leg over a simulated socket. It is to a simulated socket what
/// [`LegSocket`](crate::connection::leg_socket::LegSocket) is to a real one.
#[derive(Debug)]
pub(super) struct SimLeg {
    world: Rc<World>,
    side: Side,
    state: LegState,
}

impl SimLeg {
    pub(super) fn new(world: &Rc<World>, side: Side, as_it_is: Fate) -> Self {
        Self {
            world: Rc::clone(world),
            side,
            state: LegState::found(as_it_is),
        }
    }

    /// Calls the socket, before which something may have happened.
    fn call<T>(&self, call: impl FnOnce(&mut SimSocket) -> T) -> T {
        self.world.live();
        increase(&self.world.calls);
        assert!(self.world.calls.get() < MOST_CALLS, "a step without end");
        while self.world.below(8) == 0 && self.world.happen() {}
        call(&mut self.world.socket(self.side).borrow_mut())
    }

    /// Calls it if the runtime has seen one of `bits`, and clears `bits` if it was wrong.
    fn try_io(
        &self,
        bits: Ready,
        closed: Ready,
        call: impl FnOnce(&mut SimSocket) -> io::Result<u64>,
    ) -> io::Result<usize> {
        self.call(|socket| {
            if (socket.ready & (bits | closed)).is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let result = self.world.memory().and_then(|()| call(socket));
            if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                socket.ready = socket.ready - bits;
            }
            result.map(length)
        })
    }

    fn read(
        &self,
        force: bool,
        call: impl FnOnce(&mut SimSocket) -> io::Result<u64>,
    ) -> io::Result<usize> {
        if force || self.state.has_failed() {
            self.call(|socket| self.world.memory().and_then(|()| call(socket)))
                .map(length)
        } else {
            self.try_io(Ready::READABLE, Ready::READ_CLOSED, call)
        }
    }

    fn write(&self, call: impl FnOnce(&mut SimSocket) -> io::Result<u64>) -> io::Result<usize> {
        self.try_io(Ready::WRITABLE, Ready::WRITE_CLOSED, call)
    }

    /// Returns whether whoever waits for `interest` is woken, as by `LegSocket::ready`.
    pub(super) fn wakes(&mut self, interest: Option<Interest>) -> bool {
        let mut mask = Ready::EMPTY;
        if let Some(interest) = interest {
            let bits = [
                (interest.is_readable(), Ready::READABLE | Ready::READ_CLOSED),
                (interest.is_priority(), Ready::PRIORITY | Ready::READ_CLOSED),
                (
                    interest.is_writable(),
                    Ready::WRITABLE | Ready::WRITE_CLOSED,
                ),
            ];
            for (_, bits) in bits.into_iter().filter(|(is_wanted, _)| *is_wanted) {
                mask |= bits;
            }
        }
        if !self.has_failed() {
            mask |= Ready::ERROR;
        }
        let mut socket = self.world.socket(self.side).borrow_mut();
        let seen = socket.ready & mask;
        if seen.is_priority() {
            socket.ready = socket.ready - Ready::PRIORITY;
            self.state.announce_urgent();
        }
        if seen.is_error() {
            socket.ready = socket.ready - Ready::ERROR;
            self.state.announce_error();
        }
        !seen.is_empty()
    }
}

impl LegIo for SimLeg {
    type Pipe = Rc<SimPipe>;

    fn fill(&mut self, pipe: &Rc<SimPipe>, force_read: bool) -> Input {
        assert_eq!(pipe.len.get(), 0, "a pipe is filled that is not empty");
        let most = self.world.share(pipe.capacity);
        let result = self.read(force_read, |socket| {
            let offset = socket.read;
            let len = socket.splice_out(most)?;
            pipe.offset.set(offset);
            pipe.len.set(len);
            Ok(len)
        });
        self.state.input(result)
    }

    fn drain(&mut self, pipe: &Rc<SimPipe>, len: usize) -> Output {
        let (offset, there) = (pipe.offset.get(), pipe.len.get());
        assert_eq!(there, len as u64, "the pipe holds something else");
        let share = self.world.share(there);
        let result = self.write(|socket| {
            let sent = socket.splice_in(offset, there, share)?;
            pipe.offset.set(offset + sent);
            pipe.len.set(there - sent);
            Ok(sent)
        });
        self.state.output(result)
    }

    fn peek(&mut self, buffer: &mut [u8], force_read: bool) -> Input {
        let result = self.read(force_read, |socket| {
            let len = socket.peek(buffer.len() as u64)?;
            let offsets = socket.read..socket.read + len;
            for (byte, offset) in buffer.iter_mut().zip(offsets) {
                *byte = byte_at(offset);
            }
            Ok(len)
        });
        self.state.input(result)
    }

    fn discard(&mut self, len: usize) -> Input {
        let result = self.call(|socket| {
            self.world.memory()?;
            socket.receive(len as u64)
        });
        self.state.input(result.map(length))
    }

    fn send(&mut self, bytes: &[u8]) -> Output {
        let share = self.world.share(bytes.len() as u64);
        let result = self.write(|socket| {
            let offset = socket.sent;
            let sent = socket.send(offset, share)?;
            let offsets = offset..offset + sent;
            let is_right = bytes.iter().zip(offsets).all(|(b, at)| *b == byte_at(at));
            assert!(is_right, "bytes lost, repeated or out of order");
            Ok(sent)
        });
        self.state.output(result)
    }

    fn urgent_announced(&self) -> bool {
        self.state.urgent_announced()
    }

    fn look_for_urgent(&mut self) -> Urgent {
        match self.call(|socket| self.world.memory().map(|()| socket.is_at_mark())) {
            Ok(true) => {}
            Ok(false) => return Urgent::Absent,
            Err(_) => return Urgent::Retry,
        }
        let offset = self.world.socket(self.side).borrow().read;
        let result = self.call(|socket| self.world.memory().and_then(|()| socket.peek(1)));
        match self.state.input(result.map(length)) {
            Input::Bytes(1) => Urgent::Byte(byte_at(offset)),
            Input::Retry => Urgent::Retry,
            _ => Urgent::Absent,
        }
    }

    fn take_urgent(&mut self) -> bool {
        let offset = self.world.socket(self.side).borrow().read;
        let taken = self.discard(1) == Input::Bytes(1);
        if taken {
            self.state.urgent_is_taken();
            // It was the urgent one when looked for; a newer one may have been announced since.
            let urgent_read = &mut self.world.socket(self.side).borrow_mut().urgent_read;
            if urgent_read.last() != Some(&offset) {
                urgent_read.push(offset);
            }
        }
        taken
    }

    fn send_urgent(&mut self, byte: u8) -> Output {
        let result = self.write(|socket| {
            let offset = socket.sent;
            let sent = socket.send_urgent()?;
            assert_eq!(byte, byte_at(offset), "another urgent byte");
            Ok(sent)
        });
        self.state.output(result)
    }

    fn shut_down(&mut self) -> Output {
        let result = self.call(|socket| self.world.memory().and_then(|()| socket.shut_down()));
        self.state.output(result.map(|_| 0))
    }

    fn unsent(&self) -> u64 {
        self.world.socket(self.side).borrow().unsent()
    }

    fn has_failed(&self) -> bool {
        self.state.has_failed()
    }

    fn known_failure(&self) -> Option<Failure> {
        self.state.failure()
    }
}

/// A pipe of which it is only known where in the stream its bytes begin, and how many there are.
#[derive(Debug)]
pub(super) struct SimPipe {
    world: Rc<World>,
    capacity: u64,
    offset: Cell<u64>,
    pub(super) len: Cell<u64>,
}

/// The pipes that were lent, and what has become of them.
#[derive(Debug, Default)]
pub(super) struct Loans {
    pub(super) outstanding: Cell<u64>,
    /// Closed without need: they were empty.
    pub(super) wasted: Cell<u64>,
    /// Given back for the next transfer with somebody's bytes in them.
    pub(super) soiled: Cell<u64>,
    /// Whoever had them has died: nobody gives them back.
    pub(super) dead: Cell<bool>,
}

/// A pool that lends a pipe or, as it pleases, does not.
#[derive(Debug)]
pub(super) struct SimPool {
    pub(super) world: Rc<World>,
    pub(super) capacity: u64,
    /// The number of pipes that are granted of every four that are asked for.
    pub(super) generosity: u64,
    pub(super) loans: Rc<Loans>,
}

impl LendPipes for SimPool {
    type Lent = SimLoan;

    fn lend(&self) -> Option<SimLoan> {
        self.world.live();
        if self.world.below(4) >= self.generosity {
            return None;
        }
        let pipe = SimPipe {
            world: Rc::clone(&self.world),
            capacity: self.capacity,
            offset: Cell::new(0),
            len: Cell::new(0),
        };
        Some(self.lend_again(Rc::new(pipe)))
    }
}

impl SimPool {
    /// Lends a pipe that another process has had.
    pub(super) fn lend_again(&self, pipe: Rc<SimPipe>) -> SimLoan {
        increase(&self.loans.outstanding);
        SimLoan {
            pipe,
            given_back: false,
            loans: Rc::clone(&self.loans),
        }
    }
}

/// A pipe that is lent.
#[derive(Debug)]
pub(super) struct SimLoan {
    pipe: Rc<SimPipe>,
    given_back: bool,
    loans: Rc<Loans>,
}

impl LentPipe for SimLoan {
    type Pipe = Rc<SimPipe>;

    fn pipe(&self) -> &Rc<SimPipe> {
        &self.pipe
    }

    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.pipe.world.live();
        self.pipe.world.memory()?;
        let (offset, there) = (self.pipe.offset.get(), self.pipe.len.get());
        let len = self.pipe.world.share(there.min(buffer.len() as u64));
        for (byte, offset) in buffer.iter_mut().zip(offset..offset + len) {
            *byte = byte_at(offset);
        }
        Ok(length(len))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.peek(buffer)?;
        self.pipe.offset.set(self.pipe.offset.get() + len as u64);
        self.pipe.len.set(self.pipe.len.get() - len as u64);
        Ok(len)
    }

    fn give_back(mut self) {
        self.given_back = true;
    }
}

impl Drop for SimLoan {
    fn drop(&mut self) {
        self.loans.outstanding.set(self.loans.outstanding.get() - 1);
        if self.loans.dead.get() || std::thread::panicking() {
            return;
        }
        match (self.given_back, self.pipe.len.get()) {
            (false, 0) => increase(&self.loans.wasted),
            (true, 1..) => increase(&self.loans.soiled),
            _ => {}
        }
    }
}

fn increase(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

fn length(len: u64) -> usize {
    usize::try_from(len).expect("the lengths of these histories fit into any usize")
}
