//! The epochs of which something is still under way.

use std::collections::VecDeque;

use super::{Controller, Epoch, Near, PACKET, Span};

/// The most epochs that are open at once. Where a round trip is as long as so many, the oldest is taken for
/// finished: whoever counts has room for no more.
pub const OPEN: usize = 64;

/// A policer or a short buffer lets something of so many bytes through, and of losses alone hardly ever so many
/// come together.
const NOTHING: f64 = 8.0 * PACKET;

/// Where no more than such a part of what was sent in one epoch and all since was answered when they were taken for finished, and
/// at least the other part of it has come since, they were not. Of fewer nothing is concluded: what some few receivers do, on purpose
/// or not, is to be of no effect on the others, and what those say is enough.
const IN_TIME: f64 = 0.25;
const LATE: f64 = 0.5;

/// More than that is not of this epoch alone: others are near now than when it was sent.
const ALL: f64 = 1.1;

/// What is left of the longest round trip with each epoch that has shorter ones.
pub(super) const FORGOTTEN: f64 = 0.9;

/// A controller with the epochs that it waits for.
#[derive(Clone, Debug)]
pub struct Ledger {
    controller: Controller,
    epochs: VecDeque<Epoch>,
    finished: VecDeque<Finished>,
    /// For how long after its end an epoch is waited for at least, in seconds: answers have come as late.
    patience: f64,
    /// The longest round trip of those that were finished last, in seconds.
    longest: f64,
    /// The number of the next epoch.
    next: u64,
    near: Near,
}

/// An epoch that was finished lately: what comes of it later is counted still.
#[derive(Clone, Debug)]
struct Finished {
    epoch: Epoch,
    /// What of it was acknowledged by then, in bytes.
    delivered: f64,
    /// What was known before.
    before: Controller,
    /// Whether it is known that it was not finished.
    has_come_late: bool,
}

impl Finished {
    /// Tells whether a good part of it was answered when it was taken for finished.
    fn was_in_time(&self) -> bool {
        self.epoch.near > NOTHING && self.delivered > IN_TIME * self.epoch.near
    }

    /// Tells whether most of it was answered since.
    fn comes_late(&self) -> bool {
        let Epoch {
            near, delivered, ..
        } = self.epoch;
        let late = delivered - self.delivered;
        late > (LATE * near).max(NOTHING) && delivered < ALL * near
    }
}

impl Ledger {
    /// Makes one in which nothing goes on yet. Its first epoch has the number `first`.
    pub fn new(controller: Controller, first: u64) -> Self {
        Self {
            controller,
            epochs: VecDeque::new(),
            finished: VecDeque::new(),
            patience: 0.0,
            longest: 0.0,
            next: first,
            near: Near::new(),
        }
    }

    /// Returns the controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Returns the controller, to tell it something.
    pub fn controller_mut(&mut self) -> &mut Controller {
        &mut self.controller
    }

    /// Returns who is near.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// Returns it, to tell it what was sent.
    pub fn near_mut(&mut self) -> &mut Near {
        &mut self.near
    }

    /// Returns the epoch that goes on; none before the first [turn](Self::turn).
    pub fn current(&self) -> Option<&Epoch> {
        self.epochs.back()
    }

    /// Returns the epochs of which something is still under way, the oldest first.
    pub fn open(&self) -> impl ExactSizeIterator<Item = &Epoch> {
        self.epochs.iter()
    }

    /// Returns them to be written, and before them those that were finished last: what comes of these later is counted, too.
    pub fn counted_mut(&mut self) -> impl Iterator<Item = &mut Epoch> {
        let finished = self.finished.iter_mut().map(|it| &mut it.epoch);
        finished.chain(&mut self.epochs)
    }

    /// Returns that of a number; none if it is too old, or has not begun.
    pub fn epoch_mut(&mut self, number: u64) -> Option<&mut Epoch> {
        let first = self.counted_mut().next()?.number;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        self.counted_mut().nth(place)
    }

    /// Ends the current epoch at a time in seconds, gives the controller what is finished, and begins the
    /// next one, for as long as what is returned says.
    pub fn turn(&mut self, now: f64) -> Span {
        if let Some(epoch) = self.epochs.back_mut() {
            epoch.ended = now;
        }
        self.look_back();
        while let Some(first) = self.next_finished(now) {
            let before = self.controller.clone();
            if self.is_cut() {
                self.controller.skip(now);
            } else {
                self.controller.finish(now, &first);
            }
            self.longest = first.longest_rtt.max(FORGOTTEN * self.longest);
            if first.longest_rtt < self.patience {
                self.patience *= FORGOTTEN;
            }
            self.epochs.pop_front();
            self.finished.push_back(Finished {
                epoch: first,
                delivered: first.delivered,
                before,
                has_come_late: false,
            });
        }
        while self.finished.len() + self.epochs.len() >= OPEN && !self.finished.is_empty() {
            self.finished.pop_front();
        }
        let open = self.epochs.front().map_or(self.next, |first| first.number);
        self.near.turn(self.next, open);
        let span = self.controller.plan(now, self.epochs.make_contiguous());
        self.epochs.push_back(Epoch::new(self.next, span, now));
        self.next += 1;
        span
    }

    /// Takes what has come of epochs that were taken for finished. Where that is much they were not, since most paths have become
    /// longer: what was concluded since is forgotten, and they are waited for.
    fn look_back(&mut self) {
        // Hardly any answer was in time since then.
        let in_time = self.finished.iter().rposition(Finished::was_in_time);
        let since = in_time.map_or(0, |place| place + 1);
        let mut first = None;
        let mut longest = 0.0_f64;
        for (place, it) in self.finished.iter_mut().enumerate().skip(since) {
            // Each is looked at once.
            if !it.has_come_late && it.comes_late() {
                it.has_come_late = true;
                longest = longest.max(it.epoch.longest_rtt);
                first = first.or(Some(place));
            }
        }
        let Some(first) = first.filter(|_| longest > self.patience) else {
            return;
        };
        self.patience = longest;
        let open = self.finished.split_off(first);
        if let Some(first) = open.front() {
            self.controller.go_back(&first.before);
        }
        let mut epochs: VecDeque<Epoch> = open.into_iter().map(|it| it.epoch).collect();
        epochs.append(&mut self.epochs);
        self.epochs = epochs;
    }

    /// Returns the first epoch if it is finished: something that was sent later is acknowledged, and its own
    /// last packets would have been.
    fn next_finished(&self, now: f64) -> Option<Epoch> {
        let first = *self.epochs.front()?;
        // Of a connection with a queue of its own nothing may have been acknowledged yet.
        let longest = match self.controller.is_short(&first) || first.near <= 0.0 {
            true => first.longest_rtt.max(self.longest),
            false => first.longest_rtt,
        };
        let longest = longest.max(first.farthest + first.last_queue + self.controller.late(&first));
        let longest = longest.max(self.patience);
        // Nor is anything waited for where nobody who is near has sent something.
        let tells = |it: &Epoch| it.delivered > 0.0 || it.near <= 0.0 && now >= it.ended + longest;
        let is_later = first.near <= 0.0 || self.epochs.iter().skip(1).any(tells);
        let is_over = is_later && now >= first.ended + longest;
        (is_over || self.epochs.len() >= OPEN).then_some(first)
    }

    /// Tells whether all was lost of an epoch since, and of a later one something arrived: the link was gone
    /// meanwhile, and what is acknowledged of the first one by then says nothing of what the link carries.
    fn is_cut(&self) -> bool {
        let since = self.epochs.iter().skip(1);
        let mut later = since.skip_while(|it| it.near <= NOTHING || it.delivered > 0.0);
        later.any(|it| it.delivered > 0.0)
    }
}
