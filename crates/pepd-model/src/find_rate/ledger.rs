//! The epochs of which something is still under way.

use std::collections::VecDeque;

use super::{Controller, Epoch, Near, PACKET, Span};

/// The most epochs that are open at once. Where a round trip is as long as so many, the oldest is taken for
/// finished: whoever counts has room for no more.
pub const OPEN: usize = 64;

/// A policer or a short buffer lets something of so many bytes through, and of losses alone hardly ever so many
/// come together.
const NOTHING: f64 = 8.0 * PACKET;

/// What is left of the longest round trip with each epoch that has shorter ones.
pub(super) const FORGOTTEN: f64 = 0.9;

/// A controller with the epochs that it waits for.
#[derive(Clone, Debug)]
pub struct Ledger {
    controller: Controller,
    epochs: VecDeque<Epoch>,
    /// The longest round trip of those that were finished last, in seconds.
    longest: f64,
    /// The number of the next epoch.
    next: u64,
    near: Near,
}

impl Ledger {
    /// Makes one in which nothing goes on yet. Its first epoch has the number `first`.
    pub fn new(controller: Controller, first: u64) -> Self {
        Self {
            controller,
            epochs: VecDeque::new(),
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

    /// Returns them to be written.
    pub fn open_mut(&mut self) -> impl ExactSizeIterator<Item = &mut Epoch> {
        self.epochs.iter_mut()
    }

    /// Returns the open epoch of a number; none if it is finished, or has not begun.
    pub fn epoch_mut(&mut self, number: u64) -> Option<&mut Epoch> {
        let first = self.epochs.front()?.number;
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        self.epochs.get_mut(place)
    }

    /// Ends the current epoch at a time in seconds, gives the controller what is finished, and begins the
    /// next one, for as long as what is returned says.
    pub fn turn(&mut self, now: f64) -> Span {
        if let Some(epoch) = self.epochs.back_mut() {
            epoch.ended = now;
        }
        while let Some(first) = self.finished(now) {
            if self.is_cut() {
                self.controller.skip(now);
            } else {
                self.controller.finish(now, &first);
            }
            self.longest = first.longest_rtt.max(FORGOTTEN * self.longest);
            self.epochs.pop_front();
        }
        let open = self.epochs.front().map_or(self.next, |first| first.number);
        self.near.turn(self.next, open);
        let span = self.controller.plan(now, self.epochs.make_contiguous());
        self.epochs.push_back(Epoch::new(self.next, span, now));
        self.next += 1;
        span
    }

    /// Returns the first epoch if it is finished: something that was sent later is acknowledged, and its own
    /// last packets would have been.
    fn finished(&self, now: f64) -> Option<Epoch> {
        let first = *self.epochs.front()?;
        // Of a connection with a queue of its own nothing may have been acknowledged yet.
        let longest = match self.controller.is_short(&first) || first.near <= 0.0 {
            true => first.longest_rtt.max(self.longest),
            false => first.longest_rtt,
        };
        let longest = longest.max(first.farthest + first.last_queue + self.controller.late(&first));
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
