//! The kernel's TCP: extensions, Fast Open and queues.

use pepd_config::Config;

use super::finding::{Finding, Level};
use super::sysctl::{self, Sysctls};

/// A parameter that should have a value of at least `least`.
struct Expected {
    id: &'static str,
    path: &'static str,
    least: u64,
    level: Level,
    why: &'static str,
}

const EXPECTED: [Expected; 6] = [
    Expected {
        id: "tcp.window-scaling",
        path: "net/ipv4/tcp_window_scaling",
        least: 1,
        level: Level::Slow,
        why: "without it (RFC 7323) at most 64 KiB are in flight: 0.9 Mbit/s at 600 ms",
    },
    Expected {
        id: "tcp.sack",
        path: "net/ipv4/tcp_sack",
        least: 1,
        level: Level::Slow,
        why: "without it (RFC 2018) one lost packet a round trip can be repaired, no more",
    },
    Expected {
        id: "tcp.timestamps",
        path: "net/ipv4/tcp_timestamps",
        least: 1,
        level: Level::Slow,
        why: "without them (RFC 7323) round trips are measured less often, and an address and \
              port in TIME_WAIT cannot be used again: pepd needs the client's own",
    },
    Expected {
        id: "tcp.syn-cookies",
        path: "net/ipv4/tcp_syncookies",
        least: 1,
        level: Level::Slow,
        why: "without them whoever floods a listener's queue with forged SYNs keeps everybody else \
              out; pepd hands the cookies' acknowledgements back to the listener",
    },
    Expected {
        id: "tcp.accept-queue",
        path: "net/core/somaxconn",
        least: 1024,
        level: Level::Slow,
        why: "a burst of new connections that finds a listener's queue full waits for the \
              client's second SYN, a second later; pepd asks for 4096",
    },
    Expected {
        id: "tcp.syn-queue",
        path: "net/ipv4/tcp_max_syn_backlog",
        least: 1024,
        level: Level::Note,
        why: "handshakes that are under way beyond it get SYN cookies, which keep neither DSCP \
              nor, without timestamps, window scaling and SACK",
    },
];

/// Judges what both legs share of the kernel's TCP.
pub fn judge(sysctls: &Sysctls, config: &Config) -> Vec<Finding> {
    EXPECTED
        .iter()
        .filter_map(|wanted| wanted.judge(sysctls))
        .chain(fast_open(sysctls, config))
        .chain(idle(sysctls))
        .collect()
}

impl Expected {
    fn judge(&self, sysctls: &Sysctls) -> Option<Finding> {
        let value = sysctls.number(self.path)?;
        let found = format!("{} is {value}", sysctl::name(self.path));
        Some(if value >= self.least {
            Finding::ok(self.id, found)
        } else {
            // The length of a queue may as well be greater.
            let cure = if self.least == 1 { 1 } else { 4096 };
            Finding::new(self.level, self.id, found)
                .because(self.why)
                .cure(sysctl::set(self.path, cure))
        })
    }
}

/// Judges Fast Open: bit 0 to send data in a SYN, bit 1 to take it.
fn fast_open(sysctls: &Sysctls, config: &Config) -> Option<Finding> {
    const ID: &str = "tcp.fast-open";
    const PATH: &str = "net/ipv4/tcp_fastopen";
    let legs: Vec<_> = config
        .legs
        .iter()
        .filter(|leg| leg.fast_open)
        .map(|leg| leg.name.as_str())
        .collect();
    if legs.is_empty() {
        return None;
    }
    let value = sysctls.number(PATH)?;
    let found = format!("{} is {value}", sysctl::name(PATH));
    Some(if value & 3 == 3 {
        Finding::ok(ID, found)
    } else {
        Finding::slow(ID, found)
            .because(format!(
                "leg {} asks for Fast Open both ways, which needs bits 1 and 2: without them \
                 each connection waits a round trip more",
                legs.join(", ")
            ))
            .cure(sysctl::set(PATH, value | 3))
    })
}

fn idle(sysctls: &Sysctls) -> Option<Finding> {
    const ID: &str = "tcp.idle";
    const PATH: &str = "net/ipv4/tcp_slow_start_after_idle";
    let found = |value| format!("{} is {value}", sysctl::name(PATH));
    match sysctls.number(PATH)? {
        0 => Some(Finding::ok(ID, found(0))),
        value => Some(
            Finding::note(ID, found(value))
                .because(
                    "a connection that paused for a retransmission timeout starts again with ten \
                     segments: over a long path each burst costs round trips",
                )
                .cure(sysctl::set(PATH, 0)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::doctor::fixture::{config, level};

    #[rstest]
    #[case("net/ipv4/tcp_window_scaling", "0", "tcp.window-scaling", Level::Slow)]
    #[case("net/ipv4/tcp_window_scaling", "1", "tcp.window-scaling", Level::Ok)]
    #[case("net/ipv4/tcp_sack", "0", "tcp.sack", Level::Slow)]
    #[case("net/ipv4/tcp_timestamps", "0", "tcp.timestamps", Level::Slow)]
    #[case("net/ipv4/tcp_timestamps", "2", "tcp.timestamps", Level::Ok)]
    #[case("net/core/somaxconn", "128", "tcp.accept-queue", Level::Slow)]
    #[case("net/core/somaxconn", "4096", "tcp.accept-queue", Level::Ok)]
    #[case("net/ipv4/tcp_max_syn_backlog", "512", "tcp.syn-queue", Level::Note)]
    #[case("net/ipv4/tcp_slow_start_after_idle", "1", "tcp.idle", Level::Note)]
    #[case("net/ipv4/tcp_slow_start_after_idle", "0", "tcp.idle", Level::Ok)]
    fn extensions(
        #[case] path: &str,
        #[case] value: &str,
        #[case] id: &str,
        #[case] expected: Level,
    ) {
        let findings = judge(&Sysctls::of(&[(path, value)]), &config(""));
        assert_eq!(level(&findings, id), Some(expected));
    }

    #[rstest]
    #[case(false, "0", None)]
    #[case(true, "0", Some((Level::Slow, Some("sysctl -w net.ipv4.tcp_fastopen=3"))))]
    #[case(true, "1", Some((Level::Slow, Some("sysctl -w net.ipv4.tcp_fastopen=3"))))]
    #[case(true, "1026", Some((Level::Slow, Some("sysctl -w net.ipv4.tcp_fastopen=1027"))))]
    #[case(true, "3", Some((Level::Ok, None)))]
    fn fast_open_if_a_leg_asks(
        #[case] asked: bool,
        #[case] value: &str,
        #[case] expected: Option<(Level, Option<&str>)>,
    ) {
        let mut config = config("");
        config.legs[0].fast_open = asked;
        let finding = fast_open(&Sysctls::of(&[("net/ipv4/tcp_fastopen", value)]), &config);
        let found = finding.as_ref().map(|f| (f.level, f.cure.as_deref()));
        assert_eq!(found, expected);
    }
}
