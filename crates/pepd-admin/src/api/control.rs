//! Control: what the daemon can be told to do.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot};

use super::cache::CachedView;
use super::response::{ApiResult, Json, NoQuery, PathParam, StrictQuery};
use crate::wire::{Done, DrainQuery, LinkQuery, LinkReport, MoveQuery, MoveReport, Problem};

/// A request to the daemon, with where its answer goes.
#[derive(Debug)]
pub enum ControlRequest {
    /// Read the configuration again; the answer is what to know beside, or the text of a refusal.
    Reload(oneshot::Sender<Result<Vec<String>, String>>),
    /// Take note of what somebody knows of a link; where no leg has that name, the answer is which
    /// there are.
    Link(LinkOrder, oneshot::Sender<Result<(), Vec<String>>>),
    /// Move connections to another box; the answer is what has become of each, or why nothing has moved.
    Move(MoveOrder, oneshot::Sender<Result<MoveReport, NotMoved>>),
    /// Route new connections, let those that there are finish, or have them move to the box of this name, and
    /// end; the answer is why it cannot be that box.
    Drain(Option<String>, oneshot::Sender<Result<(), String>>),
}

/// What somebody knows of the link under a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkOrder {
    /// The leg's name.
    pub leg: String,
    /// What is said of its link.
    pub report: LinkReport,
    /// The time after which it will be there again, if that is known.
    pub time: Option<Duration>,
}

/// Which connections are to move to which box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// The other box's name.
    pub to: String,
    /// The campus, or the two with a colon between them, that they are in; any where none is said.
    pub campus: Option<String>,
    /// The addresses that their clients have; any where none is said.
    pub source: Option<IpNet>,
    /// Their ids; any where none is said.
    pub flows: Vec<u64>,
    /// Whether nothing is to move.
    pub dry_run: bool,
}

/// Why nothing has moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMoved {
    /// Another order is being carried out: one that waited for it might be carried out when whoever gave it has
    /// thought better of it.
    #[error("another move is under way")]
    UnderWay,
    /// Another reason.
    #[error("{0}")]
    Because(String),
}

/// The end at which requests are sent to the daemon.
#[derive(Clone, Debug)]
pub struct ControlSender(mpsc::Sender<ControlRequest>);

/// The number of requests that may wait; any more are refused.
const WAITING: usize = 8;

impl ControlSender {
    /// Makes both ends: where requests are sent, and where they arrive.
    pub fn channel() -> (Self, mpsc::Receiver<ControlRequest>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    async fn send<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> ControlRequest,
    ) -> Result<T, Problem> {
        let (sender, answer) = oneshot::channel();
        self.0
            .try_send(request(sender))
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
        "the daemon is draining, and ends when its last connection does",
        "the next start reads the file as it is then",
    )
}

pub(super) async fn reload(
    State((control, view)): State<(ControlSender, Arc<CachedView>)>,
    _: StrictQuery<NoQuery>,
) -> ApiResult<Done> {
    match order(&control, &view, ControlRequest::Reload).await? {
        Ok(notes) => Ok(Json(Done {
            done: "reloaded".to_owned(),
            notes,
        })),
        Err(why) => Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            why,
            "nothing has changed; reload again when that is mended",
        )),
    }
}

pub(super) async fn drain(
    State((control, view)): State<(ControlSender, Arc<CachedView>)>,
    StrictQuery(DrainQuery { to }): StrictQuery<DrainQuery>,
) -> ApiResult<Done> {
    let order_of = |answer| ControlRequest::Drain(to, answer);
    if let Err(why) = order(&control, &view, order_of).await? {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            why,
            "the daemon goes on; docs/move.md says what both boxes need",
        ));
    }
    Ok(Json(Done {
        done: "draining".to_owned(),
        // What the end waits for.
        notes: view.readiness().new.why.into_iter().collect(),
    }))
}

pub(super) async fn link(
    State((control, view)): State<(ControlSender, Arc<CachedView>)>,
    PathParam(state): PathParam<String>,
    StrictQuery(LinkQuery { leg, seconds }): StrictQuery<LinkQuery>,
) -> ApiResult<Done> {
    let Some(report) = LinkReport::named(&state) else {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            format!("no link is {state}"),
            format!(
                "a link is one of: {}",
                LinkReport::ALL.map(LinkReport::name).join(", ")
            ),
        ));
    };
    let time = match seconds.map(Duration::try_from_secs_f64) {
        None => None,
        Some(Ok(time)) if report == LinkReport::GoingDown && LinkReport::OUTAGE.contains(&time) => {
            Some(time)
        }
        Some(_) => return Err(no_such_time()),
    };
    let wanted = leg.clone();
    let order_of = |answer| ControlRequest::Link(LinkOrder { leg, report, time }, answer);
    match order(&control, &view, order_of).await? {
        Ok(()) => Ok(done(report.name())),
        Err(legs) => Err(Problem::new(
            StatusCode::NOT_FOUND,
            format!("no leg is named {wanted}"),
            format!("the legs are: {}", legs.join(", ")),
        )),
    }
}

pub(super) async fn move_away(
    State((control, view)): State<(ControlSender, Arc<CachedView>)>,
    StrictQuery(query): StrictQuery<MoveQuery>,
) -> ApiResult<MoveReport> {
    let ids = query.flows.as_deref().unwrap_or_default();
    let ids: Result<Vec<u64>, _> = ids
        .split(',')
        .filter(|id| !id.is_empty())
        .map(str::parse)
        .collect();
    let Ok(flows) = ids else {
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "`flows` has something that is no id",
            "write the ids that /v1/flows gives, with commas between them",
        ));
    };
    let order_of = |answer| {
        let MoveQuery {
            to,
            campus,
            source,
            dry_run,
            ..
        } = query;
        let order = MoveOrder {
            to,
            campus,
            source,
            flows,
            dry_run,
        };
        ControlRequest::Move(order, answer)
    };
    match order(&control, &view, order_of).await? {
        Ok(report) => Ok(Json(report)),
        Err(why @ NotMoved::UnderWay) => Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            why.to_string(),
            "ask again when it is over",
        )),
        Err(NotMoved::Because(why)) => Err(Problem::new(
            StatusCode::CONFLICT,
            why,
            "nothing has moved; docs/move.md says what both boxes need",
        )),
    }
}

fn no_such_time() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "that is no time for which a link may be gone",
        "only `going-down` has one, from a millisecond up to a day (`--for 10s`; in the API seconds, without a \
         unit: for=10)",
    )
}

/// Has an order carried out; what it has done is in the next answer.
async fn order<T>(
    control: &ControlSender,
    view: &CachedView,
    request: impl FnOnce(oneshot::Sender<T>) -> ControlRequest,
) -> Result<T, Problem> {
    let answer = control.send(request).await?;
    view.forget();
    Ok(answer)
}

fn done(what: &str) -> Json<Done> {
    Json(Done {
        done: what.to_owned(),
        notes: Vec::new(),
    })
}
