//! What the tables and the terminal's screen say in the same words: the daemon in a line, a peer's
//! liveness, a leg's figures, a direction's phase.

use pepd_admin::wire::{
    DaemonState, LegSnapshot, LimitUse, LinkReport, Liveness, Phase, PhaseSeconds, RateLimit,
    Status, TcpFigures,
};

use crate::ui::format;

/// Describes a daemon in one line: its name, what it does, since when, its version and workers.
pub fn headline(status: &Status) -> String {
    format!(
        "{}: {}; up {}, pepd {}, {} workers",
        status.node,
        state(status),
        format::age(status.uptime),
        status.version,
        status.workers
    )
}

/// Tells what the daemon does with new connections.
fn state(status: &Status) -> String {
    let words = match status.state {
        DaemonState::Splitting if !status.alarms.is_empty() => {
            "new connections would be split, BUT SEE THE ALARM"
        }
        DaemonState::Splitting => "splitting new connections",
        DaemonState::Full => {
            let is_reached = |limit: &&LimitUse| limit.limit > 0 && limit.used >= enough(limit);
            let reached = status.limits.iter().filter(is_reached);
            let names: Vec<_> = reached.map(|limit| limit.name.as_str()).collect();
            let which = match names[..] {
                [] => String::new(),
                _ => format!(" ({})", names.join(", ")),
            };
            return format!("a limit is reached{which}, new connections are routed unsplit");
        }
        DaemonState::Flooded => {
            "a flood of SYNs to many destinations, new connections are routed unsplit"
        }
        DaemonState::Blocked => {
            "SPLIT CONNECTIONS DO NOT COME THROUGH, new connections are routed unsplit"
        }
        DaemonState::Trial => {
            "split connections did not come through: new connections are split to see whether they \
             do now"
        }
        DaemonState::Draining => "draining, new connections are routed unsplit",
    };
    words.to_owned()
}

/// The name of the limit that is counted in bytes.
const MEMORY: &str = "memory";

/// Returns the use from which on a limit is what new connections are routed for: there has to be
/// memory for another one, and it is there again only a sixteenth below.
fn enough(limit: &LimitUse) -> u64 {
    if limit.name == MEMORY {
        limit.limit / 8 * 7
    } else {
        limit.limit
    }
}

/// Writes a number of what is limited.
pub fn amount(limit: &LimitUse, number: u64) -> String {
    if limit.name == MEMORY {
        format::bytes(number)
    } else {
        format::count(number)
    }
}

/// Tells a peer's liveness in a word.
pub fn liveness(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Unknown => "unknown",
        Liveness::Answering => "answering",
        Liveness::Silent => "SILENT",
        Liveness::Unprobed => "unprobed",
    }
}

/// Tells in a word whether a link is there.
pub fn link(state: LinkReport) -> &'static str {
    match state {
        LinkReport::Up => "up",
        LinkReport::GoingDown => "GOING DOWN",
        LinkReport::Gone => "GONE",
    }
}

/// Names what limits a rate that is found.
pub fn rate_limit(limit: RateLimit) -> &'static str {
    match limit {
        RateLimit::Looking => "nothing yet",
        RateLimit::Applications => "less to send",
        RateLimit::Ceiling => "its rate",
        RateLimit::Link => "the link",
        RateLimit::Others => "others, too",
        RateLimit::Drops => "drops",
    }
}

/// Writes a leg's smoothed round-trip time, or that its link is gone, since nothing comes round then.
pub fn rtt(leg: &LegSnapshot) -> String {
    match leg.link {
        LinkReport::Gone => link(leg.link).to_owned(),
        LinkReport::Up | LinkReport::GoingDown => figure(leg, |tcp| format::seconds(tcp.rtt)),
    }
}

/// Writes a leg's congestion window, in segments.
pub fn cwnd(leg: &LegSnapshot) -> String {
    figure(leg, |tcp| tcp.cwnd.to_string())
}

/// Writes the number of segments that a leg has sent again.
pub fn retransmitted(leg: &LegSnapshot) -> String {
    figure(leg, |tcp| tcp.retransmitted_segments.to_string())
}

/// Writes a figure of the leg's socket; a dash once that has closed.
fn figure(leg: &LegSnapshot, of: impl Fn(&TcpFigures) -> String) -> String {
    leg.tcp.as_ref().map_or_else(|| "–".to_owned(), of)
}

/// Names the phase that took most of the time, with its share.
pub fn main_phase(phases: &PhaseSeconds) -> String {
    let all = phases.total();
    if all <= 0.0 {
        return "–".to_owned();
    }
    let times = Phase::ALL.map(|phase| (phase, phases.of(phase)));
    let most = times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    most.map_or_else(String::new, |(phase, time)| {
        format!("{} {}", phase_name(phase), format::percent(time / all))
    })
}

/// Names a phase in a column's width.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Free => "free",
        Phase::Starved => "starved",
        Phase::Backpressured => "backpr.",
    }
}
