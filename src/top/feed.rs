//! The thread that asks the daemon, so that keys never wait for it.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hyper::StatusCode;
use pepd_admin::wire::{FlowHistory, FlowList, FlowQuery, FlowSnapshot, Status};

use crate::commands::client::{Client, Error};
use crate::commands::endpoint;

/// The interval at which the daemon is asked: as often as it samples its connections.
const PERIOD: Duration = Duration::from_secs(1);

/// The figures that the screen needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The list.
    pub query: FlowQuery,
    /// The one connection that is looked at.
    pub flow: Option<u64>,
}

/// The figures that the daemon has answered with.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The daemon as a whole.
    pub status: Status,
    /// The list.
    pub list: FlowList,
    /// The one connection that was asked for: its figures, unless it has ended.
    pub flow: Option<(u64, Option<(FlowSnapshot, FlowHistory)>)>,
}

/// The result of asking.
#[derive(Debug)]
pub enum Update {
    /// An answer.
    Figures(Box<Figures>),
    /// No answer, and why.
    Unreachable(String),
}

/// The thread that asks; it ends when this is dropped and it has nothing under way.
#[derive(Debug)]
pub struct Feed {
    requests: Sender<Request>,
    updates: Receiver<Update>,
}

impl Feed {
    /// Starts the thread.
    pub fn start(client: Client, request: Request) -> io::Result<Self> {
        let (requests, changed) = channel();
        let (sender, updates) = channel();
        std::thread::Builder::new()
            .name("feed".to_owned())
            .spawn(move || ask_until_dropped(&client, request, &changed, &sender))?;
        Ok(Self { requests, updates })
    }

    /// Asks for this from now on; if it is something new, at once.
    pub fn ask_for(&self, request: Request) {
        // The thread lives as long as this does.
        let _ = self.requests.send(request);
    }

    /// Gives the next update that has come meanwhile.
    pub fn next(&self) -> Option<Update> {
        self.updates.try_recv().ok()
    }
}

fn ask_until_dropped(
    client: &Client,
    mut request: Request,
    changed: &Receiver<Request>,
    updates: &Sender<Update>,
) {
    loop {
        let update = match figures(client, &request) {
            Ok(figures) => Update::Figures(Box::new(figures)),
            // Why it does not answer, but not what to do: whoever is watching it has started it
            // before.
            Err(Error::Unreachable { path, error }) => {
                Update::Unreachable(format!("no daemon answers at {}: {error}", path.display()))
            }
            Err(error) => Update::Unreachable(error.to_string()),
        };
        if updates.send(update).is_err() {
            return;
        }
        loop {
            match changed.recv_timeout(PERIOD) {
                Ok(change) if change == request => {}
                Ok(change) => {
                    request = change;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn figures(client: &Client, request: &Request) -> Result<Figures, Error> {
    let status = client.get(endpoint::STATUS)?;
    let list = client.get(&endpoint::flows(&request.query))?;
    let flow = match request.flow {
        None => None,
        Some(id) => Some((id, flow_with_history(client, id)?)),
    };
    Ok(Figures { status, list, flow })
}

fn flow_with_history(
    client: &Client,
    id: u64,
) -> Result<Option<(FlowSnapshot, FlowHistory)>, Error> {
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
