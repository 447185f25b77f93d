//! A direction between two of its steps, for when its connection goes on elsewhere, or comes from there.

use std::io;

use super::Direction;
use crate::connection::recovery::Recovered;
use crate::connection::state::{State, Way};
use crate::moving::Stays;
use crate::pipe_pool::{LentPipe, Loan};

impl<P: LentPipe> Direction<P> {
    /// Goes on where another process has died; `pipe` is the one that it had.
    pub(crate) fn go_on(way: Way, recovered: &Recovered, pipe: Option<P>) -> Self {
        let has_ended = recovered.state.is_final();
        Self {
            state: recovered.state,
            pipe: pipe.filter(|_| !has_ended),
            in_pipe: if has_ended { 0 } else { recovered.in_pipe },
            sent_from_pipe: recovered.sent_from_pipe,
            sent_ahead: recovered.sent_ahead,
            urgent: recovered.urgent,
            bytes: recovered.bytes,
            delivered: true,
            ..Self::new(way)
        }
    }

    /// Returns whether all that it has taken and not delivered is in its pipe.
    pub(crate) fn is_at_rest(&self) -> Result<(), Stays> {
        if matches!(self.state, State::SourceFailed | State::SinkFailed) {
            Err(Stays::Failed)
        } else if self.urgent.is_some() || self.force_read {
            Err(Stays::Urgent)
        } else if self.sent_ahead + self.sent_from_pipe > 0 {
            Err(Stays::Unfinished)
        } else {
            Ok(())
        }
    }

    /// Gives what somebody else needs to go on with it, and its pipe.
    pub(crate) fn into_parts(self) -> (Recovered, Option<P>) {
        let recovered = Recovered {
            state: self.state,
            in_pipe: self.in_pipe,
            sent_from_pipe: self.sent_from_pipe,
            sent_ahead: self.sent_ahead,
            urgent: self.urgent,
            bytes: self.bytes,
        };
        (recovered, self.pipe)
    }
}

impl Direction<Loan> {
    /// Copies what is in its pipe, and leaves it there.
    pub(crate) fn copy_of_pipe(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.in_pipe];
        if let (Some(pipe), 1..) = (&self.pipe, self.in_pipe) {
            let copied = pipe.copy(&mut bytes)?;
            if copied < bytes.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(bytes)
    }
}
