//! Viewers of a video that is downloaded as fast as it goes, and whether they are satisfied.

use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::bulk::sleep_until;
use super::web::Connection;
use crate::paper::Watching;
use crate::path::Path;

/// The time step of a player.
const STEP: Duration = Duration::from_millis(100);
/// The time by which each viewer begins later than the one before.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// Farkas et al., section 4.1: buffering shorter than this,
const BUFFERING: Duration = Duration::from_secs(8);
/// no more interruptions than this,
const INTERRUPTIONS: u32 = 3;
/// and no longer than this altogether.
const INTERRUPTED: Duration = Duration::from_secs(2);

/// What one viewer saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Viewing {
    /// The time from the click until it played; of what never did, until it was given up.
    pub buffering: Duration,
    /// The number of times that it stopped to buffer again.
    pub interruptions: u32,
    /// The time that it stood still after it had begun, altogether.
    pub interrupted: Duration,
    /// Whether it was seen to the end before it was given up.
    pub complete: bool,
}

impl Viewing {
    /// Tells whether the viewer is satisfied, by the rule of Farkas et al., section 4.1.
    #[must_use]
    pub fn satisfied(&self) -> bool {
        self.complete
            && self.buffering < BUFFERING
            && self.interruptions <= INTERRUPTIONS
            && self.interrupted <= INTERRUPTED
    }
}

/// The bytes of a video that there were in each [`STEP`] after the click.
type Arrived = Vec<u64>;

/// Lets all viewers watch from the receiving host, and returns what each saw.
///
/// # Errors
/// When a download fails otherwise than by taking too long.
pub fn watch(path: &Path, video: Watching, window: Duration) -> Result<Vec<Viewing>> {
    let begin = Instant::now();
    let end = begin + window;
    path.receiver.run(|| {
        let handles = Mutex::new(Vec::<TcpStream>::new());
        thread::scope(|scope| {
            let viewers: Vec<_> = (0..video.viewers)
                .map(|index| {
                    let handles = &handles;
                    let at = begin + START_INTERVAL * u32::try_from(index).unwrap_or(u32::MAX);
                    scope.spawn(move || -> Result<(Arrived, Duration)> {
                        sleep_until(at);
                        let arrived = download(video, at, end, handles)?;
                        Ok((arrived, end.duration_since(at)))
                    })
                })
                .collect();
            // A video that is done by then has been seen to the end.
            while Instant::now() < end && viewers.iter().any(|viewer| !viewer.is_finished()) {
                sleep_until(end.min(Instant::now() + STEP));
            }
            for handle in handles
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
            {
                let _ = handle.shutdown(Shutdown::Both);
            }
            let seen = viewers.into_iter().map(|viewer| {
                let (arrived, given) =
                    viewer.join().map_err(|_| anyhow!("a viewer panicked"))??;
                Ok(play(&arrived, video, given))
            });
            seen.collect()
        })
    })
}

fn download(
    video: Watching,
    click: Instant,
    end: Instant,
    handles: &Mutex<Vec<TcpStream>>,
) -> Result<Arrived> {
    let mut arrived = Arrived::new();
    let mut connection = Connection::open()?;
    handles
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(connection.handle()?);
    if Instant::now() >= end {
        return Ok(arrived);
    }
    let got = connection.get(video.bytes(), &mut |bytes| {
        let step = usize::try_from(click.elapsed().as_nanos() / STEP.as_nanos());
        let step = step.unwrap_or(usize::MAX);
        let before = arrived.last().copied().unwrap_or_default();
        if arrived.len() <= step {
            arrived.resize(step + 1, before);
        }
        arrived[step] = bytes;
    });
    match got {
        // Cut off because its time was up: the viewer gave up.
        Err(_) if Instant::now() >= end => Ok(arrived),
        Err(error) => Err(error),
        Ok(()) => Ok(arrived),
    }
}

/// Plays what `arrived`, for as long as a viewer is `given`.
fn play(arrived: &[u64], video: Watching, given: Duration) -> Viewing {
    let played = |bytes: u64| {
        let nanos = u128::from(bytes) * 8_000_000_000;
        let nanos = nanos / u128::from(video.rate.as_bits_per_second());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(video.length)
    };
    let mut seen = Viewing {
        buffering: Duration::ZERO,
        interruptions: 0,
        interrupted: Duration::ZERO,
        complete: false,
    };
    let mut at = Duration::ZERO;
    let mut state = State::Buffering;
    let last = arrived.last().copied().unwrap_or_default();
    let steps = usize::try_from(given.as_nanos() / STEP.as_nanos()).unwrap_or(usize::MAX);
    let bytes = arrived.iter().copied().chain(std::iter::repeat(last));
    for there in bytes.map(played).take(steps) {
        let ready = |ahead: Duration| there >= at + ahead || there == video.length;
        state = match state {
            State::Buffering if ready(video.ahead) => State::Playing,
            State::Interrupted if ready(video.again) => State::Playing,
            State::Playing if !ready(STEP) => {
                seen.interruptions += 1;
                State::Interrupted
            }
            other => other,
        };
        match state {
            State::Buffering => seen.buffering += STEP,
            State::Interrupted => seen.interrupted += STEP,
            State::Playing => at += STEP,
        }
        if at >= video.length {
            seen.complete = true;
            break;
        }
    }
    seen
}

/// The state of a player.
#[derive(Clone, Copy)]
enum State {
    Buffering,
    Playing,
    Interrupted,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a video of 8 bit/s: a byte a second.
    fn video() -> Watching {
        Watching {
            viewers: 1,
            rate: "8bit".parse().unwrap(),
            length: Duration::from_secs(20),
            ahead: Duration::from_secs(4),
            again: Duration::from_secs(1),
        }
    }

    /// Returns what has arrived by each step of `seconds`, given by a function of the second.
    fn arrivals(seconds: u64, by: impl Fn(u64) -> u64) -> Arrived {
        (0..seconds * 10).map(|step| by(step / 10)).collect()
    }

    fn given() -> Duration {
        Duration::from_secs(60)
    }

    #[test]
    fn what_comes_fast_plays_at_once_and_through() {
        let seen = play(&arrivals(1, |_| 20), video(), given());
        assert_eq!(seen.buffering, Duration::ZERO);
        assert_eq!(seen.interruptions, 0);
        assert!(seen.satisfied());
    }

    #[test]
    fn eight_seconds_of_buffering_are_too_long() {
        let after = |wait: u64| move |second: u64| if second < wait { 0 } else { 20 };
        assert!(play(&arrivals(30, after(7)), video(), given()).satisfied());
        let seen = play(&arrivals(30, after(8)), video(), given());
        assert_eq!(seen.buffering, Duration::from_secs(8));
        assert!(!seen.satisfied());
    }

    #[test]
    fn a_gap_longer_than_what_is_ahead_interrupts() {
        // Five seconds of it, and the rest seven seconds later: it stands for two.
        let gap = |second: u64| if second < 7 { 5 } else { 20 };
        let seen = play(&arrivals(30, gap), video(), given());
        assert_eq!(seen.interruptions, 1);
        assert_eq!(seen.interrupted, Duration::from_secs(2));
        assert!(seen.satisfied(), "two seconds are allowed: {seen:?}");
        let longer = |second: u64| if second < 8 { 5 } else { 20 };
        assert!(!play(&arrivals(30, longer), video(), given()).satisfied());
    }

    #[test]
    fn what_never_comes_does_not_satisfy() {
        let seen = play(&[], video(), given());
        assert_eq!(seen.buffering, given());
        assert!(!seen.satisfied());
        let half = play(&arrivals(1, |_| 10), video(), given());
        assert!(!half.satisfied(), "{half:?}");
        let cut_short = play(&arrivals(1, |_| 20), video(), Duration::from_secs(5));
        assert!(!cut_short.satisfied(), "{cut_short:?}");
    }
}
