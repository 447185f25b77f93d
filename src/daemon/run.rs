//! The daemon's loop: waits for what is next, and hands it on.

use std::time::{Duration, Instant};

use pepd_admin::View as _;
use pepd_telemetry::SAMPLE_INTERVAL;

use crate::daemon::choosing::{Choosing, LOOK};
use crate::daemon::controls::Controls;
use crate::daemon::remembered::Legs;
use crate::daemon::requests::Asked;
use crate::daemon::{Daemon, ticks, windows};
use crate::exit::Result;

/// The interval at which the kernel state is verified, beyond the table that each renewal of the
/// gate needs.
const INSPECTION_INTERVAL: Duration = Duration::from_secs(10);

impl Daemon {
    /// Runs until a signal or a control request ends it, and removes all kernel state.
    pub async fn run(mut self) -> Result {
        let mut inspection = ticks::interval(INSPECTION_INTERVAL);
        let (mut look, mut second) = (ticks::interval(LOOK), ticks::interval(SAMPLE_INTERVAL));
        // The first renewal opens the gate, and only then is pepd ready.
        inspection.tick().await;
        let mut windows = ticks::interval(windows::FOLLOWED);
        self.keeper.renewal_due().await;
        // The one before was ending: the gate stays closed.
        self.hear_board();
        if !self.requests.to_end() {
            self.renew_gate().await;
            self.keeper.notifier.ready();
        }
        self.hear_board();
        loop {
            tokio::select! {
                // What is asked comes first: it may be that the daemon is to end.
                biased;
                asked = self.requests.next() => match asked {
                    Asked::Reload => self.reload().await,
                    Asked::End => break,
                },
                () = self.keeper.renewal_due() => {
                    self.renew_gate().await;
                    self.hear_board();
                }
                _ = inspection.tick() => {
                    self.verify_kernel_state().await;
                    self.follow_paths().await;
                }
                _ = windows.tick() => self.follow_windows().await,
                _ = look.tick() => {
                    self.choosing.look(Instant::now());
                    self.measuring.begin(&self.config, &self.plan);
                    if let Some(remembered) = &mut self.remembered {
                        remembered.keep(learned(&self.controls, &self.choosing));
                    }
                }
                _ = second.tick(), if self.ends_seconds && self.choosing.is_needed() => {
                    self.view.end_second();
                }
                () = self.installed.routes_changed() => self.follow_routes().await,
            }
        }
        if let Some(remembered) = &mut self.remembered {
            remembered
                .end(learned(&self.controls, &self.choosing))
                .await;
        }
        self.drain().await
    }

    /// Ends if the process before this one was to, or the keeper may not send signals.
    fn hear_board(&mut self) {
        if self.board.is_asked_to_end() {
            self.requests.end();
        }
    }
}

/// Gives what is known of the legs' paths, for a process that begins with nothing.
fn learned(controls: &Controls, choosing: &Choosing) -> Legs {
    let mut learned = controls.learned();
    for (leg, chosen) in choosing.learned() {
        learned.entry(leg).or_default().congestion = Some(chosen);
    }
    learned
}
