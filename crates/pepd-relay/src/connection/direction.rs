//! One direction of a connection: Running → ShuttingDown → Done, or one of two failures.

mod at_rest;

use std::cell::RefCell;

use pepd_telemetry::{Activity, Counter, StepReport};

use crate::connection::leg::{Input, LegIo, Output, Urgent};
use crate::connection::memo::Memo;
use crate::connection::state::{State, Way};
use crate::pipe_pool::{LendPipes, LentPipe};

/// Bytes that a direction may move before other connections of the worker have their turn.
/// At some gigabytes per second that is a fifth of a millisecond.
const BYTES_PER_STEP: usize = 512 * 1024;

/// The buffer for directions that have no pipe: shared by a whole worker, because nothing
/// stays in it between two calls.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// The event that a direction needs to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Another turn: it has used this one up.
    Turn,
    /// Data from its source: it is starved.
    Source,
    /// Room in its sink: it is backpressured.
    Sink,
    /// Memory of the kernel's: what it has to do is to be tried again in a moment.
    Memory,
    /// Nothing: it has ended.
    Nothing,
}

/// One direction of a connection.
///
/// Whoever goes on with it when this process has died finds what has been taken from the source in
/// the kernel: in the pipe, or still in the source. What is not there is noted before it is done.
#[derive(Debug)]
pub(crate) struct Direction<P> {
    way: Way,
    state: State,
    pipe: Option<P>,
    /// Bytes in the pipe.
    in_pipe: usize,
    /// Bytes that have been delivered, and that the pipe still has.
    sent_from_pipe: usize,
    /// Bytes that have been delivered, and that the source still has.
    sent_ahead: usize,
    /// An urgent byte that has been taken from the source.
    urgent: Option<u8>,
    /// Whether the source may have data although the runtime has seen no event: it clears
    /// readiness at the urgent mark, where splice(2) would block with data behind the mark.
    force_read: bool,
    /// Bytes delivered.
    bytes: u64,
    /// Whether some have been delivered since the sink was last asked what it has not sent.
    delivered: bool,
    /// The bytes that the sink had not sent when the wait for data began.
    unsent: u64,
    /// The bytes that it had not sent when data came.
    unsent_after_wait: u64,
}

impl<P: LentPipe> Direction<P> {
    /// Begins with nothing under way.
    pub(crate) fn new(way: Way) -> Self {
        Self {
            way,
            state: State::Running,
            pipe: None,
            in_pipe: 0,
            sent_from_pipe: 0,
            sent_ahead: 0,
            urgent: None,
            force_read: false,
            bytes: 0,
            delivered: false,
            unsent: 0,
            unsent_after_wait: 0,
        }
    }

    /// Returns how far it has come.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Counts bytes that went out with the SYN.
    pub(crate) fn sent_early(&mut self, len: usize) {
        self.count(len);
    }

    /// Reports the step after which it needs `need`.
    pub(crate) fn report(&mut self, need: Need) -> StepReport {
        StepReport {
            bytes: self.bytes,
            pipe: self.in_pipe.saturating_sub(self.sent_from_pipe),
            unsent_after_wait: std::mem::take(&mut self.unsent_after_wait),
            activity: match need {
                Need::Turn | Need::Memory => Activity::Moving,
                Need::Source => Activity::AwaitsSource {
                    unsent: self.unsent,
                },
                Need::Sink => Activity::AwaitsSink,
                Need::Nothing => Activity::Ended,
            },
        }
    }

    /// Moves what can be moved now, within one turn's share.
    pub(crate) fn step<L: LegIo<Pipe = P::Pipe>>(
        &mut self,
        source: &mut L,
        sink: &mut L,
        pool: &impl LendPipes<Lent = P>,
        memo: &impl Memo<Pipe = P::Pipe>,
        copied: &Counter,
    ) -> Need {
        let mut moved = 0;
        loop {
            if self.state.is_final() {
                return Need::Nothing;
            }
            if sink.has_failed() {
                return self.end(State::SinkFailed, memo);
            }
            match self.deliver(sink, memo, copied) {
                Output::Bytes(len) => moved += len,
                Output::Full => return Need::Sink,
                Output::Retry => return Need::Memory,
                Output::Failed => return self.end(State::SinkFailed, memo),
            }
            if self.state == State::ShuttingDown {
                return match sink.shut_down() {
                    Output::Failed => self.end(State::SinkFailed, memo),
                    Output::Bytes(_) => self.end(State::Done, memo),
                    Output::Full | Output::Retry => Need::Memory,
                };
            }
            if moved >= BYTES_PER_STEP {
                return Need::Turn;
            }
            let taken = self.take(source, sink, pool, memo, copied);
            if !matches!(taken, Taken::Nothing) {
                self.wait_is_over(sink);
            }
            match taken {
                Taken::Some => {}
                Taken::Copied(len) => moved += len,
                Taken::Mark => self.force_read = true,
                Taken::NoRoom => return Need::Sink,
                Taken::Retry => return Need::Memory,
                Taken::Nothing => {
                    self.force_read = false;
                    self.return_pipe(memo);
                    self.wait_begins(sink);
                    return Need::Source;
                }
                Taken::End => {
                    self.state = State::ShuttingDown;
                    memo.note_state(self.way, self.state);
                }
                Taken::Failed => return self.end(State::SourceFailed, memo),
            }
        }
    }

    /// Delivers everything that has been taken, in its order.
    fn deliver(
        &mut self,
        sink: &mut impl LegIo<Pipe = P::Pipe>,
        memo: &impl Memo,
        copied: &Counter,
    ) -> Output {
        let mut delivered = 0;
        loop {
            if !self.take_what_was_sent_from_pipe(memo) {
                return Output::Retry;
            }
            let (Some(pipe), in_pipe @ 1..) = (&self.pipe, self.in_pipe) else {
                break;
            };
            let len = match sink.drain(pipe.pipe(), in_pipe) {
                Output::Bytes(len) => {
                    self.in_pipe = self.in_pipe.saturating_sub(len);
                    self.count(len);
                    len
                }
                Output::Retry => match self.copy_from_pipe(sink, memo) {
                    Output::Bytes(len) => {
                        copied.increment();
                        len
                    }
                    other => return other,
                },
                other => return other,
            };
            delivered += len;
        }
        if let Some(byte) = self.urgent {
            match sink.send_urgent(byte) {
                Output::Bytes(_) => self.urgent = None,
                other => return other,
            }
            memo.note_urgent(self.way, None);
            self.count(1);
        }
        Output::Bytes(delivered)
    }

    /// Sends the first bytes of the pipe without splice(2), which lacks memory for them.
    fn copy_from_pipe(&mut self, sink: &mut impl LegIo, memo: &impl Memo) -> Output {
        let Some(pipe) = &self.pipe else {
            return Output::Retry;
        };
        let most = self.in_pipe.min(SCRATCH_BYTES);
        let output = SCRATCH.with_borrow_mut(|scratch| match pipe.peek(&mut scratch[..most]) {
            Ok(len @ 1..) => {
                memo.note_copying(self.way, true);
                sink.send(&scratch[..len])
            }
            _ => Output::Retry,
        });
        match output {
            Output::Bytes(sent) => {
                self.sent_from_pipe = sent;
                self.count(sent);
            }
            _ => memo.note_copying(self.way, false),
        }
        output
    }

    /// Takes out of the pipe what has been sent already, before anything else is; false where a call
    /// is to be made again.
    fn take_what_was_sent_from_pipe(&mut self, memo: &impl Memo) -> bool {
        let (Some(pipe), 1..) = (&self.pipe, self.sent_from_pipe) else {
            return true;
        };
        SCRATCH.with_borrow_mut(|scratch| {
            while self.sent_from_pipe > 0 {
                let piece = self.sent_from_pipe.min(SCRATCH_BYTES);
                let Ok(len @ 1..) = pipe.read(&mut scratch[..piece]) else {
                    return false;
                };
                self.sent_from_pipe -= len;
                self.in_pipe = self.in_pipe.saturating_sub(len);
            }
            memo.note_copying(self.way, false);
            true
        })
    }

    /// Takes the next bytes from the source; everything taken before has been delivered.
    fn take<L: LegIo<Pipe = P::Pipe>>(
        &mut self,
        source: &mut L,
        sink: &mut L,
        pool: &impl LendPipes<Lent = P>,
        memo: &impl Memo<Pipe = P::Pipe>,
        copied: &Counter,
    ) -> Taken {
        if let Some(taken) = self.take_what_was_sent(source, memo) {
            return taken;
        }
        if self.pipe.is_none() {
            self.pipe = pool.lend();
            if let Some(pipe) = &self.pipe {
                memo.note_pipe(self.way, Some(pipe.pipe()));
            }
        }
        let input = match &self.pipe {
            Some(pipe) => source.fill(pipe.pipe(), self.force_read),
            None => {
                copied.increment();
                return self.copy(source, sink, memo);
            }
        };
        let taken = match input {
            Input::Bytes(len) => {
                self.in_pipe = len;
                return Taken::Some;
            }
            Input::Retry => {
                self.return_pipe(memo);
                copied.increment();
                return self.copy(source, sink, memo);
            }
            Input::End => Taken::End,
            Input::Failed => Taken::Failed,
            // An announcement that is still under way wakes this connection again.
            Input::Empty if !source.urgent_announced() => return Taken::Nothing,
            Input::Empty => Taken::Nothing,
        };
        // At the mark splice(2) says EAGAIN for ever or, once the FIN has come, reports the end.
        self.take_urgent(source, memo).unwrap_or(taken)
    }

    /// Takes the urgent byte where it is next.
    fn take_urgent(&mut self, source: &mut impl LegIo, memo: &impl Memo) -> Option<Taken> {
        let byte = match source.look_for_urgent() {
            Urgent::Byte(byte) => byte,
            Urgent::Absent => return None,
            Urgent::Retry => return Some(Taken::Retry),
        };
        memo.note_urgent(self.way, Some(byte));
        if source.take_urgent() {
            self.urgent = Some(byte);
            return Some(Taken::Mark);
        }
        memo.note_urgent(self.way, None);
        Some(Taken::Retry)
    }

    /// Relays without a pipe: peeks at what there is, sends it, and takes away only what was sent.
    /// So nothing is ever held, and no memory is needed per connection.
    fn copy(&mut self, source: &mut impl LegIo, sink: &mut impl LegIo, memo: &impl Memo) -> Taken {
        SCRATCH.with_borrow_mut(|scratch| {
            let input = source.peek(scratch, self.force_read);
            // Peeking starts at the mark as it does anywhere else. It is looked for only now:
            // whatever was announced before the peek is seen.
            if let Some(taken) = self.take_urgent(source, memo) {
                return taken;
            }
            let len = match input {
                Input::Bytes(len) => len,
                Input::Empty => return Taken::Nothing,
                Input::Retry => return Taken::Retry,
                Input::End => return Taken::End,
                Input::Failed => return Taken::Failed,
            };
            self.wait_is_over(sink);
            memo.note_copying(self.way, true);
            let output = sink.send(&scratch[..len]);
            if let Output::Bytes(sent) = output {
                self.count(sent);
                self.sent_ahead = sent;
                return self
                    .take_what_was_sent(source, memo)
                    .unwrap_or(Taken::Copied(sent));
            }
            memo.note_copying(self.way, false);
            match output {
                Output::Full => Taken::NoRoom,
                Output::Retry => Taken::Retry,
                // The next step sees the sink's failure first.
                Output::Bytes(_) | Output::Failed => Taken::Some,
            }
        })
    }

    /// Takes off the source what has been sent already, before anything else is read; gives what is
    /// in the way of that.
    fn take_what_was_sent(&mut self, source: &mut impl LegIo, memo: &impl Memo) -> Option<Taken> {
        if self.sent_ahead == 0 {
            return None;
        }
        while self.sent_ahead > 0 {
            match source.discard(self.sent_ahead) {
                Input::Bytes(len) => self.sent_ahead = self.sent_ahead.saturating_sub(len),
                Input::Retry | Input::Empty => return Some(Taken::Retry),
                Input::End | Input::Failed => return Some(Taken::Failed),
            }
        }
        memo.note_copying(self.way, false);
        None
    }

    /// Counts bytes that have been delivered.
    fn count(&mut self, len: usize) {
        self.bytes += len as u64;
        self.delivered = true;
    }

    /// Notes what the sink still has to send: as long as it does, the buffer is not empty.
    fn wait_begins(&mut self, sink: &impl LegIo) {
        if std::mem::take(&mut self.delivered) {
            self.unsent = sink.unsent();
        }
    }

    /// Notes how much of that is left, before it gets more.
    fn wait_is_over(&mut self, sink: &impl LegIo) {
        if std::mem::take(&mut self.unsent) > 0 {
            self.unsent_after_wait = sink.unsent();
        }
    }

    /// Ends in a final state.
    fn end(&mut self, state: State, memo: &impl Memo) -> Need {
        self.state = state;
        // Before the pipe: with it, a state that is not final would say that something is in it.
        memo.note_state(self.way, state);
        self.return_pipe(memo);
        Need::Nothing
    }

    /// Gives an empty pipe back to the pool; one with bytes that nobody will take is closed.
    fn return_pipe(&mut self, memo: &impl Memo) {
        let Some(pipe) = self.pipe.take() else {
            return;
        };
        memo.note_pipe(self.way, None);
        if std::mem::take(&mut self.in_pipe) == 0 {
            pipe.give_back();
        }
    }
}

/// The result of taking from the source.
enum Taken {
    /// Something to deliver.
    Some,
    /// Bytes that have been delivered already.
    Copied(usize),
    /// The urgent byte.
    Mark,
    /// There is something, but the sink has no room for it.
    NoRoom,
    /// The kernel lacked memory.
    Retry,
    /// There is nothing.
    Nothing,
    /// The source has sent its FIN.
    End,
    /// The source failed.
    Failed,
}
