//! One direction of a connection: Running → ShuttingDown → Done, or one of two failures.

use std::cell::RefCell;

use pepd_telemetry::{Activity, Counter, StepReport};

use crate::connection::leg::{Input, LegIo, Output};
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
            pipe: self.in_pipe,
            unsent_after_wait: std::mem::take(&mut self.unsent_after_wait),
            activity: match need {
                Need::Turn => Activity::Moving,
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
            match self.deliver(sink) {
                Output::Bytes(len) => moved += len,
                Output::Full => return Need::Sink,
                Output::Failed => return self.end(State::SinkFailed),
            }
            if self.state == State::ShuttingDown {
                return match sink.shut_down() {
                    Output::Failed => self.end(State::SinkFailed),
                    Output::Bytes(_) | Output::Full => self.end(State::Done),
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
    fn deliver(&mut self, sink: &mut impl LegIo<Pipe = P::Pipe>) -> Output {
        let mut delivered = 0;
        while let (Some(pipe), 1..) = (&self.pipe, self.in_pipe) {
            match sink.drain(pipe.pipe(), self.in_pipe) {
                Output::Bytes(len) => {
                    self.in_pipe = self.in_pipe.saturating_sub(len);
                    self.count(len);
                    delivered += len;
                }
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

    /// Takes the next bytes from the source; everything taken before has been delivered.
    fn take<L: LegIo<Pipe = P::Pipe>>(
        &mut self,
        source: &mut L,
        sink: &mut L,
        pool: &impl LendPipes<Lent = P>,
        copied: &Counter,
    ) -> Taken {
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
        self.urgent = Some(source.take_urgent()?);
        Some(Taken::Mark)
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
                Input::End => return Taken::End,
                Input::Failed => return Taken::Failed,
            };
            self.wait_is_over(sink);
            match sink.send(&scratch[..len]) {
                Output::Bytes(sent) => {
                    self.count(sent);
                    match source.discard(sent) {
                        Input::Bytes(_) => Taken::Copied(sent),
                        _ => Taken::Failed,
                    }
                }
                Output::Full => Taken::NoRoom,
                // The next step sees the sink's failure first.
                Output::Failed => Taken::Some,
            }
        })
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
    /// There is nothing.
    Nothing,
    /// The source has sent its FIN.
    End,
    /// The source failed.
    Failed,
}
