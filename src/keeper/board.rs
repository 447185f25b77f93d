//! The memory that the keeper and the daemon have in common, and that outlives the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use pepd_relay::Slots;
use pepd_sys::shared::SharedWords;

use super::deaths::Death;
use super::watch::HUNG_FOR;
use crate::exit::{Failure, Result};

/// Says that it is a board, and of which layout: with the version of the notes on connections.
const MAGIC: u64 = u64::from_be_bytes(*b"pepd\0\0\0\0");
const VERSION: u64 = 3;

/// The words of the head: which layout it has, and what follows.
const LAYOUT: usize = 0;
const SLOTS: usize = 1;
const STAGE: usize = 2;
const BEATS: usize = 3;
/// The text of the configuration in force: its length in bytes, and in the lowest bit in which of two
/// places it is. 0 where there is none.
const TEXT: usize = 4;
/// The length of the text that the daemon was started with, in the third place; 0 where there is none.
const STARTED: usize = 17;
/// Not 0 where the daemon is to end its process, and another one to go on.
const ASKED_TO_YIELD: usize = 18;
/// What is known of links, in the same manner as the configuration's text.
const LINKS: usize = 19;
/// What the daemon thought of the box, and one; 0 where it has not said.
const FITNESS: usize = 20;
/// The deaths of late that count against another daemon.
const RECENT_DEATHS: usize = 21;
/// The place of the neighbor that connections go to while the daemon drains, and one; 0 where they finish here.
const EVACUATION: usize = 22;
/// The descriptor of the lock, and one; 0 where it has not been taken.
const LOCK: usize = 5;
const ASKED_TO_END: usize = 6;
const DIED_AT: usize = 7;
/// What the last daemon died of: a code, and 256 times a number.
const DIED_OF: usize = 8;
/// The daemons that have died, by what they died of, in the order of [`KINDS`].
const DEATHS: usize = 9;
/// The descriptor of what opens windows after an outage, and one; 0 where there is none. And of which
/// program it is.
const RESUME: usize = 15;
const RESUME_PROGRAM: usize = 16;
const KINDS: [&str; 6] = [
    "crash",
    "killed",
    "hang",
    "exit",
    "upgrade",
    "upgrade_failed",
];

/// The place of the text that the daemon was started with.
const STARTED_PLACE: u64 = 2;

/// The places of the text in force, and of what is known of links: the first of two each.
const TEXT_PLACE: u64 = 0;
const LINKS_PLACE: u64 = 3;

/// The words of the head, and of each of the places for text.
const HEAD_WORDS: usize = 512;
const PLACES: usize = 5;
const TEXT_WORDS: usize = 4 * 1024 * 1024 / 8;

/// More connections than any box has, where the limit of open files says nothing.
const MOST_SLOTS: u64 = 1 << 19;

/// How far a daemon has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is not up yet.
    Starting,
    /// It serves.
    Running,
    /// It has been asked to end, and does.
    Ending,
}

/// The board. A clone is of the same memory.
#[derive(Clone, Debug)]
pub struct Board {
    shared: SharedWords,
}

impl Board {
    /// Makes one, with room for as many connections as there may ever be descriptors for.
    pub fn new() -> Result<Self> {
        let failed = |error| Failure::internal("make memory that outlives the daemon", error);
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| failed(error.into()))?;
        let slots = most.div_euclid(2).min(MOST_SLOTS);
        let room = Slots::words_for(usize::try_from(slots).unwrap_or(usize::MAX));
        let shared = SharedWords::new(HEAD_WORDS + PLACES * TEXT_WORDS + room).map_err(failed)?;
        let board = Self { shared };
        board.set(SLOTS, slots);
        board.set(LAYOUT, Self::layout());
        Ok(board)
    }

    /// Takes over one that another program has made.
    pub(super) fn found(fd: OwnedFd) -> Result<Self> {
        let shared = SharedWords::map(fd)
            .map_err(|error| Failure::internal("take over the memory of another pepd", error))?;
        let board = Self { shared };
        match board.get(LAYOUT) == Self::layout() {
            true => Ok(board),
            false => Err(Failure::unavailable(
                "the other pepd keeps its notes in another way: this one cannot go on with its \
                 connections",
            )),
        }
    }

    /// Returns which layout this program knows: one that knows another cannot take over from it.
    pub fn layout() -> u64 {
        MAGIC | VERSION << 16 | u64::from(Slots::VERSION)
    }

    /// Returns the words for the notes on connections.
    pub fn slots(&self) -> &'static [AtomicU64] {
        let words = self.shared.words();
        words
            .get(HEAD_WORDS + PLACES * TEXT_WORDS..)
            .unwrap_or_default()
    }

    /// Notes that a daemon is about to begin.
    pub(super) fn begin(&self) {
        self.set(ASKED_TO_YIELD, 0);
        self.set_stage(Stage::Starting);
    }

    /// Notes that a daemon has died: connections have stood since then, since before where it hung, and for
    /// longer where one had died before it, and it was not up yet.
    pub(super) fn died(&self, death: Death) {
        let kind = KINDS.iter().position(|kind| *kind == death.name());
        let word = DEATHS + kind.unwrap_or(0);
        self.set(word, self.get(word) + 1);
        let (code, number) = match death {
            Death::Signal(number) => (1, u64::from(number.unsigned_abs())),
            Death::Hang => (2, 0),
            Death::Exit(code) => (3, code.into()),
            Death::Upgrade => (4, 0),
            Death::UpgradeFailed(error) => (5, error.unsigned_abs().into()),
        };
        self.set(DIED_OF, code | number << 8);
        let stood = match (death, self.stage()) {
            (_, Stage::Starting) if self.get(DIED_AT) != 0 => return,
            (Death::Hang, Stage::Running | Stage::Ending) => HUNG_FOR,
            _ => Duration::ZERO,
        };
        let since = pepd_sys::clock::monotonic()
            .saturating_sub(stood)
            .as_nanos();
        self.set(DIED_AT, u64::try_from(since).unwrap_or(u64::MAX));
    }

    /// Returns what the daemon before this one died of, and when (CLOCK_MONOTONIC); none where this is
    /// the first.
    pub fn last_death(&self) -> Option<(Death, Duration)> {
        let word = self.get(DIED_OF);
        let number = word >> 8;
        let death = match word & 0xff {
            1 => Death::Signal(i32::try_from(number).ok()?),
            2 => Death::Hang,
            3 => Death::Exit(u8::try_from(number).ok()?),
            4 => Death::Upgrade,
            5 => Death::UpgradeFailed(i32::try_from(number).ok()?),
            _ => return None,
        };
        Some((death, Duration::from_nanos(self.get(DIED_AT))))
    }

    /// Returns how many daemons have died, by what they died of.
    pub fn deaths(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = (DEATHS..).map(|word| self.get(word));
        KINDS.into_iter().zip(counts)
    }

    /// Notes how many deaths there were of late: there is no other daemon after too many.
    pub(super) fn set_recent_deaths(&self, deaths: u64) {
        self.set(RECENT_DEATHS, deaths);
    }

    /// Returns how many there were of late, when the last daemon died.
    pub fn recent_deaths(&self) -> u64 {
        self.get(RECENT_DEATHS)
    }

    /// Notes what this daemon thinks of the box, for the one that goes on: less than all bits.
    pub fn set_fitness(&self, bits: u64) {
        self.set(FITNESS, bits.wrapping_add(1));
    }

    /// Returns what the daemon before this one thought of the box, if it did.
    pub fn fitness(&self) -> Option<u64> {
        self.get(FITNESS).checked_sub(1)
    }

    /// Returns how far the daemon has come.
    pub fn stage(&self) -> Stage {
        match self.get(STAGE) {
            0 => Stage::Starting,
            1 => Stage::Running,
            _ => Stage::Ending,
        }
    }

    /// Notes how far this daemon has come.
    pub fn set_stage(&self, stage: Stage) {
        self.set(STAGE, stage as u64);
    }

    /// Shows a sign of life.
    pub fn beat(&self) {
        self.set(BEATS, self.get(BEATS).wrapping_add(1));
    }

    pub(super) fn beats(&self) -> u64 {
        self.get(BEATS)
    }

    /// Notes that an operator has asked for the end, and when, if that is not known.
    pub fn ask_to_end(&self) {
        if !self.is_asked_to_end() {
            let now = u64::try_from(pepd_sys::clock::monotonic().as_millis());
            self.set(ASKED_TO_END, now.unwrap_or(u64::MAX).max(1));
        }
    }

    /// Returns for how long an operator has been waiting for the end; zero where none does.
    pub fn asked_to_end_for(&self) -> Duration {
        match self.get(ASKED_TO_END) {
            0 => Duration::ZERO,
            since => pepd_sys::clock::monotonic().saturating_sub(Duration::from_millis(since)),
        }
    }

    /// Tells whether an operator has asked for the end.
    pub fn is_asked_to_end(&self) -> bool {
        self.get(ASKED_TO_END) != 0
    }

    /// Notes that connections go to this neighbor while the daemon drains, by its place in the configuration that
    /// the daemon was started with.
    pub fn set_evacuation(&self, neighbor: usize) {
        let word = u64::try_from(neighbor).map_or(0, |it| it.saturating_add(1));
        self.set(EVACUATION, word);
    }

    /// Returns the place of that neighbor, if there is one.
    pub fn evacuation(&self) -> Option<usize> {
        usize::try_from(self.get(EVACUATION).checked_sub(1)?).ok()
    }

    /// Asks this daemon to end its process at once: another one goes on.
    pub(super) fn ask_to_yield(&self) {
        self.set(ASKED_TO_YIELD, 1);
    }

    /// Tells whether another process is to go on.
    pub fn is_asked_to_yield(&self) -> bool {
        self.get(ASKED_TO_YIELD) != 0
    }

    /// Notes the descriptor that holds the lock.
    pub fn set_lock(&self, fd: RawFd) {
        self.set(LOCK, u64::try_from(fd).map_or(0, |fd| fd + 1));
    }

    /// Returns the descriptor that holds the lock, if it has been taken.
    pub fn lock(&self) -> Option<RawFd> {
        RawFd::try_from(self.get(LOCK).checked_sub(1)?).ok()
    }

    /// Notes the descriptor of what opens windows after an outage, if there is one, and of which `program`
    /// it is.
    pub fn set_resume(&self, fd: Option<RawFd>, program: u64) {
        self.set(RESUME_PROGRAM, program);
        let fd = fd.and_then(|fd| u64::try_from(fd).ok());
        self.set(RESUME, fd.map_or(0, |fd| fd + 1));
    }

    /// Returns the descriptor of what opens windows after an outage, if it is of this `program`. It is
    /// noted no longer: whoever takes it notes it again.
    pub fn take_resume(&self, program: u64) -> Option<RawFd> {
        let noted = self.get(RESUME);
        self.set(RESUME, 0);
        let fd = RawFd::try_from(noted.checked_sub(1)?).ok()?;
        (self.get(RESUME_PROGRAM) == program).then_some(fd)
    }

    /// Notes the text of the configuration that is in force from now on. One that has no room, which
    /// is none, is not noted.
    pub fn set_text(&self, text: &str) {
        self.write_in_turn(TEXT, TEXT_PLACE, text);
    }

    /// Notes what is known of links. What has no room is not noted.
    pub fn set_links(&self, text: &str) {
        self.write_in_turn(LINKS, LINKS_PLACE, text);
    }

    /// Returns what is known of links, if there is something.
    pub fn links(&self) -> Option<String> {
        self.read_the_last(LINKS, LINKS_PLACE)
    }

    /// Writes a text into that of two places, of which this is the `first`, in which the last one is not; and
    /// then says so in a word. To die in between leaves the last one.
    fn write_in_turn(&self, word: usize, first: u64, text: &str) {
        let turn = 1 - (self.get(word) & 1);
        if let Some(length) = self.write(first + turn, text) {
            self.set(word, length << 1 | turn);
        }
    }

    fn read_the_last(&self, word: usize, first: u64) -> Option<String> {
        let noted = self.get(word);
        self.read(first + (noted & 1), noted >> 1)
    }

    /// Notes the text that this daemon is started with: before it gives up what it is privileged to do.
    pub fn set_started(&self, text: &str) {
        if let Some(length) = self.write(STARTED_PLACE, text) {
            self.set(STARTED, length);
        }
    }

    /// Returns the text that the daemon was started with, if it has read it yet.
    pub(super) fn started(&self) -> Option<String> {
        self.read(STARTED_PLACE, self.get(STARTED))
    }

    /// Writes a text; gives its length, or none where there is no room.
    fn write(&self, place: u64, text: &str) -> Option<u64> {
        let words = self.place(place)?;
        if text.len() > words.len() * 8 {
            return None;
        }
        for (word, bytes) in words.iter().zip(text.as_bytes().chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(value), Relaxed);
        }
        Some(text.len() as u64)
    }

    /// Returns the text of the configuration in force, if there is one yet.
    pub fn text(&self) -> Option<String> {
        self.read_the_last(TEXT, TEXT_PLACE)
    }

    fn read(&self, place: u64, length: u64) -> Option<String> {
        let length = usize::try_from(length).ok().filter(|length| *length > 0)?;
        let words = self.place(place)?;
        let bytes = words.get(..length.div_ceil(8))?.iter();
        let mut bytes: Vec<u8> = bytes
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        bytes.truncate(length);
        String::from_utf8(bytes).ok()
    }

    fn place(&self, place: u64) -> Option<&'static [AtomicU64]> {
        let first = HEAD_WORDS + usize::try_from(place).ok()? * TEXT_WORDS;
        self.shared.words().get(first..first + TEXT_WORDS)
    }

    fn get(&self, word: usize) -> u64 {
        self.shared
            .words()
            .get(word)
            .map_or(0, |it| it.load(Acquire))
    }

    fn set(&self, word: usize, value: u64) {
        if let Some(word) = self.shared.words().get(word) {
            word.store(value, Release);
        }
    }
}

impl AsFd for Board {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_in_force_is_the_one_that_was_noted_last() {
        let board = Board::new().unwrap();
        assert_eq!(board.text(), None);
        for text in ["[node]\n", "short", "[node]\nname = \"hé\"\n", "x"] {
            board.set_text(text);
            assert_eq!(board.text().as_deref(), Some(text));
        }
    }

    #[test]
    fn what_opens_windows_is_taken_once_and_by_the_same_program() {
        let board = Board::new().unwrap();
        assert_eq!(board.take_resume(7), None);
        board.set_resume(Some(5), 7);
        assert_eq!(board.take_resume(7), Some(5));
        assert_eq!(board.take_resume(7), None);
        board.set_resume(Some(5), 7);
        assert_eq!(board.take_resume(8), None);
        board.set_resume(None, 7);
        assert_eq!(board.take_resume(7), None);
    }

    #[test]
    fn a_death_is_told_as_it_was() {
        let board = Board::new().unwrap();
        assert_eq!(board.last_death(), None);
        let deaths = [
            Death::Signal(nix::sys::signal::Signal::SIGSEGV as i32),
            // A real-time signal.
            Death::Signal(35),
            Death::Hang,
            Death::Exit(101),
            Death::Upgrade,
            Death::UpgradeFailed(2),
        ];
        for death in deaths {
            board.died(death);
            assert_eq!(board.last_death().map(|(it, _)| it), Some(death));
        }
        let counts: Vec<_> = board.deaths().collect();
        let expected = [
            ("crash", 2),
            ("killed", 0),
            ("hang", 1),
            ("exit", 1),
            ("upgrade", 1),
            ("upgrade_failed", 1),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_pause_begins_when_connections_first_stood() {
        let board = Board::new().unwrap();
        let since = || board.last_death().unwrap().1;
        let begun = pepd_sys::clock::monotonic();
        board.set_stage(Stage::Running);
        board.died(Death::Hang);
        let hung = since();
        assert!(hung < begun, "{hung:?} of {begun:?}");
        // Those that die before they are up make it longer.
        board.begin();
        for death in [Death::Hang, Death::Signal(11), Death::UpgradeFailed(70)] {
            board.died(death);
            assert_eq!(board.last_death(), Some((death, hung)));
        }
        // Whoever was up begins another.
        board.set_stage(Stage::Running);
        board.died(Death::Signal(9));
        assert!(since() >= begun);
    }

    #[test]
    fn whoever_waits_for_the_end_has_waited_since_the_first_word() {
        let board = Board::new().unwrap();
        assert_eq!(board.asked_to_end_for(), Duration::ZERO);
        // As another process has, a while ago.
        board.set(ASKED_TO_END, 1);
        board.ask_to_end();
        let now = pepd_sys::clock::monotonic();
        assert!(now - board.asked_to_end_for() < Duration::from_millis(50));
    }
}
