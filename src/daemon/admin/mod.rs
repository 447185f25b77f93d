//! The admin socket, a file that only some may open, the dashboard, and a thread that answers
//! there.

mod page;
mod socket;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use pepd_admin::View;
use pepd_admin::api::{self, CachedView, ControlRequest, ControlSender, CpuQuota, Limits};
use pepd_relay::runtime_thread;
use pepd_telemetry::SAMPLE_INTERVAL;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::exit::{Failure, Result};
pub use page::Page;
pub use socket::{Socket, socket_path, usual_socket};

/// The thread that answers on the admin socket and the page, which no worker waits for. Dropping
/// it ends the thread.
#[derive(Debug)]
pub struct Admin {
    requests: mpsc::Receiver<ControlRequest>,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Starts the thread; without a socket and a page there is none, since nobody asks.
    pub fn start(socket: Option<Socket>, page: Option<Page>, view: Arc<dyn View>) -> Result<Self> {
        let (sender, requests) = ControlSender::channel();
        let mut admin = Self {
            requests,
            stop: None,
            thread: None,
        };
        if socket.is_some() || page.is_some() {
            let (stop, stopped) = oneshot::channel();
            let answering = move || async move {
                lower_priority();
                tokio::select! {
                    Err(error) = answer(socket.as_ref(), page, view, sender) => {
                        tracing::error!(%error, "serve the admin socket and the page");
                    }
                    _ = stopped => {}
                }
            };
            let thread = runtime_thread::spawn("admin".to_owned(), answering)
                .map_err(|error| Failure::internal("start the admin thread", error))?;
            admin.stop = Some(stop);
            admin.thread = Some(thread);
        }
        Ok(admin)
    }

    /// Waits for the next control request.
    pub async fn next_request(&mut self) -> ControlRequest {
        match self.requests.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the admin thread has panicked");
        }
    }
}

/// The nice value by which this thread counts less for the scheduler than a worker (sched(7)): a
/// tenth. With less still, a worker might wait long for a lock that this thread holds.
const NICENESS: i32 = 10;

/// Has a worker that wakes up on this thread's core go first. Where it may not, the share of
/// the processor that the API takes is bounded all the same.
fn lower_priority() {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "lower the priority of the admin thread");
    }
}

async fn answer(
    socket: Option<&Socket>,
    page: Option<Page>,
    view: Arc<dyn View>,
    requests: ControlSender,
) -> io::Result<()> {
    let quota = Rc::new(RefCell::new(CpuQuota::new()));
    let cached = Arc::new(CachedView::new(view, CachedView::MAX_AGE));
    let on_socket = async {
        let Some(socket) = socket else {
            return Ok(());
        };
        let listener = UnixListener::from_std(socket.listener()?)?;
        let router = api::with_control(Arc::clone(&cached), requests);
        api::serve(listener, router, Limits::STANDARD, Rc::clone(&quota)).await;
        Ok(())
    };
    let on_page = async {
        let Some(Page { listener, names }) = page else {
            return Ok(());
        };
        let listener = TcpListener::from_std(listener)?;
        let router = pepd_admin::page::router(
            Arc::clone(&cached),
            api::read_only(Arc::clone(&cached)),
            names,
        );
        api::serve(listener, router, Limits::STANDARD, Rc::clone(&quota)).await;
        Ok(())
    };
    let seconds = async {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        // A second that was missed is not made up for: the next one is longer.
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            cached.end_second();
        }
    };
    tokio::select! {
        result = async { tokio::try_join!(on_socket, on_page) } => result.map(|_| ()),
        () = seconds => Ok(()),
    }
}
