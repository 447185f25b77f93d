//! When the relay begins: after the kernel state is there, or before anything else where connections
//! of a process that has died are to go on.

use std::num::NonZeroUsize;
use std::sync::Arc;

use pepd_admin::wire::Takeover;
use pepd_relay::{
    Injector, ListenerAddress, LostConnection, Prepared, Relay, Remains, Settings, Slots,
};
use pepd_telemetry::Counters;

use crate::clock::unix_time;
use crate::daemon::links::gone_links;
use crate::daemon::prepare::{self, Notes};
use crate::exit::{Failure, Result};
use crate::keeper::Death;
use crate::keeper::board::Board;

/// What the relay is started with, but for its settings.
pub(super) struct Start {
    /// How many pipes it may have.
    pub pipes: usize,
    pub counters: Arc<Counters>,
    pub injector: Option<Arc<Injector>>,
    /// The congestion control that opens a leg's window when its link is back, if the kernel takes it.
    pub resume: Option<String>,
    pub slots: Arc<Slots>,
}

/// A relay that has begun, or is about to.
pub(super) enum Beginning {
    /// It goes on with the connections of a process that has died; where it listens, and what that
    /// has cost.
    Gone(Relay, Vec<ListenerAddress>, Option<Takeover>),
    /// It begins when the kernel state is there.
    Due(Box<Settings>, Start),
}

/// A relay whose listeners are open.
pub(super) enum Listening {
    Running(Relay),
    Ready(Box<Prepared>, Start),
}

impl Start {
    /// Goes on at once where a process has left something.
    pub(super) fn begin(
        self,
        remains: Option<Remains>,
        settings: Settings,
        workers: NonZeroUsize,
        board: &Board,
    ) -> Result<Beginning> {
        let Some(mut remains) = remains else {
            return Ok(Beginning::Due(Box::new(settings), self));
        };
        let (connections, clients) = (remains.connections(), remains.clients());
        let lost = remains.take_lost();
        remains.without_links(gone_links(board));
        let prepared = Prepared::taking_over(remains, settings, workers)?;
        let listeners = prepared.addresses().to_vec();
        let relay = self.start(prepared)?;
        let takeover = report(board, connections, clients, lost);
        Ok(Beginning::Gone(relay, listeners, takeover))
    }

    fn start(self, prepared: Prepared) -> Result<Relay> {
        let Self {
            pipes,
            counters,
            injector,
            resume,
            slots,
        } = self;
        Relay::start(prepared, pipes, counters, (injector, resume), slots)
            .map_err(|error| Failure::internal("start the workers", error))
    }
}

impl Beginning {
    /// Gives what it has cost to go on, where a process had died.
    pub(super) fn takeover(&self) -> Option<Takeover> {
        match self {
            Self::Gone(.., takeover) => takeover.clone(),
            Self::Due(..) => None,
        }
    }

    /// Opens the listeners, unless they are; gives where they are.
    pub(super) async fn listen(
        self,
        workers: NonZeroUsize,
    ) -> Result<(Listening, Vec<ListenerAddress>)> {
        match self {
            Self::Gone(relay, listeners, _) => Ok((Listening::Running(relay), listeners)),
            Self::Due(settings, start) => {
                prepare::probe(&settings, &mut Notes::default()).await?;
                let prepared = Prepared::new(*settings, workers)?;
                let listeners = prepared.addresses().to_vec();
                Ok((Listening::Ready(Box::new(prepared), start), listeners))
            }
        }
    }
}

impl Listening {
    /// Begins, unless it has.
    pub(super) fn run(self) -> Result<Relay> {
        match self {
            Self::Running(relay) => Ok(relay),
            Self::Ready(prepared, start) => start.start(*prepared),
        }
    }
}

/// Says what has become of the connections of a process that has died.
fn report(
    board: &Board,
    connections: usize,
    clients: usize,
    lost: Vec<LostConnection>,
) -> Option<Takeover> {
    let (death, died) = board.last_death()?;
    let pause = pepd_sys::clock::monotonic().saturating_sub(died);
    let resets = lost.len();
    if death == Death::Upgrade {
        tracing::info!(
            connections,
            clients,
            lost = resets,
            ?pause,
            "upgraded: this process has taken over"
        );
    } else {
        tracing::error!(
            connections,
            clients,
            lost = resets,
            ?pause,
            "the daemon's process has died, {death}; this one goes on"
        );
    }
    let takeover = Takeover {
        cause: death.name().to_owned(),
        why: death.to_string(),
        time: unix_time(),
        pause: pause.as_secs_f64(),
        connections: connections as u64,
        lost: lost.len() as u64,
    };
    for LostConnection {
        client,
        server,
        why,
    } in lost
    {
        tracing::error!(%client, %server, "a connection is reset: {why}");
    }
    Some(takeover)
}
