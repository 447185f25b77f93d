//! The end: new connections are routed, live ones may finish, and all kernel state is removed.

use std::time::{Duration, Instant};

use pepd_net::Installed;
use tokio::time::{sleep, timeout};

use crate::daemon::gate_keeper::GateKeeper;
use crate::daemon::moving::Evacuation;
use crate::daemon::{Daemon, ticks};
use crate::exit::{Failure, Result};
use crate::time_limit;

/// The interval at which systemd hears that the daemon is still draining.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The interval at which the number of live connections is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time for which the drain waits at least for handshakes that were under way when the gate
/// closed.
const LAST_HANDSHAKES: Duration = Duration::from_millis(500);

/// For how long nothing has come that is sent on to the box that connections have moved to, when it is taken to
/// come to that box by itself.
const QUIET: Duration = Duration::from_secs(10);

/// The time after which it is at an end all the same.
const QUIET_LIMIT: Duration = Duration::from_hours(1);

/// The interval at which that is looked at, and the time that a look may take.
const QUIET_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// The time that the workers may take to reset what is left and to end.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// The time that removing the kernel state may take, each of its parts being bounded, too.
pub(super) const REMOVAL_LIMIT: Duration = Duration::from_secs(80);

impl Daemon {
    /// Routes new connections, lets live ones finish within `[node] drain`, or move to another box where that was
    /// asked for, and removes all kernel state. A further signal ends the wait for the connections, but not the
    /// removal, which is bounded.
    pub(super) async fn drain(mut self) -> Result {
        let drain = self.config.node.drain;
        self.keeper
            .notifier
            .stopping(drain + STOP_LIMIT + REMOVAL_LIMIT);
        self.keeper.close();
        self.view.set_draining();
        self.moving.take_no_more();
        let live = self.keeper.relay.admission().live();
        // The process before this one may have had a part of it.
        let left = drain.saturating_sub(self.board.asked_to_end_for());
        tracing::info!(live, ?left, "ending: new connections are routed");
        let deadline = Instant::now() + left;
        let handshakes = Instant::now() + LAST_HANDSHAKES.min(left);
        let mut evacuation = None;
        loop {
            let is_over = self
                .await_none_left(deadline, handshakes, &mut evacuation)
                .await;
            if is_over || !self.is_sending_on(deadline, evacuation.as_ref()).await {
                break;
            }
        }
        // What it tells the kernel has no place there any more.
        drop(self.measuring);
        self.keeper
            .notifier
            .during("draining", self.moving.give_up())
            .await;
        let cut = self.keeper.relay.admission().live();
        let GateKeeper {
            relay, notifier, ..
        } = self.keeper;
        let end = async {
            let stopped = time_limit::run_async(STOP_LIMIT, move || relay.stop()).await;
            (stopped, remove(self.installed).await)
        };
        let (stopped, removed) = notifier.during("ending", end).await;
        let moves = self.moving.figures().get().neighbors;
        let moved_away: u64 = moves.iter().map(|of| of.given).sum();
        let came: u64 = moves.iter().map(|of| of.taken).sum();
        tracing::info!(cut, moved_away, came, "ended: {}", self.counters);
        stopped.map_err(|why| Failure::internal("end the workers", why))?;
        removed
    }

    /// Waits until no connection is left, or the time is over, or it is asked again: tells whether one of these is so.
    async fn await_none_left(
        &mut self,
        deadline: Instant,
        handshakes: Instant,
        evacuation: &mut Option<Evacuation>,
    ) -> bool {
        let mut status = ticks::interval(STATUS_INTERVAL);
        let mut poll = ticks::interval(POLL_INTERVAL);
        loop {
            let now = Instant::now();
            // It may be asked for at any time.
            if evacuation.is_none() {
                *evacuation = self.evacuation();
            }
            if let Some(evacuation) = evacuation {
                evacuation.go_on(now);
            }
            // Those that are being given are not here for the moment, and may all stay.
            let live = self.keeper.relay.admission().live();
            let none_left = live == 0
                && self.moving.figures().under_way() == 0
                && !evacuation.as_ref().is_some_and(Evacuation::is_under_way);
            if now >= deadline || (none_left && now >= handshakes) {
                return now >= deadline;
            }
            tokio::select! {
                _ = status.tick() => self.keeper.go_on_ending(),
                _ = poll.tick() => {}
                () = self.requests.next_while_draining() => return true,
            }
        }
    }

    /// Gives what has connections move to another box, if that was asked for.
    fn evacuation(&self) -> Option<Evacuation> {
        let teller = self.moving.teller()?;
        let to = teller.name(self.board.evacuation()?)?.to_owned();
        tracing::info!("connections move to {to}");
        Some(Evacuation::new(teller, &to, Instant::now()))
    }

    /// Waits until nothing comes here any more for connections that have moved: it is sent on only while this
    /// process is there. Tells whether connections are here again instead.
    async fn is_sending_on(&mut self, deadline: Instant, evacuation: Option<&Evacuation>) -> bool {
        // A process before this one may have given all that there was.
        let to = evacuation.map(|it| it.to().to_owned());
        let Some(to) = to.or_else(|| self.moving.figures().has_given_to()) else {
            return false;
        };
        let mut deadline = deadline;
        if evacuation.is_some() {
            // None is here that would have to wait for so long.
            deadline = deadline.max(Instant::now() + QUIET_LIMIT);
            self.keeper
                .notifier
                .stopping(QUIET_LIMIT + STOP_LIMIT + REMOVAL_LIMIT);
        }
        tracing::info!(
            "all connections have moved to {to}: what still comes here for them is sent on"
        );
        let (mut sent_on, mut since) = (None, Instant::now());
        while since.elapsed() < QUIET && Instant::now() < deadline {
            let look = timeout(LOOK_LIMIT, self.installed.verify());
            let look = async {
                let counts = self.keeper.notifier.during("draining", look).await;
                sleep(QUIET_INTERVAL).await;
                counts
            };
            let counts = tokio::select! {
                counts = look => counts,
                () = self.requests.next_while_draining() => return false,
            };
            if self.keeper.relay.admission().live() > 0 {
                return true;
            }
            self.keeper.go_on_ending();
            // What was changed by others sends nothing on.
            let Ok(Ok(counts)) = counts else { continue };
            if sent_on != Some(counts.sent_on) {
                (sent_on, since) = (Some(counts.sent_on), Instant::now());
            }
            self.view.set_kernel_counts(counts);
        }
        if since.elapsed() < QUIET {
            tracing::warn!(
                "packets still come here that were sent on to {to}: their connections stand still now"
            );
        }
        false
    }
}

/// Removes the kernel state, whatever hangs: nobody is there any more to hear of a second attempt.
pub(super) async fn remove(installed: Installed) -> Result {
    match timeout(REMOVAL_LIMIT, installed.remove()).await {
        Ok(removed) => Ok(removed?),
        Err(_) => Err(Failure::temporary(format!(
            "the kernel state could not be removed within {} s; `pepd down` tries again",
            REMOVAL_LIMIT.as_secs()
        ))),
    }
}
