//! `[node] state`: what was learned of the legs' paths, for a process that begins with nothing.
//!
//! The file is opened before the privileges are given up, and no other is opened after that. It has room for
//! two texts, of which the older one is replaced: whatever is cut short, one is whole. What is in it is
//! believed for a week, and only as far as each who learned it says (`pepd_model`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use pepd_model::control_choice::Chosen;
use pepd_model::find_rate::Known;
use pepd_telemetry::Throttle;
use serde::{Deserialize, Serialize};
use tokio::task::{JoinError, JoinHandle};

use crate::clock::unix_time;
use crate::time_limit;

/// The bytes that there are for one of the two texts: of 249 legs, with the longest names.
const PLACE: usize = 64 << 10;

/// What was learned longer ago, in seconds, says nothing of today.
const OLDEST: f64 = 7.0 * DAY;

/// What is learned again is written again after so many seconds, also if it is the same.
const DAY: f64 = 86_400.0;

/// The longest that a file system may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A rate that has changed by less than that part of it is the same.
const SAME: f64 = 0.1;

/// What was learned of each leg, by its name.
pub type Legs = BTreeMap<String, Learned>;

/// What was learned of a leg's path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    /// What `congestion = "auto"` has chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// What `congestion = "find-rate"` has found, in bits a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The least round trip, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<f64>,
    /// When it was learned, in seconds since the Unix epoch.
    #[serde(default)]
    pub learned: f64,
}

impl Learned {
    /// Returns what had been chosen, if there is such a control.
    pub fn chosen(&self) -> Option<Chosen> {
        let name = self.congestion.as_deref()?;
        Chosen::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Returns what its link carried, if it was known and can be.
    pub fn known(&self) -> Option<Known> {
        let (rate, rtt) = (self.rate?, self.rtt?);
        let can_be = |it: f64| it.is_finite() && it > 0.0;
        (can_be(rate) && can_be(rtt)).then_some(Known {
            capacity: rate / 8.0,
            rtt,
        })
    }

    /// Returns whether this says about the same, and was learned on about the same day.
    fn is_like(&self, other: &Self) -> bool {
        let alike = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => (one - other).abs() <= SAME * one.abs().max(other.abs()),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.congestion == other.congestion
            && (self.learned - other.learned).abs() < DAY
            && alike(self.rate, other.rate)
            && alike(self.rtt, other.rtt)
    }
}

/// One of the two texts in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Text {
    /// The number of this text: the greater one is the newer.
    number: u64,
    legs: Legs,
    /// The number again: the text is whole.
    end: u64,
}

/// The file, and what is in it.
#[derive(Debug)]
pub struct Remembered {
    /// Whoever writes has it, too, for as long as that takes.
    file: Arc<File>,
    /// The number of the text that was written last.
    number: u64,
    legs: Legs,
    /// Whether all of them are in the file.
    is_written: bool,
    /// What is written just now: nobody waits for it but the end.
    writing: Option<JoinHandle<Result<(), String>>>,
    /// Whether the log has said last that it cannot be written.
    is_said_to_fail: bool,
}

impl Remembered {
    /// Opens the file, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// Why that cannot be, in words.
    pub fn open(path: &Path) -> Result<Self, String> {
        let refused = |why: &dyn std::fmt::Display| {
            format!(
                "[node] state: {}: {why}; what is learned of the legs' paths is forgotten at the end",
                path.display()
            )
        };
        let opened = {
            let path = path.to_owned();
            time_limit::run(LIMIT, move || open(&path))
        };
        let (file, texts) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return Err(refused(&error)),
            Err(error) => return Err(refused(&error)),
        };
        let newest = texts.into_iter().max_by_key(|text| text.number);
        let (number, mut legs) =
            newest.map_or_else(Default::default, |text| (text.number, text.legs));
        // What was learned in the future was learned by a clock that was wrong.
        let now = unix_time();
        legs.retain(|_, leg| (0.0..=OLDEST).contains(&(now - leg.learned)));
        Ok(Self {
            file: Arc::new(file),
            number,
            legs,
            is_written: true,
            writing: None,
            is_said_to_fail: false,
        })
    }

    /// Returns what was learned.
    pub fn legs(&self) -> &Legs {
        &self.legs
    }

    /// Begins to keep what has been learned by now, if it is something else, or could not be written. Of a leg of which
    /// nothing has, what was stays.
    pub fn keep(&mut self, now: Legs) {
        match self.writing.as_mut().map(|it| it.now_or_never()) {
            Some(None) => return,
            Some(Some(written)) => self.take(written),
            None => {}
        }
        let mut legs = self.legs.clone();
        for (name, known) in now {
            if known == Learned::default() {
                continue;
            }
            let of_leg = legs.entry(name).or_default();
            *of_leg = Learned {
                congestion: known.congestion.or(of_leg.congestion.take()),
                rate: known.rate.or(of_leg.rate),
                rtt: known.rtt.or(of_leg.rtt),
                learned: unix_time(),
            };
        }
        let is_known = legs.len() == self.legs.len()
            && legs
                .iter()
                .all(|(name, leg)| self.legs.get(name).is_some_and(|it| it.is_like(leg)));
        if !is_known {
            (self.legs, self.is_written) = (legs, false);
        }
        // What a file system does not answer would be torn by another write in the same place.
        let is_stuck = Arc::strong_count(&self.file) > 1;
        if !self.is_written && !is_stuck {
            self.write();
        }
    }

    /// Begins to write what is known. Where that fails, the next text has the same number and so the same place: the other
    /// one is whole.
    fn write(&mut self) {
        let number = self.number.wrapping_add(1);
        let text = Text {
            number,
            legs: self.legs.clone(),
            end: number,
        };
        let file = Arc::clone(&self.file);
        self.writing = Some(tokio::spawn(async move {
            let written = time_limit::run_async(LIMIT, move || write(&file, &text)).await;
            let written = written.map_err(|why| why.to_string())?;
            written.map_err(|error| error.to_string())
        }));
    }

    /// Keeps what is known at the end, and waits for that.
    pub async fn end(&mut self, now: Legs) {
        self.settle().await;
        self.keep(now);
        self.settle().await;
    }

    async fn settle(&mut self) {
        if let Some(writing) = self.writing.as_mut() {
            let written = writing.await;
            self.take(written);
        }
    }

    fn take(&mut self, written: Result<Result<(), String>, JoinError>) {
        self.writing = None;
        let written = written.map_err(|error| error.to_string());
        match written.and_then(|written| written) {
            Ok(()) => {
                self.number = self.number.wrapping_add(1);
                self.is_written = true;
                if std::mem::take(&mut self.is_said_to_fail) {
                    tracing::info!("[node] state: what is learned is kept again");
                }
            }
            Err(why) => self.say_that_it_fails(&why),
        }
    }

    fn say_that_it_fails(&mut self, why: &str) {
        static THROTTLE: Throttle = Throttle::new(Duration::from_secs(3600));
        if let Some(held_back) = THROTTLE.admit(Instant::now()) {
            self.is_said_to_fail = true;
            tracing::warn!(
                held_back,
                "[node] state: {why}; it is tried again, and until then a process that is started anew does not know \
                 what is learned now"
            );
        }
    }
}

/// Why something is not kept.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("this is no file")]
    NoFile,
    #[error("write it as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0} bytes are too many")]
    TooLong(usize),
}

/// Opens a regular file, and reads the texts that are whole.
fn open(path: &Path) -> Result<(File, Vec<Text>), Refused> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // Neither what somebody else has put there, nor what has another end.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Refused::NoFile);
    }
    let mut texts = Vec::new();
    for place in 0..2 {
        let mut bytes = vec![0; PLACE];
        let mut length = 0;
        while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, (place * PLACE + length) as u64)? {
                0 => break,
                some => length += some,
            }
        }
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        // One that was never written, or not to its end, is none.
        let text = serde_json::from_slice::<Text>(text).ok();
        texts.extend(text.filter(|text| text.number == text.end));
    }
    Ok((file, texts))
}

/// Writes a text in the place of the older one, with a zero behind it.
fn write(file: &File, text: &Text) -> Result<(), Refused> {
    let mut bytes = serde_json::to_vec(text)?;
    bytes.push(0);
    if bytes.len() > PLACE {
        return Err(Refused::TooLong(bytes.len()));
    }
    let place = if text.number.is_multiple_of(2) {
        0
    } else {
        PLACE
    };
    Ok(file.write_all_at(&bytes, place as u64)?)
}

#[cfg(test)]
mod tests;
