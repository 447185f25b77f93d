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
use std::time::Duration;

use futures_util::FutureExt as _;
use pepd_model::control_choice::Chosen;
use pepd_model::find_rate::Known;
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
    file: Arc<File>,
    number: u64,
    legs: Legs,
    /// What is written just now: nobody waits for it but the end.
    writing: Option<JoinHandle<Result<(), String>>>,
    /// Whether a write has not come back, or has failed: no other is begun.
    is_stuck: bool,
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
            writing: None,
            is_stuck: false,
        })
    }

    /// Returns what was learned.
    pub fn legs(&self) -> &Legs {
        &self.legs
    }

    /// Begins to keep what has been learned by now, if it is something else. Of a leg of which nothing has, what was
    /// stays.
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
        let is_kept = legs.len() == self.legs.len()
            && legs
                .iter()
                .all(|(name, leg)| self.legs.get(name).is_some_and(|it| it.is_like(leg)));
        if is_kept || self.is_stuck {
            return;
        }
        let number = self.number.wrapping_add(1);
        let text = Text {
            number,
            legs: legs.clone(),
            end: number,
        };
        let file = Arc::clone(&self.file);
        (self.number, self.legs) = (number, legs);
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
        if let Err(why) = written.and_then(|written| written) {
            self.is_stuck = true;
            tracing::warn!(
                "[node] state: {why}; what is learned from now on is forgotten at the end"
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
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn leg(congestion: &str, rate: f64) -> Legs {
        let of_leg = Learned {
            congestion: Some(congestion.to_owned()),
            rate: Some(rate),
            rtt: Some(0.6),
            learned: 0.0,
        };
        [("wan".to_owned(), of_leg)].into()
    }

    fn keep(path: &Path, legs: Legs) {
        let mut kept = Remembered::open(path).unwrap();
        crate::runtime::one_thread()
            .unwrap()
            .block_on(kept.end(legs));
        assert!(!kept.is_stuck);
    }

    /// Gives what is kept, but for when it was learned.
    fn kept(path: &Path) -> Legs {
        let mut legs = Remembered::open(path).unwrap().legs().clone();
        legs.values_mut().for_each(|leg| leg.learned = 0.0);
        legs
    }

    #[test]
    fn what_is_kept_last_is_there_again() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        assert!(kept(&path).is_empty());
        for rate in [8e6, 16e6, 24e6] {
            keep(&path, leg("bbr", rate));
            assert_eq!(kept(&path), leg("bbr", rate));
        }
        // About the same is not written anew, and of what nothing is known now, what was stays.
        keep(&path, leg("bbr", 25e6));
        keep(&path, [("wan".to_owned(), Learned::default())].into());
        assert_eq!(kept(&path), leg("bbr", 24e6));
        let of_leg = &kept(&path)["wan"];
        assert_eq!(of_leg.chosen(), Some(Chosen::Bbr));
        assert_eq!(of_leg.known().map(|it| it.capacity), Some(3e6));
    }

    #[test]
    fn whatever_is_cut_short_one_of_two_is_whole() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        keep(&path, leg("bbr", 8e6));
        let old = std::fs::read(&path).unwrap();
        keep(&path, leg("cubic", 99e6));
        let new = std::fs::read(&path).unwrap();
        let mut seen = [0; 2];
        for cut in 0..new.len() {
            // So much of the newer text has come there.
            let mut torn = new.clone();
            for (at, byte) in torn.iter_mut().enumerate().skip(cut) {
                *byte = old.get(at).copied().unwrap_or(0);
            }
            std::fs::write(&path, &torn).unwrap();
            let legs = kept(&path);
            let is_new = legs == leg("cubic", 99e6);
            assert!(is_new || legs == leg("bbr", 8e6), "{cut}: {legs:?}");
            seen[usize::from(is_new)] += 1;
            if torn == new {
                break;
            }
        }
        assert!(seen[0] > 50 && seen[1] > 0, "{seen:?}");
    }

    #[test]
    fn what_is_no_text_or_no_file_is_nothing() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        for text in [
            "",
            "{",
            "null",
            "\0\0\0",
            "[1]",
            r#"{"number":1,"legs":{"wan":{"learned":9e9}},"end":2}"#,
            r#"{"number":18446744073709551616,"legs":{},"end":0}"#,
            r#"{"number":1,"legs":{"wan":{"rate":"fast"}},"end":1}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(kept(&path).is_empty(), "{text}");
        }
        std::fs::write(&path, vec![b'['; 1 << 20]).unwrap();
        assert!(kept(&path).is_empty());
        keep(&path, leg("bbr", 8e6));
        assert_eq!(kept(&path), leg("bbr", 8e6));
        for (name, make) in [
            ("link", "ln -s state link"),
            ("fifo", "mkfifo fifo"),
            ("directory", "mkdir directory"),
        ] {
            let made = std::process::Command::new("sh")
                .args(["-c", make])
                .current_dir(directory.path())
                .status();
            assert!(made.unwrap().success());
            let error = Remembered::open(&directory.path().join(name)).unwrap_err();
            assert!(error.starts_with("[node] state: "), "{error}");
        }
    }

    #[test]
    fn what_is_learned_again_is_as_new() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        let old = unix_time() - 2.0 * DAY;
        let mut legs = leg("bbr", 8e6);
        legs.extend([(
            "lan".to_owned(),
            Learned {
                learned: old,
                ..legs["wan"].clone()
            },
        )]);
        legs.get_mut("wan").unwrap().learned = old;
        let text = Text {
            number: 1,
            legs,
            end: 1,
        };
        std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
        keep(&path, leg("bbr", 8e6));
        let kept = Remembered::open(&path).unwrap();
        assert!(kept.legs()["wan"].learned > old + DAY);
        // Of the other nothing was learned.
        assert!((kept.legs()["lan"].learned - old).abs() < 1.0);
    }

    #[test]
    fn what_is_too_old_or_cannot_be_says_nothing() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        let at = |ago: f64| {
            let mut legs = leg("bbr", 8e6);
            legs.values_mut()
                .for_each(|leg| leg.learned = unix_time() - ago);
            let text = Text {
                number: 3,
                legs,
                end: 3,
            };
            std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
            kept(&path).len()
        };
        assert_eq!(
            [
                at(60.0),
                at(6.9 * 86_400.0),
                at(7.1 * 86_400.0),
                at(-3600.0)
            ],
            [1, 1, 0, 0]
        );
        for (rate, rtt) in [(0.0, 0.1), (-1.0, 0.1), (1e6, 0.0), (f64::INFINITY, 0.1)] {
            let of_leg = Learned {
                congestion: Some("vegas".to_owned()),
                rate: Some(rate),
                rtt: Some(rtt),
                learned: 0.0,
            };
            assert_eq!((of_leg.known(), of_leg.chosen()), (None, None));
        }
    }
}
