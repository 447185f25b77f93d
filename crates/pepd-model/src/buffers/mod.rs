//! What the sockets of a leg may hold: enough for what it carries, and a fair part of the memory.
//!
//! The kernel sizes a socket's buffers by itself, up to maxima that are the same for all sockets
//! (net.ipv4.tcp_wmem and tcp_rmem), and each round trip: nothing from outside is as quick. So it is
//! left to it for as long as it has room. A [`Tuner`] takes over where the path needs more than those
//! maxima, and where all connections together hold so much that each has to be kept to its part
//! ([`Memory`]); and gives back. It judges by samples, about one a second.
//!
//! Sizes are bytes as the kernel counts a socket's (`sk_sndbuf`, `sk_rcvbuf`): with what it needs for
//! bookkeeping, for which it takes as much again as there is payload (socket(7), SO_SNDBUF).

mod account;
mod memory;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::account::{Account, Holds, RESERVE};
pub use self::memory::Memory;

/// What any socket may hold, however short memory is: as much as the kernel starts with
/// (net.ipv4.tcp_rmem, 131072). It is a window of 64 KiB, with which every path works, if slowly.
pub const LEAST: u64 = 128 << 10;

/// The same of a send buffer. What is spliced costs hardly any bookkeeping there, so that this is the
/// window that comes with [`LEAST`].
const LEAST_SENT: u64 = LEAST / 2;

/// The most that a new connection's buffer has until it is sampled first, where it is not left to the
/// kernel: a window of 512 KiB, 400 Mbit/s over 10 ms.
const FIRST: u64 = 1 << 20;

/// What a socket holds beyond its buffer's size at most: the kernel looks at the size before it takes
/// another packet, of up to 64 KiB where the host puts segments together (GRO, GSO), and its
/// bookkeeping (tcp_rmem_schedule, net/ipv4/tcp_input.c; sk_stream_memory_free, include/net/sock.h).
pub const BEYOND: u64 = 72 << 10;

/// The most that a socket is given: 64 MiB of payload, a satellite's 600 ms at 400 Mbit/s twice, or an
/// ocean's 100 ms at 2.5 Gbit/s.
pub const MOST: u64 = 128 << 20;

/// The round trips for which what came behind a loss may wait: of 10,000 packets one is lost so often in a row where 30 %
/// are. A reader that stops, or packets that cost more bookkeeping than they carry, look like that, too.
const BEHIND: f64 = 8.0;

/// The part of its maximum from which on the kernel is held to have no more room: it grows a send
/// buffer in steps, of which the last may not fit.
const NEARLY: f64 = 0.75;

/// The part, one in so many, by which a size goes down in a sample, once the path needs less: a transfer that pauses for
/// a few seconds finds its buffer as it was.
const SHRINKS: u64 = 8;

/// Which of a socket's two buffers it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What is sent and not acknowledged, and what waits to be sent.
    Send,
    /// What has come and was not read; its room is the window that the peer is told.
    Receive,
}

impl Way {
    /// Returns what a byte of payload counts. What is received comes packet by packet, and the kernel makes
    /// a window of half a buffer; what is spliced to be sent has hardly more than its pages.
    const fn with_bookkeeping(self) -> f64 {
        match self {
            Self::Send => 1.125,
            Self::Receive => 2.0,
        }
    }
}

/// What is known of a buffer and of its path at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Payload that the path delivers, bytes a second.
    pub rate: f64,
    /// The leg's round-trip time, without what waits in queues: else a buffer would grow by the queue that
    /// it fills itself.
    pub rtt: Duration,
    /// Payload that the congestion control lets be under way; 0 for what is received.
    pub window: u64,
    /// Payload that has arrived behind something that has not: both ends keep it until that has, and no congestion window
    /// counts it.
    pub behind: u64,
    /// The bytes that the buffer holds.
    pub held: u64,
    /// The bytes that it may hold now.
    pub size: u64,
    /// The most that the kernel makes it by itself.
    pub kernel_most: u64,
    /// The most that can be of use: what the peer can be told of (RFC 7323, section 2.2).
    pub useful: u64,
}

impl Sample {
    /// Returns the bytes that the path uses: twice what it has under way, so that what comes between two
    /// samples, and what is repeated, has room. A control that keeps more under way than the path
    /// carries (bbr twice, pepd's own three times, since what is lost still counts) has room for that
    /// and for a round trip's worth that waits behind it. What is lost again and again leaves more behind it than all of
    /// that.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "what is too large becomes the largest integer, and it is not negative"
    )]
    fn needed(&self, way: Way) -> u64 {
        let path = self.rate.max(0.0) * self.rtt.as_secs_f64();
        let behind = (self.behind as f64).min(BEHIND * path);
        let payload = (2.0 * path).max(path + self.window as f64) + behind;
        (way.with_bookkeeping() * payload) as u64
    }

    /// Returns whether nothing comes or goes, and nothing waits.
    fn is_idle(&self) -> bool {
        self.rate <= 0.0 && self.held == 0
    }

    /// Returns what it should have for that.
    fn wanted(&self, way: Way) -> u64 {
        let most = MOST.min(self.useful.max(LEAST));
        self.needed(way).clamp(LEAST, most)
    }
}

/// Why a buffer has its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The kernel sizes it, and has room.
    Kernel,
    /// The path carries more than the kernel's maximum has room for.
    Path,
    /// Memory is short: this is its part.
    Memory,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Path, Self::Memory];

    /// Gives its name, as in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Path => "path",
            Self::Memory => "memory",
        }
    }
}

/// What is to be done with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it stays as it is, and whose it is.
    Keep,
    /// It is given this size, and the kernel leaves it alone.
    Set(u64),
    /// The kernel sizes it again, from here on.
    GiveBack(u64),
}

/// What is remembered of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuner {
    way: Way,
    /// What it was set to; none while the kernel sizes it.
    set: Option<u64>,
    why: Why,
}

impl Tuner {
    /// Returns one for a buffer that the kernel sizes.
    pub const fn new(way: Way) -> Self {
        Self {
            way,
            set: None,
            why: Why::Kernel,
        }
    }

    /// Returns one for a buffer of a new connection, which has `size`, and what it is given where it is
    /// not left to the kernel.
    pub fn begin(way: Way, memory: &Memory, size: u64) -> (Self, Step) {
        let part = memory.first_part();
        let first = match way {
            Way::Send => part.clamp(LEAST_SENT, FIRST),
            // The peer has been told of the window already.
            Way::Receive => part.min(FIRST).max(size).max(LEAST),
        };
        let tuner = Self {
            way,
            set: Some(first),
            why: Why::Memory,
        };
        (tuner, Step::Set(first))
    }

    /// Returns the bytes that the buffer may hold, or holds, if that is more.
    pub fn counted(&self, held: u64, kernel_most: u64) -> u64 {
        held.max(self.set.unwrap_or(kernel_most) + BEYOND)
    }

    /// Returns what it was set to; none while the kernel sizes it.
    pub const fn set(&self) -> Option<u64> {
        self.set
    }

    /// Returns why.
    pub const fn why(&self) -> Why {
        self.why
    }

    /// Takes a sample, and says what is to be done.
    pub fn sample(&mut self, sample: &Sample, memory: &Memory) -> Step {
        let own = if memory.promised {
            self.counted(sample.held, sample.kernel_most)
        } else {
            sample.held
        };
        let part = memory.part(own).max(self.least());
        let wanted = sample.wanted(self.way);
        // Where the kernel may go beyond its part before the next sample, it may not by itself; nor
        // where memory is kept for what carries nothing.
        let may_be_the_kernels =
            part >= sample.kernel_most && !(sample.is_idle() && memory.is_short());
        if may_be_the_kernels && wanted <= sample.kernel_most {
            return match self.set {
                None => Step::Keep,
                // It is not what holds it back.
                Some(_)
                    if self.why == Why::Memory && 2 * sample.needed(self.way) <= sample.size =>
                {
                    Step::Keep
                }
                Some(_) => self.towards_the_kernel(sample),
            };
        }
        if may_be_the_kernels && self.set.is_none() && !is_kernel_done(sample) {
            return Step::Keep;
        }
        // What is measured may be what the buffer allows: it doubles until that is not so.
        let target = if wanted > sample.size {
            let most = MOST.min(sample.useful.max(LEAST));
            wanted.max(2 * sample.size).min(most)
        } else {
            wanted
        };
        let is_the_path_s = wanted > sample.kernel_most && part >= target;
        let why = if is_the_path_s {
            Why::Path
        } else {
            Why::Memory
        };
        let next = self.bounded(target.min(part).max(self.least()), sample, part);
        if self.set == Some(next) && self.why == why {
            return Step::Keep;
        }
        self.set = Some(next);
        self.why = why;
        Step::Set(next)
    }

    /// Returns what it may hold in any case.
    const fn least(&self) -> u64 {
        match self.way {
            Way::Send => LEAST_SENT,
            Way::Receive => LEAST,
        }
    }

    /// Goes down to what the kernel would do by itself, and then leaves it to it.
    fn towards_the_kernel(&mut self, sample: &Sample) -> Step {
        let target = sample.kernel_most.min(sample.size);
        let next = self.bounded(target, sample, u64::MAX);
        if next > sample.kernel_most {
            self.set = Some(next);
            self.why = Why::Path;
            return Step::Set(next);
        }
        *self = Self::new(self.way);
        Step::GiveBack(next)
    }

    /// Bounds how fast a size changes: up at once, down slowly, unless it is more than its `part`. A
    /// window that the peer has been told of is not taken back (RFC 9293, section 3.8.6): what a receive
    /// buffer loses has to be free, with room for what is under way.
    fn bounded(&self, target: u64, sample: &Sample, part: u64) -> u64 {
        if target >= sample.size {
            return target;
        }
        let slowly = sample.size - sample.size / SHRINKS;
        match self.way {
            Way::Send if part < sample.size => target.max(slowly.min(part)),
            Way::Send => target.max(slowly),
            Way::Receive if sample.held > slowly / 2 => sample.size,
            Way::Receive => target.max(slowly),
        }
    }
}

/// Returns whether the kernel has made the buffer as large as it does.
fn is_kernel_done(sample: &Sample) -> bool {
    sample.size as f64 >= NEARLY * sample.kernel_most as f64
}
