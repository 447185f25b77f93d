//! The moment from which a measurement counts: the links' outages begin to run, and whoever is to
//! know of them is told.

use std::path::Path as FilePath;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::paper::Leg;
use crate::path::{Path, Proxy};

/// A measurement that has begun.
#[derive(Debug)]
pub struct Begun(Option<Telling>);

/// The thread that tells, and what ends it when dropped.
#[derive(Debug)]
struct Telling {
    thread: JoinHandle<Result<()>>,
    over: Sender<()>,
}

impl Begun {
    /// Starts the links of `path` anew, and tells `proxy`, where it is to know, of the outages of
    /// `legs`.
    ///
    /// # Errors
    /// When a link has ended.
    pub fn now(path: &Path, proxy: &Proxy, legs: &[Leg; 2]) -> Result<Self> {
        path.restart()?;
        let epoch = Instant::now();
        let telling = proxy.is_told().map(|socket| {
            let news = news(legs, proxy.expects());
            let (over, ended) = channel();
            let thread = thread::spawn(move || {
                for (time, request) in news {
                    let left = (epoch + time).saturating_duration_since(Instant::now());
                    if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                    tell(&socket, &request)?;
                }
                Ok(())
            });
            Telling { thread, over }
        });
        Ok(Self(telling))
    }

    /// Ends it.
    ///
    /// # Errors
    /// When the proxy did not hear of an outage: the numbers are then about something else.
    pub fn end(self) -> Result<()> {
        let Some(Telling { thread, over }) = self.0 else {
            return Ok(());
        };
        drop(over);
        thread.join().ok().context("the thread that tells")?
    }
}

/// The time between the word that a link goes, and when it does.
const BEFOREHAND: Duration = Duration::from_secs(1);

/// Gives what is to be said, in order, and after what time. Where an outage is said beforehand, it
/// `expects` to be so many times as long as it is.
fn news(legs: &[Leg; 2], expects: Option<f64>) -> Vec<(Duration, String)> {
    let of = |(leg, name): (&Leg, &'static str)| {
        let all = leg.outages.iter().map(move |outage| {
            let end = outage.start + outage.length;
            let beforehand = expects.map(|times| {
                let length = (BEFOREHAND + outage.length.mul_f64(times)).as_secs_f64();
                let time = outage.start.saturating_sub(BEFOREHAND);
                (time, format!("going-down?leg={name}&for={length}"))
            });
            let then = [
                (outage.start, format!("gone?leg={name}")),
                (end, format!("up?leg={name}")),
            ];
            beforehand.into_iter().chain(then)
        });
        all.flatten().collect::<Vec<_>>()
    };
    let mut news: Vec<_> = legs.iter().zip(["near", "far"]).flat_map(of).collect();
    news.sort_unstable();
    news
}

fn tell(socket: &FilePath, request: &str) -> Result<()> {
    pepd_testbed::ask(socket, &format!("POST /v1/link/{request}"))
        .map(drop)
        .with_context(|| format!("tell of a link: {request}"))
}
