//! What the daemon is asked to do, by signals and by the admin API.
//!
//! It is heard at any time. What the daemon waits for, the kernel, a program, a file, it waits for
//! by [`Requests::during`]: the gate is renewed meanwhile, a request to reload is remembered, and
//! one to end closes the gate at once and gives what is under way a last few seconds.

use std::sync::Arc;
use std::time::Duration;

use pepd_admin::api::{ControlRequest, NotMoved};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::daemon::admin::Admin;
use crate::daemon::gate_keeper::{GateKeeper, report_error};
use crate::daemon::links::LinkTeller;
use crate::daemon::moving::MoveTeller;
use crate::daemon::signals::{Signalled, Signals};
use crate::daemon::status_view::StatusView;

/// The time that is left for what is under way once the daemon is to end. What does not hang is
/// done by then, and need not be undone.
const LAST_TIME: Duration = Duration::from_secs(5);

/// Why nothing can move.
const NO_NEIGHBOR: &str = "the configuration has no [[neighbor]]";

/// The requests that have been made, and where more come from.
#[derive(Debug)]
pub struct Requests {
    signals: Signals,
    /// None until the daemon answers questions.
    admin: Option<(Admin, Arc<StatusView>)>,
    /// Hears what others know of links; none before there are any.
    links: Option<LinkTeller>,
    /// Moves connections to other boxes; none where there is none.
    moves: Option<MoveTeller>,
    reload: bool,
    /// Those who wait to hear what becomes of the next reload.
    waiting: Vec<Answer>,
    /// When the daemon was first asked to end.
    end: Option<Instant>,
    /// Whether it was asked again: then nothing is waited for.
    is_urgent: bool,
}

/// Where somebody hears what has become of a reload: what to know beside, or why it was refused.
pub type Answer = oneshot::Sender<Result<Vec<String>, String>>;

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The configuration is to be read again.
    Reload,
    /// The daemon is to drain and end; while it drains, to end at once.
    End,
}

/// The time that anything may take for which the daemon waits: several programs, each with its own
/// limit, and what the kernel is asked besides.
const MOST_TIME: Duration = Duration::from_secs(120);

/// The reason why what the daemon waited for has been given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GivenUp {
    /// The daemon is to end.
    #[error("the daemon is ending")]
    Ending,
    /// It took too long.
    #[error("the kernel's state could not be looked at or changed within {} s", MOST_TIME.as_secs())]
    TimedOut,
}

impl Requests {
    /// Starts with signals alone.
    pub fn new(signals: Signals) -> Self {
        Self {
            signals,
            admin: None,
            links: None,
            moves: None,
            reload: false,
            waiting: Vec::new(),
            end: None,
            is_urgent: false,
        }
    }

    /// Hears what comes by the admin API from now on; `view` is what that shows.
    pub fn hear_admin(&mut self, admin: Admin, view: Arc<StatusView>) {
        self.admin = Some((admin, view));
    }

    /// Has what others know of links told from now on.
    pub fn tell_links(&mut self, links: LinkTeller) {
        self.links = Some(links);
    }

    /// Has connections moved from now on.
    pub fn move_connections(&mut self, moves: Option<MoveTeller>) {
        self.moves = moves;
    }

    /// Has the daemon end, as the one before it was asked to.
    pub fn end(&mut self) {
        if !self.to_end() {
            self.note_end();
        }
    }

    /// Tells whether the daemon is to end.
    pub fn to_end(&self) -> bool {
        self.end.is_some()
    }

    /// Waits for the next thing to do.
    pub async fn next(&mut self) -> Asked {
        loop {
            if self.to_end() {
                return Asked::End;
            }
            if self.reload {
                return Asked::Reload;
            }
            self.hear().await;
        }
    }

    /// Gives those who wait for the reload that begins now. Whoever asks from now on wants another
    /// one: the file may have changed again.
    pub fn begin_reload(&mut self) -> Vec<Answer> {
        self.reload = false;
        std::mem::take(&mut self.waiting)
    }

    /// Waits for a request to end that comes on top of the first one; there is no reload any more.
    pub async fn next_while_draining(&mut self) {
        loop {
            // Whoever asked for a reload hears that the daemon is ending.
            self.waiting.clear();
            if self.is_urgent {
                return;
            }
            self.hear().await;
        }
    }

    /// Hears what is asked for so long, or until nothing is to be waited for any more.
    pub async fn hear_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while !self.is_urgent && tokio::time::timeout_at(end, self.hear()).await.is_ok() {}
    }

    /// Tells whether the daemon has been asked again to end.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// Waits for `work`, and renews the gate and hears requests meanwhile.
    ///
    /// # Errors
    ///
    /// If the daemon is to end, or `work` does not come to its end: it is given up.
    pub async fn during<T>(
        &mut self,
        keeper: &mut GateKeeper,
        work: impl Future<Output = T>,
    ) -> Result<T, GivenUp> {
        self.wait(Some(keeper), work).await
    }

    /// As [`Requests::during`], while there is no gate yet.
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Result<T, GivenUp> {
        self.wait(None, work).await
    }

    /// Waits for `work`, whatever is asked meanwhile: it is heard afterwards.
    ///
    /// # Errors
    ///
    /// If `work` does not come to its end: it is given up.
    pub async fn in_time<T>(work: impl Future<Output = T>) -> Result<T, GivenUp> {
        tokio::time::timeout(MOST_TIME, work)
            .await
            .map_err(|_| GivenUp::TimedOut)
    }

    async fn wait<T>(
        &mut self,
        mut keeper: Option<&mut GateKeeper>,
        work: impl Future<Output = T>,
    ) -> Result<T, GivenUp> {
        let mut work = std::pin::pin!(work);
        let begun = Instant::now();
        loop {
            if self.is_urgent {
                return Err(GivenUp::Ending);
            }
            let (deadline, why) = match self.end {
                Some(asked) => (asked.max(begun) + LAST_TIME, GivenUp::Ending),
                None => (begun + MOST_TIME, GivenUp::TimedOut),
            };
            tokio::select! {
                done = &mut work => return Ok(done),
                () = renewal_due(keeper.as_deref_mut()) => if let Some(keeper) = &mut keeper {
                    self.renew(keeper);
                },
                () = self.hear() => if let Some(keeper) = &mut keeper && self.to_end() {
                    keeper.close();
                },
                () = sleep_until(deadline) => return Err(why),
            }
        }
    }

    fn renew(&self, keeper: &mut GateKeeper) {
        if self.to_end() {
            keeper.go_on_ending();
        } else if let Err(error) = keeper.renew() {
            report_error(&error);
        }
    }

    /// Waits for one request, and remembers it.
    async fn hear(&mut self) {
        let admin = async {
            match &mut self.admin {
                Some((admin, _)) => admin.next_request().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            signalled = self.signals.next() => match signalled {
                Signalled::Reload => self.reload = true,
                Signalled::End => self.note_end(),
            },
            request = admin => match request {
                ControlRequest::Reload(answer) => {
                    self.reload = true;
                    self.waiting.push(answer);
                }
                ControlRequest::Link(order, answer) => {
                    if let Some(links) = &self.links {
                        links.tell(order, answer);
                    }
                }
                // Without neighbors nobody is told, and the answer says why.
                ControlRequest::Move(order, answer) => match &self.moves {
                    Some(moves) => moves.tell(order, answer),
                    None => _ = answer.send(Err(NotMoved::Because(NO_NEIGHBOR.to_owned()))),
                },
                ControlRequest::Drain(to, answer) => {
                    // Whoever made the request may have gone since.
                    _ = answer.send(self.drain(to.as_deref()));
                }
            },
        }
    }

    /// Has the daemon end, and connections move to the box of this name before.
    fn drain(&mut self, to: Option<&str>) -> Result<(), String> {
        if let Some(to) = to {
            let moves = self.moves.as_ref().ok_or(NO_NEIGHBOR)?;
            let place = moves.place_of(to)?;
            if let Some((_, view)) = &self.admin {
                view.set_evacuation(place);
            }
        }
        // Made twice it is no more urgent than once.
        if !self.to_end() {
            self.note_end();
        }
        Ok(())
    }

    fn note_end(&mut self) {
        self.is_urgent = self.to_end();
        self.end = self.end.or_else(|| Some(Instant::now()));
        if let Some((_, view)) = &self.admin {
            view.set_draining();
        }
    }
}

async fn renewal_due(keeper: Option<&mut GateKeeper>) {
    match keeper {
        Some(keeper) => keeper.renewal_due().await,
        None => std::future::pending().await,
    }
}
