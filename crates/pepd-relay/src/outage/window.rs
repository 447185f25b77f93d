//! Windows of legs that are restarted.
//!
//! By its timeouts the kernel lets one segment of a leg be under way, and doubles that in each round trip: the
//! seventh has the full rate. But an outage is no sign of congestion. So the box gives the leg's socket for some
//! round trips a congestion control that keeps the window open for what the leg was delivering (`resume.bpf.c` of
//! pepd-bpf), and then its own again. What the kernel holds to be lost, and what is new, leaves paced by that
//! rate (SO_MAX_PACING_RATE) meanwhile.
//!
//! This is what Careful Resume (RFC 9959) does for a new connection, but with all of what was known, not
//! half of it: it is the same connection over the same link, its rate and not only its window is limited, and
//! what all legs may send together is what the link carried.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use pepd_sys::sockopt;
use pepd_sys::tcp_info::{TcpInfo, tcp_info};
use pepd_telemetry::LiveLeg;
use socket2::{SockRef, Socket as NewSocket, Type};

use super::Claim;
use super::share::Share;
use crate::probe::OWN_CONTROLS;
use crate::settings::Leg;

/// The rate of a socket that has none.
const NO_RATE: u64 = u64::MAX;

/// The round trips for which the window is open and the rate kept to: one until the first answers, and two until
/// what is sent by the clock of these is answered.
const ROUND_TRIPS: u32 = 3;

/// The round trips for which the window is open at most, where something is lost still: by its own control what is lost a
/// second time would cost a timeout. That of `resume.bpf.c` is over after eight.
const MOST_ROUND_TRIPS: u32 = 7;

/// Those for which bbr keeps to the rate once it has the window: it begins anew and doubles its rate until that brings
/// nothing for three round trips (bbr_check_full_bw_reached, net/ipv4/tcp_bbr.c); the first one after an outage is too long
/// to tell.
const ROUND_TRIPS_OF_BBR: u32 = 8;

/// The time for which the kernel's first segment holds up what follows, twice, since it credits itself with half
/// of a pause (tcp_update_skb_after_send, net/ipv4/tcp_output.c): what is held up by that is sent by
/// a timer, which begins with what is lost. What is not begins with what is new, and does not begin where
/// the receiver has no room for that.
const HELD_UP: Duration = Duration::from_millis(10);

/// The least that a round trip is taken for: timers are not finer.
pub(super) const LEAST: Duration = Duration::from_millis(20);

/// The least that a leg may send, however little it delivered: it may have been new, or its last sample be of a lone segment that was
/// answered after seconds. What is sent by a timeout does not wait for its time, but puts that of the next one off by its own
/// (tcp_update_skb_after_send): at a rate by which a segment takes longer than a timeout the socket's time gets ahead by more each
/// time, minutes in the end, and a leg that is paced afterwards, too, stands still for as long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    segments: u32,
    /// The time for them, beside the least round trip.
    longer: Duration,
}

impl Least {
    /// What usually is the least.
    pub(super) const USUAL: Self = Self::of(2);

    /// The least of very many: a timeout is a round trip and 200 ms at least (TCP_RTO_MIN).
    pub(super) const OF_MANY: Self = Self {
        segments: 1,
        longer: Duration::from_millis(100),
    };

    /// So many segments in the least round trip.
    pub(super) const fn of(segments: u32) -> Self {
        Self {
            segments,
            longer: Duration::ZERO,
        }
    }

    /// Returns the bytes a second of a leg by which it sends them.
    pub(super) fn rate(self, info: &TcpInfo) -> u64 {
        let trip = info.min_rtt.unwrap_or_default().max(LEAST);
        let bytes = u128::from(self.segments) * u128::from(info.mss);
        let rate = bytes * 1_000_000 / trip.saturating_add(self.longer).as_micros();
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

/// What opens windows, and has legs begin no faster than they delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opener<'s> {
    /// The congestion control that opens them; none where the kernel has none.
    pub(super) control: Option<&'s str>,
    pub(super) share: Share,
    /// What a leg may send, whatever its share.
    pub(super) least: Least,
}

impl<'s> Opener<'s> {
    /// Has a leg send no faster than its part until it begins: what its peer acknowledges before, because it has been woken or its own
    /// timer has run out, would let all of the old window go at once (F-RTO, `tcp_try_undo_loss`). It is the bytes a second that
    /// it `delivered`, or its part by what it `claim`s; none if there were none, or it has a control of pepd's own, which keeps to a
    /// rate in any case. Its window is opened when it begins, if it `can` send then.
    ///
    /// Where nothing can open windows only bbr is held to a rate: it goes on at what its best sample said, of many more than their part
    /// of the link, and times 2.89 where it was still starting. Others begin with a segment, and would have to be paced from then on.
    pub(super) fn hold(
        self,
        live: &LiveLeg,
        info: &TcpInfo,
        claim: &Claim,
        can: bool,
    ) -> Option<Paced<'s>> {
        let socket = live.socket.upgrade()?;
        let fd = socket.as_fd();
        let own = name(SockRef::from(&fd).tcp_congestion().ok()?);
        let before = sockopt::max_pacing_rate(fd).ok()?;
        let is_bbr = own.starts_with(b"bbr");
        if own.starts_with(b"pepd") || self.control.is_none() && !is_bbr {
            return None;
        }
        let now = Instant::now();
        let mut paced = Paced {
            rate: NO_RATE,
            claim: claim.clone(),
            least: self.least.rate(info),
            control: self.control.filter(|_| can),
            opens: self.control.is_some() && can,
            ends: self
                .control
                .filter(|_| !can && !is_bbr && before == NO_RATE),
            before,
            own,
            trip: info.rtt.max(LEAST),
            after: match is_bbr {
                // By then nothing waits in a queue any more that was there before the outage.
                true => ROUND_TRIPS_OF_BBR * info.min_rtt?.max(LEAST),
                false => Duration::ZERO,
            },
            // When it begins it is known.
            closes: now,
            closes_at_last: now,
            until: now,
        };
        info.min_rtt?;
        paced.rate = self.rate(&paced)?;
        sockopt::set_max_pacing_rate(fd, paced.rate).ok()?;
        Some(paced)
    }

    /// Returns the rate of a leg that is `paced`, in bytes a second, if there is one: by what it claims now.
    fn rate(self, paced: &Paced<'_>) -> Option<u64> {
        let Claim { delivered, .. } = paced.claim;
        let rate = self.share.of(delivered, paced.claim.now(), paced.opens);
        let rate = Some(rate).filter(|rate| *rate > 0)?;
        Some(rate.max(paced.least).min(paced.before))
    }
}

/// A leg that is paced. When this is dropped it is as it was before.
#[derive(Debug)]
pub(super) struct Paced<'s> {
    /// The control that opens its window; none where it is not opened, or not any more.
    control: Option<&'s str>,
    /// Whether it is, or was.
    opens: bool,
    /// That by which the kernel stops pacing where its window has not been opened.
    ends: Option<&'s str>,
    /// The rate that it keeps to.
    rate: u64,
    /// What it claims of the link, and the least that it may send, in bytes a second.
    claim: Claim,
    least: u64,
    /// The rate that it had before.
    before: u64,
    /// The control that it has of its own.
    own: Vec<u8>,
    /// A round trip.
    trip: Duration,
    /// The time for which it is paced once its window is open no more.
    after: Duration,
    /// Until when its window is open, and at most.
    closes: Instant,
    closes_at_last: Instant,
    /// Until when it is paced, if its window is not open.
    until: Instant,
}

impl Paced<'_> {
    /// Has it begin at the rate that is its part now.
    pub(super) fn begin(&mut self, opener: Opener<'_>, info: &TcpInfo) {
        let Some(socket) = self.claim.socket.upgrade() else {
            return;
        };
        self.rate = opener.rate(self).unwrap_or(self.rate);
        let now = Instant::now();
        self.closes = now + ROUND_TRIPS * self.trip;
        self.closes_at_last = now + MOST_ROUND_TRIPS * self.trip;
        self.until = match self.ends {
            Some(_) => self.closes,
            None => now + self.after,
        };
        let slow = u64::from(info.mss) * 1000 / u64::try_from(HELD_UP.as_millis()).unwrap_or(1);
        // Half of it, by which the second segment of one of several leaves when the others have sent their first ones.
        let slow = match opener.share.is_shared {
            true => slow.min(self.rate / 2),
            false => slow,
        };
        let first = self.control.map_or(self.rate, |_| self.rate.min(slow));
        // One that fails keeps the rate that it was held to.
        let _ = sockopt::set_max_pacing_rate(socket.as_fd(), first);
    }

    /// Opens its window, if windows are opened, and has it send.
    pub(super) fn open(&mut self, fd: BorrowedFd<'_>) {
        let Some(control) = self.control else { return };
        let socket = SockRef::from(&fd);
        if sockopt::set_max_pacing_rate(fd, self.rate).is_err() {
            self.control = None;
        } else if let Err(error) = socket.set_tcp_congestion(control.as_bytes()) {
            self.control = None;
            tracing::debug!(%error, "open a leg's window");
        } else {
            // This has the kernel send what waits (tcp_push_pending_frames), and as the first segment holds that
            // up, at first what is lost (tcp_tsq_write).
            let _ = socket.set_tcp_nodelay(true);
        }
    }

    /// Has it send faster where its part of the link has become larger.
    pub(super) fn share_again(&mut self, opener: Opener<'_>) {
        let (Some(socket), Some(rate)) = (self.claim.socket.upgrade(), opener.rate(self)) else {
            return;
        };
        if rate > self.rate && sockopt::set_max_pacing_rate(socket.as_fd(), rate).is_ok() {
            self.rate = rate;
        }
    }

    /// Returns when it is to be looked at next.
    pub(super) fn next(&self) -> Instant {
        match self.control {
            Some(_) => self.closes,
            None => self.until,
        }
    }

    /// Looks at it: its window closes when it is time for that. Returns whether it still is to be paced.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        if now < self.next() {
            return true;
        }
        let Some(socket) = self.claim.socket.upgrade() else {
            return false;
        };
        if self.control.is_some() {
            let is_recovering = || tcp_info(socket.as_fd()).is_ok_and(|info| info.lost > 0);
            if now < self.closes_at_last && is_recovering() {
                self.closes = (now + self.trip).min(self.closes_at_last);
                return true;
            }
            if self.after > Duration::ZERO {
                self.close(socket.as_fd());
            }
            self.until = now + self.after;
        }
        now < self.until
    }

    /// Gives it its own control back, unless it has been given another one meanwhile.
    fn close(&mut self, fd: BorrowedFd<'_>) {
        let socket = SockRef::from(&fd);
        let Some(control) = self.control.take() else {
            return;
        };
        let has = socket.tcp_congestion().map(name);
        if has.is_ok_and(|has| has == control.as_bytes())
            && let Err(error) = socket.set_tcp_congestion(&self.own)
        {
            let own = String::from_utf8_lossy(&self.own);
            tracing::warn!(%error, %own, "a leg has lost its congestion control, and has Reno");
        }
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        let Some(socket) = self.claim.socket.upgrade() else {
            return;
        };
        let fd = socket.as_fd();
        // One that has just failed has nothing to be put right.
        let _ = sockopt::set_max_pacing_rate(fd, self.before);
        if let Some(ends) = self.ends {
            let socket = SockRef::from(&fd);
            // It may have been given another one meanwhile.
            self.own = socket
                .tcp_congestion()
                .map_or_else(|_| self.own.clone(), name);
            // As `settle` does it. Where the control cannot be had it is paced at a rate that it does not reach.
            let _ = socket.set_tcp_congestion(ends.as_bytes());
            self.control = self.ends;
        }
        // The kernel does not stop pacing by itself, but that control does where no rate is asked for any more.
        self.close(fd);
    }
}

/// Puts right what a process may have left of a socket of this leg that has died while it opened its window: it
/// has the rate of [`Opener::hold`], or for a moment even the `control` that opens windows.
pub(crate) fn settle(fd: BorrowedFd<'_>, leg: &Leg, control: &str) -> io::Result<()> {
    let socket = SockRef::from(&fd);
    let has = name(socket.tcp_congestion()?);
    if has.starts_with(OWN_CONTROLS.as_bytes()) && has != control.as_bytes() {
        // It keeps to a rate in any case.
        return Ok(());
    }
    // What it has may be what its leg had when it began.
    let own = match has == control.as_bytes() {
        true => control_of(leg, &socket)?,
        false => has.clone(),
    };
    let rate = leg.rate.map_or(NO_RATE, |rate| rate.bytes_per_second());
    let is_paced = sockopt::max_pacing_rate(fd)? != rate;
    if is_paced {
        sockopt::set_max_pacing_rate(fd, rate)?;
    }
    if is_paced && rate == NO_RATE && !own.starts_with(b"bbr") {
        // As when a leg is paced no longer.
        socket.set_tcp_congestion(control.as_bytes())?;
        return socket.set_tcp_congestion(&own);
    }
    match has == own {
        true => Ok(()),
        false => socket.set_tcp_congestion(&own),
    }
}

/// Returns the congestion control that a new socket of the leg's has, in the family of this one.
pub(crate) fn control_of(leg: &Leg, socket: &NewSocket) -> io::Result<Vec<u8>> {
    if let Some(own) = leg.control() {
        return Ok(own.as_bytes().to_vec());
    }
    let another = NewSocket::new(socket.domain()?, Type::STREAM, None)?;
    Ok(name(another.tcp_congestion()?))
}

/// Returns a name that the kernel has given, without what fills it up.
pub(crate) fn name(mut given: Vec<u8>) -> Vec<u8> {
    given.retain(|byte| *byte != 0);
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_takes_no_longer_than_a_timeout() {
        for (mss, rtt) in [(1448, 600), (1448, 100), (536, 2)] {
            let info = TcpInfo {
                mss,
                min_rtt: Some(Duration::from_millis(rtt)),
                ..TcpInfo::default()
            };
            let takes = |least: Least| f64::from(mss) / least.rate(&info) as f64;
            let trip = info.min_rtt.unwrap_or_default();
            assert!(takes(Least::USUAL) < trip.max(LEAST).as_secs_f64());
            let timeout = trip + Duration::from_millis(200);
            assert!(takes(Least::OF_MANY) < timeout.as_secs_f64());
        }
        let never = TcpInfo {
            mss: u32::MAX,
            min_rtt: Some(Duration::MAX),
            ..TcpInfo::default()
        };
        assert_eq!(Least::USUAL.rate(&never), 0);
        assert_eq!(Least::OF_MANY.rate(&never), 0);
    }
}
