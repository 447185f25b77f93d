//! What the daemon can be told to do.

use axum::extract::State;
use axum::http::StatusCode;
use tokio::sync::{mpsc, oneshot};

use super::answer::{Answer, Asked, Json, Problem};
use super::{Done, Nothing};

/// What the daemon is told to do, and where the answer goes.
#[derive(Debug)]
pub enum Order {
    /// Read the configuration again; the answer is the text of a refusal.
    Reload(oneshot::Sender<Result<(), String>>),
    /// Route new connections, let those that there are finish, and end.
    Drain(oneshot::Sender<()>),
}

/// Where orders are given.
#[derive(Clone, Debug)]
pub struct Orders(mpsc::Sender<Order>);

/// Orders that may wait. One who gives more of them is refused.
const WAITING: usize = 8;

impl Orders {
    /// Where orders are given, and where they arrive.
    pub fn channel() -> (Self, mpsc::Receiver<Order>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    async fn give<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, Problem> {
        let (sender, answer) = oneshot::channel();
        self.0
            .try_send(order(sender))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "other orders are still being carried out",
                    "try again in a few seconds",
                ),
                mpsc::error::TrySendError::Closed(_) => ending(),
            })?;
        answer.await.map_err(|_| ending())
    }
}

fn ending() -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "the daemon is ending",
        "start it again",
    )
}

pub(super) async fn reload(State(orders): State<Orders>, _: Asked<Nothing>) -> Answer<Done> {
    match orders.give(Order::Reload).await? {
        Ok(()) => Ok(done("reloaded")),
        Err(why) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            why,
            "nothing has changed; mend the file and reload again",
        )),
    }
}

pub(super) async fn drain(State(orders): State<Orders>, _: Asked<Nothing>) -> Answer<Done> {
    orders.give(Order::Drain).await?;
    Ok(done("draining"))
}

fn done(what: &str) -> Json<Done> {
    Json(Done {
        done: what.to_owned(),
    })
}
