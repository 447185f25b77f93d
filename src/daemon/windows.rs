//! What connections begin with, where `initial_window` is "auto": what the relay has learned is what routes
//! have, and what a status tells.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pepd_admin::wire::{NetworkWindow, WindowReason};
use pepd_model::first_window::{LEAST, Why};
use pepd_relay::Observer;
use pepd_telemetry::Throttle;

use crate::daemon::Daemon;

/// The interval at which routes follow what was learned. Each change has the kernel look up the routes of all
/// sockets anew, and pepd those of the host.
pub const FOLLOWED: Duration = Duration::from_secs(5);

impl Daemon {
    /// Has routes follow what was learned. What a place begins with in any case needs none.
    pub(super) async fn follow_windows(&mut self) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(60));
        let learned = self.keeper.relay.observer().windows().into_iter();
        let larger = learned.filter(|window| window.segments > LEAST);
        let windows: BTreeMap<_, _> = larger.map(|it| (it.network, it.segments)).collect();
        let set = self.installed.set_windows(windows);
        // Who ends or has taken too long tries again, or needs it no more.
        let set = self.requests.during(&mut self.keeper, set).await;
        if let Ok(Err(error)) = set
            && let Some(held_back) = THROTTLE.admit(Instant::now())
        {
            tracing::warn!(%error, held_back, "initial windows are not what was learned");
        }
    }
}

/// Gives what was learned, as a status tells it.
pub fn shown(observer: &Observer) -> Vec<NetworkWindow> {
    let windows = observer.windows().into_iter();
    let shown = windows.map(|window| NetworkWindow {
        leg: window.leg.to_string(),
        network: window.network.to_string(),
        segments: window.segments,
        why: match window.why {
            Why::Kernel => WindowReason::Kernel,
            Why::Rate => WindowReason::Rate,
            Why::Trial => WindowReason::Trial,
            Why::Loss => WindowReason::Loss,
        },
        under_way: window.carried,
        loss: window.loss,
        unused: window.unused.as_secs_f64(),
    });
    shown.collect()
}
