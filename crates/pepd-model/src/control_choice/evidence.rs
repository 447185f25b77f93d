//! What a leg's connections have met, and what can be said of it.

/// What the connections of a leg have met since the last choice, in the last minutes at most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Segments sent, with those that were sent again.
    pub sent: f64,
    /// Those that were sent again.
    pub resent: f64,
    /// The seconds in which there was more to send than the leg took.
    pub busy: f64,
    /// What was delivered in these seconds, bits a second; none without such.
    pub goodput: Option<f64>,
    /// By how much round trips were longer in these seconds than the least of the same connection, seconds.
    pub added: Option<f64>,
    /// What they were without that, seconds.
    pub idle: Option<f64>,
    /// Whether others were seen to send over the same link, which only find-rate sees.
    pub others: bool,
}

/// The losses, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Losses {
    Unclear,
    /// Fewer than [`HARDLY`], beyond doubt.
    Hardly,
    /// More than [`LOSSY`], beyond doubt.
    Lossy,
}

/// The queue while the leg is busy, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Unclear,
    /// None that would make losses.
    Short,
    Long,
}

/// The share of segments sent again below which it makes no difference which control there is: cubic carries
/// 5 Mbit/s at 100 ms at it, and four times that at a tenth of it.
pub(super) const HARDLY: f64 = 0.001;

/// The share from which on it does. What lies between changes nothing, so that nothing flaps.
pub(super) const LOSSY: f64 = 0.005;

/// The standard deviations that "beyond doubt" means: of a count, its root.
const DOUBT: f64 = 3.0;

/// The busy seconds without which nothing is known of the queue and of goodput.
const BUSY: f64 = 20.0;

/// A queue that would make losses: so much of the round trip, and so long in seconds. A link with a buffer of a
/// quarter of a round trip has it when cubic fills it.
const LONG: (f64, f64) = (0.25, 0.005);

/// One that would not, in the same way.
const SHORT: (f64, f64) = (0.1, 0.003);

impl Seen {
    /// Returns the share of segments that were sent again; 0 of none.
    #[must_use]
    pub fn loss(&self) -> f64 {
        if self.sent > 0.0 {
            self.resent / self.sent
        } else {
            0.0
        }
    }

    pub(super) fn losses(&self) -> Losses {
        if self.sent <= 0.0 {
            return Losses::Unclear;
        }
        let doubt = DOUBT * self.resent.sqrt();
        let least = (self.resent - doubt) / self.sent;
        let most = (self.resent + doubt + DOUBT) / self.sent;
        if most < HARDLY {
            Losses::Hardly
        } else if least > LOSSY {
            Losses::Lossy
        } else {
            Losses::Unclear
        }
    }

    pub(super) fn queue(&self) -> Queue {
        let (Some(added), Some(idle)) = (self.added, self.idle) else {
            return Queue::Unclear;
        };
        let over = |(part, time): (f64, f64)| added > (part * idle).max(time);
        if self.busy < BUSY {
            Queue::Unclear
        } else if over(LONG) {
            Queue::Long
        } else if over(SHORT) {
            Queue::Unclear
        } else {
            Queue::Short
        }
    }

    /// Returns what is delivered while there is enough to send; none where that was too short to tell.
    pub(super) fn known_goodput(&self) -> Option<f64> {
        self.goodput.filter(|_| self.busy >= BUSY)
    }
}
