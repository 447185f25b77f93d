//! What must hold of a direction after every step, whatever has happened: the plain statement
//! of what it is for.

use super::leg::{Loans, Side, World};
use super::socket::SimSocket;
use crate::connection::state::State;

/// One direction as seen from outside: its state, and the two sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oracle {
    source: Side,
    sink: Side,
    state: State,
    /// The bytes that had been delivered when the state was reached.
    sent: u64,
}

impl Oracle {
    pub(super) fn new(source: Side, sink: Side) -> Self {
        Self {
            source,
            sink,
            state: State::Running,
            sent: 0,
        }
    }

    /// Holds `state`, and the `bytes` that it says it has delivered, against the sockets.
    pub(super) fn check(&mut self, world: &World, state: State, bytes: u64) {
        let source = world.socket(self.source).borrow();
        let sink = world.socket(self.sink).borrow();
        self.follow(state, sink.sent);
        assert_eq!(bytes, sink.sent, "counts what it delivers");
        // What was copied may still be in the source.
        assert!(sink.sent <= source.arrived, "bytes from nowhere");
        assert!(
            source.urgent_read.starts_with(&sink.urgent_sent),
            "urgent bytes: {:?} of {:?}",
            sink.urgent_sent,
            source.urgent_read
        );
        assert_eq!(
            sink.fin_sent,
            state == State::Done,
            "a FIN, or an end without"
        );
        match state {
            State::Running | State::ShuttingDown => {}
            State::Done => {
                assert!(source.fin, "a clean end that the source did not have");
                assert_everything_is_delivered(&source, &sink);
            }
            State::SourceFailed => {
                assert!(source.reset, "a failure that the source did not have");
                assert_everything_is_delivered(&source, &sink);
            }
            State::SinkFailed => assert!(sink.reset, "a failure that the sink did not have"),
        }
    }

    /// Follows the state: Running → ShuttingDown → Done, or a failure; and nothing after that.
    fn follow(&mut self, state: State, sent: u64) {
        use State::{Done, Running, ShuttingDown, SinkFailed, SourceFailed};
        let is_legal = match self.state {
            Running => true,
            ShuttingDown => matches!(state, ShuttingDown | Done | SinkFailed),
            Done | SourceFailed | SinkFailed => state == self.state && sent == self.sent,
        };
        assert!(is_legal, "{:?}, and then {state:?}", self.state);
        assert!(sent >= self.sent);
        (self.state, self.sent) = (state, sent);
    }

    /// Checks a direction that nothing wakes any more, and whose sink has room: it has ended, or
    /// there is nothing left to do.
    pub(super) fn check_at_rest(&self, world: &World) {
        if self.state.is_final() {
            return;
        }
        let source = world.socket(self.source).borrow();
        let sink = world.socket(self.sink).borrow();
        let has_ended = source.fin || source.reset || sink.reset;
        assert!(!has_ended, "sleeps through an end");
        assert_everything_is_delivered(&source, &sink);
        assert_eq!(source.read, sink.sent, "delivered, and still to be read");
    }
}

fn assert_everything_is_delivered(source: &SimSocket, sink: &SimSocket) {
    assert_eq!(sink.sent, source.arrived, "bytes are missing");
    assert_eq!(
        sink.urgent_sent, source.urgent_read,
        "an urgent byte is missing"
    );
}

/// Checks that so many pipes are out, and that of those that have come back none was wasted or
/// soiled.
pub(super) fn check_loans(loans: &Loans, most_out: u64) {
    assert!(loans.outstanding.get() <= most_out, "a pipe is kept");
    assert_eq!(loans.wasted.get(), 0, "an empty pipe was closed");
    assert_eq!(loans.soiled.get(), 0, "a pipe came back with bytes in it");
}
