//! The thread that asks the daemon, so that keys never wait for it.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hyper::StatusCode;
use pepd_admin::wire::{FlowHistory, FlowList, FlowQuery, FlowSnapshot, Status};

use crate::commands::client::{Client, Error};
use crate::commands::endpoint;

/// As often as the daemon looks at its connections.
const PERIOD: Duration = Duration::from_secs(1);

/// What the screen needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The list.
    pub query: FlowQuery,
    /// The one connection that is looked at.
    pub flow: Option<u64>,
}

/// What the daemon has answered.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The daemon as a whole.
    pub status: Status,
    /// The list.
    pub list: FlowList,
    /// The one connection that was asked for: its figures, unless it has ended.
    pub flow: Option<(u64, Option<(FlowSnapshot, FlowHistory)>)>,
}

/// What has come of asking.
#[derive(Debug)]
pub enum Update {
    /// An answer.
    Figures(Box<Figures>),
    /// None, and why.
    Away(String),
}

/// The thread; it ends when this is dropped and it has nothing under way.
#[derive(Debug)]
pub struct Feed {
    wants: Sender<Wanted>,
    updates: Receiver<Update>,
}

impl Feed {
    /// Starts to ask.
    pub fn start(client: Client, wanted: Wanted) -> io::Result<Self> {
        let (wants, changes) = channel();
        let (sender, updates) = channel();
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || ask(&client, wanted, &changes, &sender))?;
        Ok(Self { wants, updates })
    }

    /// Asks for this from now on, and if it is something else, at once.
    pub fn want(&self, wanted: Wanted) {
        // The thread is there as long as this is.
        let _ = self.wants.send(wanted);
    }

    /// What has come meanwhile.
    pub fn next(&self) -> Option<Update> {
        self.updates.try_recv().ok()
    }
}

fn ask(client: &Client, mut wanted: Wanted, changes: &Receiver<Wanted>, updates: &Sender<Update>) {
    loop {
        let update = match figures(client, &wanted) {
            Ok(figures) => Update::Figures(Box::new(figures)),
            // Why it is away, but not what to do: whoever looks has started it once.
            Err(Error::Away { path, error }) => {
                Update::Away(format!("no daemon answers at {}: {error}", path.display()))
            }
            Err(error) => Update::Away(error.to_string()),
        };
        if updates.send(update).is_err() {
            return;
        }
        loop {
            match changes.recv_timeout(PERIOD) {
                Ok(change) if change == wanted => {}
                Ok(change) => {
                    wanted = change;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn figures(client: &Client, wanted: &Wanted) -> Result<Figures, Error> {
    let status = client.get(endpoint::STATUS)?;
    let list = client.get(&endpoint::flows(&wanted.query))?;
    let flow = match wanted.flow {
        None => None,
        Some(id) => Some((id, one(client, id)?)),
    };
    Ok(Figures { status, list, flow })
}

fn one(client: &Client, id: u64) -> Result<Option<(FlowSnapshot, FlowHistory)>, Error> {
    let both = || {
        let flow = client.get(&endpoint::flow(id))?;
        let history = client.get(&endpoint::history(id))?;
        Ok((flow, history))
    };
    match both() {
        Ok(both) => Ok(Some(both)),
        Err(Error::Refused {
            status: StatusCode::NOT_FOUND,
            ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}
