//! How a connection goes on whose process has died: from what was noted, and what the kernel knows.
//!
//! The kernel knows how much has been read from each socket, written to it, and is in the pipe
//! between them. What was read and is neither in the pipe nor written was in the hands of the
//! process: one urgent byte at most, which was noted before. What was written and not read yet was
//! about to be taken away from where it was copied: that it may have been is noted, too.
//!
//! A FIN counts as a byte that was read. A socket that is closed does not say whether it had one; as
//! long as nothing was in hand, the figures do. An error that a call has taken from a socket is
//! nowhere any more but in the notes; where the process died before it wrote it down, the socket is
//! closed and has no error, and a FIN is missing.

use libc::{ECONNRESET, EPIPE};

use crate::connection::leg::{Failure, Fate};
use crate::connection::state::State;

/// What was noted of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) state: State,
    /// The urgent byte that was about to be taken, or had been.
    pub(crate) urgent: Option<u8>,
    /// Whether bytes may have been sent that are still where they were copied from.
    pub(crate) copies: bool,
    /// The bytes that its pipe holds; none where it has none.
    pub(crate) in_pipe: Option<usize>,
}

/// What the kernel knows of a leg's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) stage: Stage,
    /// Whether an error waits to be taken from it.
    pub(crate) error_waits: bool,
    /// Bytes that were written to it; a FIN that was sent counts as one.
    pub(crate) written: u64,
    /// Of these, those that are not acknowledged.
    pub(crate) unacknowledged: u64,
    /// Bytes that were read from it; a FIN that was received counts as one, read or not.
    pub(crate) read: u64,
    /// Bytes that have come and were not read.
    pub(crate) unread: u64,
}

impl Figures {
    /// Leaves out the bytes that its socket was given when the connection came from another box; if the FIN
    /// of its peer had come there, the socket does not know that.
    pub(crate) fn leave_out(&mut self, brought: u64, had_fin: bool) {
        self.written = self.written.saturating_sub(brought);
        if had_fin {
            self.read += 1;
            if let Stage::Connected { fin_received, .. } = &mut self.stage {
                *fin_received = true;
            }
        }
    }
}

/// How far a leg's connection has come in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is connected, at least half.
    Connected { fin_sent: bool, fin_received: bool },
    /// It is over: both FINs have come and gone, or it has failed.
    Closed,
}

/// How a direction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) state: State,
    /// The bytes in its pipe.
    pub(crate) in_pipe: usize,
    /// Of these, those that have been delivered.
    pub(crate) sent_from_pipe: usize,
    /// Bytes that have been delivered, and that the source still has.
    pub(crate) sent_ahead: usize,
    /// The urgent byte that has been taken from the source.
    pub(crate) urgent: Option<u8>,
    /// Bytes delivered.
    pub(crate) bytes: u64,
}

/// Notes and figures that do not say what has become of each byte: the connection is to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unclear {
    /// A socket was closed while a byte of it was in hand, and may have had a FIN or not.
    #[error("its socket was closed in the very moment")]
    Closed,
    /// They contradict each other.
    #[error("its notes contradict the kernel: {lag} bytes too many are gone")]
    Contradiction { lag: i64 },
}

/// Both directions, or both legs; that from the client, and the client's, first.
pub(crate) type Both<T> = [T; 2];

/// Finds how a connection goes on. The first direction is that from the first leg to the second.
pub(crate) fn recover(
    noted: &Both<Noted>,
    failures: Both<Option<Failure>>,
    legs: &Both<Figures>,
) -> Result<(Both<Recovered>, Both<Fate>), Unclear> {
    let failure = |leg: usize| {
        let (from, towards) = (&noted[leg], &noted[1 - leg]);
        failures[leg].or_else(|| taken_error(from, towards, &legs[leg], &legs[1 - leg]))
    };
    let failures = [failure(0), failure(1)];
    let way = |from: usize| {
        let (source, sink) = (&legs[from], &legs[1 - from]);
        direction(&noted[from], source, sink, failures[1 - from].is_some())
    };
    // What is not known to have failed would be taken for whole until the reactor has looked at it: an
    // end of the other leg could come first, with a byte in hand that is lost anyway.
    let fate = |leg: usize| Fate {
        taken: failures[leg],
        waits: legs[leg].error_waits,
        ended: false,
    };
    Ok(([way(0)?, way(1)?], [fate(0), fate(1)]))
}

fn direction(
    noted: &Noted,
    source: &Figures,
    sink: &Figures,
    sink_failed: bool,
) -> Result<Recovered, Unclear> {
    let ended = |state, bytes| Recovered {
        state,
        in_pipe: noted.in_pipe.unwrap_or(0),
        sent_from_pipe: 0,
        sent_ahead: 0,
        urgent: None,
        bytes,
    };
    match noted.state {
        State::Done => return Ok(ended(State::Done, sink.written.saturating_sub(1))),
        State::SourceFailed | State::SinkFailed => return Ok(ended(noted.state, sink.written)),
        State::ShuttingDown => {
            let fin_sent = match sink.stage {
                Stage::Connected { fin_sent, .. } => fin_sent,
                // All that was read has been delivered; the last of it was the FIN.
                Stage::Closed => sink.written == source.read,
            };
            // Closed with it sent: to send it again would be an error.
            return Ok(match fin_sent {
                true => ended(State::Done, sink.written.saturating_sub(1)),
                false => ended(State::ShuttingDown, sink.written),
            });
        }
        State::Running => {}
    }
    let running = ended(State::Running, sink.written);
    let nothing_in_hand = noted.urgent.is_none() && !noted.copies;
    // What a leg that has failed was sent does not matter any more.
    if nothing_in_hand || sink_failed || sink.stage == Stage::Closed {
        return Ok(running);
    }
    let Stage::Connected { fin_received, .. } = source.stage else {
        return Err(Unclear::Closed);
    };
    let lag = lag(noted, source, sink) - i64::from(fin_received);
    let ahead = usize::try_from(-lag).unwrap_or(0);
    match (noted.urgent, noted.copies, lag) {
        (.., 0) => Ok(running),
        (Some(_), _, 1) => Ok(Recovered {
            urgent: noted.urgent,
            ..running
        }),
        (_, true, ..0) => match noted.in_pipe {
            Some(in_pipe @ 1..) if ahead <= in_pipe => Ok(Recovered {
                sent_from_pipe: ahead,
                ..running
            }),
            None | Some(0) => Ok(Recovered {
                sent_ahead: ahead,
                ..running
            }),
            Some(_) => Err(Unclear::Contradiction { lag }),
        },
        _ => Err(Unclear::Contradiction { lag }),
    }
}

/// Returns how many bytes more have been read than are in the pipe or written; a FIN that was
/// received is one of them.
fn lag(noted: &Noted, source: &Figures, sink: &Figures) -> i64 {
    let there = sink.written + noted.in_pipe.unwrap_or(0) as u64;
    i64::try_from(i128::from(source.read) - i128::from(there)).unwrap_or(i64::MAX)
}

/// Returns the error that a call has taken from a leg's socket and that nobody wrote down. `from` is
/// the direction from it, to the leg `other`.
fn taken_error(from: &Noted, towards: &Noted, leg: &Figures, other: &Figures) -> Option<Failure> {
    if leg.stage != Stage::Closed || leg.error_waits {
        return None;
    }
    let sent_fin = matches!(towards.state, State::ShuttingDown | State::Done);
    let had_fin = match from.state {
        State::ShuttingDown | State::Done => true,
        State::SourceFailed => false,
        // Nobody reads it any more: it may have had one. Without a FIN of ours it is not closed by that.
        State::SinkFailed if sent_fin => return None,
        State::SinkFailed => false,
        State::Running if other.stage == Stage::Closed => sent_fin,
        State::Running => lag(from, leg, other) == 1,
    };
    match (had_fin, sent_fin && leg.unacknowledged == 0) {
        (true, true) => None,
        // As the kernel has it: EPIPE after a FIN (tcp_reset, net/ipv4/tcp_input.c).
        (true, false) => Some(Failure(EPIPE)),
        (false, _) => Some(Failure(ECONNRESET)),
    }
}
