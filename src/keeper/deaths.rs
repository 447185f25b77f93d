//! How often a daemon that dies is followed by another one.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::board::Stage;

/// The deaths after which there is no other daemon, if they come within [`WITHIN`].
const MOST: usize = 5;

/// The time within which they come.
const WITHIN: Duration = Duration::from_secs(60);

/// The number of SIGKILL.
const KILLED: i32 = Signal::SIGKILL as i32;

/// The pause before another daemon is made where the last one did not come up, for the first time in a
/// while: four times as long for the second time, and so on. All of them are less than the half minute for
/// which systemd waits to hear of the daemon.
const PAUSE: Duration = Duration::from_millis(200);

/// What a daemon has died of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The signal of this number, which may be a real-time signal's.
    Signal(i32),
    /// It did nothing any more, and the keeper has killed it.
    Hang,
    /// It has ended by itself, with this exit code, although nobody had asked for it.
    Exit(u8),
    /// The keeper has ended it, to become another program.
    Upgrade,
    /// The other program did not come up: the error that there was, or what its first daemon died of.
    UpgradeFailed(i32),
}

impl Death {
    /// Tells whether something that it did itself was the cause, and no one outside: SIGKILL comes
    /// from an operator or, where memory has run out, from the kernel.
    pub fn is_of_itself(self) -> bool {
        match self {
            Self::Signal(number) => {
                let outside = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT];
                !outside.iter().any(|signal| *signal as i32 == number)
            }
            Self::Hang | Self::Exit(_) => true,
            Self::Upgrade | Self::UpgradeFailed(_) => false,
        }
    }

    /// Gives what tells it from others of its kind: the exit code, or the signal's number and 128, as a
    /// shell has it.
    pub(super) fn number(self) -> i32 {
        match self {
            Self::Exit(code) => code.into(),
            Self::Signal(number) => 128 + number,
            Self::Hang => 128 + Signal::SIGKILL as i32,
            Self::Upgrade | Self::UpgradeFailed(_) => 0,
        }
    }

    /// Gives its name for figures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signal(KILLED) => "killed",
            Self::Signal(_) => "crash",
            Self::Hang => "hang",
            Self::Exit(_) => "exit",
            Self::Upgrade => "upgrade",
            Self::UpgradeFailed(_) => "upgrade_failed",
        }
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "it was ended by {signal}"),
                // They have no names.
                Err(_) => write!(f, "it was ended by signal {number}"),
            },
            Self::Hang => f.write_str("it hung, and was killed"),
            Self::Exit(code) => write!(f, "it ended with exit code {code}"),
            Self::Upgrade => f.write_str("for an upgrade"),
            Self::UpgradeFailed(number) => {
                f.write_str("an upgrade failed, and the old program goes on: the new one ")?;
                match number - 128 {
                    // How the keeper ends one that is not up in time, or hangs.
                    signal if signal == KILLED => {
                        f.write_str("was not up within a minute, or was killed")
                    }
                    signal if signal > 0 => write!(f, "was ended by signal {signal}"),
                    _ => write!(
                        f,
                        "ended before it was up, or could not be executed ({number})"
                    ),
                }
            }
        }
    }
}

/// What follows a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Another daemon.
    Again,
    /// The same, after this pause.
    AgainLater(Duration),
    /// Nothing.
    GiveUp,
}

/// The deaths that have come.
#[derive(Debug, Default)]
pub struct Deaths {
    /// When the last of those came that count.
    times: VecDeque<Duration>,
    /// Whether any daemon has ever been up.
    was_up: bool,
}

impl Deaths {
    /// Begins; `was_up` says whether any daemon has been up, of the program before this one.
    pub fn after(was_up: bool) -> Self {
        Self {
            was_up,
            ..Self::default()
        }
    }

    /// Tells whether any daemon has ever been up, if this one came as far as `stage`.
    pub fn was_up(&mut self, stage: Stage) -> bool {
        self.was_up |= stage != Stage::Starting;
        self.was_up
    }

    /// Returns how many deaths of late count against another daemon.
    pub fn recent(&self) -> u64 {
        self.times.len() as u64
    }

    /// Notes that a daemon has died in this stage, at `now`.
    ///
    /// One that was up and was killed from outside does not count: that says nothing about the next.
    pub fn note(&mut self, death: Death, stage: Stage, now: Duration) -> Verdict {
        self.was_up(stage);
        if stage != Stage::Starting && !death.is_of_itself() {
            return Verdict::Again;
        }
        self.times.push_back(now);
        while self
            .times
            .front()
            .is_some_and(|first| *first + WITHIN < now)
        {
            self.times.pop_front();
        }
        match (self.times.len() >= MOST, stage) {
            (true, _) => Verdict::GiveUp,
            (false, Stage::Starting) => Verdict::AgainLater(pause_after(self.times.len())),
            (false, _) => Verdict::Again,
        }
    }
}

/// Gives the pause after so many deaths, the last of which came before the daemon was up: the host may lack
/// something for some seconds, and as long as another one follows connections only wait.
fn pause_after(deaths: usize) -> Duration {
    let before = u32::try_from(deaths.saturating_sub(1)).unwrap_or(u32::MAX);
    PAUSE * 4_u32.saturating_pow(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRASH: Death = Death::Signal(Signal::SIGSEGV as i32);
    const KILLED: Death = Death::Signal(super::KILLED);

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    #[test]
    fn an_upgrade_that_fails_says_what_became_of_the_new_program() {
        let said = |death| Death::UpgradeFailed(death).to_string();
        assert!(said(CRASH.number()).ends_with("was ended by signal 11"));
        assert!(said(Death::Hang.number()).contains("not up within a minute"));
        assert!(said(Death::Exit(70).number()).ends_with("could not be executed (70)"));
        // ENOENT
        assert!(said(2).ends_with("could not be executed (2)"));
    }

    #[test]
    fn five_deaths_in_a_minute_are_the_end() {
        let mut deaths = Deaths::default();
        for time in [0, 20, 40, 59] {
            assert_eq!(
                deaths.note(CRASH, Stage::Running, second(time)),
                Verdict::Again
            );
        }
        assert_eq!(
            deaths.note(Death::Hang, Stage::Running, second(61)),
            Verdict::Again
        );
        assert_eq!(
            deaths.note(CRASH, Stage::Running, second(62)),
            Verdict::GiveUp
        );
    }

    #[test]
    fn whoever_is_killed_from_outside_is_followed_by_another_however_often() {
        let mut deaths = Deaths::default();
        for time in 0..100 {
            assert_eq!(
                deaths.note(KILLED, Stage::Running, second(time)),
                Verdict::Again
            );
        }
        // But not before it is up.
        for (time, pause) in (100..).zip([200, 800, 3200, 12_800]) {
            assert_eq!(
                deaths.note(KILLED, Stage::Starting, second(time)),
                Verdict::AgainLater(Duration::from_millis(pause))
            );
        }
        assert_eq!(
            deaths.note(KILLED, Stage::Starting, second(104)),
            Verdict::GiveUp
        );
    }
}
