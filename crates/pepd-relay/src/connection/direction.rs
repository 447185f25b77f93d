//! One direction of a connection: Running → ShuttingDown → Done, or one of two failures.

use std::cell::RefCell;

use pepd_telemetry::{Activity, Counter, StepReport};

use crate::connection::leg::{Input, LegIo, Output, Urgent};
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

/// The state of a direction: how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Bytes flow.
    Running,
    /// The source has sent its FIN; it is to be passed on.
    ShuttingDown,
    /// Everything has been delivered, and the FIN after it.
    Done,
    /// The source failed; everything that came before has been delivered.
    SourceFailed,
    /// The sink failed: what the source sends can no longer be delivered.
    SinkFailed,
}

impl State {
    /// Returns whether nothing more can happen.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::SourceFailed | Self::SinkFailed)
    }
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
#[derive(Debug)]
pub(crate) struct Direction<P> {
    state: State,
    pipe: Option<P>,
    /// Bytes in the pipe.
    in_pipe: usize,
    /// Bytes that have been taken out of the pipe, and come before those in it: splice(2) lacked
    /// memory.
    copied_out: Option<Box<CopiedOut>>,
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
    pub(crate) fn new() -> Self {
        Self {
            state: State::Running,
            pipe: None,
            in_pipe: 0,
            copied_out: None,
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
            pipe: self.in_pipe
                + self
                    .copied_out
                    .as_ref()
                    .map_or(0, |copied| copied.rest().len()),
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
        copied: &Counter,
    ) -> Need {
        let mut moved = 0;
        loop {
            if self.state.is_final() {
                return Need::Nothing;
            }
            if sink.has_failed() {
                return self.end(State::SinkFailed);
            }
            match self.deliver(sink, copied) {
                Output::Bytes(len) => moved += len,
                Output::Full => return Need::Sink,
                Output::Retry => return Need::Memory,
                Output::Failed => return self.end(State::SinkFailed),
            }
            if self.state == State::ShuttingDown {
                return match sink.shut_down() {
                    Output::Failed => self.end(State::SinkFailed),
                    Output::Bytes(_) => self.end(State::Done),
                    Output::Full | Output::Retry => Need::Memory,
                };
            }
            if moved >= BYTES_PER_STEP {
                return Need::Turn;
            }
            let taken = self.take(source, sink, pool, copied);
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
                    self.return_pipe();
                    self.wait_begins(sink);
                    return Need::Source;
                }
                Taken::End => self.state = State::ShuttingDown,
                Taken::Failed => return self.end(State::SourceFailed),
            }
        }
    }

    /// Delivers everything that has been taken, in its order.
    fn deliver(&mut self, sink: &mut impl LegIo<Pipe = P::Pipe>, copied: &Counter) -> Output {
        let mut delivered = 0;
        loop {
            let output = match (&self.copied_out, &self.pipe, self.in_pipe) {
                (Some(copied), ..) => sink.send(copied.rest()),
                (None, Some(pipe), in_pipe @ 1..) => sink.drain(pipe.pipe(), in_pipe),
                (None, ..) => break,
            };
            match output {
                Output::Bytes(len) => {
                    self.has_delivered(len);
                    delivered += len;
                }
                Output::Retry if self.copy_out() => copied.increment(),
                other => return other,
            }
        }
        if let Some(byte) = self.urgent {
            match sink.send_urgent(byte) {
                Output::Bytes(_) => self.urgent = None,
                other => return other,
            }
            self.count(1);
        }
        Output::Bytes(delivered)
    }

    /// Notes that the sink has taken the next bytes.
    fn has_delivered(&mut self, len: usize) {
        match &mut self.copied_out {
            Some(copied) => {
                copied.sent += len;
                if copied.rest().is_empty() {
                    self.copied_out = None;
                }
            }
            None => self.in_pipe = self.in_pipe.saturating_sub(len),
        }
        self.count(len);
    }

    /// Takes bytes out of the pipe that splice(2) has no memory for; false where nothing was taken.
    fn copy_out(&mut self) -> bool {
        let (None, Some(pipe)) = (&self.copied_out, &self.pipe) else {
            return false;
        };
        let mut bytes = Vec::new();
        let len = self.in_pipe.min(SCRATCH_BYTES);
        if bytes.try_reserve_exact(len).is_err() {
            return false;
        }
        bytes.resize(len, 0);
        let Ok(len @ 1..) = pipe.read(&mut bytes) else {
            return false;
        };
        bytes.truncate(len);
        self.in_pipe = self.in_pipe.saturating_sub(len);
        self.copied_out = Some(Box::new(CopiedOut { bytes, sent: 0 }));
        true
    }

    /// Takes the next bytes from the source; everything taken before has been delivered.
    fn take<L: LegIo<Pipe = P::Pipe>>(
        &mut self,
        source: &mut L,
        sink: &mut L,
        pool: &impl LendPipes<Lent = P>,
        copied: &Counter,
    ) -> Taken {
        if let Some(taken) = self.take_what_was_sent(source) {
            return taken;
        }
        if self.pipe.is_none() {
            self.pipe = pool.lend();
        }
        let input = match &self.pipe {
            Some(pipe) => source.fill(pipe.pipe(), self.force_read),
            None => {
                copied.increment();
                return self.copy(source, sink);
            }
        };
        let taken = match input {
            Input::Bytes(len) => {
                self.in_pipe = len;
                return Taken::Some;
            }
            Input::Retry => {
                self.return_pipe();
                copied.increment();
                return self.copy(source, sink);
            }
            Input::End => Taken::End,
            Input::Failed => Taken::Failed,
            // An announcement that is still under way wakes this connection again.
            Input::Empty if !source.urgent_announced() => return Taken::Nothing,
            Input::Empty => Taken::Nothing,
        };
        // At the mark splice(2) says EAGAIN for ever or, once the FIN has come, reports the end.
        self.take_urgent(source).unwrap_or(taken)
    }

    /// Takes the urgent byte where it is next.
    fn take_urgent(&mut self, source: &mut impl LegIo) -> Option<Taken> {
        match source.take_urgent() {
            Urgent::Byte(byte) => {
                self.urgent = Some(byte);
                Some(Taken::Mark)
            }
            Urgent::Absent => None,
            Urgent::Retry => Some(Taken::Retry),
        }
    }

    /// Relays without a pipe: peeks at what there is, sends it, and takes away only what was sent.
    /// So nothing is ever held, and no memory is needed per connection.
    fn copy(&mut self, source: &mut impl LegIo, sink: &mut impl LegIo) -> Taken {
        SCRATCH.with_borrow_mut(|scratch| {
            let input = source.peek(scratch, self.force_read);
            // Peeking starts at the mark as it does anywhere else. It is looked for only now:
            // whatever was announced before the peek is seen.
            if let Some(taken) = self.take_urgent(source) {
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
            match sink.send(&scratch[..len]) {
                Output::Bytes(sent) => {
                    self.count(sent);
                    self.sent_ahead = sent;
                    self.take_what_was_sent(source)
                        .unwrap_or(Taken::Copied(sent))
                }
                Output::Full => Taken::NoRoom,
                Output::Retry => Taken::Retry,
                // The next step sees the sink's failure first.
                Output::Failed => Taken::Some,
            }
        })
    }

    /// Takes off the source what has been sent already, before anything else is read; gives what is
    /// in the way of that.
    fn take_what_was_sent(&mut self, source: &mut impl LegIo) -> Option<Taken> {
        while self.sent_ahead > 0 {
            match source.discard(self.sent_ahead) {
                Input::Bytes(len) => self.sent_ahead = self.sent_ahead.saturating_sub(len),
                Input::Retry | Input::Empty => return Some(Taken::Retry),
                Input::End | Input::Failed => return Some(Taken::Failed),
            }
        }
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
    fn end(&mut self, state: State) -> Need {
        self.state = state;
        self.copied_out = None;
        self.return_pipe();
        Need::Nothing
    }

    /// Gives an empty pipe back to the pool; one with bytes that nobody will take is closed.
    fn return_pipe(&mut self) {
        if let (Some(pipe), 0) = (self.pipe.take(), std::mem::take(&mut self.in_pipe)) {
            pipe.give_back();
        }
    }
}

/// Bytes that a pipe held.
#[derive(Debug)]
struct CopiedOut {
    bytes: Vec<u8>,
    /// How many of them have been delivered.
    sent: usize,
}

impl CopiedOut {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
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
