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
            let news = news(legs);
            let (over, ended) = channel();
            let thread = thread::spawn(move || {
                for (time, leg, state) in news {
                    let left = (epoch + time).saturating_duration_since(Instant::now());
                    if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                        break;
                    }
                    tell(&socket, leg, state)?;
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

/// Gives what is to be said, in order: after what time, of which leg, and what.
fn news(legs: &[Leg; 2]) -> Vec<(Duration, &'static str, &'static str)> {
    let of = |(leg, name): (&Leg, &'static str)| {
        let both = leg.outages.iter().map(move |outage| {
            let end = outage.start + outage.length;
            [(outage.start, name, "gone"), (end, name, "up")]
        });
        both.flatten().collect::<Vec<_>>()
    };
    let mut news: Vec<_> = legs.iter().zip(["near", "far"]).flat_map(of).collect();
    news.sort_unstable();
    news
}

fn tell(socket: &FilePath, leg: &str, state: &str) -> Result<()> {
    let request = format!("POST /v1/link/{state}?leg={leg}");
    pepd_testbed::ask(socket, &request)
        .map(drop)
        .with_context(|| format!("tell that {leg} is {state}"))
}
