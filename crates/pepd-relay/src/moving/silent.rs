//! A connection of another box, in sockets that are silent.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use pepd_packet::snapshot::{Snapshot, SplitSnapshot, WaySnapshot, WayState};
use pepd_sys::clock;
use pepd_sys::repair::{self, RestoreError, Restored};
use pepd_telemetry::{Arrival, HandshakeMode, Side};
use socket2::Domain;

use super::asked::GoOn;
use crate::connection::leg::Fate;
use crate::connection::memo::Memo as _;
use crate::connection::recovery::Recovered;
use crate::connection::state::{State, Way};
use crate::shared::Shared;
use crate::slots::found::FoundConnection;
use crate::slots::slot::{Came, Identity, Slot};
use crate::sockopts::{self, SocketError};

/// Why a connection of another box is not restored here, of which there is no trace then.
#[derive(Debug, thiserror::Error)]
pub enum NotRestored {
    /// The relay has ended.
    #[error("this box has ended")]
    NoWorker,
    /// One of its ends is in no campus.
    #[error("{0} is in no campus of this box")]
    NoCampus(SocketAddr),
    /// There is no descriptor for it.
    #[error("socket: {0}")]
    Socket(#[source] std::io::Error),
    /// An option that its leg has.
    #[error("{leg} leg: {source}")]
    Option {
        /// Which leg: client or upstream.
        leg: &'static str,
        /// Why.
        source: SocketError,
    },
    /// The kernel does not take it.
    #[error("{leg} leg: {source}")]
    Kernel {
        /// Which leg: client or upstream.
        leg: &'static str,
        /// Why.
        source: RestoreError,
    },
}

impl NotRestored {
    /// Returns the errno of the call that failed, if one did.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NoWorker | Self::NoCampus(_) => None,
            Self::Socket(source) => source.raw_os_error(),
            Self::Option { source, .. } => source.errno(),
            Self::Kernel { source, .. } => source.errno(),
        }
    }
}

/// A connection of another box that is there and says nothing. Dropped, it closes without a word.
#[derive(Debug)]
pub struct Silent {
    shared: Arc<Shared>,
    identity: Identity,
    legs: [Restored; 2],
    fates: [Fate; 2],
    ways: [Recovered; 2],
    came: Came,
    go_on: GoOn,
}

/// Puts a connection of another box into silent sockets.
pub(crate) fn restore(
    shared: &Arc<Shared>,
    id: u64,
    (snapshot, with, place): (&SplitSnapshot, [u64; 2], u16),
    go_on: GoOn,
) -> Result<Silent, NotRestored> {
    let SplitSnapshot {
        flow,
        age,
        early,
        legs: [client, upstream],
        ways: [up, down],
    } = snapshot;
    let legs = [
        leg(shared, Side::Client, client, &down.in_pipe)?,
        leg(shared, Side::Upstream, upstream, &up.in_pipe)?,
    ];
    Ok(Silent {
        shared: Arc::clone(shared),
        identity: Identity {
            id,
            client: flow.client,
            server: flow.server,
            handshake: match early {
                true => HandshakeMode::Early,
                false => HandshakeMode::EndToEnd,
            },
            accepted: clock::monotonic().saturating_sub(*age),
        },
        legs,
        fates: [Fate::moved(client), Fate::moved(upstream)],
        ways: [way(up), way(down)],
        came: Came {
            brought: [brought(client, down), brought(upstream, up)],
            had_fin: [client.receiving.ended, upstream.receiving.ended],
            with,
            place,
        },
        go_on,
    })
}

/// Returns how many bytes a leg is given to send.
fn brought(leg: &Snapshot, towards: &WaySnapshot) -> u64 {
    (leg.sending.sent.len() + leg.sending.unsent.len() + towards.in_pipe.len()) as u64
}

/// Restores a leg. What was in the pipe towards it comes after what its socket had: here it is the socket's.
fn leg(
    shared: &Shared,
    side: Side,
    snapshot: &Snapshot,
    in_pipe: &[u8],
) -> Result<Restored, NotRestored> {
    let settings = shared.settings.load();
    let leg = settings.leg_towards(snapshot.peer.ip());
    let leg = leg.ok_or(NotRestored::NoCampus(snapshot.peer))?;
    let mark = match side {
        Side::Client => leg.client_mark,
        Side::Upstream => leg.upstream_mark,
    };
    let name = side.name();
    let domain = Domain::for_address(snapshot.local);
    let socket = sockopts::new_socket(domain).map_err(NotRestored::Socket)?;
    sockopts::set_transparent(&socket, domain)
        .and_then(|()| sockopts::apply(&socket, domain, leg, mark))
        .map_err(|source| NotRestored::Option { leg: name, source })?;
    let mut snapshot = snapshot.clone();
    snapshot.sending.unsent.extend_from_slice(in_pipe);
    repair::restore(socket, &snapshot).map_err(|source| NotRestored::Kernel { leg: name, source })
}

fn speak(side: Side, restored: Restored) -> Result<OwnedFd, NotRestored> {
    let leg = side.name();
    let failed = |source| NotRestored::Kernel { leg, source };
    restored.activate().map_err(failed)
}

fn way(way: &WaySnapshot) -> Recovered {
    Recovered {
        state: match way.state {
            WayState::Running => State::Running,
            WayState::ShuttingDown => State::ShuttingDown,
            WayState::Done => State::Done,
        },
        in_pipe: 0,
        sent_from_pipe: 0,
        sent_ahead: 0,
        urgent: None,
        bytes: way.delivered + way.in_pipe.len() as u64,
    }
}

impl Silent {
    /// Returns the id that the connection has among this box's.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.identity.id
    }

    /// Has it go on here; what is shown of it says how it has come.
    ///
    /// # Errors
    /// Where the kernel refuses a call: the connection is lost.
    pub fn activate(self, arrival: Arrival) -> Result<(), NotRestored> {
        let Self {
            shared,
            identity,
            legs: [client, upstream],
            fates,
            ways: [up, down],
            came,
            go_on,
        } = self;
        let legs = [
            speak(Side::Client, client)?,
            speak(Side::Upstream, upstream)?,
        ];
        let ends = [legs[0].as_fd(), legs[1].as_fd()];
        let slot = Slot::begin(&shared.slots, &identity, ends, Some(&came));
        slot.note_state(Way::Up, up.state);
        slot.note_state(Way::Down, down.state);
        let permit = shared.admission.admit(identity.client.ip());
        go_on.go_on(FoundConnection {
            identity,
            slot,
            legs,
            fates,
            ways: [(up, None), (down, None)],
            waiting: 0,
            after_an_outage: false,
            came: Some(arrival),
            permit: Some(permit),
        });
        Ok(())
    }
}
