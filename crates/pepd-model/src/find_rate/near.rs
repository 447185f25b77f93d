//! Whose answers are waited for.

/// Round trips are told apart by powers of two of this, in seconds: so that a program in the kernel can.
const UNIT: f64 = 1024e-6;

/// So many of them are: those of the last class are half a minute and longer.
pub const CLASSES: usize = 16;

/// So much of what is sent is enough to learn from. As long as the near ones send at least the first of these parts of it, and
/// nearer ones not the second, they stay who they are.
const ENOUGH: f64 = 0.4;
const STILL_ENOUGH: [f64; 2] = [0.3, 0.45];

/// Who is hardly farther than those is near, too; and by less a round trip is not told from another one, which may only have waited.
pub(super) const MARGIN: f64 = 1.5;

/// What is left of what was sent with each epoch.
const KEPT: f64 = 0.95;

/// The bytes without which nothing is known of who is where.
const FEW: f64 = 32.0 * super::PACKET;

/// The near connections of a leg: those by whose acknowledgements the rate is found. Round trips of a leg's connections
/// differ, as their hosts are near and far behind it. What was sent is known to have arrived, or not, once the farthest has
/// answered: if the leg waited for all, too much could be sent for as long as that takes. What the nearer ones send says as much
/// of the leg, and sooner.
#[derive(Clone, Debug)]
pub struct Near {
    /// What was sent lately by connections of each class, in bytes.
    sent: [f64; CLASSES],
    /// The longest least round trip of one that is near, in seconds; before that epoch it was another one.
    most: f64,
    before: f64,
    since: u64,
}

impl Near {
    pub(super) fn new() -> Self {
        Self {
            sent: [0.0; CLASSES],
            most: f64::INFINITY,
            before: f64::INFINITY,
            since: 0,
        }
    }

    /// Returns the class of a least round trip in seconds.
    pub fn class(rtt: f64) -> usize {
        let below = |class: &usize| rtt < end(*class);
        (0..CLASSES).find(below).unwrap_or(CLASSES - 1)
    }

    /// Takes what connections of a class have sent, in bytes.
    pub fn add(&mut self, class: usize, bytes: f64) {
        if let Some(sent) = self.sent.get_mut(class) {
            *sent += bytes;
        }
    }

    /// Returns the longest least round trip of a connection that is near in an epoch, in seconds.
    pub fn most(&self, number: u64) -> f64 {
        if number < self.since {
            self.before
        } else {
            self.most
        }
    }

    /// Returns what that was before the last change.
    pub fn before(&self) -> f64 {
        self.before
    }

    /// Returns the first epoch of which what is near now holds.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Says who is near from an epoch on that begins, if that has changed; `open` is the first one of which something is
    /// under way.
    pub(super) fn turn(&mut self, number: u64, open: u64) {
        let all = self.sent.iter().sum::<f64>();
        let class = self.nearest(all);
        let within = |most: f64| {
            let classes = self.sent.iter().enumerate();
            let near = classes.take_while(|(class, _)| end(*class) <= most);
            near.map(|(_, sent)| sent).sum::<f64>()
        };
        let [least, enough] = STILL_ENOUGH;
        let is_too_few = within(self.most) < least * all;
        let is_too_far = end(class) * MARGIN < self.most && within(end(class)) > enough * all;
        let is_settled = self.since <= open;
        if all > FEW && is_settled && (is_too_few || is_too_far) {
            self.before = self.most;
            self.most = end(class) * MARGIN;
            self.since = number;
        }
        for sent in &mut self.sent {
            *sent *= KEPT;
        }
    }

    /// Returns the class up to which enough of it was sent.
    fn nearest(&self, all: f64) -> usize {
        let mut sum = 0.0;
        let is_enough = |sent: &f64| {
            sum += sent;
            sum >= ENOUGH * all
        };
        self.sent.iter().position(is_enough).unwrap_or(CLASSES - 1)
    }
}

/// The end of a class, in seconds; the last has none.
fn end(class: usize) -> f64 {
    if class + 1 == CLASSES {
        return f64::INFINITY;
    }
    // No more than a few.
    let class = i32::try_from(class).unwrap_or(i32::MAX);
    UNIT * 2_f64.powi(class)
}
