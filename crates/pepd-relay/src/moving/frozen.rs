//! A connection that has been taken out of its sockets.

use std::os::fd::{AsFd as _, BorrowedFd};

use pepd_packet::FourTuple;
use pepd_packet::snapshot::{Snapshot, SplitSnapshot, WaySnapshot, WayState};
use pepd_sys::clock;
use pepd_sys::repair::{self, TakeError};
use pepd_sys::tcp_info::tcp_info;
use pepd_telemetry::HandshakeMode;

use crate::connection::forward::Connection;
use crate::connection::leg::{Fate, LegIo as _};
use crate::connection::recovery::Recovered;
use crate::connection::state::State;
use crate::limits::Permit;
use crate::moving::asked::GoOn;
use crate::pipe_pool::Loan;
use crate::slots::found::FoundConnection;
use crate::slots::slot::Identity;

/// Why a connection was not frozen. It goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum Stays {
    /// There is none, or it is ending.
    #[error("it has ended, or is about to")]
    Ended,
    /// Its worker has too much to do.
    #[error("it was not brought to rest in time")]
    Busy,
    /// A leg has failed, and what came before is still to be delivered.
    #[error("one of its legs has failed")]
    Failed,
    /// Urgent data is on its way through.
    #[error("urgent data is on its way through it")]
    Urgent,
    /// Bytes have been copied and not been taken away: the kernel lacks memory.
    #[error("a step of it could not be finished: the kernel lacks memory")]
    Unfinished,
    /// A leg sends again what was lost.
    #[error("one of its legs is mending a loss")]
    Mending,
    /// The kernel does not give it.
    #[error("{leg} leg: {source}")]
    Kernel {
        /// Which leg: client or upstream.
        leg: &'static str,
        /// Why.
        source: TakeError,
    },
    /// What is between the legs could not be read.
    #[error("what is between its legs: {0}")]
    Pipe(#[source] std::io::Error),
}

/// A connection that has been taken out of its sockets. Dropped, it is thawed.
#[derive(Debug)]
pub struct Frozen {
    connection: Option<FoundConnection>,
    snapshot: SplitSnapshot,
    go_on: GoOn,
}

impl Frozen {
    /// Returns what another box needs to go on with it.
    pub fn snapshot(&self) -> &SplitSnapshot {
        &self.snapshot
    }

    /// Has it be counted among those that are here, as long as it may go on here.
    pub(crate) fn keep(&mut self, permit: Option<Permit>) {
        if let Some(connection) = &mut self.connection {
            connection.permit = permit;
        }
    }

    /// Has it go on here.
    pub fn thaw(self) {}

    /// Notes, where that outlives the process, that another box may serve it from now on: if this process dies,
    /// it is closed without a word.
    pub fn give(&self) {
        if let Some(connection) = &self.connection {
            connection.slot.note_given(true);
        }
    }

    /// Closes it without a word: another box serves it.
    ///
    /// # Errors
    /// Where the kernel does not close a socket silently: its peer may have been sent a RST.
    pub fn close(mut self) -> std::io::Result<()> {
        let Some(connection) = self.connection.take() else {
            return Ok(());
        };
        // First what is noted of it: whoever goes on with this process would find no sockets.
        drop(connection.slot);
        let [client, upstream] = connection.legs.map(repair::close_silently);
        Ok(client.and(upstream)?)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        connection.slot.note_given(false);
        for leg in &connection.legs {
            give_back(leg.as_fd());
        }
        self.go_on.go_on(connection);
    }
}

/// Takes a connection out of its sockets between two of its steps; or gives it back, and why.
pub(crate) fn freeze(
    connection: Connection,
    identity: Identity,
    go_on: GoOn,
) -> Result<Frozen, (Box<Connection>, Stays)> {
    let mut legs = match look(&connection) {
        Ok(legs) => legs,
        Err(why) => return Err((Box::new(connection), why)),
    };
    let in_pipes = match in_pipes(&connection) {
        Ok(in_pipes) => in_pipes,
        Err(why) => {
            for leg in [connection.client.as_fd(), connection.upstream.as_fd()] {
                give_back(leg);
            }
            return Err((Box::new(connection), why));
        }
    };
    // Its socket does not know that of one that has come from another box already.
    legs[0].receiving.ended |= connection.client.has_ended();
    legs[1].receiving.ended |= connection.upstream.has_ended();
    let Connection {
        memo,
        client,
        upstream,
        up,
        down,
    } = connection;
    let [in_up, in_down] = in_pipes;
    let (up, down) = (up.into_parts(), down.into_parts());
    let snapshot = SplitSnapshot {
        flow: FourTuple {
            client: identity.client,
            server: identity.server,
        },
        age: clock::monotonic().saturating_sub(identity.accepted),
        early: identity.handshake == HandshakeMode::Early,
        legs,
        ways: [way(&up.0, in_up), way(&down.0, in_down)],
    };
    let [up, down] = [up, down].map(|(recovered, loan)| (recovered, loan.map(Loan::into_pipe)));
    let fates = snapshot.legs.each_ref().map(Fate::moved);
    Ok(Frozen {
        connection: Some(FoundConnection {
            identity,
            slot: memo,
            legs: [client.into_fd(), upstream.into_fd()],
            fates,
            ways: [up, down],
            waiting: 0,
            after_an_outage: false,
            came: None,
            permit: None,
        }),
        snapshot,
        go_on,
    })
}

fn give_back(leg: BorrowedFd<'_>) {
    if let Err(error) = repair::give_back(leg) {
        tracing::warn!(%error, "a connection that was to move stays silent");
    }
}

/// Takes both legs, if the connection is at a point at which that can be done.
fn look(connection: &Connection) -> Result<[Snapshot; 2], Stays> {
    let (client, upstream) = (&connection.client, &connection.upstream);
    if client.has_failed() || upstream.has_failed() {
        return Err(Stays::Failed);
    }
    if client.urgent_announced() || upstream.urgent_announced() {
        return Err(Stays::Urgent);
    }
    connection.up.is_at_rest()?;
    connection.down.is_at_rest()?;
    for leg in [client.as_fd(), upstream.as_fd()] {
        let info = tcp_info(leg).map_err(|_| Stays::Ended)?;
        if info.is_mending() {
            return Err(Stays::Mending);
        }
    }
    let failed = |leg| move |source| Stays::Kernel { leg, source };
    let of_client = repair::take(client.as_fd()).map_err(failed("client"))?;
    match repair::take(upstream.as_fd()) {
        Ok(of_upstream) => Ok([of_client, of_upstream]),
        Err(source) => {
            give_back(client.as_fd());
            Err(failed("upstream")(source))
        }
    }
}

/// Copies what both pipes hold, that of the direction from the client first, and leaves it there.
fn in_pipes(connection: &Connection) -> Result<[Vec<u8>; 2], Stays> {
    let copy = |way: std::io::Result<Vec<u8>>| way.map_err(Stays::Pipe);
    Ok([
        copy(connection.up.copy_of_pipe())?,
        copy(connection.down.copy_of_pipe())?,
    ])
}

fn way(recovered: &Recovered, in_pipe: Vec<u8>) -> WaySnapshot {
    WaySnapshot {
        state: match recovered.state {
            State::Running => WayState::Running,
            State::ShuttingDown => WayState::ShuttingDown,
            State::Done | State::SourceFailed | State::SinkFailed => WayState::Done,
        },
        delivered: recovered.bytes,
        in_pipe,
    }
}
