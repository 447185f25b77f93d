//! Serving HTTP to clients that nobody trusts, beside a relay that must not notice.
//!
//! A request is a connection. What each can take is bounded: its head in size and time, its body
//! (there is none), the time it takes to read the answer; and so is what all take together:
//! connections, and by the [`CpuQuota`] the processor. When all connections are taken, those that
//! have been slow go first, so that a thousand clients who say nothing do not keep out the one who
//! does. After each client and each answer, a relay that waits for this thread's core has its turn.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::cpu_quota::CpuQuota;
use crate::wire::Problem;
use pepd_telemetry::Throttle;

/// Limits on what clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; one descriptor each, and two for the listener and for a client that
    /// waits.
    pub connections: usize,
    /// The time from the connection to the end of the request's head, and from the beginning of the
    /// answer to its end.
    pub patience: Duration,
    /// The same when all connections are taken and others wait.
    pub patience_when_full: Duration,
}

impl Limits {
    /// The limits for operators and their programs.
    pub const STANDARD: Self = Self {
        connections: 32,
        patience: Duration::from_secs(10),
        patience_when_full: Duration::from_millis(50),
    };
}

/// The largest head of a request, bytes.
const HEAD: usize = 16 * 1024;

/// The pause in accepting when there is no descriptor left.
const PAUSE: Duration = Duration::from_secs(1);

/// A listening socket.
pub trait Listen {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next one.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>>;
}

impl Listen for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Listen for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<Self::Stream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves `router` until it is dropped, on a thread whose `quota` may bound other servers too.
pub async fn serve(
    listener: impl Listen,
    router: Router,
    limits: Limits,
    quota: Rc<RefCell<CpuQuota>>,
) {
    let mut clients = Clients::new(limits);
    loop {
        let wait = quota.borrow_mut().wait();
        if !wait.is_zero() {
            sleep(wait).await;
        }
        match listener.next().await {
            Ok(stream) => {
                give_way();
                let permit = clients.room().await;
                clients.add(stream, router.clone(), permit);
            }
            // The client has gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                report(&error);
                sleep(PAUSE).await;
            }
        }
    }
}

/// The connections there are.
struct Clients {
    limits: Limits,
    room: Arc<Semaphore>,
    open: Vec<Client>,
}

struct Client {
    since: Instant,
    /// The time at which it will have taken too long; none while it waits for us.
    deadline: watch::Receiver<Option<Instant>>,
    task: AbortHandle,
}

impl Clients {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            room: Arc::new(Semaphore::new(limits.connections)),
            open: Vec::new(),
        }
    }

    /// Waits for room for one more, and makes some.
    async fn room(&mut self) -> OwnedSemaphorePermit {
        loop {
            let room = Arc::clone(&self.room).acquire_owned();
            // The semaphore is never closed.
            if let Ok(Ok(permit)) = timeout(self.limits.patience_when_full, room).await {
                return permit;
            }
            let now = Instant::now();
            for client in &self.open {
                let slow = now - client.since >= self.limits.patience_when_full;
                if slow && client.deadline.borrow().is_some() {
                    client.task.abort();
                }
            }
        }
    }

    fn add(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        router: Router,
        permit: OwnedSemaphorePermit,
    ) {
        self.open.retain(|client| !client.task.is_finished());
        let since = Instant::now();
        let (clock, deadline) = watch::channel(Some(since + self.limits.patience));
        let patience = self.limits.patience;
        let task = tokio::spawn(async move {
            let _permit = permit;
            connection(stream, router, clock, patience).await;
        });
        self.open.push(Client {
            since,
            deadline,
            task: task.abort_handle(),
        });
    }
}

/// Everything dropped here is closed: there is nobody to tell about a client that fails.
impl Drop for Clients {
    fn drop(&mut self) {
        for client in &self.open {
            client.task.abort();
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    clock: watch::Sender<Option<Instant>>,
    patience: Duration,
) {
    let mut deadline = clock.subscribe();
    let clock = &clock;
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let router = router.clone();
        clock.send_replace(None);
        async move {
            let response = respond(router, request).await;
            give_way();
            clock.send_replace(Some(Instant::now() + patience));
            Ok::<_, Infallible>(response)
        }
    });
    let serving = http1::Builder::new()
        .keep_alive(false)
        // A client that has written its request may close its side and wait.
        .half_close(true)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);
    loop {
        let until = *deadline.borrow_and_update();
        let late = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        // In this order: a client whose request is here and has waited for us is not late.
        tokio::select! {
            biased;
            // A client's mistake; hyper has answered it where it could.
            _ = &mut serving => return,
            Ok(()) = deadline.changed() => {}
            () = late => return,
        }
    }
}

/// Lets a worker that waits for this core go first. The scheduler alone would not always do so: it
/// lets whoever runs finish a slice of milliseconds, whatever its niceness (RUN_TO_PARITY,
/// kernel/sched/features.h). Where no worker waits, nothing is lost.
fn give_way() {
    std::thread::yield_now();
}

async fn respond(router: Router, request: hyper::Request<Incoming>) -> Response {
    if !request.body().is_end_stream() {
        let what = "the request has a body";
        let cure = "what is asked is in the address; send none";
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, what, cure).into_response();
    }
    let request: Request = request.map(Body::new);
    match routed(router, request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

async fn routed(router: Router, request: Request) -> Result<Response, Infallible> {
    use hyper::service::Service as _;
    hyper_util::service::TowerToHyperService::new(router)
        .call(request)
        .await
        .map_err(|error| match error {})
}

/// Logs an error of a client's, which can make it happen as often as it likes.
fn report(error: &io::Error) {
    static THROTTLE: Throttle = Throttle::new(Duration::from_secs(10));
    if let Some(held_back) = THROTTLE.admit(std::time::Instant::now()) {
        tracing::warn!(%error, held_back, "accept a client of the admin API; pausing");
    }
}
