//! The running daemon, from its start to its end.
//!
//! In reading order: [`start`] brings everything up, or nothing; [`run`] waits for what is next (and
//! [`requests`] hears what is asked whatever else the daemon waits for),
//! and hands it to [`upkeep`] (the gate and the kernel state stay as they should be), to [`reload`]
//! (the file is read again) or, at last, to [`drain`] (new connections are routed, live ones may
//! finish, and all kernel state is removed). What a start and a reload do alike is in [`prepare`],
//! and the way from the configuration to the relay and the kernel state in [`wiring`].

pub mod admin;
mod asymmetric_pairs;
mod beginning;
mod choosing;
pub mod controls;
mod drain;
mod fitness;
mod flooded_destinations;
mod gate_keeper;
mod health;
mod holding;
mod installing;
mod latest;
mod links;
pub mod lock;
pub mod log;
mod measuring;
pub mod moving;
pub mod peers;
pub mod prepare;
pub mod privileges;
mod reload;
pub mod remembered;
mod requests;
pub mod resources;
mod run;
mod signals;
mod start;
mod status_view;
mod systemd;
mod ticks;
mod upkeep;
mod windows;
pub mod wiring;

use std::num::NonZeroUsize;
use std::sync::Arc;

use pepd_config::Config;
use pepd_net::{Installed, Plan};
use pepd_relay::{Injector, Remains, Slots};
use pepd_sys::descriptors::Left;
use pepd_telemetry::Counters;

use crate::cli::File;
use crate::daemon::admin::{Page, Socket};
use crate::daemon::choosing::Choosing;
use crate::daemon::controls::Controls;
use crate::daemon::gate_keeper::GateKeeper;
use crate::daemon::holding::Holding;
use crate::daemon::links::Links;
use crate::daemon::measuring::Measuring;
use crate::daemon::moving::Moving;
use crate::daemon::privileges::InForce;
use crate::daemon::remembered::Remembered;
use crate::daemon::requests::Requests;
use crate::daemon::resources::Descriptors;
use crate::daemon::status_view::StatusView;
use crate::keeper::board::Board;

/// A running daemon.
pub struct Daemon {
    /// The file that a reload reads again.
    file: File,
    /// The configuration in force.
    config: Config,
    controls: Controls,
    descriptors: Descriptors,
    workers: NonZeroUsize,
    /// The kernel state as it should be.
    plan: Plan,
    /// The kernel state as it was installed.
    installed: Installed,
    keeper: GateKeeper,
    counters: Arc<Counters>,
    view: Arc<StatusView>,
    requests: Requests,
    links: Links,
    holding: Holding,
    measuring: Measuring,
    moving: Moving,
    choosing: Choosing,
    remembered: Option<Remembered>,
    /// Whether it is this thread that ends the legs' seconds: nobody asks, and so nobody else does.
    ends_seconds: bool,
    board: Arc<Board>,
}

/// The objects that are made with the privileges that the daemon then gives up.
pub struct Privileged {
    /// The legs' controls of pepd's own.
    pub controls: Controls,
    /// What the services take over.
    pub made: Made,
    /// What the daemon may still do.
    pub in_force: InForce,
    /// What outlives it.
    pub survival: Survival,
}

/// What outlives the daemon, and what it has from the one before it.
pub struct Survival {
    /// The memory that it has together with its keeper.
    pub board: Arc<Board>,
    /// The notes on its connections, on the board.
    pub slots: Arc<Slots>,
    /// What the one before it has left; none where there was none.
    pub remains: Option<Remains>,
    /// What of that is only to be closed, and takes its time.
    pub to_close: Option<Left>,
    /// Whether another program goes on if this one does not come up.
    pub on_trial: bool,
}

/// The sockets that are made with privileges, and taken over by the services.
pub struct Made {
    /// The admin socket, if the file asks for one.
    pub socket: Option<Socket>,
    /// The listener of the dashboard and the metrics, if the file asks for one.
    pub page: Option<Page>,
    /// By which legs are restarted when their link is back, and ACKs made several; none where that is not
    /// permitted.
    pub injector: Option<Arc<Injector>>,
    /// What could not be made and is done without, in words.
    pub lacks: Vec<String>,
    /// The congestion control that opens their windows then, if the kernel takes it.
    pub resume: Option<String>,
    /// What was learned of the legs' paths before, and keeps it, if the file says where.
    pub remembered: Option<Remembered>,
    /// The keys that this box has with others, if the file names any.
    pub keys: Option<moving::Keys>,
}

impl Made {
    /// Logs what it is less good without.
    fn report(&self, config: &Config) {
        for lack in &self.lacks {
            tracing::warn!("{lack}");
        }
        if self.injector.is_none() {
            let late = "without CAP_NET_RAW, connections go on only some seconds after their link is back \
                        (AmbientCapabilities=CAP_NET_RAW in the unit)";
            if config.legs.iter().any(|leg| leg.link.is_some()) {
                tracing::warn!("{late}");
            } else {
                // `pepd link` may tell all the same.
                tracing::info!("{late}");
            }
        }
        if self.injector.is_none() && config.holds_acks() {
            tracing::warn!(
                "without CAP_NET_RAW, no ACK can be made several: senders wait less long for a link \
                 (AmbientCapabilities=CAP_NET_RAW in the unit)"
            );
        }
    }
}
