//! What splitting is worth (`[measure] unsplit`): a thread reads the headers of the connections that are
//! watched, and [`pepd_worth`] compares those that are split with those that are not. Where it depends on that
//! which connections are split (`split = "auto"`), it tells the kernel.

mod chooser;
mod thread;

use std::io;
use std::time::{Duration, Instant};

use pepd_admin::wire::Worth;
use pepd_config::Config;
use pepd_net::{Choices, Plan};
use pepd_sys::nflog::Log;
use pepd_telemetry::Throttle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use self::thread::Thread;
use crate::daemon::latest::Latest;
use crate::daemon::wiring::MEASURE_GROUP;
use crate::exit::{Failure, Result};

/// The thread that watches, while the configuration asks for it.
#[derive(Debug, Default)]
pub struct Measuring {
    running: Option<(Thread, UnboundedSender<Order>)>,
    figures: WorthFigures,
}

/// What splitting is worth, for whoever asks; none where nothing is measured.
pub type WorthFigures = Latest<Option<Worth>>;

/// What the thread is told.
#[derive(Debug)]
enum Order {
    Follow(Box<Config>, Box<Plan>),
    End,
}

/// What the thread takes over.
#[derive(Debug)]
pub struct Opened {
    log: Log,
    choices: Choices,
}

impl Measuring {
    /// Opens what another configuration needs, without touching what runs.
    ///
    /// # Errors
    ///
    /// If the group is another program's, or the kernel has none.
    pub fn prepare(&self, config: &Config) -> Result<Option<Opened>> {
        let runs = self
            .running
            .as_ref()
            .is_some_and(|(thread, _)| thread.runs());
        if config.measured().is_none() || runs {
            return Ok(None);
        }
        let log = Log::open(MEASURE_GROUP).map_err(|error| refused(&error))?;
        let choices = Choices::open()?;
        Ok(Some(Opened { log, choices }))
    }

    /// Measures as the configuration asks, if that can be had: what it takes may be another program's for the moment, as
    /// after the end of a process before this one, and no connection is to wait for that.
    pub fn begin(&mut self, config: &Config, plan: &Plan) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(600));
        match self.prepare(config) {
            Ok(None) => {}
            Ok(opened) => self.follow(config, plan, opened),
            Err(error) => {
                if let Some(held_back) = THROTTLE.admit(Instant::now()) {
                    tracing::warn!(%error, held_back,
                        "it is not measured what splitting is worth, and nothing is routed for that; it is tried again");
                }
            }
        }
    }

    /// Measures as another configuration asks, with what was opened for it, by the plan that is installed.
    pub fn follow(&mut self, config: &Config, plan: &Plan, opened: Option<Opened>) {
        if config.measured().is_none() {
            self.end();
            return;
        }
        let Some(opened) = opened else {
            if let Some((_, orders)) = &self.running {
                let (config, plan) = (config.clone(), plan.clone());
                _ = orders.send(Order::Follow(Box::new(config), Box::new(plan)));
            }
            return;
        };
        let (orders, inbox) = unbounded_channel();
        match Thread::start(opened, config, plan, inbox, self.figures.clone()) {
            Ok(thread) => self.running = Some((thread, orders)),
            // The next reload tries again.
            Err(error) => tracing::error!(%error, "it is not measured what splitting is worth"),
        }
    }

    /// Gives a handle on what was found.
    pub fn figures(&self) -> WorthFigures {
        self.figures.clone()
    }

    fn end(&mut self) {
        if let Some((thread, orders)) = self.running.take() {
            _ = orders.send(Order::End);
            thread.join();
        }
        self.figures.set(None);
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        self.end();
    }
}

fn refused(error: &io::Error) -> Failure {
    let cure = match error.raw_os_error() {
        // nfulnl_recv_config, net/netfilter/nfnetlink_log.c.
        Some(libc::EBUSY | libc::EPERM) => "another program reads it: end that",
        _ => {
            "load the module nfnetlink_log, or take out `unsplit` of [measure] and \"auto\" of [capture] and rules"
        }
    };
    Failure::temporary(format!("NFLOG group {MEASURE_GROUP}: {error}; {cure}"))
}
