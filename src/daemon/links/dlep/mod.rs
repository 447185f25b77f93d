//! The modems that tell of links by DLEP (RFC 8175): a task for each finds its modem
//! ([`discovery`]), holds a session with it ([`session`]), and begins anew when that ends. What is
//! known of the link then is in [`known`].
//!
//! A modem is not trusted with more than the link: what it sends is bounded in size, in number and in
//! what it takes to look at it, and what it is not to say ends the session.

mod discovery;
mod known;
mod session;
mod socket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pepd_admin::wire::ModemState;
use pepd_config::{Config, Modem};
use pepd_dlep::session::{Link, Report};
use pepd_telemetry::Throttle;
use tokio::sync::{Notify, oneshot};

use self::known::{Known, Reach};

/// The time between the first two attempts to have a session; it is doubled with each, until one has lasted longer
/// than the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest such time.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The least time between two log lines of one kind about one modem.
const LINES: Duration = Duration::from_secs(10);
/// The characters that are logged of what a modem says of itself.
const NAME_SHOWN: usize = 64;

/// The sessions with all modems. They end when this is dropped.
#[derive(Debug, Default)]
pub struct Modems {
    tasks: Vec<Task>,
    changed: Arc<Notify>,
}

/// The session with one modem; dropping it tells the task to end it.
#[derive(Debug)]
struct Task {
    modem: Modem,
    known: Arc<Mutex<Known>>,
    _stop: oneshot::Sender<Infallible>,
}

/// Says that the session is to end, by being dropped.
type Stop = oneshot::Receiver<Infallible>;

impl Modems {
    /// Holds sessions with the modems of this configuration from now on. One that has not changed keeps
    /// its session. To be called within a runtime.
    pub fn follow(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.tasks);
        for modem in &config.modems {
            let same = before.iter().position(|task| task.modem == *modem);
            self.tasks.push(match same {
                Some(index) => before.swap_remove(index),
                None => {
                    let former = before.iter().find(|task| task.modem.name == modem.name);
                    let link = former.and_then(|former| lock(&former.known).link());
                    self.start(modem.clone(), Known::after(link, Instant::now()))
                }
            });
        }
    }

    fn start(&self, modem: Modem, known: Known) -> Task {
        let (stop, stopped) = oneshot::channel();
        let known = Arc::new(Mutex::new(known));
        let told = Told {
            modem: modem.clone(),
            known: Arc::clone(&known),
            changed: Arc::clone(&self.changed),
            last_failure: None,
            begun: Throttle::new(LINES),
            ended: Throttle::new(LINES),
        };
        tokio::spawn(hold(told, stopped));
        Task {
            modem,
            known,
            _stop: stop,
        }
    }

    /// Gives what each modem has said of its link, if it has.
    pub fn links(&self) -> Vec<(String, Option<Link>)> {
        let tasks = self.tasks.iter();
        tasks
            .map(|task| (task.modem.name.clone(), lock(&task.known).link()))
            .collect()
    }

    /// Gives what is to be shown of a modem.
    pub fn state(&self, name: &str) -> Option<ModemState> {
        let task = self.tasks.iter().find(|task| task.modem.name == name)?;
        Some(lock(&task.known).state())
    }

    /// Gives what waits until something else is known; there is one who waits.
    pub fn changes(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who is told what becomes of the sessions with one modem.
struct Told {
    modem: Modem,
    known: Arc<Mutex<Known>>,
    changed: Arc<Notify>,
    /// Why there was no session, as was logged last.
    last_failure: Option<String>,
    begun: Throttle,
    ended: Throttle,
}

impl Told {
    fn report(&mut self, report: Report, with: SocketAddr) {
        let name = self.modem.name.as_str();
        match report {
            Report::Begun { modem } => {
                lock(&self.known).begun(with);
                self.last_failure = None;
                if let Some(held_back) = self.begun.admit(Instant::now()) {
                    let says: String = modem.chars().take(NAME_SHOWN).collect();
                    tracing::info!(modem = name, %with, ?says, held_back, "a DLEP session has begun");
                }
            }
            Report::Link(link) => lock(&self.known).said(link),
            Report::TooMany => {
                let most = pepd_dlep::session::MOST;
                tracing::warn!(
                    modem = name,
                    most,
                    "the modem has more destinations than are looked at: name the one that counts \
                     with `destination` in its `[[dlep]]`"
                );
            }
            // It is said once it is known what it means.
            Report::Ended(_) => return,
        }
        self.changed.notify_one();
    }

    /// Notes that a session is over.
    fn lost(&mut self, why: &str, reach: Reach) {
        let name = self.modem.name.as_str();
        let link = lock(&self.known).lost(reach, Instant::now());
        self.changed.notify_one();
        if let Some(held_back) = self.ended.admit(Instant::now()) {
            tracing::warn!(
                modem = name,
                why,
                held_back,
                "the DLEP session is over: {link}"
            );
        }
    }

    /// Notes that there is no session.
    fn failed(&mut self, error: &io::Error) {
        let (name, why) = (self.modem.name.as_str(), error.to_string());
        let reach = Reach::of(error);
        if reach == Reach::Reached && lock(&self.known).answered(Instant::now()) {
            tracing::warn!(
                modem = name,
                why,
                "the modem is there after all, so its link counts as up, as it said last"
            );
            self.changed.notify_one();
        }
        if self.last_failure.as_ref() == Some(&why) {
            tracing::debug!(modem = name, why, "no DLEP session");
        } else {
            tracing::warn!(
                modem = name,
                why,
                "there is no DLEP session with the modem; it is tried again, silently"
            );
            self.last_failure = Some(why);
        }
    }

    /// Takes note of the time.
    fn tick(&self) {
        if lock(&self.known).tick(Instant::now()) {
            tracing::warn!(
                modem = self.modem.name,
                "the modem answers, and does not say whether the link is there: it counts as up"
            );
            self.changed.notify_one();
        }
    }
}

/// The time until the next attempt to have a session.
#[derive(Debug)]
struct Pause(Duration);

impl Pause {
    const fn new() -> Self {
        Self(FIRST_PAUSE)
    }

    /// Returns for how long to wait after an attempt of which came a session that lasted so long, if one did.
    fn after(&mut self, lasted: Option<Duration>) -> Duration {
        if lasted.is_some_and(|lasted| lasted > LONGEST_PAUSE) {
            self.0 = FIRST_PAUSE;
        }
        let pause = self.0;
        self.0 = (2 * pause).min(LONGEST_PAUSE);
        pause
    }
}

/// Has a session with the modem whenever there can be one, until that is not wanted any more.
async fn hold(mut told: Told, mut stop: Stop) {
    let mut pause = Pause::new();
    loop {
        let mut lasted = None;
        let modem = told.modem.clone();
        let found = tokio::select! {
            _ = &mut stop => return,
            found = find(&modem) => found,
        };
        match found {
            Ok((stream, with)) => {
                let over = session::hold(stream, with, &mut told, &mut stop).await;
                if over.is_stopped {
                    return;
                }
                told.lost(&over.why, over.reach);
                lasted = over.lasted;
            }
            Err(error) => told.failed(&error),
        }
        told.tick();
        tokio::select! {
            _ = &mut stop => return,
            () = tokio::time::sleep(pause.after(lasted)) => {}
        }
    }
}

/// Finds the modem, and connects to it.
async fn find(modem: &Modem) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
    let with = match modem.address {
        Some(address) => SocketAddr::new(address, modem.port),
        None => discovery::find(modem).await?,
    };
    let stream = socket::connect(modem, with).await;
    let told =
        |error: io::Error| io::Error::new(error.kind(), format!("connect to {with}: {error}"));
    Ok((stream.map_err(told)?, with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_attempts_begins_anew_after_a_session_that_worked() {
        let mut pause = Pause::new();
        let mut after = |seconds: Option<u64>| {
            let lasted = seconds.map(Duration::from_secs);
            pause.after(lasted).as_secs_f32()
        };
        let tried: Vec<f32> = (0..7).map(|_| after(None)).collect();
        assert_eq!(tried, [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]);
        assert_eq!(
            [after(Some(3)), after(Some(17)), after(None)],
            [10.0, 0.5, 1.0]
        );
    }
}
