//! What is known of a link from its modem, and what is left of that without a session. No I/O and no
//! clock: the time is passed in.
//!
//! By RFC 8175 (section 7) no destination is up without a session. But a modem whose management is
//! begun anew is no link that is gone, and connections that wait for one would wait in vain. So:
//!
//! - a modem that has ended the session, or answers without having one: what it said last holds;
//!   if that was *gone*, for a minute, after which the link counts as up, as one of which nothing is
//!   known;
//! - a modem that is not there any more, since nothing that is sent to it is acknowledged: the link is
//!   gone until a session says otherwise, since whatever goes over it goes through the modem;
//! - a modem that was taken for that, and answers now without having a session (it has begun anew, and what its
//!   kernel said of the old session was not believed, since it says that with a TTL of its own): what it said last
//!   holds after all.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pepd_admin::wire::ModemState;
use pepd_dlep::session::{Link, Metrics};

/// The time for which *gone* holds when the modem says nothing any more although it is there.
const HOLDS: Duration = Duration::from_secs(60);

/// Whether a modem without a session is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// It answers.
    Reached,
    /// Nothing that is sent to it arrives.
    Unreachable,
    /// That is not known.
    Unknown,
}

/// What is known of one link.
#[derive(Debug, Default)]
pub(super) struct Known {
    link: Option<Link>,
    session: Option<SocketAddr>,
    sessions: u64,
    /// Since when a modem that is there does not say that the link is back.
    unsaid: Option<Instant>,
    /// Whether the modem had said that the link was up, and is thought not to be there.
    is_missed: bool,
}

/// What is left of it after a session, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The modem is not there.
    Gone,
    /// What was said last.
    Up,
    /// What was said last, for a while.
    GoneForAWhile,
    /// Nothing has been said.
    Nothing,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "nothing arrives at the modem, so the link is gone",
            Self::Up => "the modem is there, so the link counts as up, as it said last",
            Self::GoneForAWhile => {
                "the modem is there, and said last that the link is gone: that holds for a minute"
            }
            Self::Nothing => "it had said nothing of the link, which counts as before",
        })
    }
}

impl Reach {
    /// Returns what an error of a connection tells of it.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Self::Reached,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::TimedOut => Self::Unreachable,
            _ => Self::Unknown,
        }
    }
}

impl Known {
    /// Returns what is known where the modem had said this before its section of the file was changed.
    pub(super) fn after(link: Option<Link>, now: Instant) -> Self {
        let is_gone = link.is_some_and(|link| !link.is_up);
        Self {
            link,
            unsaid: is_gone.then_some(now),
            ..Self::default()
        }
    }

    /// A session has begun.
    pub(super) fn begun(&mut self, with: SocketAddr) {
        self.session = Some(with);
        self.sessions += 1;
        self.unsaid = None;
    }

    /// The modem has said something of the link.
    pub(super) fn said(&mut self, link: Link) {
        self.link = Some(link);
        self.is_missed = false;
    }

    /// The session is over.
    pub(super) fn lost(&mut self, reach: Reach, now: Instant) -> Left {
        let was_there = self.session.take().is_some();
        let Some(link) = &mut self.link else {
            return Left::Nothing;
        };
        link.metrics = Metrics::default();
        if reach == Reach::Reached && std::mem::take(&mut self.is_missed) {
            link.is_up = true;
        }
        match (reach, link.is_up) {
            // One that only answered the connection has said no more than before.
            (Reach::Unreachable, _) if was_there => {
                self.is_missed |= std::mem::take(&mut link.is_up);
                self.unsaid = None;
                Left::Gone
            }
            (_, true) => Left::Up,
            (_, false) => {
                self.unsaid.get_or_insert(now);
                Left::GoneForAWhile
            }
        }
    }

    /// The modem is there, and has no session; returns whether the link counts as up for that from now on.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| !link.is_up) else {
            return false;
        };
        if std::mem::take(&mut self.is_missed) {
            link.is_up = true;
            return true;
        }
        self.unsaid.get_or_insert(now);
        false
    }

    /// Takes note of the time; returns whether the link counts as up from now on.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        let is_over = |since: &mut Instant| now.saturating_duration_since(*since) >= HOLDS;
        if self.unsaid.take_if(is_over).is_none() {
            return false;
        }
        let (is_up, metrics) = (true, Metrics::default());
        self.link = Some(Link { is_up, metrics });
        true
    }

    pub(super) fn link(&self) -> Option<Link> {
        self.link
    }

    /// Returns what is shown of it.
    pub(super) fn state(&self) -> ModemState {
        let metrics = self.link.map(|link| link.metrics).unwrap_or_default();
        ModemState {
            session: self.session.map(|with| with.to_string()),
            sessions: self.sessions,
            transmit_rate: metrics.transmit,
            receive_rate: metrics.receive,
            latency: metrics.latency().map(|latency| latency.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 854);

    fn said(is_up: bool) -> Known {
        let mut known = Known::default();
        known.begun(WITH);
        let metrics = Metrics {
            transmit: Some(8),
            ..Metrics::default()
        };
        known.said(Link { is_up, metrics });
        known
    }

    fn is_up(known: &Known) -> Option<bool> {
        known.link().map(|link| link.is_up)
    }

    #[test]
    fn a_modem_that_begins_anew_is_no_link_that_is_gone() {
        let now = Instant::now();
        let mut known = said(true);
        assert_eq!(known.lost(Reach::Reached, now), Left::Up);
        assert!(!known.tick(now + 2 * HOLDS));
        assert_eq!(is_up(&known), Some(true));
        // How fast it is is known no more.
        assert_eq!(known.state().transmit_rate, None);
        assert_eq!((known.state().session, known.state().sessions), (None, 1));
    }

    #[test]
    fn a_modem_that_is_not_there_takes_the_link_with_it() {
        let now = Instant::now();
        let mut known = said(true);
        assert_eq!(known.lost(Reach::Unreachable, now), Left::Gone);
        assert!(!known.tick(now + 100 * HOLDS));
        assert_eq!(is_up(&known), Some(false));
    }

    #[test]
    fn a_modem_that_answers_after_all_has_taken_nothing_with_it() {
        let now = Instant::now();
        let mut known = said(true);
        known.lost(Reach::Unreachable, now);
        assert!(known.answered(now));
        assert_eq!(is_up(&known), Some(true));
        assert!(!known.answered(now) && !known.tick(now + 2 * HOLDS));
        // Its program accepts connections, and no session, or ends the one that has just begun.
        for begins in [false, true] {
            let mut known = said(true);
            known.lost(Reach::Unreachable, now);
            if begins {
                known.begun(WITH);
            }
            assert_eq!(is_up(&known), Some(false));
            assert_eq!(known.lost(Reach::Reached, now), Left::Up);
        }
        // Had it said that the link is gone, that is what it said last.
        for said_last in [true, false] {
            let mut known = said(true);
            if said_last {
                let (is_up, metrics) = (false, Metrics::default());
                known.said(Link { is_up, metrics });
            } else {
                known.lost(Reach::Unreachable, now);
                known.begun(WITH);
                let (is_up, metrics) = (false, Metrics::default());
                known.said(Link { is_up, metrics });
            }
            known.lost(Reach::Unreachable, now);
            assert!(!known.answered(now) && known.tick(now + HOLDS));
        }
    }

    #[test]
    fn gone_holds_for_a_minute_and_a_session_has_the_last_word() {
        let now = Instant::now();
        let mut known = said(false);
        assert_eq!(known.lost(Reach::Reached, now), Left::GoneForAWhile);
        known.answered(now + HOLDS / 2);
        assert!(known.tick(now + HOLDS) && !known.tick(now + HOLDS));
        let mut known = said(false);
        known.lost(Reach::Unknown, now);
        known.begun(WITH);
        assert!(!known.tick(now + 2 * HOLDS));
        assert_eq!(is_up(&known), Some(false));
    }

    #[test]
    fn what_was_never_said_is_not_known() {
        let now = Instant::now();
        let mut known = Known::default();
        known.answered(now);
        assert!(!known.tick(now + HOLDS));
        assert_eq!(known.lost(Reach::Unreachable, now), Left::Nothing);
        assert_eq!(known.link(), None);
    }
}
